"""Code is counted, in each language, and no room grows past its budget unnoticed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

import pytest

pytestmark = pytest.mark.style

# Each line that is code says so, or stands in a row of such lines.
PYTHON = '''\
#!/usr/bin/env python3
"""A docstring.

Of three lines.
"""

import sys  # code

LIMIT = 3  # code
"""What an attribute's docstring says."""

TEXT = """code
# code, in a text

code
"""  # code: its last line


class Page:
    # a comment, and code above it
    """A docstring of a class."""

    def fold(self):
        r"""A docstring
        # of two lines."""
        return (  # code
            # a comment inside

            "# code" "code"
        )  # code

    def open(self): """A docstring in a line of code."""
'''
C = r"""
#include <stdio.h> // code
// a comment
/* a comment
   of two lines */ int code;
int /* code
 */ code;
char *text = "// code"; /* a comment
*/
char *other = "/* code \" /*";
char quote = '"'; // code
char *after = "*/";

/* "a quote in a comment */
"""
JAVASCRIPT = r"""
// a comment
const code = 1; // a comment
/* const no = 1;

*/
const text = "/*" + '//' + code;
const shape = text.replace(/["'/*]\/*/g, "code");
const half = code / 2; /* of two
lines */ const third = code / 3 / 1;
const page = `
  // code, in a text

  /* code */
`;
return /\/*"/.test(text);
"""
CSS = """
/* a comment
   of two lines */
a { /* code */
  background: url(//code);

  content: "/*";
}
/* code: "*/ b {}
"""
HTML = """
<!doctype html>
<!-- a comment

  <p>no code</p> -->
<p>code // and code</p> <!-- a comment -->

<a href="/*">code</a>
"""


@pytest.fixture(scope="module")
def size(root):
    """Return ``scripts/size`` as a module."""
    loader = SourceFileLoader("size", str(root / "scripts/size"))
    module = module_from_spec(spec_from_loader("size", loader))
    loader.exec_module(module)
    return module


@pytest.fixture
def copy(root, tmp_path):
    """Return a repository of two rooms, of three lines and of two, and their budget."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(root / "scripts/size", tmp_path / "scripts/size")
    (tmp_path / "src/sapwood/tree").mkdir(parents=True)
    (tmp_path / "src/sapwood/tree/node.py").write_text('"""Nodes."""\n\na = 1\nb = 2\n')
    (tmp_path / "src/sapwood/tree/node.c").write_text("/* Nodes. */\nint c;\n")
    (tmp_path / "src/sapwood/units.py").write_text("KiB = 1024\nMiB = KiB * KiB\n")
    _set_budget(tmp_path, sum=5, tree=3, units=2)
    return tmp_path


def _set_budget(copy, **budget):
    rows = "".join(f"{name} = {lines}  # as agreed\n" for name, lines in budget.items())
    (copy / "pyproject.toml").write_text(
        f"[tool.sapwood.size]\n# In lines.\n{rows}\n# --- more ---\n\n[tool.other]\n"
        "units = 9\n"
    )


def _run(copy, *options):
    ran = subprocess.run(
        [sys.executable, copy / "scripts/size", *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stderr == ""
    return ran.returncode, ran.stdout


def _budget(copy):
    return tomllib.loads((copy / "pyproject.toml").read_text())["tool"]["sapwood"][
        "size"
    ]


@pytest.mark.parametrize(
    ("suffix", "text", "lines"),
    [
        (".py", PYTHON, 12),
        (".c", C, 8),
        (".h", C, 8),
        (".js", JAVASCRIPT, 10),
        (".css", CSS, 5),
        (".html", HTML, 3),
    ],
)
def test_code_is_counted(size, suffix, text, lines):
    """Comments, docstrings and blank lines are none; their signs in a text are."""
    assert size.code_lines(text, suffix) == lines
    assert size.code_lines("", suffix) == size.code_lines("\n \n", suffix) == 0


@pytest.mark.parametrize(
    ("suffix", "line"),
    [
        (".py", "x = '#'  # '"),
        (".c", "char c = '\\'', d = '\"'; /* ' */"),
        (".js", "a = b / c; // '"),
        (".js", "a = /[*/*]/;"),
        (".js", "a = `${b ? `//` : '/*'}`;"),
        (".css", "//a { b: c }"),
        (".css", "a::after { content: '\\'/*' }"),
        (".html", "<!-- a --><b><!-- c -->"),
    ],
)
def test_a_comment_ends_where_it_ends(size, suffix, line):
    """What stands below a line is counted, however the line is quoted."""
    assert size.code_lines(f"{line}\ncode\n{line}\n", suffix) == 3


def test_rooms_are_kept_to_their_budgets(copy):
    """At its budget a room passes, and the table says what it holds."""
    status, printed = _run(copy)
    assert status == 0
    rows = [line.split() for line in printed.splitlines()]
    assert ["tree", "2", "6", "3", "3"] in rows
    assert ["node", "2", "6", "3"] in rows
    assert ["sum", "3", "8", "5", "5"] in rows
    assert ["C", "1", "2", "1"] in rows
    assert "node" not in _run(copy, "--brief")[1]


def test_a_room_past_its_budget_is_named(copy):
    """By how much, and what to do; so is the sum."""
    (copy / "src/sapwood/tree/more.h").write_text("int d;\n\nint e;\n")
    status, printed = _run(copy)
    assert status == 1
    assert "room tree is past its budget by 2 (lines of code: 5, not 3)" in printed
    assert "the sum is past its budget by 2 (lines of code: 7, not 5)" in printed
    assert "Delete as many, or raise the budget in a commit that says why" in printed
    assert "units is" not in printed


def test_rooms_and_the_sum_are_held_each(copy):
    """A sum that is kept excuses no room, nor do all rooms the sum."""
    _set_budget(copy, sum=5, tree=2, units=3)
    assert _run(copy)[1].count("past its budget") == 1
    _set_budget(copy, sum=4, tree=3, units=2)
    status, printed = _run(copy)
    assert status == 1
    assert "the sum is past its budget by 1 (" in printed
    assert "room tree" not in printed


def test_a_room_without_a_budget_is_named(copy):
    """A new room, or all of them, and the sum."""
    _set_budget(copy, sum=5, tree=3)
    status, printed = _run(copy)
    assert status == 1
    assert "room units (lines of code: 2) has no budget" in printed
    _set_budget(copy)
    assert _run(copy)[1].count("has no budget") == 3


def test_a_budget_without_a_room_is_named(copy):
    """Nobody grows into what a room has left."""
    _set_budget(copy, sum=5, tree=3, units=2, view=7)
    status, printed = _run(copy)
    assert status == 1
    assert "room view is gone, and its budget is not" in printed


def test_writing_never_raises(copy):
    """It lowers, takes out, and adds no room; what is past its budget stays so."""
    _set_budget(copy, sum=9, tree=2, view=7)
    status, printed = _run(copy, "--write")
    assert status == 1
    assert _budget(copy) == {"sum": 5, "tree": 2}
    assert "room tree is past" in printed
    assert "room units (lines of code: 2) has no budget" in printed


def test_raising_sets_every_budget(copy):
    """To what there is: more, less, new or gone."""
    _set_budget(copy, sum=4, tree=9, view=7)
    assert _run(copy, "--raise")[0] == 0
    assert _budget(copy) == {"sum": 5, "tree": 3, "units": 2}


def test_writing_keeps_all_else(copy):
    """Comments, other tables, and the order of rows."""
    _set_budget(copy, units=3, sum=6, tree=3)
    before = (copy / "pyproject.toml").read_text()
    assert _run(copy, "--write")[0] == 0
    after = before.replace("units = 3 ", "units = 2 ").replace("sum = 6", "sum = 5")
    assert (copy / "pyproject.toml").read_text() == after != before


def test_what_is_moved_away_is_told_apart(copy):
    """Support and examples are no part of the sum, and are left out where none is."""
    assert "no reduction" not in _run(copy)[1]
    for folder in ("tests/support", "examples"):
        (copy / folder).mkdir(parents=True)
        (copy / folder / "moved.py").write_text("x = 1\n")
    status, printed = _run(copy)
    assert status == 0
    total, _, apart = printed.partition("What moves here from src is no reduction")
    assert "sum                           3        8        5        5" in total
    rows = [line.split() for line in apart.splitlines()[1:] if line]
    names = ["tests/support", "examples", "tests"]
    assert rows == [[name, "1", "1", "1"] for name in names]
