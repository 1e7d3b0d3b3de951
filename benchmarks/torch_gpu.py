"""Functions of torch's tensors, side by side: eager, compiled, by hand, replayed.

Host is what a call costs its caller, total what it costs when calls follow each other;
both in microseconds, medians of 7 repetitions. *By hand* is a raw ``CUDAGraph`` whose
inputs are copied by hand; *on compiled* is a recording of a compiled function. *Memory*
is what eight batch sizes of one model hold on the device, and what recording them
takes: `torch_memory.py`.

Run it by path for a table and the goals; ``--out`` keeps the figures as JSON, by
default in $OUT; ``--compile`` adds the columns of ``torch.compile`` where it is quick
or rows are named, ``--all`` adds them everywhere.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
import torch_memory
from torch_goals import Goal, goals_of, memory_goals
from torch_limit import Figures, at_most, tried
from torch_rows import ROWS, Row

import sapwood as sw
from sapwood.version import __version__

WARM: Final = 20
LEAST, MOST, LASTING = 7, 31, 0.3
"""So many samples are taken: as many as fit into so many seconds, between the two."""

COMPILING: Final = 60
"""How many seconds torch may compile, where none are given."""
PACKAGES: Final = ("cuda-bindings", "torch", "torchvision", "transformers", "triton")
MODES: Final = {"compile": "default", "trees": "reduce-overhead"}


def timed(call: Callable[[], Any], count: int) -> Figures:
    """Return host and total microseconds of a call, with all samples."""
    # What earlier columns left, a compiler's above all, is not collected meanwhile.
    gc.collect()
    gc.freeze()
    for _ in range(min(WARM, 3 * count)):
        call()
    host, total = [], []
    until = time.perf_counter() + LASTING
    while len(host) < LEAST or (len(host) < MOST and time.perf_counter() < until):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            call()
        returned = time.perf_counter()
        torch.cuda.synchronize()
        host.append((returned - start) / count * 1e6)
        total.append((time.perf_counter() - start) / count * 1e6)
    return {
        "host": round(median(host), 2),
        "total": round(median(total), 2),
        "samples": [host, total],
    }


def alternating(row: Row, call: Callable[..., Any]) -> Callable[[], Any]:
    """Return what calls with two sets of arguments in turn."""
    both, turn = (row.args, tuple(each.clone() for each in row.args)), [0]

    def fresh() -> Any:
        turn[0] ^= 1
        return row.drive(call, both[turn[0]])

    return fresh


# The columns.


def eager(row: Row) -> Figures:
    """Time the plain function."""
    return timed(lambda: row.drive(row.fn, row.args), row.count)


def by_hand(row: Row) -> Figures:
    """Time the replay of a raw graph, the inputs copied before."""
    held = [each.clone() for each in row.args]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            row.fn(*held)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = row.fn(*held)

    def replay(*args: Any) -> Any:
        for mine, theirs in zip(held, args, strict=True):
            mine.copy_(theirs)
        graph.replay()
        return result

    return timed(lambda: row.drive(replay, row.args), row.count)


def replayed(row: Row) -> tuple[Figures, Figures, dict[str, int]]:
    """Time replays with lasting arguments and with others; return what was recorded.

    Raises `AssertionError` where a replay is not what the plain function gives.
    """
    with sw.Runtime(device="cuda:0", arrays="torch") as rt:
        graphed = rt.graph(row.fn)
        same = timed(lambda: row.drive(graphed, row.args), row.count)
        other = timed(alternating(row, graphed), row.count)
        if not row.grad:
            torch.testing.assert_close(
                row.drive(graphed, row.args),
                row.drive(row.fn, row.args),
                rtol=0,
                atol=0,
            )
        return same, other, recorded_in(graphed)


def recorded_in(graphed: Any) -> dict[str, int]:
    """Return how many arrays the most used recording pins, and its operations."""
    nodes = graphed.runner().cache.nodes
    node = max(nodes, key=lambda each: each.hits, default=None)
    if node is None:
        return {"pinned": 0, "operations": 0}
    return {
        "pinned": len(node.ambient.arrays),
        "operations": sum(len(part.recording.ops) for part in node.parts()),
    }


def compiled(row: Row, mode: str, seconds: int) -> Callable[..., Any]:
    """Return the function as torch compiles it; raises `TooLong`."""
    # What an earlier column or row left would count as a change, and be recompiled.
    torch._dynamo.reset()  # noqa: SLF001 - the documented way
    made = torch.compile(row.fn, mode=mode)

    def call(*args: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        result = made(*args)
        # The next call overwrites what this one returned.
        return result.clone() if row.calls > 1 and mode != "default" else result

    if mode == "default":
        call = made
    with at_most(seconds):
        for _ in range(3):
            call(*row.args)
        # Arguments that a call hands to the next one may be others to the compiler.
        row.drive(call, row.args)
        torch.cuda.synchronize()
    return call


def by_torch(row: Row, mode: str, seconds: int) -> Figures:
    """Time the compiled function."""
    call = compiled(row, mode, seconds)
    return timed(lambda: row.drive(call, row.args), row.count)


def on_compiled(row: Row, seconds: int) -> Figures:
    """Time replays of the compiled function.

    Where its operations are as many as the plain function's, torch has run it eagerly
    while it was watched.
    """
    made = compiled(row, "default", seconds)
    with sw.Runtime(device="cuda:0", arrays="torch") as rt:

        def call(*args: Any) -> Any:
            return made(*args)

        graphed = rt.graph(call)
        found = timed(alternating(row, graphed), row.count)
        return found | recorded_in(graphed)


COLUMNS: Final = (
    "eager",
    "compile",
    "trees",
    "by hand",
    "same inputs",
    "other inputs",
    "on compiled",
)


def measured(row: Row, wanted: set[str], seconds: int) -> Figures:
    """Return the columns of a row, and what was recorded.

    What took too long or failed has a text instead of figures.
    """
    columns: Figures = {}
    found: Figures = {"title": row.title, "calls": row.calls, "columns": columns}
    found |= {"pinned": 0, "operations": 0}
    if "eager" in wanted:
        columns["eager"] = eager(row)
    if "by hand" in wanted:
        columns["by hand"] = by_hand(row)
    if wanted & {"same inputs", "other inputs"}:
        columns["same inputs"], columns["other inputs"], about = replayed(row)
        found |= about
    # The compiler comes last: what it does with code that it has seen once, it may do
    # with the same code elsewhere.
    for name, mode in MODES.items():
        if name in wanted:
            columns[name] = tried(lambda mode=mode: by_torch(row, mode, seconds))
    if "on compiled" in wanted:
        columns["on compiled"] = tried(lambda: on_compiled(row, seconds))
    return found


# What was asked for, and what came out.


def asked(said: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", nargs="+", choices=[*ROWS, "memory"])
    columns = arguments.add_mutually_exclusive_group()
    columns.add_argument("--columns", nargs="+", choices=COLUMNS)
    columns.add_argument(
        "--all",
        action="store_true",
        help="every column of every row, or of those that are named",
    )
    arguments.add_argument(
        "--compile",
        nargs="?",
        type=int,
        const=COMPILING,
        metavar="SECONDS",
        help="have torch compile, for so long at most: rows that are named, or else "
        "those that take it little; and what memory is compared with",
    )
    arguments.add_argument("--out", default=os.environ.get("OUT", ""))
    options = arguments.parse_args(said)
    if options.all and not options.compile:
        options.compile = COMPILING
    return options


def wanted_of(row: Row, options: argparse.Namespace) -> set[str]:
    """Return which columns of a row are to be measured."""
    compiling = {*MODES, "on compiled"}
    if options.columns:
        return set(options.columns)
    if options.all or (options.compile and (row.quick or options.rows)):
        return set(COLUMNS)
    return set(COLUMNS) - compiling


def show(name: str, found: Figures) -> list[str]:
    """Print a row and its goals; return what it misses."""
    if "says" in found:
        print(f"{name} {found['says']}")
        return [f"{name}: {found['says']}"]
    print(f"{found['title']} ({found['pinned']} pinned)")
    columns = found["columns"]
    for way in COLUMNS:
        figures = columns.get(way)
        if figures and "host" in figures:
            also = figures.get("operations")
            more = f"  ({also} of {found['operations']} operations)" if also else ""
            print(f"  {way:14} {figures['host']:10.2f} {figures['total']:10.2f}{more}")
        elif figures:
            print(f"  {way:14} {figures['says']}")
    return told(name, list(goals_of(name, found)))


def told(name: str, goals: list[Goal]) -> list[str]:
    """Print goals; return those that are missed, by the row's name."""
    for goal in goals:
        print(f"    {goal}")
    return [f"{name}: {goal}" for goal in goals if goal.found > goal.most]


