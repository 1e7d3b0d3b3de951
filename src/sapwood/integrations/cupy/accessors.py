"""How CuPy's generators of random numbers are looked into: at their state, an array.

Kernels move it on, so replays do. Those of ``cupy.random.RandomState`` keep theirs in
cuRAND, which no capture may call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sapwood.tree.guards import views
from sapwood.tree.guards.frameworks import declare_opening_of
from sapwood.tree.guards.scope import Accessor, Openings, Reach
from sapwood.tree.guards.views import View

__all__: list[str] = []


def _named(*names: str) -> Callable[[Any, Reach], Openings]:
    view = Accessor(views.ATTRIBUTES, frozenset(names))
    return lambda _, __: iter([view])


def _alike(_: object) -> tuple[View, ...]:
    """Say that all instances are looked into in the same way."""
    return ()


declare_opening_of(
    "cupy.random._generator_api",
    "Generator",
    _named("bit_generator", "_binomial_state"),
    _alike,
)
for _name in ("XORWOW", "MRG32k3a", "Philox4x3210"):
    declare_opening_of(
        "cupy.random._bit_generator", _name, _named("_state", "_size"), _alike
    )
