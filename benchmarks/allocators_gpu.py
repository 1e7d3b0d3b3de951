"""Allocators of one GPU side by side: what a call costs, and what drifting sizes leave.

Each allocator has a process of its own. *Latency*: allocating and freeing with 64
blocks held, of sizes drawn once, after a warm-up; the clock's own time is taken off.
*Drift*: 200 steps of 64 allocations whose sizes wander, some of which outlive their
step; reserved is what the device says is in use, so it means the same for all.

Run it by path for a table; ``--out`` keeps the figures as JSON, by default in $OUT.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

GOALS: dict[str, float] = {}

HELD: Final = 64
WARM: Final = 2_000
PAIRS: Final = 20_000
STEPS: Final = 200
LAYERS: Final = 64
MIB: Final = 1 << 20

Pair = tuple[Callable[[int], Any], Callable[[Any], object]]
Op = tuple[str, int, int]


def _ours(**settings: Any) -> Pair:
    from sapwood.allocator.caching.allocator import Allocator
    from sapwood.allocator.caching.settings import Settings
    from sapwood.driver.cuda import Cuda

    driver = Cuda(0)
    allocator, stream = Allocator(driver, Settings(**settings)), driver.create_stream()
    malloc = allocator.malloc
    return lambda size: malloc(size, stream), allocator.free


def _ours_classic() -> Pair:
    return _ours(expandable_segments=False)


def _ours_lent() -> Pair:
    from sapwood.runtime.allocators import lender

    lend, take_back = lender().lend, lender().take_back
    return lambda size: lend(size, 0), take_back


def _ours_in_cupy() -> Pair:
    from sapwood.runtime.allocators import allocator_for

    return allocator_for("cupy"), _drop


def _cupy() -> Pair:
    import cupy

    return cupy.cuda.MemoryPool().malloc, _drop


def _torch() -> Pair:
    import torch

    stream = torch.cuda.current_stream().cuda_stream
    # What torch.cuda.caching_allocator_alloc calls, without its Python.
    calls: Any = torch._C  # noqa: SLF001
    allocate = calls._cuda_cudaCachingAllocator_raw_alloc  # noqa: SLF001
    delete = calls._cuda_cudaCachingAllocator_raw_delete  # noqa: SLF001
    return lambda size: allocate(size, stream), delete


def _torch_expandable() -> Pair:
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return _torch()


def _torch_empty() -> Pair:
    import torch

    device, kind, empty = torch.device("cuda:0"), torch.uint8, torch.empty
    return lambda size: empty(size, dtype=kind, device=device), _drop


def _cuda_core() -> Pair:
    from cuda import core

    device = core.Device(0)
    device.set_current()
    stream, resource = device.create_stream(), core.DeviceMemoryResource(0)
    return (
        lambda size: resource.allocate(size, stream=stream),
        lambda buffer: buffer.close(stream),
    )


def _drop(_held: Any) -> None:
    """The caller's was the last reference."""


CONTESTANTS: Final[dict[str, Callable[[], Pair]]] = {
    "ours": _ours,
    "ours, classic segments": _ours_classic,
    "ours, lent": _ours_lent,
    "CuPy on ours": _ours_in_cupy,
    "CuPy's pool": _cupy,
    "torch, raw": _torch,
    "torch, raw, expandable": _torch_expandable,
    "torch.empty": _torch_empty,
    "cuda.core's device resource": _cuda_core,
}


def measure() -> dict[str, float]:
    """Return all figures by contestant; of those that cannot run here, none."""
    if not Path("/proc/driver/nvidia/version").exists():
        print("not measured: there is no GPU here")
        return {}
    return {
        f"{name}: {figure}": value
        for name in CONTESTANTS
        for figure, value in _child(name).items()
    }


