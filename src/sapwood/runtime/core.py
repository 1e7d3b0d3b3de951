"""A runtime: one device, and everything that is recorded on it, built and owned.

The integration that makes its arrays is loaded by name; nothing below knows of it.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from sapwood import knobs
from sapwood.allocator.caching.allocator import Allocator
from sapwood.allocator.caching.settings import Settings
from sapwood.driver.api import Abilities, Driver
from sapwood.driver.emulated import Emulated
from sapwood.driver.release import Release
from sapwood.driver.results import no_device
from sapwood.driver.streams import Stream
from sapwood.errors import MisuseError, NoDevice, StoreWarning
from sapwood.events import Closed, Event, Fallback, StoreTrouble
from sapwood.knobs import Knobs
from sapwood.memory.device import Device
from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import Array
from sapwood.tree.call.options import Options
from sapwood.tree.call.stats import Stats, Tally, stats_of
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.nests.containers import flatten
from sapwood.tree.watch import session
from sapwood.units import Size, size_text

_CUDA: Final = re.compile(r"cuda(?::([0-9]{1,4}))?")
_REMEDY: Final = 'Use device=None, "cuda:0" or "emulated"'
_said: set[str] = set()


def choose(
    device: str | Driver | None, settings: Knobs, emit: Callable[[Event], None]
) -> Driver:
    """Return the driver of a device; a name is opened, a `Driver` is returned.

    None is the first GPU, or else the emulated device, after a `Fallback` that says
    why. Raises `NoDevice` for a device that is not there, `MisuseError` for what is
    none.
    """
    name = (settings.device or None) if device is None else device
    if name is None:
        return _best(settings, emit)
    if name == "emulated":
        return _emulated(settings)
    if isinstance(name, str):
        found = _CUDA.fullmatch(name)
        if found is None:
            raise no_device("Runtime", f"there is no device {name!r}. {_REMEDY}")
        return _cuda(int(found[1] or 0))
    if not isinstance(getattr(name, "abilities", None), Abilities):
        raise MisuseError(f"device={name!r} is no device. {_REMEDY}, or a Driver")
    return name


def _best(settings: Knobs, emit: Callable[[Event], None]) -> Driver:
    from sapwood.driver.cuda.bindings import is_driver_here

    try:
        return _cuda(0)
    except NoDevice as error:
        reason = error.explanation
    emit(Fallback(reason))
    if is_driver_here() and reason not in _said:
        _said.add(reason)
        import logging

        logging.getLogger("sapwood").warning(
            "no CUDA device is used (%s); running on the emulated device, on the CPU",
            reason,
        )
    return _emulated(settings)


def _cuda(ordinal: int) -> Driver:
    from sapwood.driver.cuda import Cuda

    driver = Cuda(ordinal)
    # Asked last: without a GPU there is no need of it.
    if "torch" not in sys.modules and find_spec("cupy") is None:
        driver.close()
        raise no_device(
            "import cupy",
            f"{driver.abilities.name} is here, but CuPy, whose arrays run on it, is "
            "not installed: pip install cupy-cuda13x, or import torch before",
        )
    return driver


def _emulated(settings: Knobs) -> Driver:
    return Emulated(total=settings.emulated_memory, schedule=settings.emulated_schedule)


if TYPE_CHECKING:  # what a runtime needs for its first function, store or file
    from sapwood.persist.api import Store
    from sapwood.persist.entries import Entries
    from sapwood.runtime.files import Loaded
    from sapwood.runtime.graphed import GraphOptions
    from sapwood.tree.run.runner import Runner
    from sapwood.tree.run.source import Source


KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "cuda": ("torch", "cupy"),
    "emulated": ("numpy",),
}
"""Whose arrays may be on which kind of device: of several, those of the first that the
program has imported, or else the last's. `sapwood.integrations` has a module of each
name.
"""


class Runtime:
    """Records functions on one device and replays them.

    ``device``: None (the best there is), ``"cuda"``, ``"cuda:1"``, ``"emulated"``, or
    a `Driver`;
    ``store``: the path of a folder, or a `Store`, that is asked for recordings before
    they are made, and given them; ``memory_limit`` in bytes, or as text such as
    ``"512MiB"``, at least a page of the device; ``arrays`` whose arrays these are: on a
    GPU ``"torch"`` or ``"cupy"``; on the emulated device ``"numpy"``, with an API like
    NumPy's. By default they are torch's where the program has imported it, else
    CuPy's. Where it has both, functions whose first call has to do with the other one
    alone are on another runtime, with the same limit, which this one makes and closes.
    A context manager: leaving it closes the runtime. Raises `NoDevice` for a
    device that is not there, `MisuseError` for what is no device, store or limit, and
    arrays that are not on it.
    """

    def __init__(
        self,
        device: str | Driver | None = None,
        store: str | os.PathLike[str] | Store | None = None,
        memory_limit: int | str | None = None,
        arrays: str | None = None,
    ) -> None:
        settings = knobs.current()
        limit = knobs.limit("memory_limit", memory_limit) or settings.memory_limit
        heap = Settings.from_env()
        self._events = deque[Event](maxlen=settings.events)
        emit = self._events.append
        self._entries = _entries(store, settings, emit)
        self._process = os.getpid()
        self._driver = choose(device, settings, emit)
        owned = self._driver is not device
        try:
            self._integration = _integration(self._driver, arrays, limit)
        except MisuseError:
            if owned:
                self._driver.close()
            raise
        self._device = Device(
            self._driver,
            partial(Allocator, settings=heap),
            limit,
            framework=self._integration.framework(self._driver),
            owns_driver=owned,
        )
        self._recordings = Recordings(
            self._device,
            self._integration.integration(self._device),
            emit,
            timeline=settings.timeline,
            held_beyond=settings.held_beyond,
        )
        capture = getattr(self._integration, "capturer", None)
        if capture is not None:
            self._recordings.capturer = capturer = capture(self._device)
            from sapwood.tree.record.adopted import record_adopted

            self._recordings.recorder = partial(record_adopted, capturer=capturer)
        self._runners: weakref.WeakSet[Runner] = weakref.WeakSet()
        self._named = device, memory_limit, arrays
        self._other: Runtime | None = None
        self._source: Source | None = None
        if self._entries is not None:
            self._use(self._entries)

    def _use(self, entries: Entries) -> None:
        """Take recordings from a store; warn of one not used, or that takes nothing."""
        from sapwood.persist.disk import DiskStore
        from sapwood.persist.source import StoreSource

        reason = entries.store.trouble() if isinstance(entries.store, DiskStore) else ""
        entries.stopped = reason or ""
        abilities = self.abilities
        if abilities.exact_addresses:
            integration = self._recordings.integration
            self._source = StoreSource(entries, abilities, integration)
        else:  # recordings of a framework's own kernels hold no code to be kept
            reason = (
                f"recordings of {abilities.name} cannot be kept, as that "
                "cannot tell addresses from numbers. The emulated device can"
            )
        if reason:
            self._events.append(StoreTrouble(reason))
            try:
                said = f"the store is not used: {reason}"
                warnings.warn(said, StoreWarning, stacklevel=3)
            except StoreWarning:
                self.close()
                raise

    # Held here: at the end of the process modules go before some objects do.
    _is_finalizing = staticmethod(sys.is_finalizing)

    def __del__(self) -> None:
        # One that failed to be made has nothing; when the process ends, all goes.
        recordings = self.__dict__.get("_recordings")
        if recordings is None or self.closed or self._is_finalizing():
            return
        recordings.device.abandon(recordings.close)
        said = f"{self!r} was dropped. Call close(), or use `with sw.Runtime() as rt:`"
        warnings.warn(said, ResourceWarning, stacklevel=2, source=self)

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        limit = self._device.pages.limit
        limited = "" if limit is None else f", limit {size_text(limit)}"
        closed = ", closed" if self.closed else ""
        return f"<Runtime on {self._driver.abilities.name}{limited}{closed}>"

    # Functions.

    def graph(
        self, fn: Callable[..., Any] | None = None, **options: Unpack[GraphOptions]
    ) -> Any:
        """Return ``fn`` as a function whose calls are recorded and replayed.

        Without ``fn``, returns a decorator. The options are, by keyword:

        ``name``: what messages and reports call it; else the function's own name.
        ``donate``: parameters whose arrays a call may overwrite, and whose leases it
        ends, unless it returns them: a name, or several.
        ``pinned``: parameters whose arrays are always at the same address: likewise.
        ``max_variants``: how many recordings one signature may have; 4.
        ``max_recordings``: how many the function may have; 64.
        ``fullgraph``: True raises `CaptureError` where a call cannot be recorded; else
        it runs eagerly, with a `GraphSkipWarning`.
        ``verify``: n holds every n-th replay against an eager run, and 0, the default,
        none; functions with eager regions are left out, which would run twice.

        docs/graph.md says more of them. Raises `MisuseError` for a kind of function
        that cannot be graphed, and for wrong options.
        """
        self._open()
        from sapwood.runtime.graphed import graphed

        return graphed(lambda: self, fn, options)

    def beside(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Runtime | None:
        """Return the runtime of a function that is called first; for `Graphed` alone.

        It is another one where the call has to do with another framework's arrays
        alone, and nobody has named whose this one is for; None where that cannot be
        told of the call.
        """
        device, limit, named = self._named
        known = KINDS.get(self._driver.abilities.kind, ())
        others = {each for each in known if each in sys.modules} - {self.arrays}
        if named is not None or not (device is None or isinstance(device, str)):
            return self
        if not others:
            return self
        from sapwood.runtime.whose import frameworks_of

        found = frameworks_of(fn, args, kwargs, self._recordings.integration)
        if found is None or len(found) != 1 or not found <= others:
            return None if found is None else self
        with self._device.lock:
            self._open()
            if self._other is None:
                self._other = Runtime(device, None, limit, *found)
            return self._other

    def runner(
        self,
        target: Callable[[], Callable[..., Any]],
        options: Options,
        source: Source | None,
    ) -> Runner:
        """Return a runner for a graphed function; for `Graphed` alone."""
        from sapwood.tree.run.runner import Runner

        runner = Runner(target, options, self._recordings, source or self._source)
        self._runners.add(runner)
        return runner

    def load(self, path: str | os.PathLike[str], *, nested: bool = True) -> Loaded:
        """Return the function in a file that `sapwood.save` wrote.

        It is called like the one that was saved, and replays its recordings. Without
        ``nested`` it takes its leaves one by one, and returns a list of leaves.
        Raises `StoreError` where the file cannot be read, is damaged, or was saved
        on another kind of device.
        """
        self._open()
        from sapwood.runtime.files import load_from

        return load_from(path, self, self._recordings, nested=nested)

    @contextmanager
    def step(self, keep: Any = ()) -> Iterator[None]:
        """Mark an iteration: on entry, outputs of earlier calls end.

        Those in ``keep``, any nest of arrays, are excepted. Using one that has ended
        raises `StaleOutput`. Where that cannot be trapped, as with CuPy's arrays, none
        ends before it is dropped.
        """
        self._open()
        integration = self._recordings.integration
        leaves, nest = flatten(keep, integration.is_array)
        arrays = [leaf for leaf in leaves if integration.is_array(leaf)]
        if nest is None and keep is not None and not arrays:
            raise MisuseError(
                f"keep={keep!r} is neither an array nor a nest of arrays. Pass the "
                "arrays themselves, in a list, tuple or dict"
            )
        kept: set[Storage] = {integration.look(each).storage for each in arrays}
        with self._device.lock:
            self._recordings.begin_steps()
            self._device.returns.drain()
            if self._device.framework.traps:
                self._recordings.leases.revoke("a later step() began", kept)
        with nullcontext() if self._other is None else self._other.step():
            yield

    # Arrays, streams, generators.

    def array(self, host: Any) -> Array:
        """Return a device array with the contents of a host array."""
        self._open()
        return self._integration.array_from_host(self._device, host)

    def generator(self, seed: int) -> Any:
        """Return a random generator whose state lives in device memory."""
        self._open()
        return self._integration.make_generator(self._device, seed)

    def stream(self) -> Stream:
        """Return a new stream; ``with stream:`` makes it current."""
        self._open()
        return self._device.new_stream()

    def synchronize(self) -> None:
        """Wait for all work of the device; what nobody holds is given back."""
        self._open()
        _refuse_inside("synchronize() waits on the host, which no replay would")
        self._driver.synchronize()
        with self._device.lock:
            self._device.returns.drain()

    def sleep(self) -> int:
        """Give the memory of all recordings back until one of them is called again.

        Their addresses and graphs stay: the next call of one, or `wake`, has the memory
        of all mapped, and nothing is recorded anew. What lies beside an output that is
        held, or is looked at in another way, stays as well; arrays that are no outputs
        are their owners'. Waits for work that is under way. Returns how many bytes the
        device has more.
        """
        self._open()
        _refuse_inside("sleep() waits on the host, which no replay would")
        self._driver.synchronize()  # before others have to wait for the lock
        with self._device.lock:
            self._device.returns.drain()
            gone = int(self._recordings.sleep()) + int(self._device.heap.trim())
        return gone + (0 if self._other is None else self._other.sleep())

    def wake(self) -> None:
        """Have the memory again that `sleep` gave back, before a call asks for it.

        Raises `OutOfMemory` where there is too little by now, and then sleeps on; a
        call runs eagerly in that case.
        """
        self._open()
        with self._device.lock:
            self._device.returns.drain()
            self._device.pages.wake()
        if self._other is not None:
            self._other.wake()

    # What happened, and who holds what.

    def stats(self) -> Stats:
        """Return the sum of the statistics of all functions that are alive."""
        total, skipped = Tally(), Tally()
        with self._device.lock:
            self._recordings.settle()
        others = () if self._other is None else self._other.runners()
        for runner in (*self._runners, *others):
            total.update(runner.call_log.tally)
            skipped.update(runner.skips.counts)
        return stats_of(total, skipped)

    def runners(self) -> list[Runner]:
        """Return what runs the functions that are alive; for another runtime alone."""
        return list(self._runners)

    def events(self) -> tuple[Event, ...]:
        """Return the last events, oldest first."""
        # A copy, made in one go: other threads may add to it meanwhile.
        return tuple(self._events.copy())

    def memory_stats(self) -> dict[str, int]:
        """Return counts of pages, ranges and bytes.

        ``pages.mapped`` are the physical pages of all recordings, ``pages.scratch``
        and ``pages.output`` its parts, while they do not `sleep`; ``pages.live`` hold
        outputs that are held;
        ``ranges.pages`` sums the pages of all ranges, sharing not counted;
        ``heap.pages`` and ``heap.bytes`` are those of eager arrays; ``limit`` in
        bytes, 0 if there is none.
        """
        device = self._device
        with device.lock:
            device.returns.drain()
            ranges = self._recordings.ranges()
            return {
                "heap.bytes": device.heap.used(),
                "heap.pages": device.pages.heap,
                "limit": device.pages.limit or 0,
                "page.bytes": device.pages.page,
                "pages.live": device.pages.live.bit_count(),
                "pages.mapped": device.pages.mapped(),
                "pages.output": device.pages.mapped(scratch=False),
                "pages.scratch": device.pages.mapped(scratch=True),
                "ranges": len(ranges),
                "ranges.pages": sum(r.size() for r in ranges),
            }

    def snapshot(self) -> dict[str, Any]:
        """Return what happened and who holds what, as plain JSON-able data.

        docs/snapshot.md describes it; `report` draws it.
        """
        from sapwood.runtime.snapshot import picture, store_picture

        memory = self.memory_stats()
        runners = sorted(self._runners, key=lambda runner: runner.call_log.number)
        with self._device.lock:
            found = picture(self._recordings, runners, memory, self.events())
        if self._entries is not None:
            found["store"] = store_picture(self._entries)
        return found

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write one HTML page that shows a `snapshot`; it needs no network.

        Raises `MisuseError` where it cannot be written.
        """
        importlib.import_module("sapwood.view").report(self.snapshot(), path)

    def memory_snapshot(self) -> dict[str, Any]:
        """Return who holds which addresses and pages, as plain JSON-able data."""
        with self._device.lock:
            self._device.returns.drain()
            return self._recordings.snapshot()

    @property
    def abilities(self) -> Abilities:
        """What the device is and can do."""
        return self._driver.abilities

    # The end.

    @property
    def arrays(self) -> str:
        """Whose arrays functions are of: ``"torch"``, ``"cupy"`` or ``"numpy"``."""
        return str(self._integration.__name__).rpartition(".")[2]

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._device.closed

    def close(self) -> None:
        """Evict all recordings and give memory back.

        Outputs that are still held stay readable, and take their pages along when
        they go. Closing twice does nothing, nor does it in a forked child, which has
        nothing of the device's.
        """
        device = self._device
        if os.getpid() != self._process:
            return
        with device.lock, Release() as release:
            if device.closed:
                return
            if self._other is not None:
                release(self._other.close)
            release(device.returns.drain)
            recordings = len(self._recordings.nodes)
            release(self._recordings.close)
            self._events.append(Closed(recordings, len(self._recordings.leases)))
            release(device.close)

    def _open(self) -> None:
        self._device.check_open("this runtime")


