"""A store in a folder, for any number of processes at once, without an index.

A value is one file: written under another name, made durable, renamed. So it is there
or not, whenever a process dies, and readers need no lock. What is read is checked;
what is damaged is moved aside. The time of last use is the file's own.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final

from sapwood.errors import StoreError
from sapwood.persist.api import Item, check_name, incomplete, too_large
from sapwood.persist.evict import Want, victims
from sapwood.persist.files import Files, write_all
from sapwood.persist.folder import Folder, check_own_file
from sapwood.persist.format import accept, check_size, seal, sealed_size
from sapwood.persist.manifest import ENTRY, needs
from sapwood.units import Size, size_text

__all__ = ["DiskStore", "Trimmed", "open_store"]

_RECOUNT: Final = 64
"""A process counts anew what is there when it has put this part of the limit: so the
limit holds to within so much for each other process that is putting.
"""
_DAMAGED: Final = 16
"""Damaged files may take this part of the limit, beside it."""


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What trimming did: names removed, dead writers' files, and bytes left."""

    removed: tuple[str, ...]
    swept: int
    left: Size


def open_store(
    path: str | os.PathLike[str], limit: int, read_only: bool = False
) -> DiskStore:
    """Return the store in a folder of at most ``limit`` bytes; nothing is touched yet.

    The folder is made by the first put. It must belong to this user, and nobody else
    may write it: else every method raises PermissionError.
    """
    return DiskStore(path, limit, read_only)


