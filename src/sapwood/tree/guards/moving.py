"""States that move as they are used: no replay moves them, and no guard compares them.

Of random sources that live in Python, `random` and NumPy's generators, a draw moves the
state: a function that draws while it is recorded would draw the same number for ever.
Reading an iterator that lives outside the function moves that. Both moves are noticed,
by a view each; where the place of an iterator cannot be read, moving is refused
beforehand. What `functools.lru_cache` keeps is watched, too.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from operator import length_hint
from types import AsyncGeneratorType, CoroutineType, GeneratorType, ModuleType
from typing import Any, Final

from sapwood.tree.guards.views import View, value_text
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


_FRAMES: Final = {GeneratorType: "gi", CoroutineType: "cr", AsyncGeneratorType: "ag"}
_INDEXED: Final = {reversed, type(iter(type("", (), {"__getitem__": id})()))}
"""Iterators over sequences of any class, whose own length nobody may ask for."""

_DEPTH: Final = 20


def is_iterator(value: object) -> bool:
    """Return whether a value is an iterator that is not written in Python.

    Files are none: what a function writes there repeats as little as what it prints.
    """
    cls = type(value)
    if cls in _FRAMES:
        return True
    native = cls.__module__ in {"builtins", "itertools", "collections", "_collections"}
    return native and hasattr(cls, "__next__")


def is_readable(value: object) -> bool:
    """Return whether every move of an iterator shows in `PROGRESS`."""
    cls = type(value)
    if cls in _FRAMES or cls is itertools.cycle:
        return False
    return bool(_own_place(value)) or any(map(is_readable, _inner(value)))


def _own_place(value: Any) -> tuple[Hashable, ...]:
    cls = type(value)
    if cls is itertools.count:
        return (repr(value),)
    if cls in _INDEXED:
        return ("at", *value.__reduce__()[2:])
    if cls in _FRAMES:
        frame = getattr(value, f"{_FRAMES[cls]}_frame")
        if frame is None:
            return ("ended",)
        local = frame.f_locals.values()
        return (frame.f_lasti, *((id(each), value_text(each)) for each in local))
    if hasattr(cls, "__length_hint__"):
        # An endless repeat has none.
        return (length_hint(value, -1),)
    return ()


def _inner(value: Any) -> Iterator[Any]:
    """Yield the iterators that one of C draws from."""
    for each in gc.get_referents(value):
        for one in each if type(each) is tuple else (each,):
            if is_iterator(one):
                yield one


def _place(value: Any, depth: int) -> tuple[Hashable, ...]:
    if depth == _DEPTH:
        return ()
    return (*_own_place(value), *(_place(inner, depth + 1) for inner in _inner(value)))


def _places(value: Any) -> Sequence[Hashable]:
    # Bytes are compared by value, a tuple would be a thing of its own.
    return (repr(_place(value, 0)).encode(),)


PROGRESS = View(
    "progress", _places, lambda path, _, __: f"the place of {path}", guarded=False
)


_LRU_CACHE: Final = type(lru_cache(int))


def is_cached(value: object) -> bool:
    """Return whether a value is a function that `functools.lru_cache` has made."""
    return type(value) is _LRU_CACHE


class Watched:
    """Cached functions, to find out whether they come to keep more than they do now.

    A function that is cached gives the same for the same arguments: that is what its
    author says of it. So what it has given is as good as a constant, while somebody
    holds it. It shows nowhere but among the referents of the function.
    """

    def __init__(self, cached: Iterable[Any]) -> None:
        self._before = [(each, each.cache_info().misses) for each in cached]

    def fuller(self) -> list[Any]:
        """Return those that have computed something since."""
        return [f for f, misses in self._before if f.cache_info().misses != misses]

    def kept(self) -> Iterator[Any]:
        """Yield what they keep now, results among it."""
        for cached, _ in self._before:
            for each in gc.get_referents(cached):
                if type(each) is not dict:
                    yield each
                elif each is not vars(cached):
                    yield from each.values()

    def forget(self) -> None:
        """Have those forget all: what they keep of a capture was never computed."""
        for each in self.fuller():
            each.cache_clear()
