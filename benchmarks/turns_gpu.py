"""What calls cost whose arguments are the same, others, or of shapes in turn, on a GPU.

Host time in us, the best of five rounds, of an MLP of eight layers and of a small
function of four arguments. Run it by path for a table; ``--out`` keeps the figures as
turns.json, by default in $OUT. Of one host alone two runs compare: see ``eager``.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch_gpu import about

import sapwood as sw

CALLS, ROUNDS = 300, 5


def timed(fn: Callable[..., Any], args: Callable[[int], Sequence[Any]]) -> float:
    """Return the host us of a call, of the best round."""
    best = float("inf")
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for i in range(CALLS):
            fn(*args(i))
        best = min(best, (time.perf_counter() - began) / CALLS * 1e6)
    return best


def measured() -> dict[str, float]:
    """Return all rows."""
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8))).cuda()
    model.requires_grad_(requires_grad=False)
    others = [torch.randn(8, 256, device="cuda") for _ in range(16)]
    shapes = [torch.randn(n, 256, device="cuda") for n in (2, 4, 8)]
    f, turns = sw.graph(model), sw.graph(lambda x: model(x) * 2)
    four = sw.graph(lambda a, b, c, d: (a + b, c * d))
    rows: dict[str, tuple[Callable[..., Any], Callable[[int], Sequence[Any]]]] = {
        "same": (f, lambda _: others[:1]),
        "others": (f, lambda i: [others[i % 16]]),
        "shapes in turn": (turns, lambda i: [shapes[i % 3]]),
        "four others": (four, lambda i: [others[(i + k) % 16] for k in range(4)]),
        "eager": (model, lambda _: others[:1]),
    }
    for fn, args in rows.values():
        for i in range(60):
            fn(*args(i))
    return {name: timed(*row) for name, row in rows.items()}


def main() -> None:
    """Print the table, and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    out = os.environ.get("OUT", "benchmarks/results")
    parser.add_argument("--out", type=Path, default=Path(out))
    folder = parser.parse_args().out
    with torch.no_grad():
        found = measured()
    for name, each in found.items():
        print(f"{name:16} {each:8.1f}")
    kept = {"about": about(), "host us": found}
    (folder / "turns.json").write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
