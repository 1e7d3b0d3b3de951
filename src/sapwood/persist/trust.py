"""Whether a folder may be believed: what is stored leads to code being run."""

from __future__ import annotations

import errno
import os
import stat

from sapwood.errors import StoreError

__all__ = ["check_own_file", "check_trust"]


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
