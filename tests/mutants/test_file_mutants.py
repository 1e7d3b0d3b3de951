"""Quick checks catch every faulty variant of what reads recordings, and only those.

Each check is a law in a few lines, on programs and numbers drawn from a seed. It
raises `Broken` where the law is broken; an `Exception` that no caller should see
breaks it, too.
"""

from __future__ import annotations

import gc
import json
import random
import sys

import numpy as np
import pytest

import sapwood as sw
from sapwood.driver.emulated import Emulated
from sapwood.driver.layers import Checked
from sapwood.graphs.sections import join, split
from sapwood.store import MemoryStore
from sapwood.testing.file_mutants import FILE_MUTANTS

pytestmark = pytest.mark.deep
SEEDS = (1, 2, 3, 4, 5)


class Broken(Exception):
    """A law was broken."""


class Bench:
    """A seed, a folder and a store; runtimes on devices of their own."""

    def __init__(self, seed, folder):
        self.draw, self.path = random.Random(seed), folder / "file"
        self.store = MemoryStore(1 << 22)
        self.size = self.draw.randrange(3, 9)

    def open(self, *, stored=False):
        """Return a runtime whose addresses nobody had before."""
        driver = Checked(Emulated(1 << 24, 1 << 16))
        return sw.Runtime(device=driver, store=self.store if stored else None)

    def host(self):
        return np.array([float(self.draw.randrange(99)) for _ in range(self.size)])


def _expect(found, expected):
    if np.asarray(found).tolist() != expected.tolist():
        raise Broken(f"{np.asarray(found)} instead of {expected}")


def _by_store(bench, make, expected, *changes):
    """Run what ``make(rt, change)`` gives, in one runtime after another."""
    for change in changes:
        x = bench.host()
        with bench.open(stored=True) as rt:
            # Arrays before it, so that the function's lie elsewhere than they did.
            before = [rt.array(bench.host()) for _ in range(bench.draw.randrange(9))]
            f = rt.graph(make(rt, change), name="f")
            for _ in range(3):
                _expect(f(rt.array(x)), expected(x, change))
            del f, before


def relocated(bench):
    """Results are right wherever the bytes are."""
    host = bench.host()

    def make(rt, _):
        w = rt.array(host)
        return lambda x: ((x * w)[::-1] + w[0])[1:] - x[:-1]

    _by_store(bench, make, lambda x, _: ((x * host)[::-1] + host[0])[1:] - x[:-1], 1, 2)


def read(bench):
    """A value that is another one is not the one that was recorded."""
    one, two = bench.draw.sample(range(2, 99), 2)
    _by_store(bench, lambda _, v: lambda x: x * v, lambda x, v: x * v, one, two, one)


def signed(bench):
    """Other shapes and values are other calls."""
    for size in bench.draw.sample(range(3, 9), 3):
        bench.size = size
        _by_store(bench, lambda *_: lambda x: x[1:] + 1.0, lambda x, _: x[1:] + 1.0, 0)


def proved(bench):
    """What cannot be proved is told by what it does."""
    one, two = bench.draw.sample(range(2, 99), 2)

    def make(_, value):
        # What it holds lies where Python does not see it.
        held = np.random.SeedSequence(value)
        return lambda x: x * held.entropy

    _by_store(bench, make, lambda x, v: x * v, one, two, one)


def shared(bench):
    """Arrays that share memory are not two arrays."""
    host = bench.host()

    def make(rt, other):
        a, b = rt.array(host), rt.array(host)
        c = a[:] if other == 0 else b[:]

        def f(x):
            a[...] += x
            result = a + b * 2.0 + c * 3.0
            a[...] -= x
            return result

        return f

    def expected(x, other):
        return host + x + host * 2.0 + (host + x if other == 0 else host) * 3.0

    turns = [0, 1]
    bench.draw.shuffle(turns)
    _by_store(bench, make, expected, *turns, *turns)


def _saved(bench):
    """Save a function of an argument and two arrays; return what it gives."""
    a, b = bench.host(), bench.host() + 0.5
    with bench.open() as rt:
        one, two = rt.array(a), rt.array(b)

        def f(x):
            return (np.maximum(x - one, 0.0) * two)[1:]

        f = rt.graph(f)
        for _ in range(2):
            f(rt.array(bench.host()))
        sw.save(f, bench.path)
        del f
    return lambda x: (np.maximum(x - a, 0.0) * b)[1:]