def about() -> Figures:
    """Return the machine, versions, commit and date."""
    return {
        "gpu": torch.cuda.get_device_name(0),
        "driver": said(
            "nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"
        ),
        "python": platform.python_version(),
        "sapwood": __version__,
        "versions": {name: installed(name) for name in PACKAGES},
        "commit": os.environ.get("SAPWOOD_COMMIT") or said("git", "rev-parse", "HEAD"),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def said(*command: str) -> str | None:
    """Return what a command prints first; None where it fails."""
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return ran.stdout.strip().partition("\n")[0]


def installed(package: str) -> str | None:
    """Return a package's version; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def row_of(name: str, options: argparse.Namespace) -> Figures:
    """Make a row and measure it."""
    row = ROWS[name]()
    with torch.set_grad_enabled(row.grad):
        return measured(row, wanted_of(row, options), options.compile or COMPILING)


def memory(kept: Figures, options: argparse.Namespace) -> list[str]:
    """Measure what recordings hold and take, and print it; return the goals missed."""
    print(torch_memory.HEAD)
    for kind, order, found in torch_memory.measure(options.compile or 0):
        kept["memory"].setdefault(kind, {})[order] = found
        print(torch_memory.line(kind, order, found), flush=True)
        save(kept, options.out)
    return told("memory", list(memory_goals(kept["memory"])))


def main() -> None:
    """Measure, print a table and the goals, and keep the figures."""
    options = asked()
    kept: Figures = {"about": about(), "rows": {}, "memory": {}}
    missed: list[str] = []
    for name in options.rows or [*ROWS, "memory"]:
        if name == "memory":
            missed += memory(kept, options)
            continue
        kept["rows"][name] = tried(partial(row_of, name, options))
        missed += show(name, kept["rows"][name])
        save(kept, options.out)
    print(f"\n{len(missed)} goals missed", *missed, sep="\n  ")
    save(kept, options.out)


def save(kept: Figures, folder: str) -> None:
    """Write what there is so far, where a folder is given."""
    if folder:
        (Path(folder) / "torch.json").write_text(json.dumps(kept))


if __name__ == "__main__":
    main()
