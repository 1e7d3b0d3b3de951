"""What is public has no underscore before its name; packages list what they gather."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import sapwood

pytestmark = pytest.mark.style

FRAMEWORKS = {"cuda", "cupy", "numba", "rmm", "torch"}


def _modules(sources) -> Iterator[ModuleType]:
    """Yield all modules but those of a framework that is not installed."""
    for source in sources:
        try:
            yield importlib.import_module(source.module)
        except ModuleNotFoundError as error:
            if str(error.name).partition(".")[0] not in FRAMEWORKS:
                raise


def _order(name: str) -> tuple[bool, bool, str]:
    """Constants, classes, functions: the order that the linter keeps."""
    return not name.isupper(), name[:1].islower() or name[:1] == "_", name


def _defined(source) -> Iterator[str]:
    """Yield the names of a module's functions and constants."""
    for node in source.tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for each in ast.walk(node):
                if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                    yield each.id


def _are_others_to_use(name: str) -> bool:
    """Classes and types are for others where functions return them."""
    return not name.startswith("_") and (name.islower() or name.isupper())


def test_packages_list_sorted_names(sources):
    """A package that gathers names lists them: sorted, no doubles, and all there."""
    for module in _modules(s for s in sources if s.path.endswith("__init__.py")):
        names = list(getattr(module, "__all__", ()))
        assert names == sorted(set(names), key=_order), module.__name__
        missing = [name for name in names if not hasattr(module, name)]
        assert missing == [], module.__name__


def test_what_nobody_else_names_is_private(sources, root):
    """A function or constant of a module alone begins with an underscore."""
    told = [root / "README.md", *(root / "docs").rglob("*.md")]
    for room in ("benchmarks", "examples", "scripts", "src", "tests"):
        told += (each for each in (root / room).rglob("*") if _is_text(each))
    homes: dict[str, set[Path]] = {}
    for file in told:
        for word in set(re.findall(r"[A-Za-z_]\w*", file.read_text())):
            homes.setdefault(word, set()).add(file)
    alone = [
        f"{source.path}: {name}"
        for source in sources
        for name in _defined(source)
        if _are_others_to_use(name) and homes[name] == {root / "src" / source.path}
    ]
    assert alone == []


def _is_text(file: Path) -> bool:
    return file.is_file() and file.suffix in {"", ".c", ".h", ".html", ".py"}


def test_the_public_surface_is_what_it_says():
    """``sapwood`` holds no public name that ``sapwood.__all__`` leaves out."""
    held = {
        name
        for name, value in vars(sapwood).items()
        if not name.startswith("_")
        and not isinstance(value, ModuleType)
        and name != "annotations"
    }
    assert held <= set(sapwood.__all__)


def test_public_names_live_in_one_place(sources):
    """Every public name is defined by one module, and gathered by packages only."""
    packages = {s.module for s in sources if s.path.endswith("__init__.py")}
    homes = Counter(
        name
        for source in sources
        if source.module not in packages
        for name in (
            *_defined(source),
            *(each.name for each in source.tree.body if isinstance(each, ast.ClassDef)),
        )
        if name in sapwood.__all__
    )
    public = {name for name in sapwood.__all__ if not name.startswith("_")}
    assert {name for name in public if homes[name] > 1} == set()


def test_every_public_name_is_there_when_asked_for():
    """Names that are imported late are found, also by ``dir`` and by ``import *``."""
    probe = (
        "import sapwood; assert set(sapwood.__all__) <= set(dir(sapwood))\n"
        "assert 'sapwood.tree' not in __import__('sys').modules\n"
        "from sapwood import *\n"
        "assert Runtime is sapwood.Runtime\n"
        "assert [n for n in sapwood.__all__ if not hasattr(sapwood, n)] == []\n"
        "assert not hasattr(sapwood, 'nothing')"
    )
    subprocess.run([sys.executable, "-c", probe], check=True)


def test_no_public_name_is_a_room(sources):
    """Importing a room binds it in ``sapwood``, where it would hide such a name."""
    rooms = {source.module.split(".")[1] for source in sources if "." in source.module}
    assert rooms.isdisjoint(sapwood.__all__)
