"""Who imports whom, as grimp reads it; which tests execute what, as coverage saw it."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import grimp
from coverage import CoverageData

Imports = Mapping[str, set[str]]


def imports(root: Path, package: str, cache: Path) -> Imports:
    """Return what each module of a package imports, other packages by their first name.

    The package lies in ``root``; ``cache`` is where grimp keeps what it has read.
    """
    logging.getLogger("grimp").setLevel(logging.WARNING)  # it tells of its cache
    with _found_in(root):
        graph = grimp.build_graph(
            package, include_external_packages=True, cache_dir=str(cache)
        )
    return {
        name: set(graph.find_modules_directly_imported_by(name))
        for name in graph.modules
        if name == package or name.startswith(f"{package}.")
    }


@contextmanager
def _found_in(root: Path) -> Iterator[None]:
    sys.path.insert(0, str(root))
    try:
        yield
    finally:
        sys.path.remove(str(root))


def tests(data: Path, paths: Mapping[str, Path]) -> dict[str, Counter[str]]:
    """Return how many tests of each test file execute each of the modules at ``paths``.

    Empty where ``data`` is no file, or has no contexts. What an import executes belongs
    to no test. Raises `coverage.CoverageException` where it cannot be read.
    """
    if not data.is_file():
        return {}
    measured = CoverageData(str(data))
    measured.read()
    found: dict[str, Counter[str]] = {}
    for name, path in paths.items():
        contexts = {
            context.partition("|")[0]
            for line in measured.contexts_by_lineno(str(path)).values()
            for context in line
        }
        files = (context.partition("::")[0] for context in contexts if context)
        found[name] = Counter(files)
    return found if any(found.values()) else {}
