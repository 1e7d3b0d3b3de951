"""Builds what is written in C, with the compiler at hand; it needs Python alone.

The package's installation calls it. By itself it builds in place what is not there, or
was built from other sources: ``python -m sapwood._fast.build``, or by the path of this
file where nothing is installed. The library never imports it.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from sysconfig import get_config_var, get_path
from typing import Final

_HERE: Final = Path(__file__).parent

LIBRARIES: Final = {
    "_segments": (_HERE / "segments.c",),
    "_state": (_HERE / "state.c",),
    "_native": tuple(
        _HERE / f"{name}.c"
        for name in ("native", "guards", "probe", "replay", "strided")
    ),
}
"""The C files of each library; all but the first are modules of Python."""

FLAGS: Final = (
    *("-std=c11", "-O2", "-fPIC", "-shared"),
    *("-fvisibility=hidden", "-pthread"),
)

_DIGEST: Final = _HERE / "digest.c"
_COMPILERS: Final = ("cc", "gcc", "clang")
_SECONDS: Final = 120
_VERSION: Final = re.compile(r'^__version__.* = "(.+)"$', re.MULTILINE)
_INCLUDE: Final = re.compile(r'^#include "(.+)"$', re.MULTILINE)


class NotBuilt(Exception):
    """Says why something was not built, and what to do."""


def build() -> list[Path]:
    """Return the paths of all libraries, built from the sources as they are now.

    Raises `NotBuilt` that says what is in the way: no compiler, one that fails, or a
    folder that cannot be written.
    """
    return [_built(name) for name in LIBRARIES]


def is_built() -> bool:
    """Return whether all libraries are there, built from the sources as they are."""
    return all(map(_is_built, LIBRARIES))


def parts(source: Path) -> list[Path]:
    """Return a C file and all files of ours that it includes, each once."""
    found = [source]
    for part in found:
        names = _INCLUDE.findall(part.read_text(encoding="utf-8"))
        found += [each for name in names if (each := part.parent / name) not in found]
    return found


def compiled(sources: Sequence[Path], path: Path) -> Path:
    """Return ``path``, where there is a library of some C files now.

    Raises as `build` does.
    """
    # Written aside and renamed: others who load it see all of it or nothing.
    aside = path.with_name(f".{secrets.token_hex(8)}.tmp")
    compiler, names = _compiler(), ", ".join(source.name for source in sources)
    files = [*map(str, sources), str(_DIGEST)]
    try:
        done = subprocess.run(  # noqa: S603 - the user's own compiler, no shell
            [*compiler, *FLAGS, *flags(sources), *files, "-o", aside],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
        if done.returncode:
            raise NotBuilt(
                f"{' '.join(compiler)} cannot compile {names}: {done.stderr.strip()}. "
                "Name another compiler: CC=gcc, say"
            )
        aside.replace(path)
    except subprocess.TimeoutExpired as error:
        raise NotBuilt(
            f"{' '.join(compiler)} did not compile {names} within {_SECONDS} s. Name "
            "another compiler: CC=gcc, say"
        ) from error
    except OSError as error:
        raise NotBuilt(
            f"{names} cannot be built into {path.parent}: {error}"
        ) from error
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
    return path


def flags(sources: Sequence[Path]) -> list[str]:
    """Return what the compiler is told besides `FLAGS`.

    Raises `NotBuilt` where Python's headers are wanted and missing, or where this
    Python is none that the C is for.
    """
    (version,) = _VERSION.findall((_HERE.parent / "version.py").read_text())
    found = [
        f'-DSAPWOOD_BUILT_FROM="{_digest(sources)}"',
        f'-DSAPWOOD_VERSION="{version}"',
    ]
    if all(source.name == "segments.c" for source in sources):
        return found
    if sys.implementation.name != "cpython" or get_config_var("Py_GIL_DISABLED"):
        raise NotBuilt("this Python does without: the C is for CPython with one lock")
    headers = Path(get_path("include"))
    if not (headers / "Python.h").exists():
        raise NotBuilt(
            f"Python's headers are not in {headers}. Install them (on Debian: apt-get "
            "install python3-dev)"
        )
    return [*found, "-isystem", str(headers)]


def _built(name: str) -> Path:
    path = _path(name)
    if _is_built(name):
        return path
    try:
        return compiled(LIBRARIES[name], path)
    except NotBuilt:
        # What was built from other sources may not fit the Python beside these.
        with suppress(OSError):
            path.unlink(missing_ok=True)
        raise


def _is_built(name: str) -> bool:
    path = _path(name)
    return path.exists() and _digest(LIBRARIES[name]).encode() in path.read_bytes()


def _path(name: str) -> Path:
    """Return where a library is, by the interpreter that it is for."""
    return _HERE / f"{name}{EXTENSION_SUFFIXES[0]}"


def _digest(sources: Sequence[Path]) -> str:
    """Return what tells what C files, and how they are compiled, from all else."""
    digest = hashlib.sha256("\0".join(FLAGS).encode())
    for source in (*sources, _DIGEST):
        for part in parts(source):
            digest.update(part.read_bytes())
    return digest.hexdigest()[:32]


def _compiler() -> list[str]:
    for name in (os.environ.get("CC", ""), *_COMPILERS):
        command = name.split()
        if command and shutil.which(command[0]):
            return command
    raise NotBuilt(
        f"there is no C compiler here ({', '.join(_COMPILERS)}). Install gcc or clang, "
        "or name one: CC=/path/to/cc"
    )


def _main() -> int:
    if is_built():
        return 0
    try:
        for path in build():
            sys.stdout.write(f"built {path}\n")
    except NotBuilt as error:
        sys.stderr.write(f"_fast is not built: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
