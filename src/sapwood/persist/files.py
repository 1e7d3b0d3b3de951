"""The file operations of a disk store, one method each.

A test, or a fault that is looked for, can stand between: `DiskStore` takes any object
like `Files`. All of them raise OSError.
"""

from __future__ import annotations

import os
import stat
from typing import Final

__all__ = ["Files", "is_file", "write_all"]

_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW


class Files:
    """The operating system's files."""

    def stat(self, path: str) -> os.stat_result:
        """Return what is known of ``path``, through symbolic links."""
        return os.stat(path)  # noqa: PTH116 - paths are text here: this is in every get

    def make_folder(self, path: str) -> bool:
        """Make a folder for this user alone; return False where there is one."""
        try:
            os.mkdir(path, 0o700)  # noqa: PTH102
        except FileExistsError:
            return False
        return True

    def create(self, path: str) -> int:
        """Make a file that was not there, for this user alone; return it open."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600)

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
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    try:
                        facts = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    found.append((entry.name, facts))
        except FileNotFoundError:
            return []
        return found


def write_all(files: Files, fd: int, data: bytes) -> None:
    """Write all of ``data``."""
    left = memoryview(data)
    while left:
        left = left[files.write(fd, left) :]


def is_file(facts: os.stat_result) -> bool:
    """Return whether these are a plain file's facts."""
    return stat.S_ISREG(facts.st_mode)
