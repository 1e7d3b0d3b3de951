"""What calls cost that read values on the host, replayed and eagerly, on a GPU.

Time in us until a call is over, the best of five rounds, each of which is waited for: a
read waits anyway. Rows: so many operations in front of each of so many reads; a
training step of four layers with a `GradScaler`, which looks for overflows by a read;
and steps of eight layers that return `loss.item()`, by optimizers that a capture takes,
or that step live.
Run it by path for a table; ``--out`` keeps the figures as reads.json, by default in
$OUT.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch_gpu import about

import sapwood as sw

CALLS, ROUNDS = 100, 5
SHAPES = ((1, 1), (10, 1), (30, 1), (100, 1), (10, 4), (30, 4))
"""So many operations in front of each read, and so many reads."""


def reading(ops: int, reads: int) -> Callable[[Any], Any]:
    """Return a function that goes on by what it has read."""

    def fn(x: Any) -> Any:
        for _ in range(reads):
            for _ in range(ops):
                x = x * 0.5 + 1
            if float(x[0]) > 0:
                x = x + 1
        return x

    return fn


def training() -> Callable[[Any], Any]:
    """Return a step with a scaler, of layers of its own."""
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10, growth_interval=10**6)

    def step(x: Any) -> Any:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.float16):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda weights: torch.optim.SGD(weights, lr=0.1),
    "AdamW": torch.optim.AdamW,
    "AdamW, fused": lambda weights: torch.optim.AdamW(weights, fused=True),
    "AdamW, capturable": lambda weights: torch.optim.AdamW(weights, capturable=True),
}


def stepping(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a step that returns a number, of layers of its own."""
    layers = [each for _ in range(8) for each in (nn.Linear(256, 256), nn.GELU())]
    model = nn.Sequential(*layers).cuda()
    optimizer = make(model.parameters())

    def step(x: Any) -> float:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def timed(fn: Callable[[Any], Any], x: Any) -> float:
    """Return the us of a call, of the best round."""
    best = float("inf")
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(CALLS):
            fn(x)
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - began) / CALLS * 1e6)
    return best


def measured() -> dict[str, dict[str, float]]:
    """Return figures of all rows, and what part of the calls were replays."""
    x, found = torch.randn(64, device="cuda"), dict[str, dict[str, float]]()
    rows = {f"{ops} x {reads}": reading(ops, reads) for ops, reads in SHAPES}
    pairs = {name: (fn, fn) for name, fn in rows.items()}
    pairs["scaled step"] = training(), training()
    for name, make in OPTIMIZERS.items():
        pairs[f"step, {name}"] = stepping(make), stepping(make)
    batch = torch.randn(64, 256, device="cuda")
    given = {name: batch for name in pairs if "step" in name}
    for name, (eager, fn) in pairs.items():
        graphed, at = sw.graph(fn), given.get(name, x)
        for _ in range(30):
            eager(at)
            graphed(at)
        before = graphed.stats().replays
        found[name] = {"eager": timed(eager, at), "replayed": timed(graphed, at)}
        found[name]["replays"] = (graphed.stats().replays - before) / (CALLS * ROUNDS)
    return found


def main() -> None:
    """Print the table, and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    out = os.environ.get("OUT", "benchmarks/results")
    parser.add_argument("--out", type=Path, default=Path(out))
    folder = parser.parse_args().out
    found = measured()
    print(f"{'ops x reads':24} {'eager us':>9} {'ours us':>9} {'replays':>8}")
    for name, row in found.items():
        print(
            f"{name:24} {row['eager']:9.1f} {row['replayed']:9.1f} {row['replays']:8}"
        )
    kept = {"about": about(), "us": found}
    (folder / "reads.json").write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
