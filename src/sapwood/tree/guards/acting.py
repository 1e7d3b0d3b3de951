"""What code does outside of the program's memory: it prints, logs, opens and writes.

No guard sees that, and no replay does it again. Names do not tell whether code comes to
it, so that warm-ups of a function that may do such listen to what is called.
"""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, ModuleType
from typing import Any, Final

from sapwood.tree.guards.owners import owner_of_code, package_of
from sapwood.tree.guards.standard import said_by
from sapwood.tree.nests.kinds import by_class

_ACTING: Final = frozenset(
    {"_io", "_posixsubprocess", "_signal", "_socket", "_sqlite3", "fcntl", "mmap"}
    | {"msvcrt", "nt", "posix", "select", "sqlite3", "syslog", "termios", "_winapi"}
)
"""Modules in C whose functions act outside."""

_TELLING: Final = frozenset(
    {"cpu_count", "fspath", "gethostname", "getlogin", "getppid", "putenv"}
    | {"sched_getaffinity", "sysconf", "text_encoding", "uname", "unsetenv"}
)
"""Functions of these that do not, or whose writes guards see."""

_TAKING: Final = frozenset(
    {"_blake2", "_bz2", "_csv", "_elementtree", "_hashlib", "_hmac", "_lzma", "_md5"}
    | {"_pickle", "_sha1", "_sha2", "_sha256", "_sha3", "_sha512", "_socket", "_ssl"}
    | {"mmap", "pyexpat", "select", "sqlite3", "xml", "zlib"}
)
"""Modules of classes whose objects keep in C what they are given."""

_LAUNCHING: Final = ("numba.cuda.", "pycuda.", "taichi.", "warp.")
"""Packages that launch on streams of their own, where no capture is."""

_LEADING: Final = (
    _ACTING
    | _TAKING
    | {each.partition(".")[0] for each in _LAUNCHING}
    | {"csv", "hashlib", "hmac", "io", "logging", "os", "pathlib", "pickle", "shutil"}
    | {"socket", "subprocess", "sys", "tempfile"}
)
"""Modules that lead to such, or whose objects do."""

_BUILT_IN: Final = frozenset({"input", "open", "print"})
_EMITS: Final = logging.StreamHandler.emit.__code__
_ASKED: Final = frozenset(
    {logging.Logger.isEnabledFor.__code__, logging.Logger.getEffectiveLevel.__code__}
)
_UNHEARD: Final = frozenset({"importlib", "linecache", "warnings", "zipimport"})
"""Modules that act for the interpreter, and as a rule once."""

_MEMORY: Final = (io.BytesIO, io.StringIO)
_STREAM: Final[Any] = io.IOBase.__base__
"""The base of all streams in C: to ask that of `io.IOBase` may run others' code."""


def may_act(names: set[str], builtins: set[str], held: Iterable[object]) -> bool:
    """Return whether code that names and holds these may act outside."""
    named = not (_BUILT_IN.isdisjoint(builtins) and _LEADING.isdisjoint(names))
    return named or any(map(_leads, held))


def _leads(value: object) -> bool:
    """Return whether code that has a value may act outside by it."""
    return package_of(value) in _LEADING or issubclass(type(value), _STREAM)


@contextmanager
def listening(
    told: Callable[[str, str], object],
    holds: Callable[[object], bool],
    own: set[CodeType],
) -> Iterator[None]:
    """Return a context in which ``told`` hears what the user's code does outside.

    And on which line. ``holds`` says of an object whether it was there before, ``own``
    what code is the user's besides. Where somebody profiles this thread, nothing is
    heard.
    """
    if sys.getprofile() is not None:
        yield
        return
    listens = True

    def called(frame: FrameType, event: str, function: Any) -> None:
        if not listens:  # an interrupt has left it here
            sys.setprofile(None)
            return
        if event == "c_call":
            what = f"calls {function.__name__}()" if _acts(function, holds) else ""
        else:
            what = _does(frame, holds) if event == "call" else ""
        user = _user_of(frame, own) if what else None
        if user is not None:
            told(what, f"{user.f_code.co_filename}:{user.f_lineno}")

    try:
        sys.setprofile(called)
        yield
    finally:
        listens = False
        sys.setprofile(None)


def _top(module: object) -> str:
    return module.partition(".")[0] if isinstance(module, str) else ""


def _acts(function: Any, holds: Callable[[object], bool]) -> bool:
    of = getattr(function, "__self__", None)
    if of is None or isinstance(of, ModuleType | type):
        name, module = function.__name__, getattr(of, "__name__", "")
        acting = module in _ACTING and name not in _TELLING
        acting = acting or (module == "builtins" and name in _BUILT_IN)
        return acting and said_by(function) is None
    if issubclass(type(of), _STREAM):
        # Guards see what those in memory hold, wherever code may find them.
        found = of is sys.stdout or of is sys.stderr
        return found or not issubclass(type(of), _MEMORY)
    return _takes(type(of)) and holds(of)


@by_class
def _takes(cls: type) -> bool:
    return not _TAKING.isdisjoint(map(package_of, cls.__mro__))


def _does(frame: FrameType, holds: Callable[[object], bool]) -> str:
    """Return what a function in Python that is called does, if it is such a one."""
    code, caller = frame.f_code, frame.f_back
    if code is _EMITS:
        return "logs"
    module = frame.f_globals.get("__name__")
    launches = f"{module}.".startswith(_LAUNCHING)
    known = launches or code in _ASKED
    if not known or caller is None or owner_of_code(caller.f_code) != "user":
        return ""
    if launches:
        return f"calls {_top(module)}, which has streams of its own"
    # Of those that were there before, guards see the levels.
    found = not holds(frame.f_locals["self"])
    return f"asks {code.co_name}() of a logger that it looks up" if found else ""


def _user_of(frame: FrameType | None, own: set[CodeType]) -> FrameType | None:
    """Return the user's frame that called, itself or by the standard library."""
    while frame is not None and owner_of_code(frame.f_code) == "standard":
        if _top(frame.f_globals.get("__name__")) in _UNHEARD:
            return None
        frame = frame.f_back
    if frame is None:
        return None
    code = frame.f_code
    return frame if owner_of_code(code) == "user" or code in own else None