def _refuse_inside(what: str) -> None:
    """Refuse a recording where a function that is graphed does this."""
    watching = session.current()
    if watching is not None:
        watching.refuse(what, "Do it before or after the graphed function")


def _integration(driver: Driver, arrays: str | None, limit: Size | None) -> Any:
    """Return the module that knows a driver's arrays.

    It has ``framework(driver)``, ``integration(device)``, ``array_from_host(device,
    host)``, ``make_generator(device, seed)``, and maybe ``capturer(device)``. Raises
    `MisuseError` for arrays that are not on it, and for less than a page.
    """
    abilities = driver.abilities
    if limit is not None and limit < abilities.page:
        raise MisuseError(
            f"memory_limit={limit} is less than a page, in which {abilities.name} "
            f"gives memory. Set {size_text(abilities.page)} or more, or leave it out "
            "for no limit"
        )
    known = KINDS.get(abilities.kind, ())
    if not known:
        raise MisuseError(
            f"no arrays are known for {abilities.name}, a device of kind "
            f'{abilities.kind}. Use device="emulated"'
        )
    if arrays is None:
        arrays = next((name for name in known if name in sys.modules), known[-1])
    if arrays not in known:
        raise MisuseError(
            f"arrays={arrays!r} are not on {abilities.name}. Use "
            f"{' or '.join(map(repr, known))}"
        )
    return importlib.import_module(f"sapwood.integrations.{arrays}")


def _entries(
    store: str | os.PathLike[str] | Store | None,
    settings: Knobs,
    emit: Callable[[Event], None],
) -> Entries | None:
    if isinstance(store, (str, os.PathLike)):
        settings = replace(settings, store=os.fspath(store))
    if store is None or isinstance(store, (str, os.PathLike)):
        store = settings.store
        if not store:
            return None
    from sapwood.persist.disk import opened
    from sapwood.persist.entries import Entries

    found = opened(store, settings.store_limit)
    return Entries(found, lambda reason: emit(StoreTrouble(reason)))
