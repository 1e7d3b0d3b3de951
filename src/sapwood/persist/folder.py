"""The folder of a disk store: what lies where in it, and how it gets there.

``v1/a/NAME`` values, by the first digit of the digest of their names · ``v1/new``
files that are being written · ``v1/damaged`` what was found damaged, the last few.
A writer holds a lock on its file for as long as it lives, so a file in ``v1/new``
without a lock is a dead writer's.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from sapwood.errors import StoreError
from sapwood.persist.api import Item, is_name
from sapwood.persist.files import Files, is_file
from sapwood.persist.format import sealed_size
from sapwood.units import Size

__all__ = ["KEPT_DAMAGED", "Folder", "check_own_file", "check_trust"]

KEPT_DAMAGED: Final = 16
"""How many damaged files are kept to look at."""

_WRITTEN_BY: Final = 3600 * 10**9
"""Nanoseconds after which nothing is being written, where no locks tell."""


class Folder:
    """Where a disk store lies: ``path``, reached through ``files``."""

    def __init__(self, path: str, files: Files) -> None:
        self.path, self.files = path, files
        self.inside = f"{path}/v1"
        self.new = f"{self.inside}/new"
        self.damaged = f"{self.inside}/damaged"

    def trust(self) -> None:
        """Raise as `check_trust` does, or FileNotFoundError where nothing is here."""
        check_trust(self.path, self.files.stat(self.path))

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

    def publish(self, path: str, name: str) -> None:
        """Put a written file in the place of the file of ``name``, durably."""
        shard = self._shard(name)
        try:
            self.files.rename(path, f"{shard}/{name}")
        except FileNotFoundError:
            self.files.make_folder(shard)
            self.files.sync_folder(self.inside)
            self.files.rename(path, f"{shard}/{name}")
        except IsADirectoryError:
            self._clear(name)
            self.files.rename(path, f"{shard}/{name}")
        self.files.sync_folder(shard)

    def _clear(self, name: str) -> None:
        """Move aside the folder that somebody made where a file is to be."""
        self.files.make_folder(self.damaged)
        try:
            self.files.rename(
                self.file(name), f"{self.damaged}/{time.time_ns()}-{name}"
            )
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
        self.files.make_folder(self.damaged)
        aside = f"{self.damaged}/{time.time_ns()}-{name}"
        self.files.rename(self.file(name), aside)
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


# Whether a folder may be believed: what is stored leads to code being run.


def check_trust(path: str, facts: os.stat_result) -> None:
    """Raise where others than this user could have put things into a folder.

    ``facts`` are those of ``path``. Raises PermissionError, or NotADirectoryError
    where it is no folder.
    """
    if not stat.S_ISDIR(facts.st_mode):
        raise NotADirectoryError(
            errno.ENOTDIR, f"{path} is no folder. Name a folder for the store"
        )
    me = os.geteuid()
    if facts.st_uid != me:
        raise PermissionError(
            errno.EPERM,
            f"{path} belongs to user {facts.st_uid}, and this is user {me}. What is "
            "stored leads to code being run: use a folder of your own",
        )
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(
            errno.EPERM,
            f"{path} may be written by others. What is stored leads to code being "
            "run: empty it and take their right (chmod go-w), or use another",
        )


def check_own_file(name: str, facts: os.stat_result) -> None:
    """Raise `StoreError` for what is no file, or was put there by another user.

    So what was planted while others could write the folder is never read.
    """
    if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid():
        raise StoreError(
            f"what lies where {name} is stored is no file of this user's. It counts as "
            "absent. Nothing needs doing where it can be moved aside: then the next "
            "put writes it anew"
        )
