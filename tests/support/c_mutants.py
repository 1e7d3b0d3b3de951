"""Faulty variants of what is written in C, which the tests of it must catch.

Each is one place of a file written wrongly. It is planted in a copy of the files, which
is compiled and loaded in their place: the checkout stays as it is.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from types import ModuleType
from typing import Any, Final

from sapwood import _fast
from sapwood._fast import build
from sapwood.errors import MisuseError
from sapwood.runtime import graphed

__all__ = ["AGAIN_MUTANTS", "C_MUTANTS", "CMutant"]

_C: Final = Path(_fast.__file__).parent
_ROOT: Final = _C.parent
_NATIVE: Final = "sapwood._fast._native"


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
        """Return a library of the package with the fault in it.

        Compiled once, for the processes that are forked from now on, too. Raises
        `MisuseError` with what the compiler says.
        """
        self._before()
        try:
            return _compiled(self.file, self.right, self.wrong)
        except build.NotBuilt as error:
            raise MisuseError(str(error)) from error

    def load(self) -> ModuleType:
        """Return the module that has the fault, beside the one that is imported."""
        path = self.compile()
        loader = ExtensionFileLoader(_NATIVE, str(path))
        spec = spec_from_loader(_NATIVE, loader)
        if spec is None:
            raise MisuseError(f"{path} is no module")
        module = module_from_spec(spec)
        loader.exec_module(module)
        return module

    @contextmanager
    def patch(self) -> Iterator[None]:
        """Have whatever is loaded from now on loaded with the fault.

        It is compiled when that is first wanted. What was made before goes on as it is.
        Raises `MisuseError` where the fault cannot be written.
        """
        self._before()
        path, native = _fast.path, _fast.native

        def faulty_path(name: str) -> Path:
            return self.compile() if name == "_segments" else path(name)

        @functools.cache
        def faulty_native() -> ModuleType | None:
            return native() and self.load()

        of_segments = _sources_of(self.file) == build.LIBRARIES["_segments"]
        patched: tuple[str, Any, Callable[..., Any]] = (
            ("path", path, faulty_path)
            if of_segments
            else ("native", native, faulty_native)
        )
        name, right, wrong = patched
        setattr(_fast, name, wrong)
        try:
            _forget()
            yield
        finally:
            setattr(_fast, name, right)
            _forget()


def _forget() -> None:
    """Have libraries looked for anew, and graphed functions called by them."""
    _fast.segments.cache_clear()
    graphed._take_calls()


def _sources_of(file: str) -> tuple[Path, ...]:
    """Return the C files of the library that a file of the package is of."""
    return next(
        sources
        for sources in build.LIBRARIES.values()
        if any(_ROOT / file in build.parts(source) for source in sources)
    )


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


AGAIN_MUTANTS: Final = (
    CMutant(
        "arguments elsewhere",
        "_fast/plays.h",
        "stale |= *word->at != r->lows[word->argument];",
        ";",
    ),
    CMutant(
        "other layouts",
        "_fast/fits.h",
        "if (!is_alike(p, k, array, &r->lows[k], &is_it))",
        "if (is_alike(p, k, array, &r->lows[k], &is_it), 0)",
    ),
    CMutant(
        "what is read looks otherwise",
        "_fast/probe.h",
        "!memcmp(strides, known->seen.strides, size);",
        "1;",
    ),
    CMutant(
        "held outputs",
        "_fast/fits.h",
        "(Py_REFCNT(r->uses[k].object) != r->uses[k].references)",
        "(0)",
    ),
    CMutant(
        "overlaps",
        "_fast/fits.h",
        "if (low < reached)",
        "if (0)",
    ),
    CMutant(
        "where views lie",
        "_fast/fits.h",
        "return are_others(r, call) && are_views_alike(r) && are_apart(r);",
        "return are_others(r, call) && are_apart(r);",
    ),
    CMutant(
        "what is read",
        "_fast/fits.h",
        "return *found && !Py_IsNone(*found) && are_there(r, *found);",
        "return 1;",
    ),
)
"""What calls of fast replays in C must catch, under a seed at least."""

C_MUTANTS: Final = (
    CMutant(
        "strides not compared",
        "_fast/probe.h",
        "!memcmp(found->strides, seen->strides, size);",
        "1;",
    ),
    CMutant(
        "changes of order unseen",
        "_fast/fits.h",
        "!r->loose && is_order_same(r) && stream",
        "!r->loose && stream",
    ),
    CMutant(
        "one array passed twice",
        "_fast/fits.h",
        "are_others(r, call) && are_views_alike(r)",
        "are_views_alike(r)",
    ),
    CMutant(
        "which array it is unasked",
        "_fast/fits.h",
        "return refers_to(item(references, which), argument);",
        "return 1;",
    ),
    CMutant(
        "words of a refused node stay",
        "_fast/plays.h",
        "put_back(copy);\n      return code;",
        "return code;",
    ),
    CMutant(
        "a call within another",
        "_fast/replay.c",
        "count != r->count || is_within(r)",
        "count != r->count",
    ),
    CMutant(
        "more notes than there is room for",
        "_fast/replay.c",
        "r->noted == NOTES || ",
        "",
    ),
    CMutant(
        "keys in another order",
        "_fast/steps.h",
        "|| key != item(s->value, k))",
        ")",
    ),
    CMutant(
        "keys that come in addition",
        "_fast/steps.h",
        "if (PyDict_Contains(space, item(s->value, k)))",
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
        "return (PyObject *)Py_TYPE(*at) == s->value;",
        "return 1;",
    ),
    CMutant(
        "errors of guards that are no miss",
        "_fast/guards.c",
        "!PyErr_ExceptionMatches(PyExc_ValueError))  /*",
        "0)  /*",
    ),
    CMutant(
        "a shortcut that others use",
        "_fast/guards.c",
        "if (g->running == 1 && g->shortcut)",
        "if (g->shortcut)",
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
        "_fast/fits.h",
        "    if (!held)\n      return 0;\n  }\n  Py_XSETREF(r->rivalled",
        "    if (!held)\n      return 1;\n  }\n  Py_XSETREF(r->rivalled",
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
    CMutant(
        "strides by attribute unread",
        "_fast/strided.c",
        "found->dims != numbers_of(strides, seen[1]);",
        "found->dims != numbers_of(shape, seen[1]);",
    ),
    CMutant(
        "how large items are unread",
        "_fast/strided.c",
        "found->lanes = (uint16_t)number_of(dtype, names.size);",
        "found->lanes = 0;",
    ),
    CMutant(
        "whose memory it is unread",
        "_fast/strided.c",
        "found->ordinal = (int32_t)number_of(data, names.ordinal);",
        "found->ordinal = 0;",
    ),
    CMutant(
        "all bytes are settled",
        "_fast/strided.c",
        "int settled = memory && !Py_IS_TYPE(memory, own_memory);",
        "int settled = 1;",
    ),
    CMutant(
        "readers of bytes unasked",
        "_fast/strided.c",
        "readers && PyObject_Not(readers) == 1 &&",
        "readers &&",
    ),
    CMutant(
        "aligned by sixteen",
        "_fast/probe.h",
        "return address & (p->vector - 1) ? address & -address : p->vector;",
        "return address & 15 ? address & -address : 16;",
    ),
    CMutant(
        "slots that C does not bind",
        "_fast/plays.h",
        "done = PyObject_CallOneArg(item(slot, 0), value);",
        "done = Py_NewRef(Py_None);",
    ),
)
"""What the suite must catch."""
