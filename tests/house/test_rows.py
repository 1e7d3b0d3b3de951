"""The pages of rows of PyTorch's tests, and the tests that they name, agree."""

from __future__ import annotations

import ast
import re
from collections import Counter

import pytest

pytestmark = pytest.mark.style

ALLOCATOR = "docs/allocator-rows.md"
PAGES = {
    ALLOCATOR: {"A": 12, "B": 19, "C": 19, "D": 40, "E": 27, "F": 12, "G": 16},
    "docs/trees-rows.md": dict(
        zip(
            "ABCDEFGHIJKLMNO",
            (17, 29, 26, 10, 9, 12, 10, 10, 15, 8, 3, 17, 66, 7, 1),
            strict=True,
        )
    ),
}
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
GROUP = re.compile(r"## ([A-O])\. ")
ROW = re.compile(r"\| (test_[\w…]+) \| (.+) \|")
NOWHERE = re.compile(r"nowhere in src: `(\w+)`")
PLACE = re.compile(r"\((docs/\w+\.md), ([\w ,]+)\)")
CHECKING = {"agree", "alike", "pytest.raises", "refused", "rig.check", "same"}
SAYS = re.compile(r"([A-G]) (test_\w+)")


@pytest.fixture(scope="module", params=[*PAGES])
def name(request):
    """Return the path of one of the pages."""
    return request.param


@pytest.fixture(scope="module")
def page(root, name):
    """Return the page's text."""
    return (root / name).read_text()


@pytest.fixture(scope="module")
def rows(page):
    """Return ``(group, name, cell)`` of every row of the page's tables."""
    return rows_of(page)


@pytest.fixture(scope="module")
def allocators(root):
    """Return the rows of the allocator's page."""
    return rows_of((root / ALLOCATOR).read_text())


def rows_of(page):
    """Return ``(group, name, cell)`` of every row of a page's tables."""
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


def test_every_row_is_there_once(rows, name):
    """The tables have as many rows as PyTorch has tests, and no name is there twice."""
    assert Counter(group for group, _, _ in rows) == PAGES[name]
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


def test_what_a_test_says_it_is_for_is_its_row(allocators, said):
    """A test whose docstring begins with a row is named by that row."""
    named = {(group, name): set(TEST.findall(cell)) for group, name, cell in allocators}
    astray = [
        (test, row)
        for test, row in said.items()
        if row is not None and test not in named.get(row, ())
    ]
    assert astray == []


def test_a_row_s_tests_say_that_they_are_for_it(allocators, said):
    """Their first line begins with the row: nobody is claimed that does not know."""
    for group, name, cell in allocators:
        assert {said[test] for test in TEST.findall(cell)} <= {(group, name)}, name


def test_what_is_not_covered_names_no_test(rows):
    """A reason in words, and a test beside it, would say both."""
    for _, name, cell in rows:
        assert not (cell.startswith("not covered: ") and TEST.search(cell)), name


def test_what_a_reason_says_is_nowhere_is_in_no_file(allocators, root):
    """A reason that something is not there ends with the day that it is."""
    files = [*(root / "src").rglob("*.py"), *(root / "src").rglob("*.[ch]")]
    text = "".join(file.read_text() for file in files)
    words = [word for *_, cell in allocators for word in NOWHERE.findall(cell)]
    assert len(set(words)) >= 4
    assert [word for word in words if word.lower() in text.lower()] == []


def test_every_place_that_a_reason_names_is_there(rows, root):
    """A page, and in it the words that are named with it."""
    for *_, cell in rows:
        for page, words in PLACE.findall(cell):
            assert words.lower() in _plain(root / page), cell


def _plain(path):
    return re.sub(r"\s+", " ", path.read_text()).lower()


def test_every_test_of_a_row_checks_something(rows, root):
    """It asserts, expects an error, or holds a program against the plain one."""
    for *_, cell in rows:
        for path, name in TEST.findall(cell):
            tree = ast.parse((root / path).read_text())
            functions = {
                each.name: each
                for each in ast.walk(tree)
                if isinstance(each, ast.FunctionDef)
            }
            assert _checks(name, functions), (path, name)


def _checks(name, functions):
    """Return whether a function, or one of its file that it calls, checks something."""
    if name not in functions:
        return name in CHECKING
    inside = [*ast.walk(functions.pop(name))]
    calls = {ast.unparse(each.func) for each in inside if isinstance(each, ast.Call)}
    return any(isinstance(each, ast.Assert) for each in inside) or any(
        _checks(each, functions) for each in calls
    )


def test_rows_are_not_covered_by_what_is_skipped(root):
    """No test that the allocator's page names is one that only a GPU runs."""
    for path, name in TEST.findall((root / ALLOCATOR).read_text()):
        for node in ast.parse((root / path).read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                marks = {ast.unparse(each) for each in node.decorator_list}
                assert "pytest.mark.gpu" not in marks, name
