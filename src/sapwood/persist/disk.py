"""A store in a folder, for any number of processes at once, without an index.

A value is one file: written under another name, made durable, renamed. So it is there
or not, whenever a process dies, and readers need no lock. What is read is checked;
what is damaged is moved aside. The time of last use is the file's own.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Final

from sapwood.errors import MisuseError, StoreError, words
from sapwood.persist import api
from sapwood.persist.api import (
    Item,
    Store,
    check_name,
    incomplete,
    is_name,
    too_large,
)
from sapwood.persist.evict import Want, victims
from sapwood.persist.format import accept, check_size, seal, sealed_size
from sapwood.persist.key import ENTRY, needs
from sapwood.units import Size, size_text

_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW
_INSIDE: Final = "v1"
"""The folder in a store's that all of it is in, by the version of its form."""


class Files:
    """The operating system's files."""

    def stat(self, path: str) -> os.stat_result:
        """Return what is known of ``path``, through symbolic links."""
        return os.stat(path)  # noqa: PTH116 - paths are text here: this is in every get

    def make_folder(self, path: str) -> None:
        """Make a folder for this user alone, where there is none."""
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)  # noqa: PTH102

    def create(self, path: str) -> int:
        """Make a file that was not there, for this user alone; return it open."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600)

    def create_or_open(self, path: str) -> int:
        """Open a file for this user alone, which is made if it is not there."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | _FLAGS, 0o600)

    def open(self, path: str) -> int:
        """Open ``path`` for reading; this waits for nothing, whatever it is."""
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | _FLAGS)

    def read(self, fd: int, size: int) -> bytes:
        """Return the next ``size`` bytes, or as many as there are."""
        pieces = []
        while size and (piece := os.read(fd, size)):
            pieces.append(piece)
            size -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def write(self, fd: int, data: memoryview) -> int:
        """Write ``data``, or the beginning of it; return how much that was."""
        return os.write(fd, data)

    def sync(self, fd: int) -> None:
        """Return when what was written will outlast a loss of power."""
        os.fsync(fd)

    def sync_folder(self, path: str) -> None:
        """Return when the names in a folder will outlast a loss of power."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _FLAGS)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def close(self, fd: int) -> None:
        """Close a file; what locks it has goes with it."""
        os.close(fd)

    def rename(self, path: str, to: str) -> None:
        """Put ``path`` in the place of ``to``, at once."""
        os.replace(path, to)  # noqa: PTH105

    def remove(self, path: str) -> None:
        """Remove a file."""
        os.unlink(path)  # noqa: PTH108

    def stamp(self, fd: int, used: int) -> None:
        """Say when a file was last used, in nanoseconds since the epoch."""
        os.utime(fd, ns=(used, used))

    def list(self, path: str) -> list[tuple[str, os.stat_result]]:
        """Return names and facts of the files in a folder, none if it is not there."""
        found = []
        with suppress(FileNotFoundError), os.scandir(path) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    found.append((entry.name, entry.stat(follow_symlinks=False)))
        return found


def write_all(files: Files, fd: int, data: bytes) -> None:
    """Write all of ``data``."""
    left = memoryview(data)
    while left:
        left = left[files.write(fd, left) :]


def is_file(facts: os.stat_result) -> bool:
    """Return whether these are a plain file's facts."""
    return stat.S_ISREG(facts.st_mode)


KEPT_DAMAGED: Final = 16
"""How many damaged files are kept to look at."""

_WRITTEN_BY: Final = 3600 * 10**9
"""Nanoseconds after which nothing is being written, where no locks tell."""


class FileLease:
    """The lock of a file: the system ends it where its process ends."""

    def __init__(self, files: Files, path: str, fd: int) -> None:
        self._files, self._path, self._fd = files, path, fd

    def renew(self) -> None:
        """Do nothing: it lasts."""

    def release(self) -> None:
        """Remove the file, while it is locked, and unlock it."""
        try:
            self._files.remove(self._path)
        finally:
            self._files.close(self._fd)


