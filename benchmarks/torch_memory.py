"""What eight batch sizes of a model hold on the device, and what recording them takes.

Each kind of graphs records all sizes in a process of its own, in either order. MiB are
the pages that Sapwood has mapped, or the segments of torch's private pool. *By hand*
are raw graphs that share one pool; their results stay in it, but not their inputs, nor
cuBLAS's workspaces where the warm-up made them: those the others' figures have in them.
Every call is given another tensor, so that all but *by hand* have copies of them, too;
not where it says that they stay.
Milliseconds are the host's, for the call that records; by hand for a capture and the
first replay.

`torch_gpu.py` runs all of them; by path, this runs one, and prints a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from statistics import median
from tempfile import TemporaryFile
from typing import Any, Final, NamedTuple

import torch
from torch_limit import Figures, at_most, tried
from torch_rows import transformer

import sapwood as sw

__all__ = ["HEAD", "KINDS", "ORDERS", "line", "measure"]

MIB: Final = 1 << 20
SIZES: Final = (64, 48, 32, 16, 8, 4, 2, 1)
ORDERS: Final = {"large first": SIZES, "small first": SIZES[::-1]}
CALLS: Final = 6
"""How many calls of one size may pass before one records."""
VARIANTS: Final = 64
"""How often torch may compile the model, which it does for each size."""
SECONDS: Final = 120
"""How long a process may measure in which nothing is compiled."""
MORE: Final = 60
"""How many seconds a process has besides, to begin and to end."""

Call = Callable[[Any], Any]


class Way(NamedTuple):
    """A way to record a function.

    ``plain`` runs the same kernels without a graph. ``recordings`` counts those that
    were made, and ``mib`` says what they hold.
    """

    call: Call
    plain: Call
    recordings: Callable[[], int]
    mib: Callable[[], float]


# The ways.


@contextmanager
def by_sapwood(fn: Call) -> Iterator[Way]:
    """Yield the function as Sapwood graphs it."""
    with sw.Runtime(device="cuda:0", arrays="torch") as rt:
        graphed = rt.graph(fn)

        def held() -> float:
            stats = rt.memory_stats()
            return stats["pages.mapped"] * stats["page.bytes"] / MIB

        yield Way(graphed, fn, lambda: graphed.stats().recordings, held)


@contextmanager
def by_trees(fn: Call) -> Iterator[Way]:
    """Yield a function that torch records in trees; its first call is without."""

    def call(x: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return fn(x)

    yield Way(call, call, graphs_in_trees, pooled)


@contextmanager
def by_hand(fn: Call) -> Iterator[Way]:
    """Yield the function as raw graphs, one for each size."""
    hand = Hand(fn)
    yield Way(hand, fn, lambda: len(hand.graphs), pooled)


class Hand:
    """Raw graphs of a function that share one pool.

    The first call of a size warms up, the second captures.
    """

    def __init__(self, fn: Call) -> None:
        self._fn = fn
        self._side = torch.cuda.Stream()
        self._pool = torch.cuda.graph_pool_handle()
        self._warm: set[int] = set()
        # All are kept: torch gives up a pool with the last of its graphs.
        self.graphs: dict[int, tuple[Any, Any, Any]] = {}

    def __call__(self, x: Any) -> Any:
        size = len(x)
        if size not in self._warm:
            self._warm.add(size)
            return self._warmed(x)
        if size not in self.graphs:
            self.graphs[size] = self._captured(x)
        graph, held, result = self.graphs[size]
        if held is not x:
            held.copy_(x)
        graph.replay()
        return result

    def _warmed(self, x: Any) -> Any:
        """Run on the stream that is captured, and return the plain result."""
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            for _ in range(3):
                self._fn(x)
        torch.cuda.current_stream().wait_stream(self._side)
        return self._fn(x)

    def _captured(self, x: Any) -> tuple[Any, Any, Any]:
        """Return a graph, what it reads and what it writes."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph,
            pool=self._pool,
            stream=self._side,
            capture_error_mode="thread_local",
        ):
            result = self._fn(x)
        return graph, x, result


def pooled() -> float:
    """Return the MiB of torch's private pools, of which there is one here."""
    held: int = sum(
        segment["total_size"]
        for segment in torch.cuda.memory_snapshot()
        if tuple(segment["segment_pool_id"]) != (0, 0)
    )
    return held / MIB


def graphs_in_trees() -> int:
    """Return how many graphs torch's trees have on this device."""
    from torch._inductor.cudagraph_trees import get_manager

    trees = get_manager(torch.cuda.current_device(), create_if_none_exists=False)
    waiting, count = [] if trees is None else _all_of(trees.roots), 0
    while waiting:
        waiting += _all_of(waiting.pop().children)
        count += 1
    return count


def _all_of(nodes: Mapping[Any, Sequence[Any]]) -> list[Any]:
    return [node for each in nodes.values() for node in each]


# The kinds.


class Kind(NamedTuple):
    """A way to record, and the mode in which torch compiles the function, if any.

    Those that are ``fresh`` are given another tensor by every call.
    """

    by: Callable[[Call], AbstractContextManager[Way]]
    mode: str | None = None
    fresh: bool = True


KINDS: Final = {
    "sapwood": Kind(by_sapwood),
    "sapwood, inputs that stay": Kind(by_sapwood, fresh=False),
    "by hand": Kind(by_hand),
    "trees": Kind(by_trees, "reduce-overhead"),
    "sapwood on compiled": Kind(by_sapwood, "default"),
    "by hand on compiled": Kind(by_hand, "default"),
}


