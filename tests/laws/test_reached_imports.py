"""Law 9: modules that a function imports from its own package are looked into."""

from __future__ import annotations

import importlib
import itertools
import sys
import types

import numpy as np
import pytest

_numbers = itertools.count()

_MODULES = {
    "__init__": "",
    "cfg": "scale = 3.0\n\n\nclass K:\n    w = 3.0\n",
    "inner.__init__": "",
    "inner.work": """
def named(x):
    from ..cfg import scale
    return x * scale


def whole(x):
    from .. import cfg
    return x * cfg.scale


def other(x):
    from .. import cfg as other
    return x * getattr(other, "scale")


def of_a_class(x):
    from ..cfg import K
    return x * K.w


def beside(x):
    from .near import scale
    return x * scale


def nested(x):
    def within():
        from . import near
        return near.scale
    return x * within()


def many(x):
    from ..cfg import scale
    MANY
    from .near import scale as last
    return x * scale * last
""".replace("MANY", "; ".join(f"v{k} = {k}.5" for k in range(300))),
    "inner.near": "scale = 3.0\n",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The name of a package that was never imported before."""
    name = f"sapling{next(_numbers)}"
    for module, text in _MODULES.items():
        file = (tmp_path / name).joinpath(*module.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    for module in [each for each in sys.modules if each.partition(".")[0] == name]:
        del sys.modules[module]


def set_package(work, name):
    del name
    work.__package__ = None


def set_name(work, name):
    work.__package__ = work.__spec__ = None
    work.__name__ = f"{name}.inner.work"


@pytest.mark.filterwarnings("ignore::ImportWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("function", "where", "attribute"),
    [
        ("named", "cfg", "scale"),
        ("whole", "cfg", "scale"),
        ("other", "cfg", "scale"),
        ("of_a_class", "cfg", "K"),
        ("beside", "inner.near", "scale"),
        ("nested", "inner.near", "scale"),
        ("many", "cfg", "scale"),
        ("many", "inner.near", "scale"),
    ],
)
@pytest.mark.parametrize("change", [None, set_package, set_name])
def test_a_relative_import(agree, package, function, where, attribute, change):
    """However the package is told, and whether its modules were loaded before."""

    def program(world):
        work = importlib.import_module(f"{package}.inner.work")
        if change is not None:
            change(work, package)
        f, x = world.graph(getattr(work, function)), world.values(2)
        yield f(x)
        module = importlib.import_module(f"{package}.{where}")
        owner = module.K if attribute == "K" else module
        name = "w" if attribute == "K" else attribute
        for value in (3.0, 3.0, 5.0, 5.0, 3.0):
            setattr(owner, name, value)
            yield f(x)
            yield f(x)

    agree(program)


def test_a_module_is_not_asked_where_it_is_from(rt, monkeypatch):
    """Its own ``__getattr__`` is the user's code, which may raise anything."""
    module = types.ModuleType("sapling_without_a_file")
    exec("rate = 2.0\ndef __getattr__(name): raise KeyError(name)", vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    f, x = rt.graph(lambda x: x * module.rate), rt.array(np.ones(2))
    for rate in (2.0, 3.0):
        module.rate = rate
        for _ in range(4):
            assert np.asarray(f(x)).tolist() == [rate] * 2
