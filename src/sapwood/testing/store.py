"""A state machine of the store: puts, finds, damage, deaths and other processes.

`Puts` runs two handles on one folder, as two processes would have them, and knows of
every key what may be found under it. Needs Hypothesis.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sapwood.errors import InternalError, StoreError
from sapwood.store import Absent, DiskStore, Entries, Key, verify
from sapwood.store.evict import YOUNG
from sapwood.store.files import Files
from sapwood.store.folder import KEPT_DAMAGED
from sapwood.store.frame import frame_size, seal
from sapwood.store.manifest import BLOB, blob_name, entry_name
from sapwood.testing.lossy import Crashed, Lossy

__all__ = ["Known", "Puts"]

_NOTES: Final = ("note-0", "note-1", "note-2")
_IMAGES: Final = tuple(bytes([65 + i]) * (200 + 100 * i) for i in range(2))
"""Contents that entries share."""
_SHAPES: Final = (b"8", b"16", b"64")
_KEYS: Final = 2 * len(_SHAPES)

_TIGHT: Final = 3_500
_ROOMY: Final = 1 << 20
_ONE: Final = 1_200
"""No file is larger."""

_keys = st.lists(st.integers(0, _KEYS - 1), min_size=1, max_size=4, unique=True)
_key = st.integers(0, _KEYS - 1)
_note = st.sampled_from(_NOTES)
_image = st.integers(0, len(_IMAGES) - 1)
_handle = st.integers(0, 1)
_after = st.integers(0, 20)
"""Changes to files: a put makes a few in each of its files."""


def key_of(number: int) -> Key:
    """Return a key that differs from others in one component."""
    function, shape = divmod(number, len(_SHAPES))
    return Key((("function", b"fg"[function:][:1]), ("shape", _SHAPES[shape])))


@dataclass(slots=True)
class Known:
    """What may be found under one name: one of ``values``, or nothing if ``lost``.

    Its last use lies between ``since`` and ``until``.
    """

    values: list[Any]
    lost: bool = False
    since: int = 0
    until: int = 0


class Puts(RuleBasedStateMachine):
    """Everything that may happen to a store in a folder, and to the folder.

    Subclass it and set ``opened`` to test another store in its place: it is given a
    path, a limit, whether to read only, and the files to use. Raises `InternalError`
    for a broken law.
    """

    opened: Callable[[str, int, bool, Files], DiskStore] = staticmethod(
        lambda path, limit, read_only, files: DiskStore(
            path, limit, read_only, files=files
        )
    )
    steps: int = 0
    """How many steps all machines of this class have taken."""
    caught: int | None = None
    """How many those were when a law was first broken."""

    @initialize(limit=st.sampled_from([_TIGHT, _ROOMY]))
    def begin(self, limit: int) -> None:
        """Open a folder that is not there, twice."""
        self.outside = sys.exception()
        self.path = Path(tempfile.mkdtemp(prefix="sapwood-"))
        self.limit = limit
        self.clock = self.written = 0
        self.known: dict[str, Known] = {}
        self.harmed: set[str] = set()
        self.files = [Lossy(), Lossy()]
        self.entries = [self._open(files) for files in self.files]

    def _open(self, files: Files, *, read_only: bool = False) -> Entries:
        where = str(self.path / "store")
        return Entries(type(self).opened(where, self.limit, read_only, files))

    # What programs do.

    @rule(handle=_handle, keys=_keys, image=_image, most=st.sampled_from([7, 1 << 30]))
    def put(self, handle: int, keys: list[int], image: int, most: int) -> None:
        """Put entries that share a part with others, in small writes or large."""
        self.files[handle].most = most
        for number, key in enumerate(keys):
            parts = self._parts(image + number)
            since = self._tick()
            self._put(handle, key, parts)
            self._know(_entry(key), parts, since)

    @rule(handle=_handle, keys=_keys)
    def find(self, handle: int, keys: list[int]) -> None:
        """Find what was put, whole, or nothing."""
        for key in keys:
            self._find(handle, key)

    def _find(self, handle: int, key: int) -> None:
        since = self._tick()
        found = self.entries[handle].find(key_of(key))
        if isinstance(found, Absent):
            self._missed(_entry(key), damaged=found.outcome == "damaged")
            self._law(
                found.outcome in {"misses", "damaged"},
                "a store that works has no error",
            )
        else:
            self._hit(_entry(key), dict(found), since)

    @rule(handle=_handle, name=_note)
    def note(self, handle: int, name: str) -> None:
        """Put a value that has neither manifest nor digest of its own."""
        value, since = self._new(), self._tick()
        self.entries[handle].store.put(name, value)
        self._know(name, value, since)

    @rule(handle=_handle, name=_note)
    def read(self, handle: int, name: str) -> None:
        """Get such a value; damage does not stay where it was."""
        since = self._tick()
        try:
            value = self.entries[handle].store.get(name)
        except StoreError:
            self._missed(name, damaged=True)
            stays = list(self.path.glob(f"store/v1/??/{name}"))
            self._law(not stays, "what is damaged is moved aside")
            return
        if value is None:
            self._missed(name, damaged=False)
        else:
            self._hit(name, value, since)

    @rule(handle=_handle, key=_key)
    def why(self, handle: int, key: int) -> None:
        """Ask for the nearest key; it is one of the nearest."""
        wanted = set(key_of(key).components)
        here = self._open(Files(), read_only=True)
        most = [len(wanted & set(stored.components)) for stored in here.keys()]
        nearest = self.entries[handle].why(key_of(key))
        equal = -1 if isinstance(nearest, Absent) else nearest.equal
        self._law(equal == max(most, default=-1), "the nearest key is the nearest")

    @rule(handle=_handle)
    def trim(self, handle: int) -> None:
        """Clean up; nobody is writing."""
        store = self.entries[handle].store
        if isinstance(store, DiskStore):
            store.trim()
            left = list(self.path.glob("store/v1/new/*"))
            self._law(not left, "what dead writers left is swept")

    @rule()
    def wait(self) -> None:
        """Let time pass: everything was used longer ago, in the same order."""
        for path in self.path.glob("store/v1/??/*"):
            used = path.stat().st_mtime_ns - 2 * YOUNG
            os.utime(path, ns=(used, used))

    @rule(handle=_handle)
    def reopen(self, handle: int) -> None:
        """End a process and begin another."""
        self.files[handle] = Lossy()
        self.entries[handle] = self._open(self.files[handle])

    @rule(
        handle=_handle,
        key=_key,
        image=_image,
        pause=_after,
        other=st.sampled_from(["put", "find", "note", "read", "trim"]),
        of=_key,
    )
    def meanwhile(
        self, handle: int, key: int, image: int, pause: int, other: str, of: int
    ) -> None:
        """Put an entry, and let the other process act in the middle of it."""
        of = (of + 1) % _KEYS if of == key else of
        acts: dict[str, Callable[[], None]] = {
            "put": lambda: self.put(1 - handle, [of], image, 1 << 30),
            "find": lambda: self.find(1 - handle, [of]),
            "note": lambda: self.note(1 - handle, _NOTES[0]),
            "read": lambda: self.read(1 - handle, _NOTES[0]),
            "trim": lambda: self._other_store(1 - handle).trim(),
        }
        self.files[handle].pause, self.files[handle].meanwhile = pause, acts[other]
        self.put(handle, [key], image, 1 << 30)
        self.files[handle].meanwhile = None

    def _other_store(self, handle: int) -> Any:
        return self.entries[handle].store

    # What happens to programs, and to files.

    @rule(
        handle=_handle,
        what=st.one_of(_key, _note),
        image=_image,
        after=_after,
        power=st.sampled_from(["stays", "lost", "lost with names"]),
    )
    def die(
        self, handle: int, what: int | str, image: int, after: int, power: str
    ) -> None:
        """Die in the middle of a put: the old is there, or the new."""
        name = what if isinstance(what, str) else _entry(what)
        value = self._new() if isinstance(what, str) else self._parts(image)
        before, since = self.known.get(name), self._tick()
        self.files[handle].fuse = after
        try:
            if isinstance(what, str):
                self.entries[handle].store.put(what, value)
            else:
                self._put(handle, what, value)
        except Crashed:
            values = [*before.values, value] if before else [value]
            lost = before is None or before.lost
            # Nothing is known of its last use: it stands outside the order.
            self.known[name] = Known(values, lost, 0, 1 << 60)
        else:
            self._know(name, value, since)
        self._restart(handle, power)

    def _restart(self, handle: int, power: str) -> None:
        struck = [handle] if power == "stays" else [0, 1]
        for number in struck:
            if power != "stays":
                self.files[number].lose_power(undo=power == "lost with names")
            self.reopen(number)

    @rule(
        handle=_handle,
        what=st.one_of(_key, _note),
        file=st.integers(0, 2),
        at=st.integers(0, 1 << 16),
        how=st.sampled_from(["flip", "cut", "extend", "remove", "replace", "forge"]),
    )
    def damage(
        self, handle: int, what: int | str, file: int, at: int, how: str
    ) -> None:
        """Change a file behind the store's back, and look at what is left."""
        name = what if isinstance(what, str) else _entry(what)
        if name not in self.known:
            self._act(handle, what, put=True)
        files = [_file_of(name), *sorted(_blobs(self.known[name]))]
        for path in self.path.glob(f"store/v1/??/{files[file % len(files)]}"):
            kind = path.name.partition("-")[0]
            others = sorted({*self.path.glob(f"store/v1/??/{kind}-*")} - {path})
            other = others[at % len(others)] if others else path
            self._change(path, other, at, how)
            self._harm(path.name)
        self._act(handle, what, put=False)

    def _act(self, handle: int, what: int | str, *, put: bool) -> None:
        if isinstance(what, str):
            (self.note if put else self.read)(handle, what)
        elif put:
            self.put(handle, [what], what, 1 << 30)
        else:
            self.find(handle, [what])

    def _change(self, path: Path, other: Path, at: int, how: str) -> None:
        """Write other bytes into a file, at the same time of use."""
        facts, data = path.stat(), path.read_bytes()
        at %= max(len(data), 1)
        flipped = (
            data[:at] + bytes(255 - byte for byte in data[at:][:1]) + data[at + 1 :]
        )
        if how == "remove":
            path.unlink()
            return
        if how == "forge" and path.name.startswith("note"):
            how = "flip"  # nothing but the frame tells a note from another
        value = other.read_bytes()[frame_size(other.name, 0) :]
        path.write_bytes(
            {
                "flip": flipped,
                "cut": data[:at],
                "extend": data + b"\0",
                "replace": other.read_bytes(),
                "forge": seal(path.name, value) + value,
            }[how]
        )
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))

    def _harm(self, name: str) -> None:
        self.harmed.add(name)
        for mine, known in self.known.items():
            if name in {_file_of(mine), *_blobs(known)}:
                known.lost = True

    # What is known.

    def _tick(self) -> int:
        self.clock += 1
        return self.clock

    def _new(self) -> bytes:
        self.written += 1
        return b"%4d" % self.written * 50

    def _parts(self, image: int) -> dict[str, bytes]:
        return {"ops": self._new(), "image": _IMAGES[image % len(_IMAGES)]}

    def _put(self, handle: int, key: int, parts: dict[str, bytes]) -> None:
        entries = self.entries[handle]
        entries.put(key_of(key), parts)
        self._law(entries.tally["puts"] == 1, "a put that fits is not refused")
        entries.tally.clear()

    def _know(self, name: str, value: Any, since: int) -> None:
        known = Known([value], lost=False, since=since, until=self._tick())
        self.known[name] = known
        self.harmed -= {_file_of(name), *_blobs(known)}

    def _hit(self, name: str, value: Any, since: int) -> None:
        known = self.known.get(name)
        self._law(
            known is not None and value in known.values, "what is found is what was put"
        )
        if known is not None:
            known.values, known.since, known.until = [value], since, self._tick()

    def _missed(self, name: str, *, damaged: bool) -> None:
        known = self.known.pop(name, None)
        if known is None or known.lost:
            return
        self._law(not damaged, "only what was harmed is damaged")
        self._law(self.limit == _TIGHT, "what was put is found")

    def _law(self, kept: bool, law: str) -> None:
        if not kept:
            raise InternalError(law, sorted(map(str, self.path.rglob("*"))))

    # Laws.

    @invariant()
    def nothing_is_wrong_that_was_not_harmed(self) -> None:
        """No manifest is without its blobs, and all else is as it was put."""
        type(self).steps += 1
        lost = {_file_of(name) for name, known in self.known.items() if known.lost}
        for finding in verify(self._open(Files(), read_only=True).store):
            self._law(finding.name in self.harmed | lost, str(finding))

    @invariant()
    def the_limit_holds(self) -> None:
        """All files together are within it, but for one that is being put."""
        store = self._open(Files(), read_only=True).store
        size = sum(frame_size(item.name, item.size) for item in store.scan())
        self._law(size <= self.limit + _ONE, "the limit holds")
        aside = [path.stat().st_size for path in self.path.glob("store/v1/damaged/*")]
        self._law(
            len(aside) <= KEPT_DAMAGED and sum(aside) <= self.limit // 16,
            "quarantine is bounded",
        )

    @invariant()
    def the_longest_unused_go_first(self) -> None:
        """What was evicted was used before all that was not."""
        here = {item.name for item in self.entries[0].store.scan()}
        sure = [(n, k) for n, k in self.known.items() if not k.lost]
        for kind in (_NOTES[0][:5], "entry"):
            mine = [(n, k) for n, k in sure if n.startswith(kind)]
            gone = [k.since for n, k in mine if _file_of(n) not in here]
            left = [k.until for n, k in mine if _file_of(n) in here]
            self._law(
                max(gone, default=0) <= min(left, default=self.clock),
                "what was used last is evicted last",
            )

    def teardown(self) -> None:
        """Remove the folder."""
        if not hasattr(self, "path"):
            return
        error = sys.exception()
        # Hypothesis ends a run that draws too much with what is no `Exception`.
        broken = isinstance(error, Exception) and error is not self.outside
        if broken and type(self).caught is None:
            type(self).caught = self.steps
        shutil.rmtree(self.path)


def _entry(key: int) -> str:
    return f"entry {key}"


def _file_of(name: str) -> str:
    """Return under which name of the store it is kept."""
    kind, _, number = name.partition(" ")
    return entry_name(key_of(int(number)).digest) if number else kind


def _blobs(known: Known) -> set[str]:
    return {
        blob_name(part)
        for value in known.values
        if isinstance(value, dict)
        for part in value.values()
    }
