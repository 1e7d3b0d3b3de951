"""Torch's current stream and the device's: one and the same, as guests have it."""

from __future__ import annotations

import functools
import importlib
import operator
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, Final

import torch

from sapwood.driver.api import CaptureStatus, Driver
from sapwood.driver.streams import Queue, Stream
from sapwood.errors import MisuseError
from sapwood.integrations.torch.asking import (
    SEEDED,
    capturing,
    generator_of,
    kept_generators,
    place_in,
)
from sapwood.integrations.torch.layout import Layout, spent
from sapwood.integrations.torch.modes import Prevailing, is_told_of_operations
from sapwood.integrations.torch.moments import Moments
from sapwood.integrations.torch.storages import TRAPS, Storages, tensor_over
from sapwood.integrations.torch.watching import Watcher
from sapwood.memory.framework import Allocate, GuestFramework, GuestStream, Manner
from sapwood.tree.watch import session
from sapwood.tree.watch.session import Session, raising_line
from sapwood.units import Addr, Size

_CAPTURE = (
    "Call it outside the graphed function, or once before, so that what it prepares "
    "is there; or in a function marked with @sw.eager"
)


_ASIDE: Final[dict[torch.device, int]] = {}
"""The streams of all captures, on each GPU.

Torch has 32 streams of its own, and gives them out in turn: a user may have any of
them, and wait for it while a capture is in progress. These last as long as the process,
for autograd and torch's allocator remember the streams that they have met.
"""

_BEFORE = "previous error during capture"
_WITHIN = "during CUDA graph capture", "during stream capture"


class _Thread(threading.local):
    """A thread: whether it was ``primed``, and ``met``; who watches it ``within`` whom.

    Each with how things were before: with the stream that was current, if it was not a
    capture's, whether autocast was on, and what CuPy did then, if it is there.
    """

    primed = met = False

    def __init__(self) -> None:
        self.within: list[tuple[Watcher, Any, bool, Any]] = []


def _guest() -> Any:
    """Return what watches CuPy on this thread; None where no program has it."""
    if not hasattr(sys.modules.get("cupy"), "ndarray"):  # or it is being imported
        return None
    return importlib.import_module("sapwood.integrations.cupy.guest").Guest()


_clone: Any = torch.clone


def _is_dense(layout: Layout) -> bool:
    """Return whether a clone has the strides that a tensor has."""
    like = torch.empty_strided(layout.shape, layout.strides, device="meta")
    return bool(torch.empty_like(like).stride() == layout.strides)


def _set_data(tensor: Any, data: Any) -> None:
    tensor.data = data


def _in_inference(make: Callable[[], Any]) -> Any:
    with torch.inference_mode():
        return make()


def _cloned(tensor: Any, room: Callable[[], bool]) -> Any:
    """Return a clone; where there is no memory, some is made."""
    while True:
        try:
            return _clone(tensor)
        except torch.OutOfMemoryError:
            if not room():
                raise


