"""What code does outside of the program's memory: it prints, logs, opens and writes.

No guard sees that, and no replay does it again. Names do not tell whether code comes to
it, so that warm-ups of a function that may do such listen to what is called.
"""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FrameType, ModuleType
from typing import Any, Final

from sapwood.tree.guards.owners import owner_of_code, package_of
from sapwood.tree.guards.standard import handlers_of, said_by
from sapwood.tree.nests.kinds import by_class

_ACTING: Final = frozenset(
    {"_io", "_posixsubprocess", "_signal", "_socket", "_sqlite3", "atexit", "fcntl"}
    | {"faulthandler", "io", "mmap", "msvcrt", "nt", "posix", "select", "sqlite3"}
    | {"syslog", "termios", "_winapi"}
)
"""Modules in C whose functions act outside."""

_TELLING: Final = frozenset(
    {"_path_normpath", "_path_splitroot", "_path_splitroot_ex", "cpu_count", "fspath"}
    | {"getegid", "geteuid", "getgid", "gethostname", "getlogin", "getpgrp", "getppid"}
    | {"getuid", "htonl", "htons", "inet_aton", "inet_ntoa", "ntohl", "ntohs"}
    | {"putenv", "sched_getaffinity", "strerror", "sysconf", "text_encoding", "uname"}
    | {"unsetenv"}
)
"""Functions of these that do not, or whose writes guards see."""

_BUILT_IN: Final = frozenset({"input", "open", "print"})
_OTHERS: Final[Mapping[str, Collection[str]]] = {
    "builtins": _BUILT_IN,
    "_csv": ("reader", "writer"),
    "_pickle": ("dump", "load"),
    "_thread": ("start_joinable_thread", "start_new_thread"),
    "marshal": ("dump", "load"),
}
"""Functions of other modules in C that do; those that are passed streams use them."""

_QUIET: Final = frozenset(
    {"fileno", "flush", "isatty", "readable", "seekable", "writable"}
)
"""Methods of streams that neither read nor write."""

_TAKING: Final = frozenset(
    {"_blake2", "_bz2", "_csv", "_elementtree", "_hashlib", "_hmac", "_lzma", "_md5"}
    | {"_pickle", "_sha1", "_sha2", "_sha256", "_sha3", "_sha512", "_socket", "_ssl"}
    | {"mmap", "pyexpat", "select", "sqlite3", "xml", "zlib"}
)
"""Modules of classes whose objects keep in C what they are given."""

_LAUNCHING: Final = ("numba.cuda.", "pycuda.", "taichi.", "warp.")
"""Packages that launch on streams of their own, where no capture is."""

