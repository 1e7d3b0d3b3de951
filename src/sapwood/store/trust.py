"""Whether a folder may be believed: what is stored leads to code being run."""

from __future__ import annotations

import errno
import os
import stat

__all__ = ["check_trust"]


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
