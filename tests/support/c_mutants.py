"""Faulty variants of what is written in C, which the tests of it must catch.

Each is one place of a file written wrongly. It is planted in a copy of the files, which
is compiled and loaded in their place: the checkout stays as it is.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, Final

from sapwood import _fast
from sapwood._fast import build
from sapwood.errors import MisuseError
from sapwood.runtime import graphed
from sapwood.runtime.graphed import Graphed
from sapwood.tree.guards import steps_in_c
from sapwood.tree.replay import in_c

__all__ = ["AGAIN_MUTANTS", "C_MUTANTS", "CMutant"]

_C: Final = Path(_fast.__file__).parent
_ROOT: Final = _C.parent
_LOADED: Final[tuple[Any, ...]] = (
    _fast.segments,
    in_c.maker,
    steps_in_c.maker,
    steps_in_c.same,
    graphed._call_in_c,
)


@dataclass(frozen=True, slots=True)
class CMutant:
    """A fault with a name in a C file of the package; ``with mutant.patch():``.

    ``since`` is the first CPython on which the file's line is run at all.
    """

    name: str
    file: str
    right: str
    wrong: str
    since: tuple[int, int] = (3, 11)

    @property
    def line(self) -> int:
        """The line of the file that is written wrongly.

        Raises `MisuseError` where it does not hold ``right`` exactly once.
        """
        return self._before().count("\n") + 1

    def _before(self) -> str:
        text = (_ROOT / self.file).read_text()
        if text.count(self.right) != 1:
            raise MisuseError(
                f"{self.file} does not say {self.right!r} once. Write the mutant "
                f"{self.name!r} anew for what it says now"
            )
        return text[: text.index(self.right)]

    @property
    def is_run_here(self) -> bool:
        """Whether this interpreter ever runs the line."""
        return sys.version_info >= self.since

    def compile(self) -> Path:
        """Return a library of those C files that have the fault, or include it.

        Compiled once, for the processes that are forked from now on, too. Raises
        `MisuseError` with what the compiler says.
        """
        self._before()
        try:
            return _compiled(self.file, self.right, self.wrong)
        except build.NotBuilt as error:
            raise MisuseError(str(error)) from error

    @contextmanager
    def patch(self) -> Iterator[None]:
        """Have whatever is loaded from now on loaded with the fault.

        It is compiled when that is first wanted. What was made before goes on as it is.
        Raises `MisuseError` where the fault cannot be written.
        """
        self._before()
        path, library = _fast.path, _fast.library

        def faulty_path(name: str) -> Path:
            return self.compile() if name == _fast.SEGMENTS else path(name)

        @functools.cache
        def faulty_library() -> Any:
            sound = library()
            return sound and _Patched(ctypes.PyDLL(str(self.compile())), sound)

        of_segments = _sources_of(self.file) == build.LIBRARIES[_fast.SEGMENTS]
        patched: tuple[str, Any, Callable[..., Any]] = (
            ("path", path, faulty_path)
            if of_segments
            else ("library", library, faulty_library)
        )
        name, right, wrong = patched
        setattr(_fast, name, wrong)
        try:
            with _anew():
                yield
        finally:
            setattr(_fast, name, right)


class _Patched:
    """A library some of whose functions are those of another, which has a fault.

    The others stay what they are: there are only so many watchers of dicts.
    """

    def __init__(self, faulty: ctypes.PyDLL, sound: ctypes.PyDLL) -> None:
        self._faulty, self._sound = faulty, sound

    def __getattr__(self, name: str) -> Any:
        return getattr(self._faulty, name, None) or getattr(self._sound, name)


def _sources_of(file: str) -> tuple[Path, ...]:
    """Return the C files of a library that are a file of the package, or include it."""
    found = (
        tuple(source for source in sources if _ROOT / file in build.parts(source))
        for sources in build.LIBRARIES.values()
    )
    return next(filter(None, found))


@functools.cache
def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory()


@functools.cache
def _compiled(file: str, right: str, wrong: str) -> Path:
    folder = Path(mkdtemp(dir=_folder().name))
    for part in (each for kind in ("*.c", "*.h") for each in _C.glob(kind)):
        text = part.read_text()
        if part == _ROOT / file:
            text = text.replace(right, wrong)
        (folder / part.name).write_text(text)
    sources = [folder / source.name for source in _sources_of(file)]
    return build.compiled(sources, folder / "faulty.so")


@contextmanager
def _anew() -> Iterator[None]:
    """Have libraries looked for anew, now and behind the block."""
    call, plain = "__call__", graphed._FRONT.plain
    before = vars(Graphed)[call]
    for each in _LOADED:
        each.cache_clear()
    setattr(Graphed, call, plain)
    try:
        yield
    finally:
        setattr(Graphed, call, before)
        for each in _LOADED:
            each.cache_clear()


AGAIN_MUTANTS: Final = (
    CMutant(
        "arguments elsewhere",
        "_fast/replay_does.h",
        "stale |= *word->at != a->lows[k];",
        ";",
    ),
    CMutant(
        "other layouts",
        "_fast/replay_fits.h",
        "!is_like(&found, &arg->known.seen))",
        "0)",
    ),
    CMutant(
        "what is read looks otherwise",
        "_fast/replay_fits.h",
        "is_like(&seen, &known->seen) &&",
        "",
    ),
    CMutant(
        "held outputs",
        "_fast/replay_fits.h",
        "(a->uses[k].object->references != a->uses[k].references)",
        "(0)",
    ),
    CMutant(
        "overlaps",
        "_fast/replay_fits.h",
        "if (low < a->lows[j] + a->arguments[j].length && a->lows[j] < end)",
        "if (0)",
    ),
    CMutant(
        "what is read",
        "_fast/replay_fits.h",
        "return *found && !is_none(*found) && are_there(a, *found);",
        "return 1;",
    ),
)
"""What calls of fast replays in C must catch, under a seed at least."""

C_MUTANTS: Final = (
    CMutant(
        "strides not compared",
        "_fast/replay_fits.h",
        "!memcmp(found->strides, seen->strides, size);",
        "1;",
    ),
    CMutant(
        "changes of order unseen",
        "_fast/replay_fits.h",
        "!is_free(a) || !is_order_same(a)",
        "!is_free(a)",
    ),
    CMutant(
        "one array passed twice",
        "_fast/replay_fits.h",
        "is_alone(a) && are_others(a, call)",
        "is_alone(a)",
    ),
    CMutant(
        "which array it is unasked",
        "_fast/replay_fits.h",
        "return refers_to(item(references, which), argument);",
        "return 1;",
    ),
    CMutant(
        "words of a refused node stay",
        "_fast/replay_does.h",
        "put_back(a, n);\n      return code;",
        "return code;",
    ),
    CMutant(
        "a call within another",
        "_fast/replay.c",
        "count != a->count || is_within(a)",
        "count != a->count",
    ),
    CMutant(
        "more notes than there is room for",
        "_fast/replay.c",
        "a->noted == NOTES || ",
        "",
    ),
    CMutant(
        "keys in another order",
        "_fast/steps.h",
        "|| key != PyTuple_GetItem(s->value, k))",
        ")",
    ),
    CMutant(
        "keys that come in addition",
        "_fast/steps.h",
        "if (PyDict_Contains(space, PyTuple_GetItem(s->value, k)))",
        "if (0)",
    ),
    CMutant(
        "two objects that became one",
        "_fast/steps.h",
        "apart = object && !places[at];",
        "apart = object != NULL;",
    ),
    CMutant(
        "classes of objects",
        "_fast/steps.h",
        "return (*at)->type == s->value;",
        "return 1;",
    ),
    CMutant(
        "errors of guards that are no miss",
        "_fast/guards.c",
        "!PyErr_ExceptionMatches(PyExc_ValueError)) /*",
        "0) /*",
    ),
    CMutant(
        "the same objects, by number of them",
        "_fast/guards.c",
        "if (PyList_GetItem(one, k) != PyList_GetItem(other, k))",
        "if (0)",
    ),
    CMutant(
        "a shortcut that others use",
        "_fast/guards.c",
        "if (p->running || !c ||",
        "if (!c ||",
        since=(3, 12),
    ),
    CMutant(
        "lists of as many items",
        "_fast/shortcut.h",
        "if (PyList_GetItem(c->of, k) != c->items[k])",
        "if (0)",
        since=(3, 12),
    ),
    CMutant(
        "pages of another stream",
        "_fast/segments.c",
        "(r->users[page] == ITS_STREAM && r->stream[page] == stream)",
        "r->users[page] == ITS_STREAM",
    ),
    CMutant(
        "given back by another stream",
        "_fast/segments.c",
        "if (stream != r->stream[page])",
        "if (0)",
    ),
    CMutant(
        "copied out though another is free",
        "_fast/replay_fits.h",
        "    if (!held)\n      return 0;\n  }\n  a->rivalled",
        "    if (!held)\n      return 1;\n  }\n  a->rivalled",
    ),
    CMutant(
        "another's turn",
        "_fast/segments.c",
        "else if (*turn == at(slot))",
        "else",
    ),
    CMutant(
        "settled while in use",
        "_fast/segments.c",
        "memset(r->users + page, ITS_STREAM, r->span[page]);",
        ";",
    ),
)
"""What the suite must catch."""
