"""What the benchmarks of models and of kept results print, and what they keep."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

FIGURES = {"host": 3.2, "total": 1234.5, "samples": [[1.0], [2.0]]}


def test_a_row_of_models(benchmark_of, monkeypatch, capsys, tmp_path):
    """Host and total of every column; why one is missing, and why one is skipped."""
    models = benchmark_of("models_gpu")
    late = {"says": "skipped: it takes longer than 40 s"}
    row = {
        "title": "it",
        "columns": {"eager": FIGURES, "trees": late},
        "skipped": ["x"],
    }
    monkeypatch.setattr(models, "measured", lambda *_: row)
    monkeypatch.setattr(models, "about", dict)
    monkeypatch.setattr(models, "ROWS", {"bert": object, "t5": _failing})
    monkeypatch.setattr("sys.argv", ["it", "--out", str(tmp_path)])
    models.main()
    out = capsys.readouterr().out.splitlines()
    assert "3 / 1,234" in out[1]
    assert "skipped: it takes longer" in out[1]
    assert out[1].endswith(" x")
    assert "failed: ImportError" in out[2]
    kept = json.loads((tmp_path / "models.json").read_text())["rows"]
    assert kept["bert"] == row
    assert kept["t5"] == {"says": "failed: ImportError: no module of that name"}


def _failing():
    raise ImportError("no module of that name")


def test_kept_results(benchmark_of, monkeypatch, capsys, tmp_path):
    """One line for each program, and medians without samples."""
    kept = benchmark_of("kept_gpu")
    monkeypatch.setattr(kept, "about", dict)
    for name in ("forward", "training", "adding"):
        monkeypatch.setattr(kept, name, lambda *_: {"kept": dict(FIGURES)})
    monkeypatch.setattr("sys.argv", ["it", "--out", str(tmp_path)])
    kept.main()
    assert capsys.readouterr().out.count("kept 3.2 us of the host") == 4
    rows = json.loads((tmp_path / "kept.json").read_text())["rows"]
    expected = {"kept": {"host": 3.2, "total": 1234.5}}
    assert [*rows.values()] == [expected] * 4
