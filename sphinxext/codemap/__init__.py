"""Pages of the modules of a package, measured and not guessed: a Sphinx extension.

Its settings, in conf.py:

* ``codemap_packages``: where each package lies, as ``{"rich": "path"}``; what it
  imports need not be installed. Paths are relative to conf.py.
* ``codemap_folder``: where the pages are written, by itself "map"; for no repository.
* ``codemap_coverage``: a data file of coverage.py whose contexts are tests.
* ``codemap_glossary``: the page whose ``glossary`` says what words mean.
* ``codemap_mentions``: files that may name a module, as ``{"Settings": ["*.md"]}``.
* ``codemap_lines``, ``codemap_budgets``: lines of code by the names of modules, and how
  many a room may have.

A module that has not changed is not read again, and a page that says the same is not
written again: so Sphinx does not read it again either.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from coverage import CoverageException
from sphinx.errors import ExtensionError
from sphinx.util import logging

from codemap.imports import imports, tests
from codemap.modules import Module, digest, files, read, words_of
from codemap.pages import Map, pages

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_LOG = logging.getLogger(__name__)
_FORMAT: Final = 1
"""Of what is kept of modules: another one is read anew."""


def setup(app: Sphinx) -> dict[str, Any]:
    """Have the pages written before Sphinx looks for any."""
    app.add_config_value("codemap_packages", {}, "env", dict)
    app.add_config_value("codemap_folder", "map", "env", str)
    app.add_config_value("codemap_coverage", "", "env", str)
    app.add_config_value("codemap_glossary", "", "env", str)
    app.add_config_value("codemap_mentions", {}, "env", dict)
    app.add_config_value("codemap_lines", {}, "", dict)
    app.add_config_value("codemap_budgets", {}, "", dict)
    app.connect("builder-inited", _write)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def _write(app: Sphinx) -> None:
    base, config = Path(app.confdir), app.config
    folder = Path(app.srcdir, config.codemap_folder)
    wanted: dict[Path, str] = {}
    for package, where in config.codemap_packages.items():
        drawn = _drawn(app, package, (base / where).resolve())
        wanted |= {folder / f"{name}.rst": text for name, text in pages(drawn)}
    folder.mkdir(parents=True, exist_ok=True)
    for path in set(folder.glob("*.rst")) - wanted.keys():
        path.unlink()
    for path, text in wanted.items():
        if not path.is_file() or path.read_text() != text:
            path.write_text(text)


def _drawn(app: Sphinx, package: str, root: Path) -> Map:
    base, config = Path(app.confdir), app.config
    try:
        found = dict(files(root, package))
    except FileNotFoundError as error:
        raise ExtensionError(f"codemap_packages: {error}") from error
    kept = Path(app.doctreedir) / f"codemap-{package}.json"
    modules, count = _modules(found, kept)
    _LOG.info("codemap: %s has %d modules, %d read anew", package, len(found), count)
    imported = imports(root, package, Path(app.doctreedir) / "grimp")
    data, glossary = config.codemap_coverage, config.codemap_glossary
    try:
        measured = tests(base / data, found) if data else {}
    except CoverageException as error:
        raise ExtensionError(f"codemap_coverage: {error}") from error
    terms = _terms(base / glossary) if glossary else {}
    mentions = {
        title: _mentions(base, patterns, modules)
        for title, patterns in config.codemap_mentions.items()
    }
    return Map(
        package,
        modules,
        imported,
        measured or None,
        terms,
        mentions,
        config.codemap_lines,
        config.codemap_budgets,
    )


def _modules(found: Mapping[str, Path], kept: Path) -> tuple[dict[str, Module], int]:
    """Return all modules, and how many had to be read."""
    before = _kept(kept)
    modules: dict[str, Module] = {}
    count = 0
    for name, path in found.items():
        text = path.read_bytes()
        known = before.get(name)
        if known is None or known["digest"] != digest(text):
            modules[name] = read(name, path, text)
            count += 1
        else:
            modules[name] = Module.from_json(known)
    kept.parent.mkdir(parents=True, exist_ok=True)
    every = {name: module.to_json() for name, module in modules.items()}
    kept.write_text(json.dumps({"format": _FORMAT, "modules": every}))
    return modules, count


def _kept(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found["modules"] if found.get("format") == _FORMAT else {}


def _terms(page: Path) -> dict[str, str]:
    """Return the terms of a page's glossary that are one word, by that word."""
    inside, found = False, dict[str, str]()
    for line in page.read_text().splitlines():
        if "{glossary}" in line or ".. glossary::" in line:
            inside = True
        elif inside and line.startswith("```"):
            inside = False
        elif inside and line and not line[0].isspace() and not line.startswith(":"):
            found |= {word: line for word in words_of(line) if len(words_of(line)) == 1}
    return found


def _mentions(
    base: Path, patterns: list[str], modules: Mapping[str, Module]
) -> dict[str, list[str]]:
    """Return which files name each module, or import it."""
    found: dict[str, list[str]] = {}
    for path in sorted(p for pattern in patterns for p in base.glob(pattern)):
        text = path.read_text()
        for name in modules.keys() & set(_dotted(text)):
            found.setdefault(name, []).append(f"``{path.name}``")
    return found


def _dotted(text: str) -> Iterator[str]:
    """Yield all names with dots in a text, and the file names as such names."""
    for each in re.findall(r"[\w./]*\w", text):
        yield each.removesuffix(".py").replace("/", ".")
