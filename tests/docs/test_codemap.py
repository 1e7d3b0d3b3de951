"""The map of the code: measured, complete, and the same again where nothing changed."""

from __future__ import annotations

import ast
import importlib
import re
import sqlite3
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
import rich

ROOT = Path(__file__).parents[2]
RICH = str(Path(rich.__file__).parents[1])

WINDOWS = ("_win32_console", "_windows_renderer")
"""Modules that only Windows can import."""

FILES = {
    "__init__": '"""A package of shapes.\n\nMore of it."""\n',
    "shapes": '''"""Draw shapes. import os is no import here."""

# import json
# from toy import colours
from __future__ import annotations

from toy.lines import Line

TEXT = "import re"
__all__ = ["Square", "area_of"]


class Square(Line):
    """A square_with `odd` *marks* and |bars|."""

    def turn(self, by: int = 90, *, twice: bool = False) -> "Square":
        """Return it, turned."""
        return self

    def _hidden(self) -> None: ...


def area_of(square: Square) -> float:
    """Return the area."""
    import math

    return math.pi


def beside() -> None: ...
''',
    "lines": "class Line: ...\n\n\nclass BadLine(ValueError): ...\n",
    "inner/__init__": "",
    "inner/deep": "import toy.shapes\n",
}


@pytest.fixture
def toy(tmp_path):
    """Return the folder of a small package."""
    for name, text in FILES.items():
        path = tmp_path / "toy" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def _said(tmp_path, name):
    return (tmp_path / f"source/map/{name}.rst").read_text()


def _section(page, title):
    """Return what a page says under a title; "" where it has none."""
    found = re.search(rf"^{title}\n-+\n\n(.*?)(\n\n|$)", page, re.DOTALL | re.MULTILINE)
    return "" if found is None else found[1]


def test_a_comment_is_no_import(toy, build):
    """Nor is a text; an import in a function is one, and is told apart from it."""
    build(toy, {"toy": ".."})
    page = _said(toy, "toy.shapes")
    assert _section(page, "Imports") == ":doc:`toy.lines`"
    assert _section(page, "Imports from elsewhere") == "``__future__`` · ``math``"
    assert _section(page, "Imported by") == ":doc:`toy.inner.deep`"


def test_a_page_says_what_is_public(toy, build):
    """Names of `__all__`, or without an underscore, as written, with their lines."""
    build(toy, {"toy": ".."})
    page = _said(toy, "toy.shapes")
    assert ".. py:class:: Square\n" in page
    assert ":caption: line 13\n\n   class Square(Line)\n" in page
    written = "def turn(self, by: int=90, *, twice: bool=False) -> 'Square'"
    assert written in page
    assert "beside" not in page
    assert "_hidden" not in page
    assert ".. py:exception:: BadLine\n" in _said(toy, "toy.lines")
    assert r"A square\_with \ ``odd``\  \*marks\* and \|bars\|." in page
    assert "A package of shapes.\n" in _said(toy, "toy")
    assert "*4 lines*" in _said(toy, "toy.lines")


def test_what_has_not_changed_is_not_read_again(toy, build):
    """One module is changed, another one is gone: only their pages are others."""
    assert "has 5 modules, 5 read anew" in build(toy, {"toy": ".."})
    before = {path: path.stat().st_mtime_ns for path in toy.glob("source/map/*")}
    assert "has 5 modules, 0 read anew" in build(toy, {"toy": ".."})
    assert before == {path: path.stat().st_mtime_ns for path in before}
    (toy / "toy/lines.py").write_text("class Line: ...\n\n\nclass Dot: ...\n")
    (toy / "toy/inner/deep.py").unlink()
    assert "has 4 modules, 1 read anew" in build(toy, {"toy": ".."})
    assert not (toy / "source/map/toy.inner.deep.rst").exists()
    assert ".. py:class:: Dot\n" in _said(toy, "toy.lines")
    same = toy / "source/map/toy.inner.rst"
    assert before[same] != same.stat().st_mtime_ns, "it has no children any more"
    assert "BadLine" not in _said(toy, "toy-keywords")


