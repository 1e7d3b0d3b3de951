"""Entries: parts under a key, in any store; where a store's troubles end.

An entry is one manifest and the blobs that it names. Blobs are put first, so that a
manifest that is there is whole. Nothing that a store does or holds makes `find` or
`put` raise: it becomes a reason and a count.
"""

from __future__ import annotations

import errno
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Final, Literal

from sapwood.errors import StoreError, words
from sapwood.persist.api import Item, Store, reached
from sapwood.persist.format import refused
from sapwood.persist.key import (
    BLOB,
    ENTRY,
    Key,
    Manifest,
    blob_name,
    decode_manifest,
    describe,
    encode_manifest,
    entry_name,
)

_LASTING: Final = frozenset(
    {errno.EACCES, errno.EDQUOT, errno.ENOSPC, errno.ENOTDIR, errno.EPERM, errno.EROFS}
)
"""Troubles that the next put would have as well."""

_SURPRISES: Final = ("damaged", "refused")
_TOLD: Final = 64


@dataclass(frozen=True, slots=True)
class Absent:
    """Nothing was found; ``outcome`` is how this was counted."""

    outcome: Literal["misses", "damaged", "errors", "refused"]
    reason: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, and with what."""

    name: str
    what: str


class Entries:
    """The entries of ``store``.

    ``tally`` counts every `find` once, as hits, misses, damaged, errors or refused,
    and every `put` once, as puts, errors or refused. ``emit`` is told in words,
    and once, what was damaged or refused; it must neither block nor raise.
    """

    def __init__(self, store: Store, emit: Callable[[str], None] | None = None) -> None:
        self.store = store
        self.where = str(getattr(store, "path", type(store).__name__))
        self.tally: Counter[str] = Counter()
        self.stopped: str = ""
        """Why nothing is put any more, if so."""
        self._emit = emit
        self._told: deque[str] = deque(maxlen=_TOLD)
        self._lock = Lock()

    def put(self, key: Key, parts: Mapping[str, bytes]) -> bool:
        """Keep ``parts`` under ``key``, in the place of what was there, if it can be.

        Raises `MisuseError` for the name of a part that is empty or does not print;
        nothing else.
        """
        manifest = describe(key, parts)
        if self.stopped:
            self._count("refused", self.stopped)
            return False
        try:
            try:
                self._put(manifest, parts)
            except BlockingIOError:  # others were putting, and there is little room
                self._put(manifest, parts)
        except (StoreError, OSError) as error:
            if _lasts(error):
                import logging

                self.stopped = f"nothing more is put into {self.where}: {words(error)}"
                logging.getLogger("sapwood").warning("%s", self.stopped)
            self._count(_outcome(error), self.stopped or words(error))
            return False
        self._count("puts")
        return True

    def _put(self, manifest: Manifest, parts: Mapping[str, bytes]) -> None:
        with reached(self.where):
            for part in manifest.parts:
                self.store.put(part.blob, parts[part.name])
            self.store.put(entry_name(manifest.key.digest), encode_manifest(manifest))

    def find(self, key: Key) -> Mapping[str, bytes] | Absent:
        """Return the parts under ``key``, whole and as they were put, or why not."""
        try:
            with reached(self.where):
                found = self._load(key)
        except (StoreError, OSError) as error:
            found = Absent(_outcome(error), words(error))
        if isinstance(found, Absent):
            self._count(found.outcome, found.reason)
        else:
            self._count("hits")
        return found

    def keys(self) -> Iterator[Key]:
        """Yield the keys of all manifests that can be read, longest unused first."""
        for _, manifest in self.manifests():
            yield manifest.key

    def items(self) -> list[Item]:
        """Return all that the store lists. Raises `OSError` or `StoreError`."""
        with reached(self.where):
            found = [*self.store.scan()]
        if not all(isinstance(each, Item) for each in found):
            raise OSError(f"{self.where} lists what is no item")
        return found

    def manifests(self) -> Iterator[tuple[Item, Manifest]]:
        """Yield all manifests that can be read, and where, longest unused first."""
        try:
            items = [item for item in self.items() if item.name.startswith(ENTRY)]
        except (StoreError, OSError) as error:
            self._count(_outcome(error), words(error))
            return
        # Reading is a use: in this order it leaves the order of uses as it was.
        for item in sorted(items, key=lambda item: (item.used, item.name)):
            try:
                with reached(self.where):
                    manifest = self._manifest(item.name)
            except (StoreError, OSError) as error:
                self._count(_outcome(error), words(error))
                continue
            if manifest is not None:
                yield item, manifest

    def _load(self, key: Key) -> Mapping[str, bytes] | Absent:
        name = entry_name(key.digest)
        for _ in range(2):  # what is not there the first time may be on its way out
            manifest = self._manifest(name)
            if manifest is None:
                return Absent("misses", "nothing is stored under this key")
            parts = self._parts(name, manifest)
            if parts is not None:
                self.store.get(name)  # used after its blobs: see `evict`
                return parts
        self._forget(name)
        raise refused(name, "names contents that are not there")

    def _manifest(self, name: str) -> Manifest | None:
        said = self.store.get(name)
        if said is None:
            return None
        try:
            manifest = decode_manifest(said)
            if entry_name(manifest.key.digest) != name:
                raise refused(name, "is the manifest of another key")
        except StoreError:
            self._forget(name)
            raise
        return manifest

    def _parts(self, name: str, manifest: Manifest) -> dict[str, bytes] | None:
        """Return the parts, or None where one is not there."""
        parts = {}
        for part in manifest.parts:
            try:
                value = self.store.get(part.blob)
            except StoreError:
                self._forget(name)
                raise
            if value is None:
                return None
            if blob_name(value) != part.blob or len(value) != part.size:
                self._forget(name)
                self._forget(part.blob)
                raise refused(part.blob, "is not what its name says")
            parts[part.name] = value
        return parts

    def _forget(self, name: str) -> None:
        # It is told as damaged, gone or not.
        with suppress(StoreError, OSError), reached(self.where):
            self.store.delete(name)

    def _count(self, outcome: str, reason: str = "") -> None:
        with self._lock:
            self.tally[outcome] += 1
            told = outcome not in _SURPRISES or reason in self._told
            if not told:
                self._told.append(reason)
        if not told and self._emit is not None:
            self._emit(reason)


def _lasts(error: StoreError | OSError) -> bool:
    return isinstance(error, OSError) and error.errno in _LASTING


def _outcome(error: StoreError | OSError) -> Literal["damaged", "errors", "refused"]:
    if isinstance(error, StoreError):
        return "damaged"
    return "refused" if _lasts(error) or error.errno == errno.EFBIG else "errors"


def verify(store: Store) -> list[Finding]:
    """Return what is damaged, misnamed or incomplete, by name; none is good.

    Reads every value: give it a store that is opened to be read only, where what is
    wrong is to stay where it is. Raises OSError where the store cannot be read.
    """
    findings, blobs, named = [], dict[str, str](), {}
    for name in sorted(item.name for item in store.scan()):
        try:
            value = store.get(name)
            if value is None:
                continue
            if name.startswith(BLOB):
                if blob_name(value) != name:
                    findings.append(Finding(name, "holds other contents"))
                blobs[name] = ""
            elif name.startswith(ENTRY):
                manifest = decode_manifest(value)
                if entry_name(manifest.key.digest) != name:
                    findings.append(Finding(name, "is the manifest of another key"))
                named[name] = {part.blob for part in manifest.parts}
        except StoreError as error:
            findings.append(Finding(name, str(error)))
            blobs[name] = "damaged"
    findings += [
        Finding(name, f"names {blob}, which is {blobs.get(blob, 'not there')}")
        for name, wanted in named.items()
        for blob in sorted(wanted)
        if blobs.get(blob, "not there")
    ]
    return sorted(findings, key=lambda finding: finding.name)
