"""Compiled parts of this library: each found beside its source, or compiled once.

Compiled code is kept in the user's cache folder under a digest of all that it is made
from, and loaded only from a folder and a file that nobody else may write.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import secrets
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Final

from sapwood.errors import MisuseError

__all__ = ["FLAGS", "cache_folder", "compiled", "native_path"]

FLAGS: Final = (
    "-std=c11",
    "-O2",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-pthread",
)

_COMPILERS: Final = ("cc", "gcc", "clang")
_SECONDS: Final = 120
_INCLUDE: Final = re.compile(r'^#include "(.+)"$', re.MULTILINE)


@functools.cache
def native_path(source: Path) -> Path:
    """Return where the library of a C file is, compiling it now if it never was.

    Raises `MisuseError` where it is not compiled and cannot be.
    """
    built = source.with_suffix(".so")  # what a wheel for this platform brings
    return built if built.exists() else compiled(source, cache_folder())


def cache_folder() -> Path:
    """Return where compiled code of this user is kept."""
    return Path("~/.cache/sapwood/native").expanduser()


def compiled(source: Path, folder: Path) -> Path:
    """Return the path of a C file's library in ``folder``, compiling what is missing.

    Raises `MisuseError` that says what is in the way: no compiler, one that fails, or
    a folder that others can write or this user cannot.
    """
    path = folder / f"{source.stem}-{_digest(source)}.so"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _trust(folder)
        if not path.exists():
            _compile(_compiler(source), source, path)
        _trust(path)
    except OSError as error:
        raise MisuseError(
            f"compiled code cannot be kept in {folder} ({error}). Make that a folder "
            "of your own that can be written, or set HOME to one"
        ) from error
    return path


def _digest(source: Path) -> str:
    made_from = (platform.machine(), platform.libc_ver()[0], *FLAGS)
    digest = hashlib.sha256()
    for part in _parts(source):
        digest.update(part.read_bytes())
    digest.update("\0".join(made_from).encode())
    return digest.hexdigest()[:32]


def _parts(source: Path) -> list[Path]:
    """Return a C file and all files of ours that it includes, each once."""
    found = [source]
    for part in found:
        names = _INCLUDE.findall(part.read_text())
        found += [each for name in names if (each := part.parent / name) not in found]
    return found


def _trust(path: Path) -> None:
    facts = path.stat()
    if facts.st_uid != os.geteuid() or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise MisuseError(
            f"{path} belongs to another user or may be written by others, and code "
            "would be loaded from it. Take their right (chown, chmod go-w) or remove it"
        )


def _compiler(source: Path) -> str:
    for name in _COMPILERS:
        found = shutil.which(name)
        if found is not None:
            return found
    raise MisuseError(
        f"{source.name} has to be compiled once, and there is no C compiler here "
        f"({', '.join(_COMPILERS)}). Install gcc or clang"
    )


def _compile(compiler: str, source: Path, path: Path) -> None:
    # Written aside and renamed: others who load it see all of it or nothing.
    aside = path.with_name(f"{secrets.token_hex(8)}.tmp")
    try:
        done = subprocess.run(  # noqa: S603 - the user's own compiler, no shell
            [compiler, *FLAGS, str(source), "-o", str(aside)],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        if done.returncode:
            raise MisuseError(
                f"{compiler} cannot compile {source.name}: {done.stderr.strip()}. Put "
                "another compiler first on PATH"
            )
        aside.chmod(0o700)
        aside.replace(path)
    except subprocess.TimeoutExpired as error:
        raise MisuseError(
            f"{compiler} did not compile {source.name} within {_SECONDS} s. Put "
            "another compiler first on PATH"
        ) from error
    finally:
        aside.unlink(missing_ok=True)