class Folder:
    """Where a disk store lies: ``path``, reached through ``files``."""

    def __init__(self, path: str, files: Files) -> None:
        self.path, self.files = path, files
        self.inside = f"{path}/{_INSIDE}"
        self.new = f"{self.inside}/new"
        self.damaged = f"{self.inside}/damaged"

    def trust(self) -> bool:
        """Return whether it is there; what is stored leads to code being run.

        Raises PermissionError where others than this user could have put things into
        it, and NotADirectoryError where it is no folder.
        """
        try:
            facts = self.files.stat(self.path)
        except FileNotFoundError:
            return False
        if not stat.S_ISDIR(facts.st_mode):
            raise NotADirectoryError(
                errno.ENOTDIR, f"{self.path} is no folder. Name a folder for the store"
            )
        me = os.geteuid()
        if facts.st_uid != me:
            raise PermissionError(
                errno.EPERM,
                f"{self.path} belongs to user {facts.st_uid}, and this is user {me}. "
                "What is stored leads to code being run: use a folder of your own",
            )
        if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(
                errno.EPERM,
                f"{self.path} may be written by others. What is stored leads to code "
                "being run: empty it and take their right (chmod go-w), or use another",
            )
        return True

    def make(self) -> None:
        """Make what is missing of the folder, for this user alone; then trust it."""
        Path(self.path).parent.mkdir(parents=True, exist_ok=True)
        self.files.make_folder(self.path)
        self.trust()
        self.files.make_folder(self.inside)
        self.files.make_folder(self.new)

    def file(self, name: str) -> str:
        """Return the path of the file of ``name``."""
        return f"{self._shard(name)}/{name}"

    def _shard(self, name: str) -> str:
        return f"{self.inside}/{hashlib.sha256(name.encode()).hexdigest()[0]}"

    def items(self) -> list[Item]:
        """Return what is stored; whatever else lies here is not counted."""
        found = []
        for shard, _ in self.files.list(self.inside):
            if len(shard) != 1:
                continue
            for name, facts in self.files.list(f"{self.inside}/{shard}"):
                if is_file(facts) and is_name(name):
                    size = max(facts.st_size - sealed_size(name, 0), 0)
                    found.append(Item(name, Size(size), facts.st_mtime_ns))
        return found

    @contextmanager
    def writing(self) -> Iterator[tuple[str, int]]:
        """Yield the path of a new file, and the file, locked and open for writing.

        In the end it is closed, and gone unless it was published.
        """
        path, fd = self._locked_file()
        try:
            yield path, fd
        except BaseException:
            with suppress(OSError):  # the first error is the one to tell
                self.files.remove(path)
            raise
        finally:
            self.files.close(fd)

    def _locked_file(self) -> tuple[str, int]:
        while True:
            path = f"{self.new}/{os.getpid()}-{secrets.token_hex(8)}"
            fd = self.files.create(path)
            with suppress(OSError):  # without locks, files are swept by age
                fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink:
                return path, fd
            self.files.close(fd)  # swept before it was locked

    def lease(self, name: str) -> FileLease | None:
        """Return the lock of a file of its own, or None: another has it."""
        path = f"{self.new}/{name}.lease"
        while True:
            fd = self.files.create_or_open(path)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(fd).st_nlink:
                    return FileLease(self.files, path, fd)
            except OSError as error:
                self.files.close(fd)
                if isinstance(error, BlockingIOError):
                    return None
                raise
            self.files.close(fd)  # removed before it was locked

    def publish(self, path: str, name: str) -> None:
        """Put a written file in the place of the file of ``name``, durably."""
        shard, place = self._shard(name), self.file(name)
        try:
            self.files.rename(path, place)
        except FileNotFoundError:
            self.files.make_folder(shard)
            self.files.sync_folder(self.inside)
            self.files.rename(path, place)
        except IsADirectoryError:
            self._clear(name)
            self.files.rename(path, place)
        self.files.sync_folder(shard)

    def _set_aside(self, name: str) -> None:
        self.files.make_folder(self.damaged)
        self.files.rename(self.file(name), f"{self.damaged}/{time.time_ns()}-{name}")

    def _clear(self, name: str) -> None:
        """Move aside the folder that somebody made where a file is to be."""
        try:
            self._set_aside(name)
        except FileNotFoundError:
            return  # another process has moved it
        except OSError as error:
            raise OSError(
                error.errno,
                f"a folder lies where {name} is to be stored, and cannot be moved "
                f"aside ({error.strerror}). Remove it",
                self.file(name),
            ) from error

    def sweep(self) -> int:
        """Remove what dead writers left; return how many files that were."""
        swept = 0
        for name, facts in self.files.list(self.new):
            if not is_file(facts):
                continue
            with suppress(FileNotFoundError):  # done or swept meanwhile
                fd = self.files.open(f"{self.new}/{name}")
                try:
                    if _abandoned(fd, facts.st_mtime_ns):
                        self.files.remove(f"{self.new}/{name}")
                        swept += 1
                finally:
                    self.files.close(fd)
        return swept

    def quarantine(self, name: str, inode: int, most: int) -> None:
        """Move the damaged file of ``name`` aside, if it still is that ``inode``.

        Keeps the last `KEPT_DAMAGED` such files, of at most ``most`` bytes in all.
        """
        if self.files.stat(self.file(name)).st_ino != inode:
            return
        self._set_aside(name)
        size = 0
        kept = sorted(self.files.list(self.damaged), reverse=True)
        for place, (old, facts) in enumerate(kept):
            size += facts.st_size
            if (place >= KEPT_DAMAGED or size > most) and is_file(facts):
                self.files.remove(f"{self.damaged}/{old}")


