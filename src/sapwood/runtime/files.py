"""Functions in files: saved with their arrays, called without their source."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from sapwood.errors import MisuseError, SapwoodError, StoreError, of_file
from sapwood.graphs.whole import replace_file
from sapwood.persist.archive import Archive, SlotBinding
from sapwood.persist.bundle import Bundle, Saved, device_text, pack, unpack
from sapwood.persist.format import MAGIC, join, split
from sapwood.persist.restore import restore
from sapwood.runtime.graphed import Bound, Graphed
from sapwood.tree.call.integration import Array
from sapwood.tree.call.options import Options
from sapwood.tree.call.signature import Call, describe
from sapwood.tree.choose.origins import signature_text
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.guards import Survey
from sapwood.tree.record.recorder import Recorded
from sapwood.tree.run.source import Link

if TYPE_CHECKING:
    from sapwood.runtime.core import Runtime


def save(function: Graphed | Bound, path: str | os.PathLike[str]) -> None:
    """Write all recordings of a graphed function, and its arrays, to a file.

    The arrays are those that it reads besides its arguments, and the arguments that
    are found at a fixed address. What is at ``path`` is replaced as a whole, at the
    end. Raises `StoreError` where nothing is recorded yet, where a recording cannot
    be saved, or where the file cannot be written.
    """
    if not isinstance(function, Graphed | Bound):
        raise MisuseError(
            f"{function!r} is not a graphed function: save what sapwood.graph returned"
        )
    runner = function.runner()
    if runner.recordings.device.closed:
        raise MisuseError(
            f"the runtime of {runner.options.name} is closed, and its recordings are "
            "gone. Save before close()"
        )
    with runner.recordings.device.lock:
        sections = pack(runner.options.name, runner.cache, runner.recordings)
    try:
        replace_file(Path(path), join(sections))
    except OSError as error:
        # Not as it shows itself: that names a file which nobody asked for.
        why = error.strerror or str(error)
        raise StoreError(f"{os.fspath(path)} cannot be written: {why}") from error


def read(path: str | os.PathLike[str]) -> dict[str, bytes]:
    """Return the sections of a file that `save` wrote.

    Raises `StoreError` where it cannot be read, or is damaged.
    """
    try:
        with of_file(os.fspath(path)), Path(path).open("rb") as file:
            head = file.read(len(MAGIC))  # of what is not ours, nothing more is read
            return split(head + file.read() if head == MAGIC else head)
    except OSError as error:
        why = error.strerror or str(error)
        raise StoreError(f"{os.fspath(path)} cannot be read: {why}") from error


def load_from(
    path: str | os.PathLike[str],
    runtime: Runtime,
    recordings: Recordings,
    *,
    nested: bool,
) -> Loaded:
    """Return the function in a file, on a runtime; for `Runtime` alone."""
    sections = read(path)
    with of_file(os.fspath(path)):
        bundle = unpack(sections, recordings.integration, nested=nested)
    device = recordings.device
    here = device_text(device.driver.abilities)
    if bundle.device != here:
        raise StoreError(
            f"{os.fspath(path)} was saved on another kind of device ({bundle.device}), "
            f"and this one is {here}. Save it again on such a device"
        )
    with device.lock:
        arrays = bundle.arrays(device, recordings.integration)
    return Loaded(bundle, os.fspath(path), arrays, runtime, nested=nested)


class Loaded(Graphed):
    """A function from a file: it replays its recordings, and has no other.

    ``arguments`` are the saved contents of the arguments that were at a fixed
    address, by name, as new arrays; ``state`` those of what the function read besides.
    """

    def __init__(
        self,
        bundle: Bundle,
        path: str,
        arrays: tuple[dict[str, Array], dict[str, Array]],
        runtime: Runtime,
        *,
        nested: bool,
    ) -> None:
        self.bundle, (self.arguments, self.state) = bundle, arrays
        target = _target(bundle, path, self.state)
        super().__init__(target, Options(name=bundle.name), lambda: runtime)
        recordings = [
            replace(saved, archive=_moved(saved.archive, target))
            for saved in bundle.recordings
        ]
        self._source = self._file = _File(recordings, nested=nested)
        _loaded[id(self.state)] = self

    def unfit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """Return why a recording for such arguments is not taken up; None: none is."""
        runner = self._runner
        if runner is None:
            return None
        try:
            call = describe(args, kwargs, runner.recordings.integration)
        except (TypeError, SapwoodError) as error:
            raise MisuseError(f"{self._options.name} was loaded, and {error}") from None
        return self._file.unfit(call)

    def __repr__(self) -> str:
        return f"<loaded {self._options.name}>"


def _target(bundle: Bundle, path: str, state: dict[str, Array]) -> Callable[..., Any]:
    def saved(*args: Any, **kwargs: Any) -> Any:
        raise MisuseError(_refusal(bundle, path, _unfit(state, args, kwargs)))

    saved.__name__ = saved.__qualname__ = bundle.name
    return saved


_loaded: WeakValueDictionary[int, Loaded] = WeakValueDictionary()
"""By the identity of the state: what is loaded is not itself what a target reads."""


def _unfit(
    state: dict[str, Array], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str | None:
    loaded = _loaded.get(id(state))
    return None if loaded is None else loaded.unfit(args, kwargs)


def _refusal(bundle: Bundle, path: str, unfit: str | None) -> str:
    if unfit is not None:
        return (
            f"{bundle.name} was loaded from {path}, whose recording for such arguments "
            f"is not taken up: {unfit}. Record the function itself here, and save it "
            "again"
        )
    known = dict.fromkeys(", ".join(each.texts) for each in bundle.recordings)
    return (
        f"{bundle.name} was loaded from {path}, which has no recording for such "
        f"arguments. It has recordings for: {'; '.join(known)}. Call it with those, or "
        "record the function itself with others and save it again"
    )


def _moved(archive: Archive, target: Callable[..., Any]) -> Archive:
    """Return an archive whose ambient arrays and bound slots are in the state."""
    cell = target.__code__.co_freevars.index("state")

    def moved(binding: SlotBinding) -> SlotBinding:
        steps = (("cells", cell), ("dict", binding.path))
        return replace(binding, start=target.__name__, steps=steps)

    return replace(
        archive,
        ambient=tuple(map(moved, archive.ambient)),
        bindings=tuple(map(moved, archive.bindings)),
    )


class _File:
    """The recordings of a file, as a source."""

    def __init__(self, recordings: Sequence[Saved], *, nested: bool) -> None:
        self._nested = nested
        self._unfit: dict[bytes, str] = {}
        """Why what was found for a call did not fit, when it was last tried."""
        self._by_signature = {
            self._name(saved.signature): saved.archive for saved in recordings
        }

    def _name(self, signature: bytes) -> bytes:
        if self._nested:
            return signature
        # Without the nest around the leaves, which is the first of three.
        return json.dumps(json.loads(signature)[1:]).encode()

    def _found(self, call: Call) -> bytes | None:
        signature = signature_text(call, None)
        found = None if signature is None else self._name(signature)
        return found if found in self._by_signature else None

    def find(self, _: str, call: Call, __: Survey) -> Link | str:
        found = self._found(call)
        if found is None:
            return "the file has no recording for such arguments"
        return partial(self._restored, found)

    def _restored(self, found: bytes, *call: Any) -> Recorded | str:
        made = restore(self._by_signature[found], *call)
        if isinstance(made, str):
            self._unfit[found] = made
        return made

    def unfit(self, call: Call) -> str | None:
        """Return why what is found for a call did not fit; None: nothing is found."""
        found = self._found(call)
        if found is None:
            return None
        return self._unfit.get(found, "it is not replayed here")

    def keep(self, *_: object) -> None:
        """Keep nothing: a file is as it was saved."""
