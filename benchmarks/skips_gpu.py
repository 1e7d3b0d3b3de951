"""What a call costs that is skipped: beside the plain function, on a GPU.

Host time in us, of calls that take turns; ``noise`` is by how much two plain calls
differ that do. Run it by path for a table; ``--out`` keeps
the figures as skips.json, by default in $OUT.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch_gpu import about

import sapwood as sw

SECONDS, CALLS = 3.0, 10


def host_value() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a function that reads a value."""
    return lambda x: x * x.sum().item(), (torch.ones(8, device="cuda"),)


def growing() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a function that writes a plain value, another in each call."""
    state = SimpleNamespace(step=0)

    def fn(x: Any) -> Any:
        state.step = state.step + 1
        return x + 1

    return fn, (torch.ones(8, device="cuda"),)


def host_argument() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a function of a tensor on the host."""
    return lambda x, t: x * t, (torch.ones(8, device="cuda"), torch.tensor(2.0))


def gradient() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a module of some 200 parameters, whose result requires grad."""
    layers = [nn.Linear(16, 16) for _ in range(100)]
    return nn.Sequential(*layers).cuda(), (torch.ones(4, 16, device="cuda"),)


def training() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a training step with an optimizer that cannot be captured."""
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(8))).cuda()
    optimizer = torch.optim.Adam(model.parameters())

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, (torch.ones(4, 16, device="cuda"),)


def inside_a_step() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the first of these, to be called in steps."""
    return host_value()


def timed(*calls: Callable[[], Any]) -> list[float]:
    """Return the median host us of each of some calls, which take turns."""
    samples: list[list[float]] = [[] for _ in calls]
    until, first = time.perf_counter() + SECONDS, 0
    while time.perf_counter() < until:
        first += 1  # whoever comes later finds warmer caches
        for which in ((first + k) % len(calls) for k in range(len(calls))):
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(CALLS):
                calls[which]()
            samples[which].append((time.perf_counter() - began) / CALLS * 1e6)
    return [statistics.median(each) for each in samples]


def stepped(rt: sw.Runtime, call: Callable[[], Any]) -> Callable[[], Any]:
    """Return a call in a step of its own."""

    def step() -> Any:
        with rt.step():
            return call()

    return step


def measured(make: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]) -> Any:
    """Return what the plain call takes, and the graphed one."""
    fn, args = make()
    with warnings.catch_warnings(), sw.Runtime("cuda:0", arrays="torch") as rt:
        warnings.simplefilter("ignore", sw.GraphSkipWarning)
        graphed = rt.graph(fn)
        plain, skipped = (lambda: fn(*args)), (lambda: graphed(*args))
        if make is inside_a_step:
            plain, skipped = stepped(rt, plain), stepped(rt, skipped)
        for _ in range(20):
            plain(), skipped()
        eager, ours, again = timed(plain, skipped, plain)
        assert not graphed.stats().replays, graphed.explain()
        return {
            "eager": eager,
            "skipped": ours,
            "more": ours - eager,
            "noise": abs(again - eager),
        }


def main() -> None:
    """Print the table, and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    out = os.environ.get("OUT", "benchmarks/results")
    parser.add_argument("--out", type=Path, default=Path(out))
    folder = parser.parse_args().out
    found = {
        make.__name__: measured(make)
        for make in (
            host_value,
            growing,
            host_argument,
            gradient,
            training,
            inside_a_step,
        )
    }
    for name, each in found.items():
        print(f"{name:16}" + "".join(f"{k} {v:9.1f}  " for k, v in each.items()))
    kept = {"about": about(), "host us": found}
    (folder / "skips.json").write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
