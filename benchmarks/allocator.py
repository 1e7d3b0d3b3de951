"""What a hit costs: the allocator replays a trace until nothing grows any more.

``python benchmarks/allocator.py TRACE.csv... [--rounds N] [--json]``; traces have the
columns ``id,lower,upper,size``. Times one call at a time, the clock's own cost taken
off; and a whole replay by the processor's clock, which includes folding the counters
now and again. No device is needed: memory is addresses only.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from sapwood.allocator.caching.allocator import Allocator
from sapwood.allocator.simulate import read_trace
from sapwood.allocator.simulate.ours import Ground
from sapwood.driver.api import StreamHandle
from sapwood.driver.layers import Recorded
from sapwood.units import Addr, Size

_TOTAL = Size(1 << 42)

Steps = Sequence[tuple[int, int]]


def main() -> None:
    """Measure each trace and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    figures = [measure(path, chosen.rounds) for path in chosen.traces]
    if chosen.json:
        print(json.dumps(figures, indent=2))
        return
    print(f"Python {platform.python_version()}, nanoseconds per call")
    for row in figures:
        print("  ".join(f"{name} {value}" for name, value in row.items()))


def measure(path: Path, rounds: int) -> dict[str, object]:
    """Return medians, 99th percentiles and the mean of replaying one trace."""
    trace = read_trace(path)
    driver = Recorded(Ground(_TOTAL))
    allocator, stream = Allocator(driver), driver.create_stream()
    steps = [(step, trace.buffers[max(step, ~step)].size) for step in trace.steps]
    for _ in range(8):
        _replay(allocator, stream, steps)
    driver.reset()
    mallocs, frees = _each(allocator, stream, steps, rounds)
    start = time.process_time_ns()
    for _ in range(rounds):
        _replay(allocator, stream, steps)
    mean = (time.process_time_ns() - start) / len(mallocs)
    tick = _clock()
    pair = statistics.median(mallocs) + statistics.median(frees) - 2 * tick
    return {
        "trace": path.stem,
        "malloc": _at(mallocs, 0.5) - tick,
        "malloc_p99": _at(mallocs, 0.99) - tick,
        "free": _at(frees, 0.5) - tick,
        "free_p99": _at(frees, 0.99) - tick,
        "pair": int(pair),
        "pair_mean": int(mean),
        "driver_calls": sum(driver.counts().values()),
    }


def _replay(allocator: Allocator, stream: StreamHandle, steps: Steps) -> None:
    malloc, free = allocator.malloc, allocator.free
    held: dict[int, Addr] = {}
    for step, size in steps:
        if step >= 0:
            held[step] = malloc(size, stream)
        else:
            free(held.pop(~step))


def _each(
    allocator: Allocator, stream: StreamHandle, steps: Steps, rounds: int
) -> tuple[list[int], list[int]]:
    clock = time.perf_counter_ns
    held: dict[int, Addr] = {}
    mallocs: list[int] = []
    frees: list[int] = []
    for _ in range(rounds):
        for step, size in steps:
            if step >= 0:
                start = clock()
                address = allocator.malloc(size, stream)
                mallocs.append(clock() - start)
                held[step] = address
            else:
                address = held.pop(~step)
                start = clock()
                allocator.free(address)
                frees.append(clock() - start)
    return mallocs, frees


def _at(times: list[int], share: float) -> int:
    return sorted(times)[int(share * (len(times) - 1))]


def _clock() -> int:
    """Return what reading the clock twice costs."""
    clock = time.perf_counter_ns
    ticks = []
    for _ in range(10_000):
        start = clock()
        ticks.append(clock() - start)
    return int(statistics.median(ticks))


if __name__ == "__main__":
    main()
