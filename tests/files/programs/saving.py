# ruff: noqa: T201 - it prints what it found
"""The first process: records the corpus, saves it, and goes on.

    python saving.py FOLDER

Prints what came out of the calls after saving, and where everything lay.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from corpus import MAKERS
from inputs import CALLS, INPUTS
from nests import Picture

import sapwood as sw


class Make:
    """Makes arrays; those that are kept once."""

    def __init__(self, rt):
        self.rt, self.known = rt, {}

    def __call__(self, host):
        return self.rt.array(host)

    def kept(self, name, host):
        if name not in self.known:
            self.known[name] = self.rt.array(host)
        return self.known[name]

    def generator(self, name):
        if name not in self.known:
            self.known[name] = self.rt.generator(5)
        return self.known[name]


def _run(name, rt, folder):
    plain, state = MAKERS[name](rt)
    options = {"donate": "state"} if name == "donated" else {}
    f, make = rt.graph(plain, **options), Make(rt)
    for k in range(CALLS):
        for _ in range(2):
            args, kwargs = INPUTS[name](make, k)
            f(*args, **kwargs)
    sw.save(f, folder / f"{name}.sapwood")
    pictures = []
    for k in range(CALLS):
        args, kwargs = INPUTS[name](make, k)
        result = f(*args, **kwargs)
        shown = args if name != "donated" else ()
        pictures.append(Picture().of(result, shown, state()))
    return pictures, [each.base for each in rt._recordings.ranges()]


def main():
    """Save all and print what the next calls give."""
    folder = Path(sys.argv[1])
    with sw.Runtime() as rt:
        found = {name: _run(name, rt, folder) for name in INPUTS}
        shown = {name: pictures for name, (pictures, _) in found.items()}
        bases = {name: lie for name, (_, lie) in found.items()}
        print(json.dumps({"shown": shown, "bases": bases}))


if __name__ == "__main__":
    main()
