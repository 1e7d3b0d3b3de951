"""docs/allocator-rows.md and the tests that it names agree."""

from __future__ import annotations

import ast
import re
from collections import Counter

import pytest

pytestmark = pytest.mark.style

ROWS = {"A": 12, "B": 19, "C": 19, "D": 40, "E": 27, "F": 12, "G": 16}
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
GROUP = re.compile(r"## ([A-G])\. ")
ROW = re.compile(r"\| (test_\w+) \| (.+) \|")
SAYS = re.compile(r"([A-G]) (test_\w+)")


@pytest.fixture(scope="module")
def page(root):
    """Return the page's text."""
    return (root / "docs/allocator-rows.md").read_text()


@pytest.fixture(scope="module")
def rows(page):
    """Return ``(group, name, cell)`` of every row of the tables A to G."""
    group, found = "", []
    for line in page.splitlines():
        if line.startswith("## "):
            match = GROUP.match(line)
            group = match[1] if match else ""
        elif group and (row := ROW.fullmatch(line)):
            found.append((group, row[1], row[2]))
    return found


@pytest.fixture(scope="module")
def said(root):
    """Return, for each test, the row that its docstring begins with, if any."""
    found = {}
    for file in sorted((root / "tests").rglob("test_*.py")):
        path = str(file.relative_to(root))
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Assign):
                said = SAYS.match(_docstring(node))
                found |= {
                    (path, name): said and (said[1], said[2]) for name in _names(node)
                }
    return found


def _docstring(node):
    return "" if isinstance(node, ast.Assign) else ast.get_docstring(node) or ""


def _names(node):
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return [node.name]


def test_every_row_is_there_once(rows):
    """The tables have as many rows as PyTorch has tests, and no name is there twice."""
    assert Counter(group for group, _, _ in rows) == ROWS
    assert max(Counter(row[:2] for row in rows).values()) == 1


def test_every_test_exists(page, said):
    """Whatever the page names is a test in that file."""
    named = TEST.findall(page)
    assert named
    assert [test for test in named if test not in said] == []


def test_every_row_has_a_test_or_a_reason(rows):
    """A cell names tests, or says in words why there is none."""
    for _, name, cell in rows:
        reason = cell.removeprefix("not covered: ")
        assert TEST.search(cell) or (reason != cell and len(reason.split()) > 3), name


def test_what_a_test_says_it_is_for_is_its_row(rows, said):
    """A test whose docstring begins with a row is named by that row."""
    named = {(group, name): set(TEST.findall(cell)) for group, name, cell in rows}
    astray = [
        (test, row)
        for test, row in said.items()
        if row is not None and test not in named.get(row, ())
    ]
    assert astray == []


def test_rows_are_not_covered_by_what_is_skipped(page, root):
    """No test that the page names is one that only a GPU runs."""
    for path, name in TEST.findall(page):
        for node in ast.parse((root / path).read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                marks = {ast.unparse(each) for each in node.decorator_list}
                assert "pytest.mark.gpu" not in marks, name
