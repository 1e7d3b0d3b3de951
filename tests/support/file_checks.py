"""Quick checks of what reads recordings, each a law in a few lines.

Programs and numbers are drawn from a seed. A check raises `_Broken` where the law is
broken; an `Exception` that no caller should see breaks it, too.
"""

from __future__ import annotations

import gc
import json
import random
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import sapwood as sw
from sapwood.driver.emulated import Emulated
from sapwood.driver.layers import Checked
from sapwood.persist.format import join, split
from sapwood.units import Size
from tests.support.shelf import Shelf

__all__ = ["checks_until_caught"]

_Host = NDArray[np.float64]


class _Broken(Exception):
    """A law was broken."""


class _Bench:
    """A seed, a folder and a store; runtimes on devices of their own."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.draw = random.Random(seed)
        self.path = folder / "file"
        self.store = Shelf()
        self.size = self.draw.randrange(3, 9)

    def open(self, *, stored: bool = False) -> sw.Runtime:
        """Return a runtime whose addresses nobody had before."""
        driver = Checked(Emulated(Size(1 << 24), Size(1 << 16)))
        return sw.Runtime(device=driver, store=self.store if stored else None)

    def host(self) -> _Host:
        """Return numbers, as many as arrays of this bench have."""
        return np.array([float(self.draw.randrange(99)) for _ in range(self.size)])


def _expect(found: Any, expected: _Host) -> None:
    if np.asarray(found).tolist() != expected.tolist():
        raise _Broken(f"{np.asarray(found)} instead of {expected}")


def _by_store(
    bench: _Bench,
    make: Callable[[sw.Runtime, Any], Any],
    expected: Callable[[_Host, Any], _Host],
    *changes: object,
) -> None:
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


def _relocated(bench: _Bench) -> None:
    """Results are right wherever the bytes are."""
    host = bench.host()

    def make(rt: sw.Runtime, _: object) -> Any:
        w = rt.array(host)
        return lambda x: ((x * w)[::-1] + w[0])[1:] - x[:-1]

    _by_store(bench, make, lambda x, _: ((x * host)[::-1] + host[0])[1:] - x[:-1], 1, 2)


def _read(bench: _Bench) -> None:
    """A value that is another one is not the one that was recorded."""
    one, two = bench.draw.sample(range(2, 99), 2)
    _by_store(bench, lambda _, v: lambda x: x * v, lambda x, v: x * v, one, two, one)


def _signed(bench: _Bench) -> None:
    """Other shapes and values are other calls."""
    for size in bench.draw.sample(range(3, 9), 3):
        bench.size = size
        _by_store(bench, lambda *_: lambda x: x[1:] + 1.0, lambda x, _: x[1:] + 1.0, 0)


def _proved(bench: _Bench) -> None:
    """What cannot be proved is told by what it does."""
    one, two = bench.draw.sample(range(2, 99), 2)

    def make(_: sw.Runtime, value: Any) -> Any:
        # What it holds lies where Python does not see it.
        held = np.random.SeedSequence(value)
        return lambda x: x * held.entropy

    _by_store(bench, make, lambda x, v: x * v, one, two, one)


def _shared(bench: _Bench) -> None:
    """Arrays that share memory are not two arrays."""
    host = bench.host()

    def make(rt: sw.Runtime, other: Any) -> Any:
        a, b = rt.array(host), rt.array(host)
        c = a[:] if other == 0 else b[:]

        def f(x: Any) -> Any:
            a[...] += x
            result = a + b * 2.0 + c * 3.0
            a[...] -= x
            return result

        return f

    def expected(x: _Host, other: Any) -> _Host:
        return host + x + host * 2.0 + (host + x if other == 0 else host) * 3.0

    turns = [0, 1]
    bench.draw.shuffle(turns)
    _by_store(bench, make, expected, *turns, *turns)


def _saved(bench: _Bench) -> Callable[[_Host], _Host]:
    """Save a function of an argument and two arrays; return what it gives."""
    a, b = bench.host(), bench.host() + 0.5
    with bench.open() as rt:
        one, two = rt.array(a), rt.array(b)

        def f(x: Any) -> Any:
            return (np.maximum(x - one, 0.0) * two)[1:]

        graphed = rt.graph(f)
        for _ in range(2):
            graphed(rt.array(bench.host()))
        sw.save(graphed, bench.path)
        del graphed
    return lambda x: (np.maximum(x - a, 0.0) * b)[1:]


def _loads(bench: _Bench, expected: Callable[[_Host], _Host]) -> bool:
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


def _loaded(bench: _Bench) -> None:
    """A file is called in another process."""
    if not _loads(bench, _saved(bench)):
        raise _Broken("a file that was saved is refused")


def _flipped(bench: _Bench) -> None:
    """No bit of a file's bodies can be another one."""
    expected = _saved(bench)
    data = bench.path.read_bytes()
    contents = [body for name, body in split(data).items() if name.startswith("bytes")]
    at = data.index(bench.draw.choice([body for body in contents if len(body) > 8]))
    wrong = bytearray(data)
    wrong[at + bench.draw.randrange(8, 24)] ^= 1 << bench.draw.randrange(8)
    bench.path.write_bytes(bytes(wrong))
    if _loads(bench, lambda x: expected(x) + np.nan):
        raise _Broken("a wrong bit was not seen")