class DiskStore:
    """Keeps values in files below ``path``, of ``limit`` bytes in all.

    With ``read_only`` nothing there is changed, not even times. ``files`` stands
    between the store and the operating system.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        limit: int,
        read_only: bool = False,
        *,
        files: Files | None = None,
    ) -> None:
        self.path = str(Path(path).expanduser().absolute())
        self.limit, self.read_only = Size(limit), read_only
        self._files = files or Files()
        self._folder = Folder(self.path, self._files)
        self._lock = Lock()
        self._size: int | None = None  # as far as this process knows
        self._put_since = 0

    def get(self, name: str) -> bytes | None:
        check_name(name)
        try:
            self._folder.trust()
            fd = self._files.open(self._folder.file(name))
        except FileNotFoundError:
            return None
        try:
            value = self._read(fd, name)
            if not self.read_only:
                with suppress(OSError):  # a reader may lack the right: still a reader
                    self._files.stamp(fd, time.time_ns())
        finally:
            self._files.close(fd)
        return value

    def put(self, name: str, value: bytes) -> None:
        check_name(name)
        self._check_writable()
        blobs = needs(name, value)
        size = sealed_size(name, len(value))
        whole = size + sum(sealed_size(blob, of) for blob, of in blobs.items())
        if whole > self.limit:
            raise too_large(name, whole, self.limit)
        try:
            self._folder.trust()
        except FileNotFoundError:
            self._folder.make()
        self._make_room(name, size, blobs)
        try:
            self._write(name, value)
        except FileNotFoundError:  # somebody cleaned up behind us
            self._folder.make()
            self._write(name, value)
        self._check_whole(name, blobs)

    def delete(self, name: str) -> bool:
        check_name(name)
        self._check_writable()
        try:
            self._folder.trust()
            self._files.remove(self._folder.file(name))
        except FileNotFoundError:
            return False
        return True

    def trouble(self) -> str | None:
        """Return why nothing could be put here now, as far as a look at it tells."""
        try:
            self._folder.trust()
        except FileNotFoundError:
            above = (each for each in Path(self.path).parents if each.exists())
            place = next(above)
        except OSError as error:
            return str(error)
        else:
            place = Path(self.path)
        if not place.is_dir():
            return f"{place} is no folder"
        if not self.read_only and not os.access(place, os.W_OK | os.X_OK):
            return f"{place} cannot be written by this user"
        return None

    def scan(self) -> Iterator[Item]:
        try:
            self._folder.trust()
        except FileNotFoundError:
            return
        yield from self._folder.items()

    def trim(self) -> Trimmed:
        """Remove what dead writers left, and what is over the limit."""
        self._check_writable()
        try:
            self._folder.trust()
        except FileNotFoundError:
            return Trimmed((), 0, Size(0))
        swept = self._folder.sweep()
        with self._lock:
            items = self._folder.items()
            size = _size_of(items)
            over = max(size - self.limit, 0)
            removed = self._evict(items, Want(over, over), {})
            self._size = None
        return Trimmed(
            tuple(item.name for item in removed), swept, Size(size - _size_of(removed))
        )

    def _check_writable(self) -> None:
        if self.read_only:
            raise OSError(
                errno.EROFS,
                f"{self.path} was opened to be read only. Open it to be written",
            )

    def _read(self, fd: int, name: str) -> bytes:
        facts = os.fstat(fd)
        try:
            check_own_file(name, facts)
            head = self._files.read(fd, sealed_size(name, 0))
            check_size(name, head, facts.st_size - len(head))
            rest = self._files.read(fd, facts.st_size - len(head))
            return accept(name, head, rest)
        except StoreError:
            if not self.read_only:
                with suppress(OSError):  # it is told, wherever it lies
                    self._folder.quarantine(name, facts.st_ino, self.limit // _DAMAGED)
            raise
        except MemoryError:
            raise OSError(
                errno.ENOMEM,
                f"{name} takes {size_text(facts.st_size)}, which this process has not",
            ) from None

    def _write(self, name: str, value: bytes) -> None:
        with self._folder.writing() as (path, fd):
            write_all(self._files, fd, seal(name, value))
            write_all(self._files, fd, value)
            self._files.stamp(fd, time.time_ns())
            self._files.sync(fd)
            self._folder.publish(path, name)

    def _check_whole(self, name: str, blobs: Iterable[str]) -> None:
        """Take a manifest back if a blob was evicted before it could hold it."""
        try:
            for blob in blobs:
                self._files.stat(self._folder.file(blob))
        except FileNotFoundError:
            with suppress(FileNotFoundError):
                self._files.remove(self._folder.file(name))
            raise incomplete(name) from None

    # Room. The limit is kept by counting; how much there is is counted now and then.

    def _make_room(self, name: str, size: int, blobs: dict[str, Size]) -> None:
        with self._lock:
            self._put_since += size
            if (
                self._size is not None
                and self._size + size <= self.limit
                and self._put_since <= self.limit // _RECOUNT
            ):
                self._size += size
                return
            self._folder.sweep()
            items = [item for item in self._folder.items() if item.name != name]
            size += _size_of(items)
            gone = self._evict(items, Want.of(size, self.limit), {name: blobs})
            self._size, self._put_since = size - _size_of(gone), 0

    def _evict(
        self, items: list[Item], want: Want, named: dict[str, dict[str, Size]]
    ) -> list[Item]:
        """Remove what is wanted of ``items``, and return what that was.

        ``named``: what is being put, and the blobs that it names.
        """
        if not want.must:
            return []
        links = {
            item.name: self._needs(item.name)
            for item in items
            if item.name.startswith(ENTRY)
        }
        here = {item.name: item for item in items}
        kept: set[str] = set()
        removed = []
        for group in victims(items, links | named, want, time.time_ns()):
            for gone in group:
                if gone in kept or not self._removed(here[gone]):
                    kept.update(links.get(gone, ()))
                else:
                    removed.append(here[gone])
        return removed

    def _needs(self, name: str) -> dict[str, Size]:
        """Return what a stored manifest names, without using it."""
        try:
            fd = self._files.open(self._folder.file(name))
        except FileNotFoundError:
            return {}
        try:
            return needs(name, self._read(fd, name))
        except StoreError:
            return {}
        finally:
            self._files.close(fd)

    def _removed(self, item: Item) -> bool:
        """Remove a file, unless it was used since it was seen; return whether gone."""
        path = self._folder.file(item.name)
        try:
            if self._files.stat(path).st_mtime_ns != item.used:
                return False
            self._files.remove(path)
        except FileNotFoundError:
            return True  # another process removed it: gone is gone
        return True


def _size_of(items: Iterable[Item]) -> Size:
    """Return the bytes that the files of these items take."""
    return Size(sum(sealed_size(item.name, item.size) for item in items))
