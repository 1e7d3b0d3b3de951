# ruff: noqa: T201 - it prints what it found
"""Loads spoiled files and entries, thousands of them, and calls what they hold.

    python hostile.py FOLDER COUNT SEED

Before each the seed of its spoiling is written to FOLDER/last, so that a crash has a
name. Prints how it went as JSON: an outcome is a `StoreError`, a `MisuseError`, a miss,
or a call that was run from what was found.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from mutations import spoiled_bytes, spoiled_sections

import sapwood as sw
from sapwood.driver.api import CopiesOp, CopyOp, KernelOp, Pointer, SetOp
from sapwood.driver.emulated import Emulated
from sapwood.driver.layers import Layer
from sapwood.errors import MisuseError, StoreError
from sapwood.persist.api import Item
from sapwood.persist.entries import Entries
from sapwood.persist.format import join, split

ROOM = 768 << 20


class Fence(Layer):
    """Lets graphs touch new ranges and what is allowed, and nothing else."""

    def __init__(self, driver):
        super().__init__(driver)
        self.allowed, self.ranges = [], []

    def open(self, arrays):
        """Allow the memory of these arrays, and of ranges reserved from now on."""
        storages = [array.storage for array in arrays]
        self.allowed = [(s.address, s.address + s.size) for s in storages]
        self.ranges = []

    def around(self, name, call, args):
        if name == "instantiate":
            for node in self.driver.nodes(*args):
                self._check(self.driver.node_op(node))
        elif name == "set_op":
            self._check(args[2])
        result = call(*args)
        if name == "reserve":
            self.ranges.append((result, result + args[0]))
        return result

    def _check(self, op):
        for pointer in self._pointers(op):
            lo, hi = pointer.lo, pointer.hi
            spans = (*self.allowed, *self.ranges)
            if lo < hi and not any(a <= lo and hi <= b for a, b in spans):
                raise SystemExit(f"an op may touch {lo:#x} to {hi:#x}")

    def _pointers(self, op):
        match op:
            case KernelOp(function, params):
                try:
                    return self.driver.pointers(function, params)
                except sw.DriverError:
                    return ()  # it will not be taken
            case CopiesOp(dsts, srcs, sizes):
                return [
                    Pointer(0, lo, lo + size, writes=starts is dsts)
                    for starts in (dsts, srcs)
                    for lo, size in zip(starts, sizes, strict=True)
                ]
            case CopyOp(dst, src, size):
                return (
                    Pointer(0, dst, dst + size, writes=True),
                    Pointer(8, src, src + size, writes=False),
                )
            case SetOp(dst, _, size):
                return (Pointer(0, dst, dst + size, writes=True),)
        return ()


class Values(dict):
    """The least that is a store."""

    def put(self, name, value):
        self[name] = value

    def delete(self, name):
        return self.pop(name, None) is not None

    def scan(self):
        return [Item(name, len(value), 0) for name, value in self.items()]


@dataclass
class Pair:
    """A result."""

    left: Any
    right: Any


def programs(rt):
    """Return functions with what they are called with: arrays and plain values."""
    o = SimpleNamespace(h=None, table={})
    w = rt.array(np.arange(36.0).reshape(6, 6))
    rng = rt.generator(3)

    def state(x):
        o.h = o.h * 0.5 + x
        o.table["k"] += 1.0
        return Pair(o.h, {"all": [o.h[::2], x, x[1:]], 1: (True, None, "text")})

    def matrix(x, y):
        x += 1.0
        z = np.maximum(x @ w, y[:, None]).sum(0)
        return z, np.where(z > 1.0, z, -z), np.zeros(3, like=x), z

    def mixed(x, picked):
        return (
            np.take(x, picked),
            x[picked],
            np.tile(x, 2),
            np.pad(x, 1),
            np.concatenate((x[:2], x[3:])),
            np.arange(4, like=x),
            np.cumsum(x),
            np.argmax(x),
            np.repeat(x, 2),
            np.sort(x)[::-1],
        )

    def drawn(x):
        return x + rng.random(6), rng.integers(0, 9, 4), rng.permutation(4)

    def scattered(x, y, picked):
        x[picked] = 0.0
        x[::3] = y[:2]
        np.copyto(x[1:4], y[1:4])
        return x.astype("f4"), x.reshape(2, 3).T

    def six():
        return rt.array(np.arange(6.0))

    def picks():
        # Passed anew each time: indices that a file holds may be spoiled, as any data.
        return rt.array(np.array([2, 0, 1]))

    def renewed():
        # What a spoiled recording has bound is not for the next one to find.
        o.h, o.table["k"] = six(), six()
        return (six(),)

    kept, many = six(), [w, rng.state]
    return {
        "state": (state, renewed, lambda: [o.h, o.table["k"]]),
        "matrix": (matrix, lambda: (rt.array(np.ones((6, 6))), six()), lambda: many),
        "mixed": (mixed, lambda: (six(), picks()), lambda: many),
        "drawn": (drawn, lambda: (six(),), lambda: many),
        "scattered": (scattered, lambda: (kept, six(), picks()), lambda: many),
    }


class Trial:
    """One device, with functions that were saved, and stored, as they should be."""

    def __init__(self, folder):
        self.folder = folder
        self.fence = Fence(Emulated(1 << 24, 1 << 16))
        self.store = Values()
        self.rt = sw.Runtime(device=self.fence, store=self.store)
        self.programs = programs(self.rt)
        self.files, self.entries = {}, Entries(self.store)
        for name, (fn, make, _) in self.programs.items():
            f = self.rt.graph(fn, name=name)
            for _ in range(3):
                f(*make())
            sw.save(f, folder / name)
            self.files[name] = (folder / name).read_bytes()
        self.stored = {}
        for key in list(Entries.keys(self.entries)):
            name = dict(key.components)["function"].decode()
            self.stored[name] = (key, self.entries.find(key))

    def load(self, draw, recompute):
        """Spoil a file, load it, and call what it holds."""
        name = draw.choice(sorted(self.files))
        data = self.files[name]
        if recompute:
            data = join(spoiled_sections(draw, split(data)))
        else:
            data = spoiled_bytes(draw, data)
        path = self.folder / "spoiled"
        path.write_bytes(data)
        _, make, _ = self.programs[name]
        nested = draw.random() < 0.8
        try:
            g = self.rt.load(path, nested=nested)
        except StoreError:
            return "file refused"
        args = make()
        kept = [*g.arguments.values(), *g.state.values()]
        self.fence.open([*args, *kept])
        try:
            for _ in range(2):
                g(*args)
        except MisuseError:
            return "file has no recording"
        self.rt.synchronize()
        return "file called"

    def restore(self, draw, recompute):
        """Spoil an entry, and call a function that finds it."""
        name = draw.choice(sorted(self.stored))
        key, sections = self.stored[name]
        self.store.clear()
        if recompute:
            self.entries.put(key, spoiled_sections(draw, sections))
        else:
            self.entries.put(key, sections)
            spoiled = draw.choice(sorted(self.store))
            self.store[spoiled] = spoiled_bytes(draw, self.store[spoiled])
        fn, make, reads = self.programs[name]
        f, args = self.rt.graph(fn, name=name), make()
        self.fence.open([*args, *reads()])
        f(*args)
        self.rt.synchronize()
        return "entry called" if f.stats().restored else "entry missed"


def stopped(error):
    """Return whether a kernel itself refused an index that it read from memory.

    Indices are data, as all contents of arrays: they are not looked at before.
    """
    return error.name == "LAUNCH_FAILED" and isinstance(error.__cause__, IndexError)


def main():
    """Spoil, load, call; print what happened how often."""
    folder, count, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    # What asks for more than there is, is told so at once.
    resource.setrlimit(resource.RLIMIT_DATA, (ROOM, resource.RLIM_INFINITY))
    trial = Trial(folder)
    outcomes = Counter()
    with (folder / "last").open("wb", buffering=0) as last:
        for number in [int(each) for each in sys.argv[4:]] or range(count):
            last.seek(0)
            last.write(b"%d %d" % (seed, number))
            draw = random.Random(f"{seed} {number}")
            spoil = trial.load if number % 4 < 2 else trial.restore
            try:
                outcomes[spoil(draw, recompute=number % 2 == 1)] += 1
            except sw.DriverError as error:
                if not stopped(error):
                    raise
                outcomes["stopped at an index"] += 1
                trial = Trial(folder)
    trial.rt.close()
    print(json.dumps({"outcomes": outcomes, "seconds": time.process_time()}))


if __name__ == "__main__":
    main()
