"""What the comparison of recordings' memory does around the device."""

from __future__ import annotations

import json
import subprocess
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture
def memory(benchmark_of, monkeypatch):
    """Return the benchmark, whose batches are of the host and small."""
    module = benchmark_of("torch_memory")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(module, "batch", lambda size: torch.randn(size, 3))
    return module


class Recorder:
    """A way that records the ``first``-th call of each size."""

    def __init__(self, first, wrong=()):
        self.first, self.wrong = first, wrong
        self.calls, self.made = {}, 0

    def __call__(self, x):
        size = len(x)
        self.calls[size] = self.calls.get(size, 0) + 1
        self.made += self.calls[size] == self.first
        return plain(x) + (size in self.wrong)

    def way(self, memory):
        return memory.Way(self, plain, lambda: self.made, lambda: 7.5)


def plain(x):
    return x * 2


def test_the_call_that_records_is_timed(memory):
    """Each size has one time, however many calls come before it."""
    for first in (1, 2, 3):
        recorder = Recorder(first)
        found = memory.recorded(recorder.way(memory), (4, 2, 1), fresh=first > 1)
        assert found["mib"] == 7.5
        assert len(found["ms"]) == 3
        assert set(found) == {"mib", "ms"}
        assert recorder.calls == dict.fromkeys((4, 2, 1), first + 1)


def test_results_that_differ_are_named(memory):
    """Figures are kept, and say of which sizes they are wrong."""
    recorder = Recorder(2, wrong=(4, 1))
    found = memory.recorded(recorder.way(memory), (4, 2, 1), fresh=True)
    assert found["differ"] == [1, 4]


def test_recordings_that_do_not_last_are_counted(memory):
    """A replay that is recorded anew holds memory twice."""
    recorder = Recorder(1)
    way = recorder.way(memory)._replace(recordings=lambda: sum(recorder.calls.values()))
    assert memory.recorded(way, (4, 2, 1), fresh=True)["anew"] == 3


def test_what_never_records_is_an_error(memory):
    """Rather than a time of a call that did something else."""
    with pytest.raises(RuntimeError, match="none of 6 calls of batch 2 has recorded"):
        memory.recorded(Recorder(100).way(memory), (2,), fresh=True)


@pytest.mark.filterwarnings("ignore")
def test_graphs_in_trees_are_counted(memory, monkeypatch):
    """Those that follow another one, too; none where torch has no trees."""
    trees = pytest.importorskip("torch._inductor.cudagraph_trees")
    leaf = SimpleNamespace(children={})
    root = SimpleNamespace(children={0: [leaf, leaf], 1: [leaf]})
    found = SimpleNamespace(roots={0: [root], 1: [root, leaf]})
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    for each, count in ((found, 9), (None, 0)):
        monkeypatch.setattr(trees, "get_manager", lambda *_, each=each, **__: each)
        assert memory.graphs_in_trees() == count


@pytest.mark.filterwarnings("ignore")
def test_torch_has_what_counts_its_trees():
    """The names that are read are there, so that a new torch is noticed here."""
    trees = pytest.importorskip("torch._inductor.cudagraph_trees")
    assert trees.get_manager(0, create_if_none_exists=False) is None
    code = trees.CUDAGraphTreeManager.__init__.__code__, trees.CUDAGraphNode.__init__
    assert "roots" in code[0].co_names
    assert "children" in code[1].__code__.co_names


def test_private_pools_are_summed(memory, monkeypatch):
    """The pool of everything else is left out."""
    segments = [
        {"total_size": mib << 20, "segment_pool_id": pool}
        for mib, pool in ((2, (0, 0)), (4, (0, 1)), (8, (3, 0)))
    ]
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
    assert memory.pooled() == 12


def test_every_kind_and_order_has_a_process(memory, monkeypatch):
    """What compiles has its own limit, and is left out where none is given."""
    asked = []

    def child(*of):
        asked.append(of)
        return {"mib": 1.0, "ms": [2.0]}

    monkeypatch.setattr(memory, "child", child)
    found = {(kind, order): each for kind, order, each in memory.measure(0)}
    assert set(found) == {(kind, o) for kind in memory.KINDS for o in memory.ORDERS}
    assert {kind for kind, _, _ in asked} == {
        "sapwood",
        "sapwood, inputs that stay",
        "by hand",
    }
    assert found["trees", "small first"] == {"says": "skipped: it is for --compile"}
    asked.clear()
    assert len(list(memory.measure(90))) == len(asked) == 12
    assert ("trees", "large first", 90) in asked


def test_a_process_is_asked_by_name(memory, monkeypatch):
    """What it prints last as JSON is what it has measured."""

    def run(command, *, stdout, timeout, check):
        assert command[1].endswith("torch_memory.py")
        assert command[2:] == ["trees", "small first", "--seconds", "90"]
        assert timeout > 90
        assert not check
        stdout.write('{"old": 1}\nnoise\n{"mib": 3.0, "ms": [1.5]}\nmore\n')
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(memory.subprocess, "run", run)
    assert memory.child("trees", "small first", 90) == {"mib": 3.0, "ms": [1.5]}


def test_a_process_that_hangs_is_skipped(memory, monkeypatch):
    """It is ended, with a reason."""

    def run(*_, timeout, **__):
        raise subprocess.TimeoutExpired("it", timeout)

    monkeypatch.setattr(memory.subprocess, "run", run)
    says = memory.child("trees", "small first", 90)["says"]
    assert says == "skipped: it takes longer than 150 s"


def test_a_process_that_crashes_says_so(memory):
    """With figures, if there are any."""
    assert memory.figures_in("noise", -11) == {
        "says": "failed: its process ended with -11"
    }
    assert memory.figures_in('{"mib": 1.0}', -11) == {"mib": 1.0, "ended": -11}


def test_a_process_prints_a_line(memory, monkeypatch, capsys):
    """Of figures, or of why there are none."""
    monkeypatch.setattr(memory, "one", lambda *of: {"mib": 1.0, "of": of})
    memory.main(["by hand", "large first"])
    assert json.loads(capsys.readouterr().out)["of"] == ["by hand", "large first"]
    monkeypatch.delattr(memory, "one")
    memory.main(["by hand", "large first", "--seconds", "5"])
    assert json.loads(capsys.readouterr().out)["says"].startswith("failed: NameError")


def test_the_table_has_a_row_for_each(memory):
    """Columns stand under their heads; what is odd stands behind."""
    row = memory.line("by hand", "large first", {"mib": 290.25, "ms": [3.0, 1.0, 2.5]})
    assert row.endswith("    290.2     2.50  3.00 1.00 2.50")
    assert row.index("290.2") + 5 == memory.HEAD.index("MiB") + 3
    assert row.index("2.50") + 4 == memory.HEAD.index("ms") + 2
    odd = {"mib": 1.0, "ms": [2.0], "differ": [8], "anew": 1, "ended": -11}
    assert memory.line("sapwood on compiled", "small first", odd).endswith(
        "2.00; RESULTS DIFFER at batch: [8]; recorded anew: 1; "
        "its process ended with: -11"
    )
    assert "skipped: late" in memory.line(
        "trees", "small first", {"says": "skipped: late"}
    )
