"""What is asked of the benchmark of torch's functions, and what it keeps."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")


@pytest.fixture
def gpu(benchmark_of, monkeypatch):
    monkeypatch.delenv("OUT", raising=False)
    return benchmark_of("torch_gpu")


def row(gpu, *, quick):
    return gpu.Row("a row", abs, (), 1, quick=quick)


@pytest.mark.parametrize(
    ("said", "of_quick", "of_slow"),
    [
        ("", False, False),
        ("--compile", True, False),
        ("--compile 120 --rows gpt2", True, True),
        ("--all", True, True),
        ("--all --compile 120", True, True),
    ],
)
def test_columns_that_compile_are_asked_for(gpu, said, of_quick, of_slow):
    """Named rows have all of them, and so has every row with ``--all``."""
    options = gpu.asked(said.split())
    for quick, wanted in ((True, of_quick), (False, of_slow)):
        columns = gpu.wanted_of(row(gpu, quick=quick), options)
        assert ("trees" in columns) is ("on compiled" in columns) is wanted
        assert columns == set(gpu.COLUMNS) or not wanted
        assert "same inputs" in columns


def test_seconds_are_those_that_are_given(gpu):
    """Compiling has a limit of its own where none is."""
    seconds = ("--all", 60), ("--compile", 60), ("--all --compile 90", 90), ("", None)
    for said, found in seconds:
        assert gpu.asked(said.split()).compile == found


def test_columns_are_named_or_all(gpu, capsys):
    """Not both."""
    assert gpu.asked(["--columns", "trees"]).columns == ["trees"]
    with pytest.raises(SystemExit):
        gpu.asked(["--all", "--columns", "trees"])
    assert "not allowed with" in capsys.readouterr().err


def test_a_row_that_fails_says_why_and_others_go_on(gpu, monkeypatch, capsys, tmp_path):
    """Its reason is printed, kept, and counted among what is missed."""

    def failing():
        raise ImportError("no module of that name")

    def other(*_):
        return {"title": "it", "pinned": 0, "calls": 1, "columns": {"trees": late}}

    late = {"says": "skipped: it takes longer than 60 s"}
    monkeypatch.setitem(gpu.ROWS, "gpt2", failing)
    monkeypatch.setattr(gpu, "measured", other)
    monkeypatch.setitem(gpu.ROWS, "mlp", lambda: row(gpu, quick=True))
    monkeypatch.setattr(gpu, "about", dict)
    said = ["it", "--rows", "gpt2", "mlp", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", said)
    gpu.main()
    out = capsys.readouterr().out
    assert out.count("failed: ImportError: no module of that name") == 2
    assert "trees          skipped: it takes longer than 60 s" in out
    assert "1 goals missed" in out
    kept = json.loads((tmp_path / "torch.json").read_text())["rows"]
    assert kept["gpt2"] == {"says": "failed: ImportError: no module of that name"}
    assert kept["mlp"]["columns"]["trees"] == late


def test_memory_is_kept_by_kind_and_order(gpu, monkeypatch, capsys, tmp_path):
    """With a table of all, and the goals of what there is."""

    def measure(compiling):
        assert compiling == 90
        yield "sapwood", "large first", {"mib": 301.0, "ms": [2.0]}
        yield "sapwood", "small first", {"says": "failed: it"}
        yield "trees", "large first", {"mib": 500.0, "ms": [5.0]}

    monkeypatch.setattr(gpu.torch_memory, "measure", measure)
    kept = {"memory": {}}
    options = gpu.asked(["--compile", "90", "--out", str(tmp_path)])
    (missed,) = gpu.memory(kept, options)
    assert missed.startswith("memory: sapwood, large first: MiB")
    assert json.loads((tmp_path / "torch.json").read_text())["memory"] == {
        "sapwood": {
            "large first": {"mib": 301.0, "ms": [2.0]},
            "small first": {"says": "failed: it"},
        },
        "trees": {"large first": {"mib": 500.0, "ms": [5.0]}},
    }
    assert "sapwood, small first" in capsys.readouterr().out
