"""What is public is said once, sorted, in ``__all__``."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
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


def test_every_module_exports_sorted_names(sources):
    """Each module has an ``__all__``: sorted, without doubles, and every name there."""
    for module in _modules(sources):
        names = list(module.__all__)
        assert names == sorted(set(names), key=_order), module.__name__
        missing = [name for name in names if not hasattr(module, name)]
        assert missing == [], module.__name__


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
    """Every public name is exported by one module, and gathered by packages only."""
    packages = {s.module for s in sources if s.path.endswith("__init__.py")}
    homes = Counter(
        name
        for module in _modules(sources)
        if module.__name__ not in packages
        for name in module.__all__
        if getattr(sapwood, name, None) is getattr(module, name)
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