def test_the_tests_that_execute_a_module(toy, build):
    """By the contexts of coverage: by file, with how many; imports are no test."""
    (toy / "measure.py").write_text(
        "import coverage, sys\n"
        "sys.path.insert(0, '.')\n"
        "run = coverage.Coverage(data_file='data', source=['toy'])\n"
        "run.start()\n"
        "import toy.shapes\n"
        "for test in ('a.py::one', 'a.py::two', 'b.py::one'):\n"
        "    run.switch_context(f'{test}|run')\n"
        "    toy.shapes.area_of(toy.shapes.Square())\n"
        "run.stop()\n"
        "run.save()\n"
    )
    subprocess.run([sys.executable, "measure.py"], cwd=toy, check=True)
    more = "codemap_coverage = '../data'\n"
    build(toy, {"toy": ".."}, more)
    title = "Tests that execute it"
    assert _section(_said(toy, "toy.shapes"), title) == "``a.py`` (2) · ``b.py`` (1)"
    assert _section(_said(toy, "toy.lines"), title) == "*none*"
    with sqlite3.connect(toy / "data") as data:
        data.execute("DROP TABLE context")
    with pytest.raises(AssertionError, match=r"codemap_coverage: .*no such table"):
        build(toy, {"toy": ".."}, more)
    (toy / "data").unlink()
    build(toy, {"toy": ".."}, more)
    assert _section(_said(toy, "toy.lines"), title) == "", "nobody has measured"


def test_a_package_that_is_not_there(toy, build):
    """The error names the setting and the folder."""
    with pytest.raises(AssertionError, match=r"codemap_packages.*has no package toys"):
        build(toy, {"toys": ".."})


class _Links(HTMLParser):
    """The links of a page, and what they may lead to."""

    def __init__(self, page):
        super().__init__()
        self.links, self.anchors = set(), set()
        self.feed(page.read_text())

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.anchors.add(found.get("id"))
        if tag == "a" and found.get("href"):
            self.links.add(found["href"])


@pytest.fixture(scope="session")
def rich_site(tmp_path_factory, build):
    """Return the folder of the map of a package of others'."""
    folder = tmp_path_factory.mktemp("rich")
    build(folder, {"rich": RICH})
    return folder


@pytest.mark.deep
def test_every_link_of_another_package_leads_somewhere(rich_site):
    """To a page that is there, and to an anchor on it."""
    pages = {path: _Links(path) for path in rich_site.glob("site/**/*.html")}
    assert len(pages) > 80
    for path, page in pages.items():
        for link in page.links:
            if re.match(r"[a-z]+:", link):
                continue
            file, _, anchor = unquote(link).partition("#")
            target = (path.parent / file).resolve() if file else path
            assert target.exists(), (path, link)
            if anchor and target in pages:
                assert anchor in pages[target].anchors, (path, link)


@pytest.mark.deep
def test_every_keyword_of_another_package_is_a_name(rich_site):
    """Python finds it where the page says that it is."""
    page = _said(rich_site, "rich-keywords")
    found = set(re.findall(r":py:obj:`(\w+) <([\w.]+)>`", page))
    assert len(found) > 200
    for name, whole in found:
        module, _, last = whole.rpartition(".")
        assert last == name
        if module.endswith(WINDOWS):
            continue
        assert hasattr(importlib.import_module(module), name), whole


@pytest.mark.deep
def test_every_import_of_another_package_is_one(rich_site):
    """What a page says is imported, the module's own text imports, and all of it."""
    for path in Path(RICH, "rich").glob("*.py"):
        tree = ast.parse(path.read_text())
        expected = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                expected |= {each.name.partition(".")[0] for each in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                expected.add(node.module.partition(".")[0])
        name = "rich" if path.stem == "__init__" else f"rich.{path.stem}"
        told = _section(_said(rich_site, name), "Imports from elsewhere")
        assert set(re.findall(r"``(\w+)``", told)) == expected - {"rich"}, name