_HARMLESS: Final = frozenset(
    {"__future__", "_collections", "_functools", "_operator", "_random", "_thread"}
    | {"abc", "array", "bisect", "builtins", "cmath", "collections", "contextlib"}
    | {"contextvars", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions"}
    | {"functools", "gc", "heapq", "inspect", "itertools", "json", "keyword", "math"}
    | {"numbers", "operator", "queue", "random", "re", "reprlib", "statistics"}
    | {"string", "struct", "textwrap", "threading", "time", "types", "typing"}
    | {"warnings", "weakref"}
)
"""Standard modules that lead to none of these."""

_LEADING: Final = (sys.stdlib_module_names - _HARMLESS) | {
    each.partition(".")[0] for each in _LAUNCHING
}
"""Packages by whose modules, functions and objects code may come to such."""

_NAMED: Final = (
    _BUILT_IN
    | _ACTING
    | _TAKING
    | {"__builtins__", "__import__", "breakpoint", "builtins", "csv", "dis", "eval"}
    | {"exec", "hashlib", "hmac", "import_module", "io", "logging", "os", "pathlib"}
    | {"pickle", "pprint", "shutil", "signal", "socket", "subprocess", "sys"}
    | {"tempfile", "traceback"}
    | {"Process", "Thread", "Timer", "submit"}
)
"""Names by which code may come to such, in itself."""

_CALLS: Final = (print, open, input)
_ASKED: Final = frozenset(
    {logging.Logger.isEnabledFor.__code__, logging.Logger.getEffectiveLevel.__code__}
)
"""By these a logger tells its level."""

_RECORDS: Final = logging.Logger.callHandlers.__code__
_WRITES: Final = frozenset({"write", "writelines"})
_UNHEARD: Final = frozenset({"importlib", "linecache", "warnings", "zipimport"})
"""Modules that act for the interpreter, and as a rule once."""

_MEMORY: Final = (io.BytesIO, io.StringIO)
_STREAM: Final[Any] = io.IOBase.__base__
"""The base of all streams in C: to ask that of `io.IOBase` may run others' code."""


def may_act(names: set[str], held: Iterable[object]) -> bool:
    """Return whether code that names and holds these may act outside."""
    return not _NAMED.isdisjoint(names) or any(map(_leads, held))


def _leads(value: object) -> bool:
    """Return whether code that has a value may act outside by it."""
    if any(value is each for each in _CALLS):
        return True
    return package_of(value) in _LEADING or issubclass(type(value), _STREAM)


class _Listener:
    """Hears what is called on one thread; ``listens`` until its warm-up is over."""

    def __init__(
        self,
        told: Callable[[str, str], object],
        holds: Callable[[object], bool],
        own: set[CodeType],
    ) -> None:
        self._told, self._holds, self._own = told, holds, own
        self.listens = True

    def __call__(self, frame: FrameType, event: str, function: Any) -> None:
        """Tell what a profiled thread is about to do, if that is outside."""
        if not self.listens:  # an interrupt has left it here
            sys.setprofile(None)
            return
        what = ""
        if event == "c_call" and _acts(function, self._holds):
            what = f"calls {function.__name__}()"
        elif event == "call":
            what = _does(frame, self._holds)
        user = _user_of(frame, self._own) if what else None
        if user is not None:
            self._told(what, f"{user.f_code.co_filename}:{user.f_lineno}")


@contextmanager
def listening(
    told: Callable[[str, str | None], object],
    holds: Callable[[object], bool],
    own: set[CodeType],
) -> Iterator[None]:
    """Return a context in which ``told`` hears what the user's code does outside.

    And on which line. ``holds`` says of an object whether it was there before, ``own``
    what code is the user's besides. Where somebody else profiles this thread, it is
    told that.
    """
    before: Any = sys.getprofile()
    if before is not None and type(before) is not _Listener:
        told("is profiled, so that nobody hears what it does outside", None)
        yield
        return
    listener = _Listener(told, holds, own)
    try:
        sys.setprofile(listener)
        yield
    finally:
        listener.listens = False
        found = sys.getprofile()
        if found is listener or found is None:  # CPython takes away one that raises
            sys.setprofile(before)
        elif found is not before:
            told("sets a profile function", None)


def _top(module: object) -> str:
    return module.partition(".")[0] if isinstance(module, str) else ""


def _acts(function: Any, holds: Callable[[object], bool]) -> bool:
    # By types: whoever has a ``__class__`` of its own would have code run here.
    of, name = getattr(function, "__self__", None), function.__name__
    if of is None or issubclass(type(of), ModuleType):
        module = "" if of is None else of.__name__
        acting = module in _ACTING and name not in _TELLING
        acting = acting or name in _OTHERS.get(module, ())
        return acting and said_by(function) is None
    if issubclass(type(of), _STREAM):
        # Guards see what those in memory hold, wherever code may find them.
        found = of is sys.stdout or of is sys.stderr
        is_memory = issubclass(type(of), _MEMORY)
        return name not in _QUIET and (found or not is_memory)
    return _takes(type(of)) and holds(of)


@by_class
def _takes(cls: type) -> bool:
    return not _TAKING.isdisjoint(map(package_of, cls.__mro__))


def _does(frame: FrameType, holds: Callable[[object], bool]) -> str:
    """Return what a function in Python that is called does, if it is such a one."""
    code, module = frame.f_code, frame.f_globals.get("__name__")
    if code is _RECORDS:
        # What users' handlers do, guards see.
        return "" if handlers_of(frame.f_locals["self"]) else "logs"
    if code in _ASKED:
        held = holds(frame.f_locals["self"])
        asks = f"asks {code.co_name}() of a logger that it looks up"
        return "" if held else asks
    if code.co_name in _WRITES and code.co_varnames:
        stream = frame.f_locals.get(code.co_varnames[0])
        return "writes" if stream is sys.stdout or stream is sys.stderr else ""
    if f"{module}.".startswith(_LAUNCHING):
        direct = frame.f_back and owner_of_code(frame.f_back.f_code) == "user"
        text = f"calls {_top(module)}, which has streams of its own"
        return text if direct else ""
    return ""


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