def _child(name: str) -> dict[str, float]:
    """Measure one contestant in a process of its own; say why where it cannot be."""
    done = subprocess.run(
        [sys.executable, __file__, "--one", name],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if done.returncode:
        why = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        print(f"not measured: {name}: {why[-1]}")
        return {}
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _one(name: str) -> dict[str, float]:
    used = _device()
    allocate, free = CONTESTANTS[name]()
    free(allocate(512))
    before = used()
    drift = _drift(allocate, free, lambda: used() - before)
    return _latency(allocate, free) | drift


def _device() -> Callable[[], int]:
    """Enter the GPU's context, and return what tells its bytes in use."""
    from cuda.bindings import driver as cu

    cu.cuInit(0)
    _, device = cu.cuDeviceGet(0)
    _, context = cu.cuDevicePrimaryCtxRetain(device)
    cu.cuCtxSetCurrent(context)

    def used() -> int:
        _, free, total = cu.cuMemGetInfo()
        return int(total - free)

    return used


def _latency(
    allocate: Callable[[int], Any], free: Callable[[Any], object]
) -> dict[str, float]:
    """Return median and p99 of both calls, in microseconds."""
    draw, clock = random.Random(5), time.perf_counter_ns  # noqa: S311 - repeatable
    sizes = [int(512 * 2 ** draw.uniform(0, 16)) for _ in range(1021)]
    held: deque[Any] = deque(allocate(size) for size in sizes[:HELD])
    empty, allocating, freeing = [], [], []
    for turn in range(WARM + PAIRS):
        size = sizes[(HELD + turn) % len(sizes)]
        at = clock()
        empty.append(clock() - at)
        at = clock()
        held.append(allocate(size))
        allocating.append(clock() - at)
        at = clock()
        free(held.popleft())
        freeing.append(clock() - at)
    while held:
        free(held.popleft())
    clocks = median(empty)
    return {
        f"{verb}, {of}, us": (value - clocks) / 1e3
        for verb, times in (("allocate", allocating), ("free", freeing))
        for of, value in _middle_and_tail(times[WARM:])
    }


def _middle_and_tail(times: list[int]) -> list[tuple[str, float]]:
    return [("median", median(times)), ("p99", quantiles(times, n=100)[-1])]


def drifting(steps: int = STEPS, layers: int = LAYERS) -> Iterator[list[Op]]:
    """Yield each step's ops: ``("allocate", number, size)``, ``("free", number, 0)``.

    Every layer has an output and a temporary that ends with the next layer's; outputs
    end with the step, but one in twenty within the next twenty steps.
    """
    draw = random.Random(11)  # noqa: S311 - the same on every machine
    bases = [64 * 1024 * 2 ** draw.uniform(0, 10) for _ in range(layers)]
    ending: dict[int, list[int]] = {}
    number = 0
    for step in range(steps):
        scale = 1 + 0.5 * math.sin(step / 15) + step / steps
        ops: list[Op] = [("free", each, 0) for each in ending.pop(step, [])]
        temporary: int | None = None
        for base in bases:
            size = int(base * scale * draw.uniform(0.9, 1.1))
            ops.append(("allocate", number, size))
            ops.append(("allocate", number + 1, size // 2))
            if temporary is not None:
                ops.append(("free", temporary, 0))
            temporary = number + 1
            last = step + 1 + (draw.random() < 0.05) * draw.randrange(20)
            ending.setdefault(last, []).append(number)
            number += 2
        yield [*ops, ("free", temporary or 0, 0)]
    yield [("free", each, 0) for held in ending.values() for each in held]


def _drift(
    allocate: Callable[[int], Any],
    free: Callable[[Any], object],
    reserved: Callable[[], int],
) -> dict[str, float]:
    """Return the peaks of what was asked for and of what the device had in use."""
    held: dict[int, Any] = {}
    sizes: dict[int, int] = {}
    live = most = most_reserved = 0
    seconds = 0.0
    for ops in drifting():
        began = time.perf_counter()
        for verb, number, size in ops:
            if verb == "allocate":
                held[number], sizes[number] = allocate(size), size
                live += size
                most = max(most, live)
            else:
                free(held.pop(number))
                live -= sizes.pop(number)
        seconds += time.perf_counter() - began
        most_reserved = max(most_reserved, reserved())
    return {
        "drift: asked for, peak MiB": most / MIB,
        "drift: reserved, peak MiB": most_reserved / MIB,
        "drift: reserved / asked for": most_reserved / most,
        "drift: seconds": seconds,
    }


def table(figures: dict[str, float]) -> list[str]:
    """Return the figures as lines: a row for each contestant that was measured."""
    short = {
        "allocate, median, us": "alloc",
        "allocate, p99, us": "p99",
        "free, median, us": "free",
        "free, p99, us": "p99",
        "drift: asked for, peak MiB": "asked MiB",
        "drift: reserved, peak MiB": "reserved",
        "drift: reserved / asked for": "ratio",
        "drift: seconds": "s",
    }
    lines = [f"{'us; drift':28}" + "".join(f"{name:>10}" for name in short.values())]
    for name in CONTESTANTS:
        row = [figures.get(f"{name}: {figure}") for figure in short]
        cells = [f"{value:10.2f}" for value in row if value is not None]
        if cells:
            lines.append(f"{name:28}" + "".join(cells))
    return lines


def main() -> None:
    """Measure everything, keep it, and print the table last."""
    parser = argparse.ArgumentParser(description="Compare allocators on a GPU.")
    parser.add_argument("--one", choices=CONTESTANTS, help="measure this one, here")
    parser.add_argument("--out", type=Path, help="where to keep the figures as JSON")
    said = parser.parse_args()
    if said.one:
        print(json.dumps(_one(said.one)))
        return
    figures = measure()
    out = said.out or Path(os.environ.get("OUT", ".")) / "allocators_gpu.json"
    out.write_text(json.dumps(figures, indent=2) + "\n")
    print("\n".join(table(figures)))


if __name__ == "__main__":
    main()
