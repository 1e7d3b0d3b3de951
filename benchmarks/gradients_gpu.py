"""What a block costs that is graphed inside an eager model, forward and backward.

On a GPU, host time in us of a forward and of a backward whose loss is outside, the best
of five rounds, and the time of both with the device waited for: eagerly, by
`torch.cuda.make_graphed_callables`, and graphed here; all in one run, on copies of one
block. Run it by path for a table; ``--out`` keeps the figures as gradients.json, by
default in $OUT.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch_gpu import about

import sapwood as sw

CALLS, ROUNDS, WARM = 30, 5, 16


class Block(nn.Module):  # type: ignore[misc]
    """A block of a transformer."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.back = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.last = nn.LayerNorm(width)

    def forward(self, x: Any) -> Any:
        """Return ``x`` after attention and two layers, each behind a residual."""
        parts = self.mix(self.norm(x)).chunk(3, -1)
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in parts)
        h = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(h.transpose(1, 2).flatten(2))
        return x + self.back(functional.gelu(self.wide(self.last(x))))


def timed(fn: Callable[[Any], Any], module: nn.Module, x: Any) -> dict[str, float]:
    """Return the best host us of a forward and of a backward, and us of both."""
    best = dict.fromkeys(("forward", "backward", "both, waited for"), float("inf"))
    for _ in range(ROUNDS + 1):
        spent = {"forward": 0.0, "backward": 0.0}
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(CALLS):
            module.zero_grad()
            start = time.perf_counter()
            y = fn(x)
            spent["forward"] += time.perf_counter() - start
            loss = y.float().square().mean()
            start = time.perf_counter()
            loss.backward()
            spent["backward"] += time.perf_counter() - start
            del y, loss
        torch.cuda.synchronize()
        spent["both, waited for"] = time.perf_counter() - began
        best = {k: min(best[k], v / CALLS * 1e6) for k, v in spent.items()}
    return best


def measured(width: int, depth: int) -> dict[str, dict[str, float]]:
    """Return all rows for so many blocks."""
    block = nn.Sequential(*(Block(width) for _ in range(depth))).cuda()
    x = torch.randn(4, 64, width, device="cuda", requires_grad=True)
    own = [copy.deepcopy(block) for _ in range(3)]
    by_hand = torch.cuda.make_graphed_callables(own[1], (x.detach().requires_grad_(),))
    rows = {"eager": own[0], "by hand": by_hand, "graphed": sw.graph(own[2])}
    found = {}
    for (name, fn), module in zip(rows.items(), own, strict=True):
        for _ in range(WARM):
            fn(x).square().mean().backward()
        found[name] = timed(fn, module, x)
    return found


def main() -> None:
    """Print the table, and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    out = os.environ.get("OUT", "benchmarks/results")
    parser.add_argument("--out", type=Path, default=Path(out))
    folder = parser.parse_args().out
    warnings.filterwarnings("ignore", message="The AccumulateGrad node's stream")
    kept: dict[str, Any] = {"about": about()}
    for name, shape in {"1 block": (256, 1), "4 blocks": (256, 4)}.items():
        kept[name] = measured(*shape)
        for row, each in kept[name].items():
            cells = "".join(f"  {what} {us:7.0f}" for what, us in each.items())
            print(f"{name:9} {row:8}{cells}")
    (folder / "gradients.json").write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
