"""What a peer's tests ask of torch's tree manager, told from our recordings.

A pytest plugin (``-p tests.support.peer_trees``): trees are installed, and torch's
``get_container`` answers with our statistics. Of a tree's inner state, which only
torch's own has, nothing is pretended: what asks for it fails.
"""

from __future__ import annotations

import gc
import json
import os
import weakref
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

OUTCOMES: dict[str, dict[str, str]] = {}


class Root:
    """A recording; ours have no descendants, as any may follow any that it fits."""

    def num_descendants(self) -> int:
        """Return how many recordings follow this one only."""
        return 0


class Manager:
    """Counts recordings, of all functions that are alive."""

    debug_checkpointing_counter = 0
    running_forwards_with_pending_backwards = False

    def __init__(self, recordings: int, graphs: int) -> None:
        self.roots = {i: [Root()] for i in range(recordings)}
        self._graphs = graphs

    def get_roots(self) -> list[Root]:
        """Return all recordings."""
        return [each for roots in self.roots.values() for each in roots]

    def new_graph_id(self) -> SimpleNamespace:
        """Return the number that the next recording gets."""
        return SimpleNamespace(id=self._graphs)


def runtime() -> Any:
    """Return the runtime of what is compiled."""
    return import_module("sapwood.integrations.torch.backend")._runtime(0)


_before: weakref.WeakSet[Any] = weakref.WeakSet()
"""What tests before this one have left, such as in tracebacks."""


def container(_: int) -> SimpleNamespace:
    """Return what has a manager, or none where nothing is recorded."""
    gc.collect()
    runtime().stats()  # counts what C has played
    mine = [each for each in runtime()._runners if each not in _before]
    nodes = sum(len(each.cache.nodes) for each in mine)
    graphs = sum(each.stats().recordings for each in mine)
    return SimpleNamespace(tree_manager=Manager(nodes, graphs) if graphs else None)


def pytest_runtest_setup() -> None:
    """Forget what is left of other tests."""
    _before.update(runtime()._runners)


def live_blocks() -> list[int]:
    """Return one for each output of a recording that somebody holds."""
    told = runtime().snapshot()["recordings"]
    return [1 for each in told for output in each["outputs"] if output["live"]]


def pytest_configure() -> None:
    """Have torch's trees replaced, and its container."""
    import_module("sapwood").install_trees()
    trees: Any = import_module("torch._inductor.cudagraph_trees")
    trees.get_container = container


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Have the tests' own counting of blocks ask us."""
    for module in {item.module for item in items}:
        module.all_live_block_count = lambda: len(live_blocks())
        module.all_live_blocks = live_blocks
        module.get_all_cudagraph_segments = list


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: Any) -> None:
    """Keep how each test ended, and where one failed, why."""
    worst = OUTCOMES.setdefault(
        report.nodeid.rpartition("::")[2], {"outcome": "passed"}
    )
    if report.outcome != "passed" and worst["outcome"] != "failed":
        said = report.longrepr[-1] if report.skipped else _reason(report)
        worst.update(outcome=report.outcome, said=str(said)[:300])


def _reason(report: Any) -> str:
    lines = [line for line in report.longreprtext.splitlines() if line[:4] == "E   "]
    return lines[0][4:].strip() if lines else str(report.longreprtext)[-300:]


def pytest_sessionfinish() -> None:
    """Write how all ended as JSON, to the path in $SAPWOOD_PEER."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        told = json.dumps(dict(sorted(OUTCOMES.items())), indent=1)
        Path(os.environ["SAPWOOD_PEER"]).write_text(told + "\n")
