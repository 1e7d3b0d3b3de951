"""What keeping a result costs: ``keep.append(f(x))`` beside ``f(x)``, on a GPU.

And what it costs where the function draws numbers, counts its calls, or appends to a
list.
Columns and units are those of `torch_gpu.py`; *by hand* clones what a raw graph has
written. Run it by path for a table; ``--out`` keeps the figures as kept.json, by
default in $OUT.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch import nn
from torch_gpu import about, timed
from torch_limit import Figures

import sapwood as sw

WARM: Final = 100
"""So many results are kept before it is timed."""


def keeping(call: Callable[[], Any]) -> Callable[[], None]:
    """Return what keeps all results of a call."""
    kept: list[Any] = []
    return lambda: kept.append(call())


def side_by_side(fn: Callable[..., Any], args: tuple[Any, ...], count: int) -> Figures:
    """Return the costs of a call: eager, dropped, and kept."""
    with sw.Runtime(device="cuda:0", arrays="torch") as rt:
        graphed = rt.graph(fn)
        keep = keeping(lambda: graphed(*args))
        found = {
            "eager": timed(lambda: fn(*args), count // 5),
            "dropped": timed(lambda: graphed(*args), count),
        }
        for _ in range(WARM):
            keep()
        return {**found, "kept": timed(keep, count)}


def forward(after: Callable[[Any], Any] = torch.relu) -> Figures:
    """Time a chain of products; and a raw graph of it, as it is and cloned."""
    weights = [torch.randn(256, 256, device="cuda") * 0.1 for _ in range(8)]
    x = torch.randn(64, 256, device="cuda")

    def fn(x: Any) -> Any:
        for weight in weights:
            x = after(x @ weight)
        return x

    found, graph = side_by_side(fn, (x,), 300), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = fn(x)
    found["by hand"] = timed(graph.replay, 300)
    raw = keeping(lambda: (graph.replay(), result.clone())[1])
    return {**found, "by hand, kept": timed(raw, 300)}


def training() -> Figures:
    """Time a step of AdamW's, of which the loss is kept."""
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=True)
    batch = torch.randn(64, 256, device="cuda"), torch.randn(64, 256, device="cuda")

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return side_by_side(step, batch, 100)


def adding() -> Figures:
    """Time a function as it is, one that counts its calls, and one that appends."""
    state, x = SimpleNamespace(calls=0, log=[]), torch.ones(8, 256, device="cuda")

    def plain(x: Any) -> Any:
        return x * 2 + 1

    def counting(x: Any) -> Any:
        state.calls += 1
        return x * 2 + 1

    def appending(x: Any) -> Any:
        state.log.append(x.sum())
        return x * 2 + 1

    found = {}
    with sw.Runtime(device="cuda:0", arrays="torch") as rt:
        for fn in (plain, counting, appending):
            call = partial(rt.graph(fn), x)
            found[fn.__name__] = timed(call, 300)
            assert call.func.stats().replays > WARM, call.func.explain()
        found["eager"] = timed(partial(counting, x), 100)
    return found


def main() -> None:
    """Measure, print a table, and keep the figures."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--out", default=os.environ.get("OUT", ""))
    options = arguments.parse_args()
    kept: Figures = {"about": about(), "rows": {}}
    with torch.no_grad():
        kept["rows"]["keep.append(f(x))"] = forward()
        kept["rows"]["f(x), with dropout"] = forward(nn.functional.dropout)
        kept["rows"]["calls += 1, log.append(loss) inside"] = adding()
    kept["rows"]["losses.append(step(x, y))"] = training()
    for name, columns in kept["rows"].items():
        told = [f"{way} {each['host']:.1f}" for way, each in columns.items()]
        print(f"{name:36}", ", ".join(told), "us of the host")
        for each in columns.values():
            each.pop("samples", None)
    if options.out:
        (Path(options.out) / "kept.json").write_text(json.dumps(kept, indent=1))


if __name__ == "__main__":
    main()
