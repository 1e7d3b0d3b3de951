"""Builds and owns everything; loads integrations by name."""

from __future__ import annotations

from sapwood.runtime.core import Runtime
from sapwood.runtime.default import default_runtime, graph, load
from sapwood.runtime.files import Loaded, save
from sapwood.runtime.graphed import Graphed, disabled
from sapwood.runtime.region import eager

__all__ = [
    "Graphed",
    "Loaded",
    "Runtime",
    "default_runtime",
    "disabled",
    "eager",
    "graph",
    "load",
    "save",
]
