"""How long 50 recordings take to give memory back, and to have it again, on a GPU.

Seconds, medians of five rounds, and MiB: `Runtime.sleep`, `Runtime.wake`, all calls
behind a wake, all calls while they sleep, and the same functions recorded anew, which
is what to end and to make graphs again costs. Run it by path for a table; ``--out``
keeps the figures as sleep.json, by default in $OUT.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch_gpu import about

import sapwood as sw

RECORDINGS, ROUNDS, WIDTH = 50, 5, 1024


def seconds(act: Callable[[], Any]) -> float:
    """Return how long it takes until all of it is done on the device."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    act()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def measured() -> dict[str, float]:
    """Return all rows."""
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(8))).cuda()
    model.requires_grad_(requires_grad=False)
    rows = [torch.randn(16 * (n + 1), WIDTH, device="cuda") for n in range(RECORDINGS)]
    rt = sw.default_runtime()

    def recorded() -> Any:
        f = rt.graph(model)
        for x in rows:
            for _ in range(2):
                f(x)
        return f

    f = recorded()
    expected = [f(x).clone() for x in rows]
    found: dict[str, list[float]] = {}

    def note(name: str, act: Callable[[], Any]) -> None:
        found.setdefault(name, []).append(seconds(act))

    freed = 0
    for _ in range(ROUNDS):
        note("calls", lambda: [f(x) for x in rows])
        freed = rt.sleep()
        note("calls while asleep", lambda: [f(x) for x in rows])
        note("sleep", rt.sleep)
        note("wake", rt.wake)
        note("recorded anew", recorded)
    equal = all(torch.equal(f(x), y) for x, y in zip(rows, expected, strict=True))
    if not equal:
        raise SystemExit("what slept gives other results")
    middle = {name: median(each) for name, each in found.items()}
    return {**middle, "MiB": freed >> 20, "recordings": f.stats().recordings}


def main() -> None:
    """Measure, print a table, and keep the figures."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--out", default=os.environ.get("OUT", ""))
    options = arguments.parse_args()
    rows = measured()
    for name, value in rows.items():
        print(f"{name:20} {value:10.4f}")
    if options.out:
        kept = {"about": about(), "rows": rows}
        (Path(options.out) / "sleep.json").write_text(json.dumps(kept))


if __name__ == "__main__":
    main()
