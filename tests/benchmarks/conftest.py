"""Benchmarks, which are run by path, as modules."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark_of(monkeypatch):
    """Return what imports a benchmark by its name."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module
