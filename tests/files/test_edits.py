"""Law 2: what a recording was made of is found again, and nothing that was edited."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass

import pytest

MAIN = '''
import json
import sys
from functools import partial

import numpy as np
import sapwood as sw
import dependency
import shared

RATE = 2.0
LIMITS = {"low": -1.0, "high": (1.0, 2.0)}


class Base:
    """A base class."""

    def bend(self, x):
        return x * 3.0

    @property
    def shift(self):
        return 0.25


class Model(Base):
    power = 1.5

    def __init__(self, rt):
        self.w, self.training = rt.array(np.arange(4.0)), True

    def step(self, x, offset=0.5, *, factor=1.0):
        y = self.bend(x) * self.power + self.w * factor + offset
        return y + self.shift if self.training else y


def helper(x):
    return shared.deeper(x) + RATE


def unrelated(x):
    return x - 1.0


def scaled(amount):
    def closure(x):
        return x * amount

    return closure


INNER = scaled(4.0)


def f(x, scale=1.0):
    low = np.maximum(helper(x), LIMITS["low"])
    return INNER(low) * scale + dependency.twice(x) * LIMITS["high"][1]


def run(g, plain, *args):
    """Call a graphed function thrice, and hold it against its plain one."""
    results = [np.asarray(g(*args)).tolist() for _ in range(3)]
    with sw.disabled():
        expected = np.asarray(plain(*args)).tolist()
    assert results == [expected] * 3, (results, expected)
    s = g.stats()
    return [s.warmups, s.recordings, s.restored, s.replays]


with sw.Runtime(store=sys.argv[1]) as rt:
    x, model = rt.array(np.arange(4.0)), Model(rt)
    opaque = dependency.Thing(3.0)

    def passed(x, thing):
        return thing.step(x) * 2.0

    def unproved(x):
        return x * opaque.amount

    part = partial(model.step, offset=0.75)
    print(json.dumps({
        "function": run(rt.graph(f), f, x),
        "method": run(rt.graph(model.step), model.step, x),
        "object": run(rt.graph(passed), passed, x, model),
        "partial": run(rt.graph(part), part, x),
        "closure": run(rt.graph(scaled(0.5), name="closure"), scaled(0.5), x),
        "opaque": run(rt.graph(unproved), unproved, x),
        "trouble": [repr(e) for e in rt.events() if type(e).__name__ == "StoreTrouble"],
    }))
'''

SHARED = """
FACTOR = 1.0


def deeper(x):
    return x * FACTOR


def also_unrelated():
    return FACTOR
"""

DEPENDENCY = """
__version__ = "1.0"


class Thing:
    def __init__(self, amount):
        self.amount = amount


def twice(x):
    return x * 2.0
