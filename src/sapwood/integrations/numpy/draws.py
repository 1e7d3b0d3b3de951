"""The bodies of random draws: ``method, args, options`` over a Philox state.

The state is 13 words: counter (4), key (2), buffer (4), place in the buffer, and the
kept half of a word (a flag, its value). It is read, moved on and written in place.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from sapwood.integrations.numpy.bodies import Body, Given, Values
from sapwood.integrations.numpy.layout import Array

WORDS: Final = 13
METHODS: Final = (
    *("exponential", "integers", "normal", "permutation", "random", "uniform"),
    *("standard_exponential", "standard_normal"),
)
FILLING: Final = frozenset(("random", "standard_exponential", "standard_normal"))


def state_words(philox: np.random.Philox) -> Array:
    """Return the state of a bit generator as words."""
    words = np.empty(WORDS, np.uint64)
    _save(philox, words)
    return words


def _save(philox: np.random.Philox, words: Array) -> None:
    state: Any = philox.state
    words[0:4] = state["state"]["counter"]
    words[4:6] = state["state"]["key"]
    words[6:10] = state["buffer"]
    words[10] = state["buffer_pos"]
    words[11] = state["has_uint32"]
    words[12] = state["uinteger"]


def _load(philox: np.random.Philox, words: Array) -> None:
    # Of any words whatever: a device does not stop at numbers that make no sense.
    # The place is from 1 to 4 in every state that NumPy gives, and takes since 2.5.
    philox.state = {
        "bit_generator": "Philox",
        "state": {"counter": words[0:4], "key": words[4:6]},
        "buffer": words[6:10],
        "buffer_pos": min(max(int(words[10]), 1), 4),
        "has_uint32": int(words[11]) & 1,
        "uinteger": int(words[12]) & 0xFFFF_FFFF,
    }


def draw(method: str) -> Body:
    """Return the body of a method of `numpy.random.Generator`."""

    def dry(_: Given, args: Values, options: Values) -> Callable[[], Any]:
        drawn = np.random.Generator(np.random.Philox(0))
        return partial(getattr(drawn, method), *args, **dict(options))

    def bind(outs: Values, args: Values, options: Values) -> Callable[[], None]:
        out, words = outs
        if words.shape != (WORDS,) or words.dtype != np.uint64:
            # Philox itself would not look, and read what is not there.
            raise ValueError(f"a state is {WORDS} words of uint64")
        philox = np.random.Philox(0)
        function = getattr(np.random.Generator(philox), method)
        keywords = dict(options)
        if method in FILLING and out.ndim and out.flags.carray:
            keywords = {k: v for k, v in keywords.items() if k != "size"}
            keywords["out"] = out

        def run() -> None:
            _load(philox, words)
            drawn = function(*args, **keywords)
            if drawn is not out:
                np.copyto(out, drawn)
            _save(philox, words)

        return run

    return Body(bind, dry)