def _resealed(bench: _Bench, name: str, change: Callable[[bytes], bytes]) -> None:
    """Change a section, and write its digest anew."""
    sections = split(bench.path.read_bytes())
    sections[name] = change(sections[name])
    bench.path.write_bytes(join(sections))


def _in_table(change: Callable[[Any], object]) -> Callable[[bytes], bytes]:
    """Return what changes a table that is written in a section."""

    def changed(text: bytes) -> bytes:
        table = json.loads(text)
        change(table)
        return json.dumps(table, separators=(",", ":"), sort_keys=True).encode()

    return changed


def _reordered(bench: _Bench) -> None:
    """Arrays in another order are other arrays."""
    expected = _saved(bench)
    _resealed(bench, "index", _in_table(lambda table: table["ambient"].reverse()))
    _loads(bench, expected)


def _refused(
    bench: _Bench, name: str, change: Callable[[bytes], bytes], why: str
) -> None:
    expected = _saved(bench)
    _resealed(bench, name, change)
    x = bench.host()
    del expected
    with bench.open() as rt:
        try:
            rt.load(bench.path)(rt.array(x))
        except (sw.StoreError, sw.MisuseError):
            return
        raise _Broken(why)


def _strayed(bench: _Bench) -> None:
    """No op reaches beyond what it may use."""

    def change(table: Any) -> None:
        row = bench.draw.choice([r for r in table["relocations"] if r[2] > 0])
        row[3] += bench.draw.choice((-64, 64, 1 << 16))

    _refused(bench, "0.ops", _in_table(change), "an op reaches outside")


def _failing(bench: _Bench) -> None:
    """No kernel is run that would not take its parameters."""

    def change(params: bytes) -> bytes:
        wrong, shape = bytearray(params), slice(32, 40)  # of what the first op writes
        length = int.from_bytes(wrong[shape], "little")
        wrong[shape] = bench.draw.randrange(2, length).to_bytes(8, "little")
        return bytes(wrong)

    _refused(bench, "0.params", change, "a kernel that must fail is run")


def _leaning(bench: _Bench) -> None:
    """No output reaches beyond its storage."""

    def change(table: Any) -> None:
        leaf = table["outputs"]["leaves"][0]
        leaf[3] += bench.draw.choice((8, 4096, 1 << 16))

    _refused(bench, "0.call", _in_table(change), "an output reaches outside")


_CHECKS: Final = (
    _relocated,
    _read,
    _signed,
    _proved,
    _shared,
    _loaded,
    _flipped,
    _reordered,
    _strayed,
    _failing,
    _leaning,
)


def checks_until_caught(seed: int) -> int | None:
    """Return which check, counted from 1, is the first to fail, or None.

    Whatever a fault leads to fails it; what that leaves behind is collected here.
    """
    with TemporaryDirectory() as folder:
        found = None
        for number, check in enumerate(_CHECKS, 1):
            try:
                check(_Bench(seed, Path(folder)))
            except Exception:  # noqa: BLE001 - whatever a fault leads to
                found = number
                break
        gc.collect()
        return found