def model_of(mode: str | None) -> Call:
    """Return the model, compiled anew for each size in one of torch's modes."""
    model: Call = transformer()
    if mode is None:
        return model
    config: Any = torch._dynamo.config  # noqa: SLF001 - the documented name
    older = not hasattr(config, "recompile_limit")
    setattr(config, "cache_size_limit" if older else "recompile_limit", VARIANTS)
    made = torch.compile(model, mode=mode, dynamic=False)

    def call(x: Any) -> Any:
        return made(x)

    return call


def batch(size: int) -> Any:
    """Return arguments of one size."""
    return torch.randn(size, 256, 1024, device="cuda", dtype=torch.bfloat16)


# Measuring one of them.


def recorded(way: Way, sizes: Sequence[int], *, fresh: bool) -> Figures:
    """Record all sizes; return MiB, and milliseconds of each call that recorded.

    Every recording is replayed once more when there are all, with another argument.
    Where results are not the plain function's, ``differ`` are the sizes; where a
    replay became a recording, ``anew`` says how many.
    """
    took: list[float] = []
    kept: dict[int, tuple[Any, Any]] = {}
    differ: set[int] = set()
    for size in sizes:
        x = batch(size)
        expected = way.plain(x).clone()
        ms, same = recording(way, x, expected, fresh=fresh)
        took.append(round(ms, 2))
        kept[size] = x, expected
        differ |= set() if same else {size}
    before = way.recordings()
    for size, (x, expected) in kept.items():
        given = x.clone() if fresh else x
        # No result is held while the next one is made: that would take pages more.
        differ |= set() if torch.equal(way.call(given), expected) else {size}
    figures: Figures = {"mib": way.mib(), "ms": took}
    if differ:
        figures["differ"] = sorted(differ)
    if way.recordings() > before:
        figures["anew"] = way.recordings() - before
    return figures


def recording(way: Way, x: Any, expected: Any, *, fresh: bool) -> tuple[float, bool]:
    """Call until a call has recorded; return its milliseconds, and if all was right.

    Raises `RuntimeError` where no call records.
    """
    same, given = True, [x]
    for _ in range(CALLS):
        before = way.recordings()
        # Another tensor every time, as from who serves requests.
        given.append(x.clone() if fresh else x)
        torch.cuda.synchronize()
        start = time.perf_counter()
        result = way.call(given[-1])
        took = (time.perf_counter() - start) * 1e3
        same = torch.equal(result, expected) and same
        del result  # what is alive when the next one is recorded is not reused
        if way.recordings() > before:
            return took, same
    raise RuntimeError(f"none of {CALLS} calls of batch {len(x)} has recorded")


def one(kind: str, order: str) -> Figures:
    """Measure one kind and order in this process."""
    by, mode, fresh = KINDS[kind]
    with torch.no_grad(), by(model_of(mode)) as way:
        return recorded(way, ORDERS[order], fresh=fresh)


# Measuring all of them.


def measure(compiling: int) -> Iterator[tuple[str, str, Figures]]:
    """Yield figures for every kind and order, each from a process of its own.

    Where torch compiles, each may take so many seconds; with 0, those are left out.
    What is left out or failed has a text instead of figures.
    """
    for name, kind in KINDS.items():
        for order in ORDERS:
            if kind.mode is None:
                yield name, order, child(name, order, SECONDS)
            elif compiling:
                yield name, order, child(name, order, compiling)
            else:
                yield name, order, {"says": "skipped: it is for --compile"}


def child(kind: str, order: str, seconds: int) -> Figures:
    """Measure in a new process."""
    command = [sys.executable, __file__, kind, order, "--seconds", str(seconds)]
    # A file, not a pipe: that, the compiler's own processes might keep open.
    with TemporaryFile("w+") as out:
        try:
            status = subprocess.run(
                command, stdout=out, check=False, timeout=seconds + MORE
            ).returncode
        except subprocess.TimeoutExpired:
            return {"says": f"skipped: it takes longer than {seconds + MORE} s"}
        out.seek(0)
        return figures_in(out.read(), status)


def figures_in(text: str, status: int) -> Figures:
    """Return the figures that a process has printed, whatever stands around them."""
    lines = [each for each in text.splitlines() if each.startswith('{"')]
    if not lines:
        return {"says": f"failed: its process ended with {status}"}
    found: Figures = json.loads(lines[-1])
    return found | ({"ended": status} if status else {})


HEAD: Final = f"{'recorded: eight batch sizes':36} {'MiB':>8} {'ms':>8}  each, in ms"


def line(kind: str, order: str, found: Mapping[str, Any]) -> str:
    """Return a row of the table: MiB, the median of milliseconds, and all of them."""
    name = f"{f'{kind}, {order}':36}"
    if "ms" not in found:
        return f"{name} {found['says']}"
    each = " ".join(f"{ms:.2f}" for ms in found["ms"])
    notes = [
        f"; {what}: {found[key]}"
        for key, what in (
            ("differ", "RESULTS DIFFER at batch"),
            ("anew", "recorded anew"),
            ("ended", "its process ended with"),
        )
        if key in found
    ]
    return f"{name} {found['mib']:8.1f} {median(found['ms']):8.2f}  " + "".join(
        [each, *notes]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure one kind and order, and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("order", choices=ORDERS)
    parser.add_argument("--seconds", type=int, default=SECONDS)
    said = parser.parse_args(arguments)

    def limited() -> Figures:
        with at_most(said.seconds):
            return one(said.kind, said.order)

    print(json.dumps(tried(limited)), flush=True)


if __name__ == "__main__":
    main()