def _abandoned(fd: int, written: int) -> bool:
    """Return whether nobody is writing this file any more.

    Where no lock can tell, ``written`` does: when that was, in nanoseconds.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return written < time.time_ns() - _WRITTEN_BY
    return True


def _check_own_file(name: str, facts: os.stat_result) -> None:
    """Raise `StoreError` for what is no file, or was put there by another user.

    So what was planted while others could write the folder is never read.
    """
    if not is_file(facts) or facts.st_uid != os.geteuid():
        raise StoreError(
            f"what lies where {name} is stored is no file of this user's. It counts as "
            "absent. Nothing needs doing where it can be moved aside: then the next "
            "put writes it anew"
        )


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


def is_store(path: str) -> bool:
    """Return whether anything was ever stored in a folder."""
    return (Path(path).expanduser() / _INSIDE).is_dir()


def opened(store: Any, limit: int) -> Store:
    """Return a store; that of a folder, of ``limit`` bytes in all, where it is a path.

    Raises `MisuseError` for what is neither, and for ``~name/...`` of no user.
    """
    if isinstance(store, str | os.PathLike):
        if not os.fspath(store):
            raise MisuseError("a store's path is empty. Pass the path of a folder")
        try:
            return DiskStore(store, limit)
        except RuntimeError as error:  # it begins with ~ and no user's name
            raise MisuseError(f"store={store!r} is no folder: {error}") from None
    if not api.is_store(store):
        raise MisuseError(
            f"store={store!r} is neither the path of a folder nor a Store. Pass a "
            "path, or an object with get, put, delete and scan"
        )
    kept: Store = store
    return kept


class DiskStore:
    """Keeps values in files below ``path``, of ``limit`` bytes in all.

    Making one touches nothing: the folder is made by the first put. It must belong to
    this user, and nobody else may write it: else every method raises PermissionError.
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
        return self._load(name, used=True) if self._folder.trust() else None

    def put(self, name: str, value: bytes) -> None:
        check_name(name)
        self._check_writable()
        blobs = needs(name, value)
        size = sealed_size(name, len(value))
        whole = size + sum(sealed_size(blob, of) for blob, of in blobs.items())
        if whole > self.limit:
            raise too_large(name, whole, self.limit)
        if not self._folder.trust():
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
        with suppress(FileNotFoundError):
            if self._folder.trust():
                self._files.remove(self._folder.file(name))
                return True
        return False

    def lease(self, name: str) -> FileLease | None:
        """Return a lease on a name, which ends with this process; None: it is taken."""
        check_name(name)
        self._check_writable()
        self._folder.make()
        return self._folder.lease(name)

    def trouble(self) -> str | None:
        """Return why nothing could be put here now, as far as a look at it tells."""
        try:
            self._folder.trust()
        except OSError as error:
            return words(error)
        path = Path(self.path)
        place = next(each for each in (path, *path.parents) if each.exists())
        if not self.read_only and not os.access(place, os.W_OK | os.X_OK):
            return f"{place} cannot be written by this user"
        if not self.read_only and place != path:
            from tempfile import mkdtemp

            # Permission bits do not tell of /proc, where not even root makes a folder.
            try:
                os.rmdir(mkdtemp(prefix=".sapwood-", dir=place))  # noqa: PTH106
            except OSError as error:
                return f"no folder can be made in {place}: {error.strerror}"
        return None

    def scan(self) -> Iterator[Item]:
        if self._folder.trust():
            yield from self._folder.items()

    def trim(self) -> Trimmed:
        """Remove what dead writers left, and what is over the limit."""
        self._check_writable()
        if not self._folder.trust():
            return Trimmed((), 0, Size(0))
        swept = self._folder.sweep()
        with self._lock:
            items = self._folder.items()
            size = _size_of(items)
            over = max(size - self.limit, 0)
            removed = self._evict(items, Want(over, over), {})
            self._size = None
        names = tuple(item.name for item in removed)
        return Trimmed(names, swept, Size(size - _size_of(removed)))

    def _check_writable(self) -> None:
        if self.read_only:
            raise OSError(
                errno.EROFS,
                f"{self.path} was opened to be read only. Open it to be written",
            )

    def _load(self, name: str, *, used: bool) -> bytes | None:
        """Return what is stored, if anything; ``used`` says that this is a use."""
        try:
            fd = self._files.open(self._folder.file(name))
        except FileNotFoundError:
            return None
        try:
            value = self._read(fd, name)
            if used and not self.read_only:
                with suppress(OSError):  # a reader may lack the right: still a reader
                    self._files.stamp(fd, time.time_ns())
        finally:
            self._files.close(fd)
        return value

    def _read(self, fd: int, name: str) -> bytes:
        facts = os.fstat(fd)
        try:
            _check_own_file(name, facts)
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
            recent = self._put_since <= self.limit // _RECOUNT
            if recent and self._size is not None and self._size + size <= self.limit:
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
        here = {item.name: item for item in items}
        links = {name: self._needs(name) for name in here if name.startswith(ENTRY)}
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
            return needs(name, self._load(name, used=False) or b"")
        except StoreError:
            return {}

    def _removed(self, item: Item) -> bool:
        """Remove a file, unless it was used since it was seen; return whether gone."""
        path = self._folder.file(item.name)
        with suppress(FileNotFoundError):  # another process removed it: gone is gone
            if self._files.stat(path).st_mtime_ns != item.used:
                return False
            self._files.remove(path)
        return True


def _size_of(items: Iterable[Item]) -> Size:
    """Return the bytes that the files of these items take."""
    return Size(sum(sealed_size(item.name, item.size) for item in items))