"""

MADE, FOUND = [1, 1, 0, 1], [0, 0, 1, 2]
"""Warm-ups, recordings, restored, replays: recorded; found at once."""

KINDS = ("function", "method", "object", "partial", "closure", "opaque")


@dataclass(frozen=True)
class Edit:
    """A change of one file, and which of the functions it is a change of."""

    name: str
    file: str
    old: str
    new: str
    changes: str


MODEL = "method object partial"
EDITS = (
    Edit("the function", "main", "* scale +", "* scale -", "function"),
    Edit("a helper", "main", "deeper(x) + RATE", "deeper(x) - RATE", "function"),
    Edit("a helper's helper", "shared", "x * FACTOR", "x + FACTOR", "function"),
    Edit("a global constant", "main", "RATE = 2.0", "RATE = 2.5", "function"),
    Edit("its type", "main", "RATE = 2.0", "RATE = 2", "function"),
    Edit("another module's", "shared", "FACTOR = 1.0", "FACTOR = 3.0", "function"),
    Edit("inside a container", "main", "(1.0, 2.0)", "(1.0, 2.25)", "function"),
    Edit("a default", "main", "scale=1.0", "scale=1.25", "function"),
    Edit("a closure's value", "main", "scaled(4.0)", "scaled(5.0)", "function"),
    Edit("a closure's code", "main", "x * amount", "x + amount", "function closure"),
    Edit("a base's method", "main", "x * 3.0", "x * 3.5", MODEL),
    Edit("a base's property", "main", "return 0.25", "return 0.5", MODEL),
    Edit("a class attribute", "main", "power = 1.5", "power = 1.75", MODEL),
    Edit("an attribute", "main", "4.0)), True", "4.0)), False", MODEL),
    Edit("a method's default", "main", "offset=0.5", "offset=0.625", MODEL),
    Edit("a keyword's default", "main", "factor=1.0", "factor=2.0", MODEL),
    Edit("a partial's value", "main", "offset=0.75", "offset=0.875", "partial"),
    Edit("a dependency's version", "dependency", '"1.0"', '"1.1"', "function"),
    Edit("what has no proof", "main", "Thing(3.0)", "Thing(4.0)", "opaque"),
    Edit("an unrelated function", "main", "return x - 1.0", "return x - 2.0", ""),
    Edit("unrelated elsewhere", "shared", "return FACTOR\n", "return None\n", ""),
    Edit("where lines are", "main", "def helper", "# More.\n\n\ndef helper", ""),
    Edit("nothing but the folder", "main", "", "", ""),
)


def _write(folder, edit=None):
    site = folder / "site-packages"
    site.mkdir(parents=True)
    files = {
        "main": (folder / "main.py", MAIN),
        "shared": (folder / "shared.py", SHARED),
        "dependency": (site / "dependency.py", DEPENDENCY),
    }
    for path, text in files.values():
        path.write_text(text)
    if edit is not None and edit.old:
        path, text = files[edit.file]
        assert text.count(edit.old) == 1, edit
        path.write_text(text.replace(edit.old, edit.new))
    return folder / "main.py"


@pytest.fixture(scope="module")
def run_main(run_program, tmp_path_factory):
    """Return what runs the program, edited, in a folder of its own, with a store."""

    def run(store, edit=None):
        folder = tmp_path_factory.mktemp("program")
        main = _write(folder / "program", edit)
        paths = [*sys.path, str(folder / "program" / "site-packages")]
        return run_program(main, store, env={"PYTHONPATH": os.pathsep.join(paths)})

    return run


@pytest.fixture(scope="module")
def store(run_main, tmp_path_factory):
    """Return a store that holds what the unedited program recorded."""
    folder = tmp_path_factory.mktemp("store") / "store"
    first = run_main(folder)
    assert [first[kind] for kind in KINDS] == [MADE] * len(KINDS)
    return folder


@pytest.mark.one_in(4)
@pytest.mark.timeout(180)
@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.name)
def test_what_was_edited_is_recorded_anew_and_nothing_else(
    run_main, store, tmp_path, edit
):
    """And every result is that of the program as it is now."""
    shutil.copytree(store, tmp_path / "store")
    found = run_main(tmp_path / "store", edit)
    changed = edit.changes.split()
    for kind in KINDS:
        anew = kind in changed or kind == "opaque"
        assert found[kind] == (MADE if anew else FOUND), kind
    assert found["trouble"] == []


def test_a_damaged_store_is_recorded_into_anew(run_main, store, tmp_path):
    """All files damaged: the calls do not mind, say so once, and heal it."""
    mine = tmp_path / "store"
    shutil.copytree(store, mine)
    for path in mine.rglob("*-*"):
        if path.is_file():
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(bytes(data))
    found = run_main(mine)
    assert [found[kind] for kind in KINDS] == [MADE] * len(KINDS)
    assert found["trouble"]
    found = run_main(mine)
    assert [found[kind] for kind in KINDS] == [*[FOUND] * (len(KINDS) - 1), MADE]
    assert found["trouble"] == []
