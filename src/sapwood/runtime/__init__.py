"""Builds and owns everything; loads integrations by name."""

from __future__ import annotations

from sapwood.runtime.core import Runtime
from sapwood.runtime.default import default_runtime, graph
from sapwood.runtime.graphed import Graphed, disabled

__all__ = ["Graphed", "Runtime", "default_runtime", "disabled", "graph"]