class TorchFramework(GuestFramework):
    """Torch's tensors on one GPU; ``storages`` are those of its adapter.

    ``turn`` is had by whoever uses the stream aside; ``went_back`` says whether the
    function that was watched last ran backward through autograd's graph; ``moments``
    are told of the operations of the capture in progress, and ``bring`` brings what
    that has of the host. Torch itself refuses tensors over bytes that are stale.
    """

    traps = TRAPS

    def __init__(self, place: torch.device) -> None:
        super().__init__()
        self.place = place
        self.storages: Storages | None = None
        self.bring: Callable[[Session, Any], Any] | None = None
        self.went_back = False
        self.moments: Moments | None = None
        self.turn = threading.RLock()
        self._thread = _Thread()
        self._opened: tuple[Driver, Queue] | None = None
        self._aside: GuestStream | None = None

    def copier(
        self, layout: Layout, address: Addr, size: Size, room: Callable[[], bool]
    ) -> Callable[[], Any] | None:
        """Return what makes clones of a plain, dense tensor that is first in its bytes.

        They are torch's own, in memory of its pool. Bytes behind it nobody else has:
        of a sum, torch returns the first place of all that it has added up.
        """
        count = functools.reduce(operator.mul, layout.shape, 1)
        if not count or layout.is_special or not _is_dense(layout):
            return None
        theirs = torch._C._construct_storage_from_data_pointer(
            address, self.place, size
        )
        clone = partial(_cloned, tensor_over(*layout[:3], theirs), room)
        if layout.is_spent:
            return lambda: spent(clone().requires_grad_())
        return partial(_in_inference, clone) if layout.is_inference else clone

    def forms(self, arrays: Sequence[Any]) -> list[Callable[[Any], object]]:
        """Return what gives a tensor the shape, strides and storage of these."""
        return [partial(_set_data, data=each.data) for each in arrays]

    def default(self, driver: Driver, dropped: Queue) -> Stream:
        """Return torch's default stream."""
        theirs = torch.cuda.default_stream(self.place)
        self._opened = driver, dropped
        stream = self.adopt(theirs.cuda_stream, "default", driver, dropped)
        stream.theirs = theirs
        return stream

    def aside(self) -> GuestStream:
        """Return the stream of all warm-ups and captures.

        Autograd remembers on which stream a parameter was first used, and a capture
        may have to do with no other.
        """
        if self._aside is None:
            driver, dropped = self._open()
            if self.place not in _ASIDE:
                made = driver.raw_stream(driver.create_stream(lasting=True))
                _ASIDE.setdefault(self.place, made)
            self._aside = self.adopt(_ASIDE[self.place], "capture", driver, dropped)
        return self._aside

    def _open(self) -> tuple[Driver, Queue]:
        """Return what `default` was given."""
        if self._opened is None:
            raise MisuseError("torch has no stream here: make a new runtime")
        return self._opened

    def lasting(self, driver: Driver, dropped: Queue) -> Stream:
        """Return a stream of torch's, which may have been given out before.

        Torch never forgets a stream that it has allocated for, and waits for all of
        them when it gives memory back.
        """
        raw = torch.cuda.Stream(self.place).cuda_stream
        return self.known(raw) or self.adopt_current(raw, driver, dropped)

    def raw(self) -> int:
        """Return the number of torch's current stream."""
        if not self._thread.met:
            self._meet()
        raw: int = torch._C._cuda_getCurrentRawStream(self.place.index)
        return raw

    def _meet(self) -> None:
        """Have this thread be as after any work of torch's: with a current context.

        Otherwise torch would warn where it calls cuBLAS first of all.
        """
        self._thread.met = True
        device = torch._C._cuda_getDevice()
        if device == self.place.index:
            torch._C._cuda_setDevice(device)

    def theirs(self, stream: GuestStream) -> Any:
        """Return torch's stream over one of ours."""
        if stream.theirs is None:
            raw = stream.driver.raw_stream(stream.handle)
            stream.theirs = torch.cuda.ExternalStream(raw, device=self.place)
        return stream.theirs

    def inside(self, stream: GuestStream) -> tuple[int, AbstractContextManager[Any]]:
        """Return a stream's number, and torch's context of the stream over it."""
        theirs = self.theirs(stream)
        return theirs.cuda_stream, torch.cuda.stream(theirs)

    def adopt_current(self, raw: int, driver: Driver, dropped: Queue) -> Stream:
        """Return torch's current stream."""
        # Torch's own streams are of a pool that it never gives back.
        stream = self.adopt(raw, f"torch's {raw:#x}", driver, dropped)
        now = torch.cuda.current_stream(self.place)
        if now.cuda_stream == raw:
            # To torch, another one over the same handle is another stream.
            stream.theirs = now
        return stream

    def stream_of(self, theirs: Any) -> Stream:
        """Return the stream that one of torch's is, whether it was used before or not.

        Raises `MisuseError` for a stream of another device.
        """
        opened = self._open()
        if theirs.device != self.place:
            raise MisuseError(
                f"a tensor on {self.place} cannot be recorded on a stream of "
                f"{theirs.device}, which no replay could wait for. Have a stream of "
                f"{self.place} wait for that work, and record the tensor on it"
            )
        raw = torch.cuda.Stream(
            stream_id=theirs.stream_id,
            device_index=theirs.device_index,
            device_type=theirs.device_type,
        ).cuda_stream
        return self.known(raw) or self.adopt_current(raw, *opened)

    def trim(self) -> Size:
        """Have torch give back what it keeps; not while this thread captures."""
        if capturing():
            return Size(0)
        before = torch.cuda.memory_reserved(self.place)
        torch.cuda.empty_cache()
        return Size(before - torch.cuda.memory_reserved(self.place))

    def included(self) -> bool:
        """Return whether others capture the current stream, or have modes of torch.

        Or hooks for what is saved for backward, who count that: see checkpoints.
        """
        hooked = torch.is_grad_enabled() and _hooks(True) is not None
        return hooked or capturing() or is_told_of_operations()

    def chance(self) -> Callable[[], object]:
        """Return what sets the device's generators to where they are now."""
        return kept_generators(self.place)

    def chance_on_host(self) -> Callable[[], object]:
        """Return what sets the host's default generator to where it is now."""
        drawn = torch.default_generator
        return partial(drawn.set_state, drawn.get_state())

    def close(self) -> None:
        """Let go of all streams."""
        super().close()
        self._aside = self._opened = self.bring = None

    @contextmanager
    def watched(self, allocate: Allocate) -> Iterator[None]:
        """Tell the session in progress what torch does, and refuse what it must."""
        del allocate
        watching = session.current()
        if watching is None or self.storages is None:
            yield
            return
        # What a capture allocates is the range's, and known.
        counts = not capturing()
        before = self._allocated() if counts else 0
        drawn = place_in(generator_of(self.place)) if counts else None
        count = None if counts else self._counter()
        bring = None if counts else self.bring
        watcher = Watcher(watching, self.storages, count, self.moments, bring)
        around = None if count else torch.cuda.current_stream(self.place)
        guest = _guest()
        within = watcher, around, torch.is_autocast_enabled("cuda"), guest
        self._thread.within.append(within)
        try:
            # On the stream aside, or else where work is captured.
            where = self.gather if counts else nullcontext
            with self.turn, where(), _own_casts(), watcher, ExitStack() as more:
                if guest is not None:
                    more.enter_context(guest.watched(self.raw(), watching))
                yield
                if drawn is not None and not watching.breaks:
                    self._check_drawn(watching, drawn)
        except RuntimeError as error:
            refused = not counts and any(each in str(error) for each in _WITHIN)
            if watching.unrecordable is None and (
                refused or self._status() is CaptureStatus.INVALIDATED
            ):
                _told(watching, error)
            raise
        finally:
            self._thread.within.remove(within)
            self.went_back = watcher.went_back
            if around is not None:
                self._share(watching, around)
                watching.room = Size(self._allocated() - before)

    def _share(self, watching: Session, around: Any) -> None:
        """Have memory last until both streams of a warm-up are done with it.

        Autograd goes back through it on the stream aside, through what is behind it on
        the other, and lets go of what is saved while kernels that use it are waiting.
        """
        if self.storages is None or self._opened is None:
            return
        self.storages.share(watching.made, around)
        if torch.is_grad_enabled():
            others = (each for each in watching.used if each not in watching.made)
            self.storages.share(others, self.theirs(self.aside()))

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Be told nothing meanwhile, and let others warm up and capture."""
        if not self._thread.within:
            yield
            return
        watcher, around, casts, guest = self._thread.within[-1]
        if around is None:
            self._check_apart(watcher.session)
        # What the function itself enters autocast for is as in its own run.
        with (
            watcher.resting(),
            _own_casts() if casts else nullcontext(),
            guest.resting() if guest else nullcontext(),
        ):
            self.turn.release()
            try:
                with nullcontext() if around is None else self._back(around):
                    yield
            finally:
                self.turn.acquire()
                if around is None and self._status() is CaptureStatus.ACTIVE:
                    watcher.go_on(self._counter(), self.moments)

    def _check_apart(self, watching: Session) -> None:
        """Refuse an eager region inside a stream of torch's that the capture went to.

        What comes behind it would run there, and would not be captured.
        """
        now = self.known(self.raw())
        if now is None or now.fork is None:
            watching.refuse(
                "an eager region is called inside another stream than the call's",
                "Leave `with torch.cuda.stream(...)` before, and enter it again behind",
            )

    @contextmanager
    def _back(self, around: Any) -> Iterator[None]:
        """Have the stream that was current before a warm-up be so again meanwhile."""
        self.rejoin()
        try:
            with torch.cuda.stream(around):
                yield
        finally:
            self.gather()

    def manner(self) -> Manner:
        """Return what makes contexts in the modes that this thread is in."""
        return Prevailing()

    def _counter(self) -> Callable[[], int]:
        """Return what tells how much the capture in progress has by now."""
        aside = self.aside()
        return aside.driver.counter(aside.handle)

    def gather(self) -> Stream:
        """Return the stream aside, which now comes after all others.

        What torch has from that stream may have been used on any of them.
        """
        aside = self.aside()
        for other in self._others():
            aside.wait(other)
        return aside

    def rejoin(self) -> None:
        """Have all streams come after the stream aside."""
        aside = self.aside()
        for other in self._others():
            other.wait(aside)

    def _others(self) -> list[Stream]:
        # References, at once: other threads come to be inside of streams meanwhile.
        made = [each for ref in self.made.valuerefs() if (each := ref()) is not None]
        streams = [*list(self.adopted.values()), *made]
        return [each for each in streams if each is not self._aside and not each.ended]

    def _status(self) -> CaptureStatus:
        aside = self.aside()
        return aside.driver.capture_status(aside.handle)

    def prime(self) -> None:
        """Have torch make what it needs once for each thread, and cannot in a capture.

        Those are the handles of cuBLAS and cuDNN; that of the latter takes 50 ms.
        """
        if self._thread.primed:
            return
        with torch.no_grad(), torch.autocast("cuda", enabled=False):
            # A thread that has not used the device has no context for a handle yet.
            image = torch.zeros(1, 1, 4, 4, device=self.place)
            torch.cuda.current_blas_handle()
            if torch.backends.cudnn.is_available():
                torch.nn.functional.conv2d(image, image)
        self._thread.primed = True

    def _check_drawn(self, watching: Session, before: tuple[int, int]) -> None:
        """Refuse what has set the generator, and not only drawn from it."""
        seed, offset = place_in(generator_of(self.place))
        if seed != before[0] or offset < before[1]:
            watching.refuse(*SEEDED)

    def _allocated(self) -> int:
        """Return the bytes that were ever allocated."""
        found = torch.cuda.memory_stats_as_nested_dict(self.place)
        count: int = found["allocated_bytes"]["all"]["allocated"] if found else 0
        return count


_hooks: Final[Any] = torch._C._autograd._top_saved_tensors_default_hooks


@contextmanager
def _own_casts() -> Iterator[None]:
    """Have autocast keep no casts beyond what runs in this, nor use earlier ones in it.

    Within, it does: a weight that is used twice is cast once, and gradients of both
    uses are added up in the lower precision.
    """
    _forget_casts()
    try:
        yield
    finally:
        _forget_casts()


def _forget_casts() -> None:
    if torch.is_autocast_enabled("cuda"):
        torch.clear_autocast_cache()


def _told(watching: Session, error: RuntimeError) -> None:
    """Tell the session of the error by which the function has spoilt its capture."""
    first = str(error).partition("\n")[0]
    # Where somebody else has, before, it is not the function's.
    if _BEFORE not in first:
        watching.refuse(f"torch says: {first}", _CAPTURE, raising_line(error))
