# ruff: noqa: T201 - it prints what it found
"""The second process: has no functions, and calls those in the files.

    python loading.py FOLDER

Addresses that the first process had are taken here before anything is loaded.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import nests
from inputs import CALLS, INPUTS

import sapwood as sw
from sapwood.driver.emulated import Emulated


class Make:
    """Makes arrays; those that were kept come out of the file."""

    def __init__(self, rt, loaded):
        self.rt, self.loaded = rt, loaded

    def __call__(self, host):
        return self.rt.array(host)

    def kept(self, name, host):
        del host
        return self.loaded.arguments[name]

    def generator(self, name):
        from sapwood.integrations.numpy.random import Generator

        return Generator(self.loaded.arguments[f"{name}[0]"])


def _run(name, rt, folder):
    g = rt.load(folder / f"{name}.sapwood")
    make, pictures = Make(rt, g), []
    for k in range(CALLS):
        args, kwargs = INPUTS[name](make, k)
        result = g(*args, **kwargs)
        state = STATES.get(name, ())
        state = state(g) if callable(state) else {path: g.state[path] for path in state}
        shown = args if name != "donated" else ()
        pictures.append(nests.Picture().of(result, shown, state))
    return pictures, vars_of(g.stats()), [each.base for each in rt._recordings.ranges()]


STATES = {
    "rebound": ["o.h", "o.table['k']"],
    "lazily": ["o.buffer"],
    "large": ["weights"],
    "layers": ["momenta[0]", "momenta[1]", "momenta[2]"],
    "method": ["self.w"],
    "nothing": ["count"],
    "bound_only": ["o.out"],
    "long_keys": lambda g: {"read": list(g.state.values())},
}


def vars_of(stats):
    """Return the counts that say how calls were run."""
    names = ("warmups", "recordings", "restored", "replays", "passed_through")
    return {name: getattr(stats, name) for name in names}


def main():
    """Take addresses, load all, and print what the calls give."""
    folder = Path(sys.argv[1])
    taken = Emulated(1 << 24)
    taken.reserve(1 << 42)
    with sw.Runtime() as rt:
        found = {name: _run(name, rt, folder) for name in INPUTS}
        shown, stats, bases = (
            {name: each[i] for name, each in found.items()} for i in range(3)
        )
        print(json.dumps({"shown": shown, "stats": stats, "bases": bases}))
    taken.close()


if __name__ == "__main__":
    main()
