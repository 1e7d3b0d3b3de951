"""Files that lose power: what a disk store must survive, on purpose and repeatable.

`Lossy` keeps the promises that a file system makes and no others: what was written
and not synced may be torn, a name that was changed and not synced may be the old one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from sapwood.persist.disk import Files

__all__ = ["Crashed", "Lossy"]


class Crashed(BaseException):
    """The process died here; nobody catches that."""


@dataclass(slots=True)
class _Renamed:
    folder: str
    path: str
    before: bytes | None


@dataclass
class Lossy(Files):
    """Real files, without waiting for any disk.

    ``fuse``: die before so many changes more, in the middle if that is a write.
    ``pause``: call ``meanwhile`` once, before so many changes more. ``most``: write
    no more bytes than that in one call.
    """

    fuse: int | None = None
    pause: int | None = None
    meanwhile: Callable[[], object] | None = None
    most: int = 1 << 30
    dead: bool = False
    _paths: dict[int, str] = field(default_factory=dict)
    _unsynced: set[str] = field(default_factory=set)
    _renamed: list[_Renamed] = field(default_factory=list)

    def make_folder(self, path: str) -> None:
        """Make a folder; that it is there is not lost."""
        self._change()
        super().make_folder(path)

    def create(self, path: str) -> int:
        """Make a file whose contents are not synced."""
        self._change()
        fd = super().create(path)
        self._paths[fd] = path
        self._unsynced.add(path)
        return fd

    def write(self, fd: int, data: memoryview) -> int:
        """Write the beginning of ``data``, as any file may."""
        try:
            self._change()
        except Crashed:
            os.write(fd, data[: len(data) // 2])
            raise
        return super().write(fd, data[: self.most])

    def sync(self, fd: int) -> None:
        """Note that the contents will not be torn."""
        self._change()
        self._unsynced.discard(self._paths[fd])

    def sync_folder(self, path: str) -> None:
        """Note that the names in a folder will not change back."""
        self._change()
        self._renamed = [change for change in self._renamed if change.folder != path]

    def close(self, fd: int) -> None:
        """Close a file, synced or not; the dead close theirs, too."""
        self._paths.pop(fd, None)
        super().close(fd)

    def rename(self, path: str, to: str) -> None:
        """Rename, and remember what was there."""
        self._change()
        before = None
        with suppress(FileNotFoundError):
            before = Path(to).read_bytes()
        super().rename(path, to)
        self._renamed.append(_Renamed(str(Path(to).parent), to, before))
        if path in self._unsynced:
            self._unsynced.remove(path)
            self._unsynced.add(to)

    def remove(self, path: str) -> None:
        """Remove a file; it does not come back. Nothing happens meanwhile.

        Whoever removes has looked just before: nobody can close that gap.
        """
        self._burn()
        super().remove(path)
        self._unsynced.discard(path)

    def lose_power(self, *, undo: bool) -> None:
        """Tear all files that are not synced, and perhaps undo unsynced renames."""
        for path in self._unsynced:
            with suppress(FileNotFoundError):
                os.truncate(path, Path(path).stat().st_size // 2)
        while undo and self._renamed:
            change = self._renamed.pop()
            if change.before is None:
                Path(change.path).unlink(missing_ok=True)
            else:
                Path(change.path).write_bytes(change.before)

    def _change(self) -> None:
        if self.meanwhile is not None and self.pause is not None:
            self.pause -= 1
            if self.pause < 0:
                meanwhile, self.meanwhile = self.meanwhile, None
                meanwhile()
        self._burn()

    def _burn(self) -> None:
        if self.fuse is not None:
            self.fuse -= 1
            self.dead = self.fuse < 0
        if self.dead:
            raise Crashed
