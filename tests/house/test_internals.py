"""What pages and CONTRIBUTING.md name is there: files, links, and names in the code."""

from __future__ import annotations

import ast
import builtins
import keyword
import re
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

pytestmark = pytest.mark.style

ROOT = Path(__file__).parents[2]
GUIDES = (ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs/internals").glob("*.md")))
"""Pages about the code: each name in them is one of it."""

PAGES = (*GUIDES, ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
PLACES = (ROOT, ROOT / "src/sapwood", ROOT / "src")
"""What paths begin at."""
ROOTS = ("benchmarks/", "docs/", "examples/", "requirements/", "scripts/", "tests/")

PATH = re.compile(r"[\w.-]+(/[\w.-]+)*/?")
FILE = re.compile(r"\.(py|md|[ch]|cu|csv|toml)$")
NAME = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\(\))?")
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
OUTSIDE = frozenset({"cupy", "numpy", "torch", "uv", *keyword.kwlist})
"""Names of what is not ours: words of Python, commands and packages."""


def _spans(page: Path) -> list[str]:
    """Return what stands between backticks."""
    return re.findall(r"`([^`\n]+)`", FENCED.sub("", page.read_text()))


@cache
def _python() -> tuple[frozenset[str], dict[str, set[str]], dict[str, set[str]]]:
    """Return all names that are defined, and by class its members and its bases."""
    names: set[str] = set()
    members: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for place in ("src", "tests", "scripts"):
        for file in (ROOT / place).rglob("*.py"):
            tree = ast.parse(file.read_text())
            names |= {*_defined(tree), file.stem}
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    members.setdefault(node.name, set()).update(_defined(node))
                    found = (ast.unparse(base) for base in node.bases)
                    bases.setdefault(node.name, set()).update(
                        each.partition("[")[0].rpartition(".")[2] for each in found
                    )
    return frozenset(names), members, bases


def _defined(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.arg(arg=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store()):
                found.add(name)
            case ast.Constant(value=str(name)) if name.isidentifier():
                found.add(name)  # of fixtures, slots and options
    return found


@cache
def _in_c() -> frozenset[str]:
    files = (file for kind in "ch" for file in (ROOT / "src").rglob(f"*.{kind}"))
    return frozenset(
        word for file in files for word in re.findall(r"[A-Za-z_]\w*", file.read_text())
    )


def _is_member(cls: str, name: str) -> bool:
    _, members, bases = _python()
    if name in members.get(cls, ()):
        return True
    return any(_is_member(base, name) for base in bases.get(cls, ()))


def _is_known(name: str) -> bool:
    """Return whether a dotted name is one of the code, of Python's or of NumPy's."""
    names, members, _ = _python()
    first, *rest = name.split(".")
    if first in members and len(rest) == 1:
        return _is_member(first, rest[0])
    if all(each in names or each in _in_c() for each in (first, *rest)):
        return True
    return hasattr(builtins, first) or (bool(rest) and _is_imported(name))


def _is_imported(name: str) -> bool:
    place, _, last = name.rpartition(".")
    try:
        return hasattr(import_module(place), last)
    except ImportError:
        return False


def _file(span: str) -> Path | None:
    """Return the file or folder of a path that is named from one of the places."""
    return next((each / span for each in PLACES if (each / span).exists()), None)


def _is_path(span: str) -> bool:
    if not PATH.fullmatch(span) or "/" not in span or "NAME" in span:
        return False
    return bool(FILE.search(span)) or span.startswith(ROOTS)


def _ids(pages: tuple[Path, ...]) -> list[object]:
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages]


@pytest.mark.parametrize("page", _ids(PAGES))
def test_files_that_a_page_names_exist(page):
    """A path begins at the checkout or the library; a name behind it is in there."""
    wrong = []
    for span in _spans(page):
        path, _, name = span.partition(": ")
        if path.startswith("scripts/"):
            path = path.split()[0]
        if _is_path(path):
            file = _file(path)
            if file is None or (name and name not in file.read_text()):
                wrong.append(span)
    assert wrong == []


@pytest.mark.parametrize("page", _ids(GUIDES))
def test_names_in_a_guide_are_names_in_the_code(page):
    """A function that has another name now is looked for in vain."""
    spans = (NAME.fullmatch(span) for span in _spans(page) if not FILE.search(span))
    found = [each[1] for each in spans if each]
    assert [name for name in found if name not in OUTSIDE and not _is_known(name)] == []


@pytest.mark.parametrize("page", _ids(PAGES))
def test_links_of_a_page_lead_somewhere(page):
    """To a page that there is, and to a heading of it."""
    wrong = []
    for link in LINK.findall(FENCED.sub("", page.read_text())):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            wrong.append(link)
    assert wrong == []


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", each.lower()) for each in headings)
    return {each.replace(" ", "-") for each in plain}


def test_the_law_that_is_shown_is_one():
    """As it stands in its file."""
    (block,) = re.findall(
        r"```python\n# in (\S+)\n(.*?)```", GUIDES[0].read_text(), re.DOTALL
    )
    path, law = block
    assert law in (ROOT / path).read_text()


def test_a_name_that_is_gone_is_noticed():
    """And so is a member that its class, and what that derives from, has not."""
    assert _is_known("Runner.call")
    assert _is_known("GuestFramework.trim")
    assert _is_known("NumpyIntegration.storages")
    assert _is_known("os.getenv")
    assert not _is_known("Runner.trim")
    assert not _is_known("nobody_has_this_name_" + "at_all")
