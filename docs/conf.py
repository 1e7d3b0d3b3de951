"""The site: `scripts/docs` builds it."""

from __future__ import annotations

import runpy
import sys
import tomllib
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).parent
ROOT = DOCS.parent
SOURCE = ROOT / "src"
sys.path[:0] = [str(ROOT / "sphinxext"), str(SOURCE)]
code_lines = runpy.run_path(str(ROOT / "scripts/size"))["code_lines"]
settings = tomllib.loads((ROOT / "pyproject.toml").read_text())

project = "Sapwood"
author = settings["project"]["authors"][0]["name"]
copyright = author  # noqa: A001 - Sphinx's name for it
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.intersphinx", "codemap"]
exclude_patterns = ["inventories"]
nitpicky = True

html_theme = "furo"
html_title = project
html_show_copyright = False

myst_heading_anchors = 4

# Sapwood imports no framework before one is used, so it is imported here as it is.
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"


def inventory(page: Path) -> str:
    """Return the path of an inventory of Sphinx, made of a text of its rows.

    It lists the few names that these pages link to, and is there without a network.
    """
    made = ROOT / ".cache/docs" / f"{page.stem}.inv"
    made.parent.mkdir(parents=True, exist_ok=True)
    head = f"# Sphinx inventory version 2\n# Project: {page.stem}\n# Version: \n"
    says = f"{head}# The remainder of this file is compressed using zlib.\n"
    made.write_bytes(says.encode() + zlib.compress(page.read_bytes()))
    return str(made)


intersphinx_mapping = {
    name: (url, inventory(DOCS / "inventories" / f"{name}.txt"))
    for name, url in {
        "cuda": "https://nvidia.github.io/cuda-python/cuda-bindings/latest/",
        "cupy": "https://docs.cupy.dev/en/stable/",
        "numpy": "https://numpy.org/doc/stable/",
        "python": "https://docs.python.org/3/",
        "torch": "https://docs.pytorch.org/docs/stable/",
    }.items()
}

codemap_packages = {"sapwood": "../src"}
codemap_coverage = "../.coverage"
codemap_glossary = "glossary.md"
codemap_mentions = {
    "Pages that name it": ["*.md", "*/*.md"],
    "Footguns that name it": ["../tests/footguns/*.py"],
}
codemap_lines = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(
        ".__init__"
    ): code_lines(path.read_text(), ".py")
    for path in SOURCE.glob("sapwood/**/*.py")
}
codemap_budgets = {
    f"sapwood.{room}": lines
    for room, lines in settings["tool"]["sapwood"]["size"].items()
}


def _read(_app: Sphinx, _page: str, text: list[str]) -> None:
    """Have links to a page that lies in the root lead to where it is shown."""
    text[0] = text[0].replace("](../CONTRIBUTING.md", "](contributing.md")


def setup(app: Sphinx) -> None:
    """Say what is done before a page is read."""
    app.connect("source-read", _read)
