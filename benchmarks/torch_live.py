"""What an eager region costs: a function around one, next to two functions without.

Eight linear layers on either side of a function that does nothing. *Two* are graphed
each for itself, as one would by hand; *without* is all of it as one recording. Host and
total microseconds as in `torch_gpu.py`. By path, this prints a table, and writes
torch-live.json to $OUT, else to benchmarks/results.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch_gpu import about, timed

import sapwood as sw

RESULTS: Final = Path(__file__).parent / "results"
COUNT: Final = 200


def layers() -> nn.Module:
    """Return what is on one side."""
    pairs = ((nn.Linear(256, 256), nn.GELU()) for _ in range(8))
    return nn.Sequential(*(layer for pair in pairs for layer in pair)).cuda()


def nothing(hidden: Any) -> None:
    """Do nothing with an activation."""


def columns(rt: sw.Runtime) -> dict[str, Callable[[Any], Any]]:
    """Return the ways to call both sides."""
    before, behind = layers(), layers()
    live, first, second = sw.eager(nothing), rt.graph(before), rt.graph(behind)

    def around(x: Any) -> Any:
        hidden = before(x)
        live(hidden)
        return behind(hidden)

    def two(x: Any) -> Any:
        hidden = first(x)
        nothing(hidden)
        return second(hidden)

    def plain(x: Any) -> Any:
        return behind(before(x))

    return {
        "eager": plain,
        "around an eager region": rt.graph(around),
        "two": two,
        "without": rt.graph(plain),
    }


def main() -> None:
    """Measure, print, and write."""
    kept: dict[str, Any] = {"about": about(), "columns": {}}
    given = [torch.randn(8, 256, device="cuda") for _ in range(2)]
    with torch.no_grad(), sw.Runtime(device="cuda:0", arrays="torch") as rt:
        ways = columns(rt)
        expected = ways["eager"](given[0])
        for name, call in ways.items():
            turns = cycle(given)
            found = {
                "same inputs": timed(lambda call=call: call(given[0]), COUNT),
                "other inputs": timed(lambda c=call, t=turns: c(next(t)), COUNT),
            }
            torch.testing.assert_close(call(given[0]), expected, rtol=0, atol=0)
            kept["columns"][name] = found
            for inputs, each in found.items():
                figures = f"{each['host']:9.2f} {each['total']:9.2f}"
                print(f"{name:20} {inputs:14} {figures}", flush=True)
    out = Path(os.environ.get("OUT") or RESULTS)
    (out / "torch-live.json").write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
