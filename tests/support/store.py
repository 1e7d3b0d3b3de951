"""A state machine of the store: puts, finds, damage, deaths and other processes.

`Puts` runs two handles on one folder, as two processes would have them, and knows of
every key what may be found under it. Needs Hypothesis.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from sapwood.errors import InternalError, StoreError
from sapwood.persist.disk import KEPT_DAMAGED, DiskStore, Files
from sapwood.persist.entries import Absent, Entries, verify
from sapwood.persist.evict import YOUNG
from sapwood.persist.format import seal, sealed_size
from sapwood.persist.key import Key, blob_name, entry_name, nearest
from tests.support.lossy import Crashed, Lossy
from tests.support.machine import Machine

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
_ALL: Final = 1 << 30
"""Whatever there is."""

What = int | str
"""What is put: an entry under the key of that number, or a note of that name."""

_key = st.integers(0, _KEYS - 1)
_note = st.sampled_from(_NOTES)
_what = st.one_of(_key, _note)
_whats = st.lists(_what, min_size=1, max_size=5, unique=True)
_two = st.lists(_key, min_size=2, max_size=2, unique=True)
_two_of_a_kind = st.one_of(_two, st.permutations(_NOTES).map(lambda names: names[:2]))
_image = st.integers(0, len(_IMAGES) - 1)
_handle = st.integers(0, 1)
_after = st.integers(0, 20)
"""Changes to files: a put makes a few in each of its files."""
_acts = st.sampled_from(["put", "crowd", "crowd", "find", "note", "trim"])


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


class Puts(Machine):
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
    where: str | None = None
    """In which folder to work; None: where temporary files are."""

    @initialize(limit=st.sampled_from([_TIGHT, _TIGHT, _ROOMY]))
    def begin(self, limit: int) -> None:
        """Open a folder that is not there, twice."""
        self.path = Path(tempfile.mkdtemp(prefix="sapwood-", dir=self.where))
        self.begun()
        self.limit = limit
        self.clock = self.written = 0
        self.known: dict[What, Known] = {}
        self.harmed: set[str] = set()
        self.files = [Lossy(), Lossy()]
        self.entries = [self._open(files) for files in self.files]

    def _open(self, files: Files, *, read_only: bool = False) -> Entries:
        where = str(self.path / "store")
        return Entries(type(self).opened(where, self.limit, read_only, files))

    # What programs do.

    @rule(
        handle=_handle,
        whats=_whats,
        image=_image,
        waits=st.booleans(),
        most=st.sampled_from([7, _ALL]),
    )
    def put(
        self,
        handle: int,
        whats: list[What],
        image: int,
        waits: bool = False,
        most: int = _ALL,
    ) -> None:
        """Put entries that share a part with others, in small writes or large.

        ``waits``: what is there was used long ago.
        """
        if waits:
            self._wait()
        self.files[handle].most = most
        for what in whats:
            value, since = self._new_value(what, image), self._tick()
            self._put(handle, what, value)
            self._know(what, value, since)

    @rule(handle=_handle, whats=_whats, then=_whats, image=_image)
    def use(self, handle: int, whats: list[What], then: list[What], image: int) -> None:
        """Find what was put, and put others, for which something may have to go."""
        self.find(handle, whats)
        self.put(handle, [what for what in then if what not in whats], image)

    def find(self, handle: int, whats: list[What]) -> None:
        """Find what was put, whole, or nothing."""
        for what in whats:
            start = time.time_ns()
            if isinstance(what, str):
                self._find_note(handle, what)
            else:
                self._find_entry(handle, what)
            for path in self._paths(_file_of(what)) if what in self.known else ():
                self._law(path.stat().st_mtime_ns >= start, "to find is to use")

    def _find_entry(self, handle: int, what: int) -> None:
        since = self._tick()
        found = self.entries[handle].find(key_of(what))
        if isinstance(found, Absent):
            self._law(
                found.outcome in {"misses", "damaged"},
                "a store that works has no error",
            )
            self._missed(what, damaged=found.outcome == "damaged")
        else:
            self._hit(what, dict(found), since)

    def _find_note(self, handle: int, name: str) -> None:
        since = self._tick()
        try:
            value = self.entries[handle].store.get(name)
        except StoreError:
            self._missed(name, damaged=True)
            self._law(not self._paths(name), "what is damaged is moved aside")
            return
        if value is None:
            self._missed(name, damaged=False)
        else:
            self._hit(name, value, since)

    @rule(handle=_handle, key=_key, act=st.sampled_from(["why", "trim", "end"]))
    def tend(self, handle: int, key: int, act: str) -> None:
        """Do what is done now and then."""
        {
            "why": lambda: self._ask_why(handle, key),
            "trim": lambda: self._trim(handle),
            "end": lambda: self._reopen(handle),
        }[act]()

    def _ask_why(self, handle: int, key: int) -> None:
        wanted = set(key_of(key).components)
        stored_keys = self._open(Files(), read_only=True).keys()
        most = [len(wanted & set(stored.components)) for stored in stored_keys]
        found = nearest(key_of(key), self.entries[handle].keys())
        equal = -1 if found is None else len(wanted & set(found.components))
        self._law(equal == max(most, default=-1), "the nearest key is the nearest")

    def _trim(self, handle: int) -> None:
        self._store(handle).trim()
        left = list(self.path.glob("store/v1/new/*"))
        self._law(not left, "what dead writers left is swept")

    def _reopen(self, handle: int) -> None:
        """End a process and begin another."""
        self.files[handle] = Lossy()
        self.entries[handle] = self._open(self.files[handle])

    def _wait(self) -> None:
        """Let everything have been used longer ago, in the same order."""
        for path in self._paths():
            used = path.stat().st_mtime_ns - 2 * YOUNG
            os.utime(path, ns=(used, used))

    @rule(handle=_handle, keys=_two, image=_image, pause=_after, act=_acts)
    def meanwhile(
        self, handle: int, keys: list[int], image: int, pause: int, act: str
    ) -> None:
        """Put an entry, and let the other process act in the middle of it."""
        key, of = keys
        crowd: list[What] = [other for other in range(_KEYS) if other != key]
        acts: dict[str, Callable[[], object]] = {
            "put": lambda: self.put(1 - handle, [of], image),
            "crowd": lambda: self.put(1 - handle, crowd, image),
            "find": lambda: self.find(1 - handle, [of, _NOTES[0]]),
            "note": lambda: self.put(1 - handle, [_NOTES[0]], image),
            "trim": self._store(1 - handle).trim,
        }
        self.files[handle].pause, self.files[handle].meanwhile = pause, acts[act]
        self.put(handle, [key], image)
        self.files[handle].meanwhile = None

    # What happens to programs, and to files.

    @rule(
        handle=_handle,
        what=_what,
        image=_image,
        after=_after,
        power=st.sampled_from(["stays", "lost", "lost with names"]),
    )
    def die(self, handle: int, what: What, image: int, after: int, power: str) -> None:
        """Die in the middle of a put: the old is there, or the new."""
        value, since = self._new_value(what, image), self._tick()
        before = self.known.get(what)
        self.files[handle].fuse = after
        try:
            self._put(handle, what, value)
        except Crashed:
            values = [*before.values, value] if before else [value]
            lost = before is None or before.lost
            # Nothing is known of its last use: it stands outside the order.
            self.known[what] = Known(values, lost, 0, 1 << 60)
        else:
            self._know(what, value, since)
        if power != "stays":
            for files in self.files:
                files.lose_power(undo=power == "lost with names")
            self._reopen(1 - handle)
        self._reopen(handle)

    @rule(
        handle=_handle,
        what=_what,
        file=st.integers(0, 3),
        at=st.integers(0, 250),
        how=st.sampled_from(["flip", "cut", "extend", "remove"]),
    )
    def damage(self, handle: int, what: What, file: int, at: int, how: str) -> None:
        """Damage a file, as disks do, and look at what is left."""
        self._put_missing(handle, [what])
        for path in self._file(what, file):
            data = path.read_bytes()
            at = max(len(data) - 1 - at, 0)
            flipped = bytes(255 - byte for byte in data[at : at + 1])
            self._change(
                path,
                {
                    "flip": data[:at] + flipped + data[at + 1 :],
                    "cut": data[:at],
                    "extend": data + b"\0",
                    "remove": None,
                }[how],
            )
        self.find(handle, [what])

    @rule(handle=_handle, whats=_two_of_a_kind, file=st.integers(0, 3))
    def forge(self, handle: int, whats: list[What], file: int) -> None:
        """Put one file in the place of another, as if it had been put there.

        A note's as it is: only its frame tells it from another.
        """
        what, of = whats
        self._put_missing(handle, whats)
        mine, theirs = self._file(what, file), self._file(of, file)
        for path, other in zip(mine, theirs, strict=False):
            data = other.read_bytes()
            if not isinstance(what, str):
                value = data[sealed_size(other.name, 0) :]
                data = seal(path.name, value) + value
            self._change(path, data)
        self.find(handle, [what])

    def _put_missing(self, handle: int, whats: list[What]) -> None:
        here = {path.name for path in self._paths()}
        missing = [w for w in whats if w not in self.known or _file_of(w) not in here]
        self.put(handle, missing, 0)

    def _change(self, path: Path, data: bytes | None) -> None:
        """Write other bytes into a file, at the same time of use."""
        facts = path.stat()
        if data is None:
            path.unlink()
        else:
            path.write_bytes(data)
            os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        self.harmed.add(path.name)
        for what, known in self.known.items():
            if path.name in {_file_of(what), *_blobs(known)}:
                known.lost = True
                self.harmed.add(_file_of(what))

    # What is known.

    def _store(self, handle: int) -> Any:
        return self.entries[handle].store

    def _paths(self, name: str = "*") -> list[Path]:
        return sorted(self.path.glob(f"store/v1/?/{name}"))

    def _file(self, what: What, number: int) -> list[Path]:
        """Return one of its files: a note's, or a manifest's or a blob's; if there."""
        names = [_file_of(what), *sorted(_blobs(self.known[what]))]
        return self._paths(names[number % len(names)])

    def _tick(self) -> int:
        self.clock += 1
        return self.clock

    def _new_value(self, what: What, image: int) -> Any:
        self.written += 1
        new = b"%4d" % self.written * 50
        if isinstance(what, str):
            return new
        shared = _IMAGES[(what + image) % len(_IMAGES)]
        return {"ops": new, "image": shared, "same": b"same" * (what + 1)}

    def _put(self, handle: int, what: What, value: Any) -> None:
        entries = self.entries[handle]
        if isinstance(what, str):
            entries.store.put(what, value)
            return
        entries.put(key_of(what), value)
        self._law(entries.tally["puts"] == 1, "a put that fits is not refused")
        entries.tally.clear()

    def _know(self, what: What, value: Any, since: int) -> None:
        known = Known([value], lost=False, since=since, until=self._tick())
        self.known[what] = known
        self.harmed -= {_file_of(what), *_blobs(known)}

    def _hit(self, what: What, value: Any, since: int) -> None:
        known = self.known.get(what)
        self._law(
            known is not None and value in known.values, "what is found is what was put"
        )
        self._know(what, value, since)

    def _missed(self, what: What, *, damaged: bool) -> None:
        known = self.known.pop(what, None)
        if known is None or known.lost:
            return
        self._law(not damaged, "only what was harmed is damaged")
        self._law(self.limit == _TIGHT, "what was put is found")

    def _law(self, kept: bool, law: str) -> None:
        if not kept:
            raise InternalError(law, sorted(map(str, self.path.rglob("*"))))

    # Laws.

    @invariant()
    def laws_hold(self) -> None:
        """Nothing else is damaged, the limit holds, the longest unused go first."""
        self.stepped()
        store = self._open(Files(), read_only=True).store
        for finding in verify(store):
            self._law(finding.name in self.harmed, str(finding))
        here = list(store.scan())
        size = sum(sealed_size(item.name, item.size) for item in here)
        self._law(size <= self.limit + _ONE, "the limit holds")
        self._check_order({item.name for item in here})
        self._check_quarantine()

    def _check_order(self, here: set[str]) -> None:
        """What was evicted was used before all that was not."""
        for kind in (int, str):
            mine = [
                (_file_of(what) in here, known)
                for what, known in self.known.items()
                if isinstance(what, kind) and not known.lost
            ]
            gone = max((known.since for stays, known in mine if not stays), default=0)
            left = [known.until for stays, known in mine if stays]
            self._law(
                gone <= min(left, default=gone), "what was used last is evicted last"
            )

    def _check_quarantine(self) -> None:
        aside = [path.stat().st_size for path in self.path.glob("store/v1/damaged/*")]
        self._law(
            len(aside) <= KEPT_DAMAGED and sum(aside) <= self.limit // 16,
            "quarantine is bounded",
        )

    def leave(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path)


def _file_of(what: What) -> str:
    """Return the name in the store of a note, or of the manifest of a key."""
    return what if isinstance(what, str) else entry_name(key_of(what).digest)


def _blobs(known: Known) -> set[str]:
    return {
        blob_name(part)
        for value in known.values
        if isinstance(value, dict)
        for part in value.values()
    }
