"""Faulty variants of what is written in C, which the tests of it must catch.

Each is one place of a file written wrongly. It is planted in a copy of the files, which
is compiled and loaded in their place: the checkout stays as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from sapwood import native
from sapwood.errors import MisuseError
from sapwood.memory.native import library
from sapwood.runtime import graphed
from sapwood.runtime.graphed import Graphed
from sapwood.tree.guards import steps_in_c
from sapwood.tree.replay import in_c

__all__ = ["AGAIN_MUTANTS", "C_MUTANTS", "CMutant"]

_ROOT: Final = Path(native.__file__).parent
_SOURCES: Final = (in_c.SOURCE, steps_in_c.SOURCE, library.SOURCE)
_LOADED: Final[tuple[Any, ...]] = (
    native.native_path,
    in_c.library,
    in_c.maker,
    steps_in_c.maker,
    steps_in_c.same,
    library.native_library,
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

    def written(self, folder: Path) -> None:
        """Write all C files of the package to ``folder``, this fault in one of them.

        Raises `MisuseError` where the file does not hold ``right`` exactly once.
        """
        self._before()
        for part in (each for kind in ("*.c", "*.h") for each in _ROOT.rglob(kind)):
            path, text = folder / part.relative_to(_ROOT), part.read_text()
            if part == _ROOT / self.file:
                text = text.replace(self.right, self.wrong)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def compile(self) -> None:
        """Compile it, as those who load it do: they go on without C if that fails.

        Raises `MisuseError` with what the compiler says.
        """
        with TemporaryDirectory() as folder:
            self.written(Path(folder))
            for source in _SOURCES:
                copy = Path(folder, source.relative_to(_ROOT))
                native.compiled(copy, native.cache_folder())

    @contextmanager
    def patch(self) -> Iterator[None]:
        """Have whatever is loaded from now on compiled with the fault.

        What was made before goes on as it is. Raises `MisuseError` where the fault
        cannot be written, and where compiled code lies beside the source.
        """
        for source in _SOURCES:
            if source.with_suffix(".so").exists():
                raise MisuseError(f"{source.name} is compiled already. Remove its .so")
        compiled, name = native.compiled, "compiled"
        with TemporaryDirectory() as folder:
            self.written(Path(folder))

            def faulty(source: Path, kept: Path) -> Path:
                if source in _SOURCES:
                    source = Path(folder, source.relative_to(_ROOT))
                return compiled(source, kept)

            setattr(native, name, faulty)
            try:
                with _anew():
                    yield
            finally:
                setattr(native, name, compiled)


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
        "tree/again_does.h",
        "stale |= *word->at != a->lows[k];",
        ";",
    ),
    CMutant(
        "other layouts",
        "tree/again_fits.h",
        "!is_like(&found, &arg->known.seen))",
        "0)",
    ),
    CMutant(
        "what is read looks otherwise",
        "tree/again_fits.h",
        "is_like(&seen, &known->seen) &&",
        "",
    ),
    CMutant(
        "held outputs",
        "tree/again_fits.h",
        "(a->uses[k].object->references != a->uses[k].references)",
        "(0)",
    ),
    CMutant(
        "overlaps",
        "tree/again_fits.h",
        "if (low < a->lows[j] + a->arguments[j].length && a->lows[j] < end)",
        "if (0)",
    ),
    CMutant(
        "what is read",
        "tree/again_fits.h",
        "return *found && !is_none(*found) && are_there(a, *found);",
        "return 1;",
    ),
)
"""What calls of fast replays in C must catch, under a seed at least."""

C_MUTANTS: Final = (
    CMutant(
        "strides not compared",
        "tree/again_fits.h",
        "!memcmp(found->strides, seen->strides, size);",
        "1;",
    ),
    CMutant(
        "changes of order unseen",
        "tree/again_fits.h",
        "!is_free(a) || !is_order_same(a)",
        "!is_free(a)",
    ),
    CMutant(
        "one array passed twice",
        "tree/again_fits.h",
        "is_alone(a) && are_others(a, call)",
        "is_alone(a)",
    ),
    CMutant(
        "which array it is unasked",
        "tree/again_fits.h",
        "return refers_to(item(references, which), argument);",
        "return 1;",
    ),
    CMutant(
        "words of a refused node stay",
        "tree/again_does.h",
        "put_back(a, n);\n      return code;",
        "return code;",
    ),
    CMutant(
        "a call within another",
        "tree/again.c",
        "count != a->count || is_within(a)",
        "count != a->count",
    ),
    CMutant(
        "more notes than there is room for",
        "tree/again.c",
        "a->noted == NOTES || ",
        "",
    ),
    CMutant(
        "keys in another order",
        "tree/guards/steps.h",
        "|| key != PyTuple_GetItem(s->value, k))",
        ")",
    ),
    CMutant(
        "keys that come in addition",
        "tree/guards/steps.h",
        "if (PyDict_Contains(space, PyTuple_GetItem(s->value, k)))",
        "if (0)",
    ),
    CMutant(
        "two objects that became one",
        "tree/guards/steps.h",
        "apart = object && !places[at];",
        "apart = object != NULL;",
    ),
    CMutant(
        "classes of objects",
        "tree/guards/steps.h",
        "return (*at)->type == s->value;",
        "return 1;",
    ),
    CMutant(
        "errors of guards that are no miss",
        "tree/guards/steps.c",
        "!PyErr_ExceptionMatches(PyExc_ValueError)) /*",
        "0) /*",
    ),
    CMutant(
        "the same objects, by number of them",
        "tree/guards/steps.c",
        "if (PyList_GetItem(one, k) != PyList_GetItem(other, k))",
        "if (0)",
    ),
    CMutant(
        "a shortcut that others use",
        "tree/guards/steps.c",
        "if (p->running || !c ||",
        "if (!c ||",
        since=(3, 12),
    ),
    CMutant(
        "lists of as many items",
        "tree/guards/shortcut.h",
        "if (PyList_GetItem(c->of, k) != c->items[k])",
        "if (0)",
        since=(3, 12),
    ),
    CMutant(
        "pages of another stream",
        "memory/native/segments.c",
        "(r->users[page] == ITS_STREAM && r->stream[page] == stream)",
        "r->users[page] == ITS_STREAM",
    ),
    CMutant(
        "given back by another stream",
        "memory/native/segments.c",
        "if (stream != r->stream[page])",
        "if (0)",
    ),
    CMutant(
        "copied out though another is free",
        "tree/again_fits.h",
        "    if (!held)\n      return 0;\n  }\n  a->rivalled",
        "    if (!held)\n      return 1;\n  }\n  a->rivalled",
    ),
    CMutant(
        "another's turn",
        "memory/native/segments.c",
        "else if (*turn == at(slot))",
        "else",
    ),
    CMutant(
        "settled while in use",
        "memory/native/segments.c",
        "memset(r->users + page, ITS_STREAM, r->span[page]);",
        ";",
    ),
)
"""What the suite must catch."""
