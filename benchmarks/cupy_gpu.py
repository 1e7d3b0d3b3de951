"""What a call of CuPy's arrays costs: eager, a graph by hand, and graphed here.

Three operations on 64 x 64 floats: with the same arguments, with others in turn, and
where the last 16 results are kept. Host microseconds, the best of seven rounds. By
path, this prints a table, and writes cupy.json to $OUT, else to benchmarks/results.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import cupy as cp

import sapwood as sw

RESULTS: Final = Path(__file__).parent / "results"
COUNT: Final = 1_000
WARM: Final = 100
ROUNDS: Final = 7


def fn(x: Any, w: Any) -> Any:
    """Return three operations' worth."""
    return cp.tanh(x * w + 1)


def host(call: Callable[[], object]) -> float:
    """Return microseconds of host time a call."""
    for _ in range(WARM):
        call()
    best = float("inf")
    for _ in range(ROUNDS):
        cp.cuda.Device().synchronize()
        began = time.perf_counter()
        for _ in range(COUNT):
            call()
        best = min(best, (time.perf_counter() - began) / COUNT * 1e6)
    return round(best, 1)


def by_hand(x: Any, w: Any) -> Callable[[], object]:
    """Return what launches a graph that CuPy has captured."""
    fn(x, w)
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        kept = fn(x, w)
        graph = stream.end_capture()
    return lambda: (graph.launch(), kept)


def ways(rt: sw.Runtime) -> dict[str, Callable[[], object]]:
    """Return what is timed."""
    given = [cp.random.rand(64, 64).astype(cp.float32) for _ in range(4)]
    x, w = given[0], cp.ones((64, 64), cp.float32)
    same, other, keeps = (rt.graph(fn) for _ in range(3))
    turns, kept, eager = cycle(given), deque[Any](maxlen=16), deque[Any](maxlen=16)
    return {
        "eager": lambda: fn(x, w),
        "eager, kept": lambda: eager.append(fn(x, w)),
        "by hand": by_hand(x, w),
        "same arguments": lambda: same(x, w),
        "other arguments": lambda: other(next(turns), w),
        "kept": lambda: kept.append(keeps(x, w)),
    }


def main() -> None:
    """Measure, print, and write."""
    with sw.Runtime("cuda:0", arrays="cupy") as rt:
        found = {name: host(call) for name, call in ways(rt).items()}
    name = cp.cuda.runtime.getDeviceProperties(0)["name"].decode()
    for each, figure in found.items():
        print(f"{each:16} {figure:7.1f}")
    folder = Path(os.environ.get("OUT") or RESULTS)
    about = {"gpu": name, "cupy": cp.__version__, "sapwood": sw.__version__}
    text = json.dumps({"about": about, "host us": found}, indent=1)
    (folder / "cupy.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