def _loaded(bench, expected):
    """Load it; it is right, or refused."""
    x = bench.host()
    with bench.open() as rt:
        g = None
        try:
            g = rt.load(bench.path)
            found = g(rt.array(x))
        except (sw.StoreError, sw.MisuseError):
            return False
        else:
            _expect(found, expected(x))
            rt.synchronize()
            return True
        finally:
            found = None
            del g


def loaded(bench):
    """A file is called in another process."""
    if not _loaded(bench, _saved(bench)):
        raise Broken("a file that was saved is refused")


def flipped(bench):
    """No bit of a file's bodies can be another one."""
    expected = _saved(bench)
    data = bench.path.read_bytes()
    contents = [body for name, body in split(data).items() if name.startswith("bytes")]
    at = data.index(bench.draw.choice([body for body in contents if len(body) > 8]))
    wrong = bytearray(data)
    wrong[at + bench.draw.randrange(8, 24)] ^= 1 << bench.draw.randrange(8)
    bench.path.write_bytes(bytes(wrong))
    if _loaded(bench, lambda x: expected(x) + np.nan):
        raise Broken("a wrong bit was not seen")


def _resealed(bench, name, change):
    """Change a section, and write its digest anew."""
    sections = split(bench.path.read_bytes())
    sections[name] = change(sections[name])
    bench.path.write_bytes(join(sections))


def _in_table(change):
    """Return what changes a table that is written in a section."""

    def changed(text):
        table = json.loads(text)
        change(table)
        return json.dumps(table, separators=(",", ":"), sort_keys=True).encode()

    return changed


def reordered(bench):
    """Arrays in another order are other arrays."""
    expected = _saved(bench)
    _resealed(bench, "index", _in_table(lambda table: table["ambient"].reverse()))
    _loaded(bench, expected)


def _refused(bench, name, change, why):
    expected = _saved(bench)
    _resealed(bench, name, change)
    x = bench.host()
    del expected
    with bench.open() as rt:
        try:
            rt.load(bench.path)(rt.array(x))
        except (sw.StoreError, sw.MisuseError):
            return
        raise Broken(why)


def strayed(bench):
    """No op reaches beyond what it may use."""

    def change(table):
        row = bench.draw.choice([r for r in table["relocations"] if r[2] > 0])
        row[3] += bench.draw.choice((-64, 64, 1 << 16))

    _refused(bench, "0.ops", _in_table(change), "an op reaches outside")


def failing(bench):
    """No kernel is run that would not take its parameters."""

    def change(params):
        wrong, shape = bytearray(params), slice(32, 40)  # of what the first op writes
        length = int.from_bytes(wrong[shape], "little")
        wrong[shape] = bench.draw.randrange(2, length).to_bytes(8, "little")
        return bytes(wrong)

    _refused(bench, "0.params", change, "a kernel that must fail is run")


def leaning(bench):
    """No output reaches beyond its storage."""

    def change(table):
        leaf = table["outputs"]["leaves"][0]
        leaf[3] += bench.draw.choice((8, 4096, 1 << 16))

    _refused(bench, "0.call", _in_table(change), "an output reaches outside")


CHECKS = (
    relocated,
    read,
    signed,
    proved,
    shared,
    loaded,
    flipped,
    reordered,
    strayed,
    failing,
    leaning,
)


def _caught_by(seed, folder):
    """Return the name of the first check that fails under a seed, or None."""
    for check in CHECKS:
        try:
            check(Bench(seed, folder))
        except Exception:  # noqa: BLE001 - whatever a fault leads to
            return check.__name__
    return None


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_caught_where_nothing_is_wrong(seed, tmp_path):
    """The checks pass on the library as it is, under the same seeds."""
    for check in CHECKS:
        check(Bench(seed, tmp_path))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("mutant", FILE_MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_is_caught(mutant, tmp_path, capsys):
    """Under every seed; what caught it is printed."""
    names = []
    for seed in SEEDS:
        with mutant.patch():
            found = _caught_by(seed, tmp_path)
            gc.collect()  # what a fault has left behind is told here, and nowhere else
        assert found is not None, f"{mutant.name} lives under seed {seed}"
        names.append(found)
    with capsys.disabled():
        sys.stdout.write(f"\n{mutant.name}: caught by {', '.join(names)}")
