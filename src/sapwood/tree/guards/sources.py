"""Random sources that live in Python: `random`, NumPy's generators.

Their state moves with every draw, so it is never guarded; but a function that draws
while it is recorded would draw the same number for ever, so a move is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from functools import partial
from types import ModuleType
from typing import Any

from sapwood.tree.guards.views import View
from sapwood.tree.nests.containers import constant_key


def is_random_source(value: object) -> bool:
    """Return whether a value draws random numbers on the host."""
    if isinstance(value, ModuleType):
        return value.__name__ in {"random", "numpy.random"}
    return any(
        base.__name__ == "Random"
        if base.__module__ == "random"
        else str(base.__module__).startswith("numpy.random")
        and base.__name__ in {"Generator", "RandomState", "BitGenerator"}
        for base in type(value).__mro__
    )


def load_sources(module: ModuleType, names: Collection[str]) -> None:
    """Load NumPy's random module where code names it: NumPy waits for the first use.

    Else the first call would load it, and nobody could tell what was drawn by then.
    """
    if module.__name__ == "numpy" and "random" in names:
        getattr(module, "random", None)


def kept_state(source: Any) -> Callable[[], object]:
    """Return what puts a random source back to where it is now."""
    get, put = _access(source)
    return partial(put, get())


def _access(source: Any) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    if hasattr(source, "getstate"):
        return source.getstate, source.setstate
    if hasattr(source, "get_state"):
        return source.get_state, source.set_state
    bits = getattr(source, "bit_generator", source)
    return lambda: bits.state, partial(setattr, bits, "state")


def _state(source: Any) -> Sequence[Hashable]:
    get, _ = _access(source)
    # Bytes are compared by value, a tuple would be a thing of its own.
    return (repr(_frozen(get())).encode(),)


def _frozen(state: Any) -> Hashable:
    if isinstance(state, dict):
        return tuple((key, _frozen(value)) for key, value in state.items())
    if isinstance(state, tuple | list):
        return tuple(map(_frozen, state))
    if hasattr(state, "tobytes"):
        return bytes(state.tobytes())
    return constant_key(state)


STATE = View("state", _state, lambda path, _, __: f"the state of {path}", guarded=False)
