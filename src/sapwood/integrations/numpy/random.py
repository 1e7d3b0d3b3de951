"""Random numbers whose whole state is on the device.

The stream is that of ``numpy.random.Generator(numpy.random.Philox(seed))``, whatever
is drawn in whatever order; a replay goes on where the last one ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from sapwood.integrations.numpy.array import Array
from sapwood.integrations.numpy.bodies import DRAWS
from sapwood.integrations.numpy.copies import from_host
from sapwood.integrations.numpy.launch import made
from sapwood.integrations.strided import WORDS, state_words
from sapwood.memory.device import Device

_INSTEAD: Final = "scale and shift what it draws on the device instead"


class Generator:
    """A generator over ``state``, a device array of 13 words (``uint64``).

    Arguments of its methods are plain numbers, sizes, and dtypes; results are device
    arrays, of no dimensions where ``size`` is None.
    """

    __slots__ = ("__weakref__", "state")

    def __init__(self, state: Array) -> None:
        if state.shape != (WORDS,) or state.dtype != np.uint64:
            raise TypeError(
                f"a generator's state is {WORDS} words of uint64, not {state!r}; "
                "make one with rt.generator(seed)"
            )
        self.state = state

    def random(self, size: Any = None, dtype: Any = np.float64) -> Array:
        """Return uniform floats in [0, 1), float32 or float64."""
        return self._draw("random", size=size, dtype=np.dtype(dtype))

    def standard_normal(self, size: Any = None, dtype: Any = np.float64) -> Array:
        """Return normal floats of mean 0 and deviation 1, float32 or float64."""
        return self._draw("standard_normal", size=size, dtype=np.dtype(dtype))

    def standard_exponential(self, size: Any = None, dtype: Any = np.float64) -> Array:
        """Return exponential floats of mean 1, float32 or float64."""
        return self._draw("standard_exponential", size=size, dtype=np.dtype(dtype))

    def normal(self, loc: float = 0.0, scale: float = 1.0, size: Any = None) -> Array:
        """Return normal float64 of mean ``loc`` and deviation ``scale``."""
        return self._draw("normal", loc=loc, scale=scale, size=size)

    def uniform(self, low: float = 0.0, high: float = 1.0, size: Any = None) -> Array:
        """Return uniform float64 in [low, high)."""
        return self._draw("uniform", low=low, high=high, size=size)

    def exponential(self, scale: float = 1.0, size: Any = None) -> Array:
        """Return exponential float64 of mean ``scale``."""
        return self._draw("exponential", scale=scale, size=size)

    def integers(
        self,
        low: int,
        high: int | None = None,
        size: Any = None,
        dtype: Any = np.int64,
        endpoint: bool = False,
    ) -> Array:
        """Return integers in [low, high), or [0, low) without ``high``."""
        dtype = np.dtype(dtype)
        return self._draw(
            "integers", low=low, high=high, size=size, dtype=dtype, endpoint=endpoint
        )

    def permutation(self, n: int) -> Array:
        """Return the integers below ``n`` in random order."""
        return self._draw("permutation", n)

    def choice(
        self,
        a: Any,
        size: Any = None,
        replace: bool = True,
        p: Any = None,
        axis: int = 0,
    ) -> Array:
        """Return integers below ``a``, or elements of an array along ``axis``."""
        count = a.shape[axis] if isinstance(a, Array) else a
        p = p if p is None else tuple(p)
        drawn = self._draw("choice", count, size=size, replace=replace, p=p)
        found: Any = np.take(a, drawn, axis) if isinstance(a, Array) else drawn
        return found  # type: ignore[no-any-return]

    def _draw(self, method: str, *args: Any, **options: Any) -> Array:
        if any(isinstance(value, Array) for value in args):
            raise TypeError(f"Generator.{method} takes plain numbers; {_INSTEAD}")
        for name, value in options.items():
            if isinstance(value, Array):
                raise TypeError(
                    f"Generator.{method} takes a plain number for {name}; {_INSTEAD}"
                )
        values = args, tuple(options.items())
        return made(self.state, f"draw:{method}", values, (None, self.state))[0]

    def __repr__(self) -> str:
        return f"<Generator Philox, state at {self.state.address:#x}>"


def _drawing(method: str) -> Callable[..., Array]:
    def draw(self: Generator, *args: Any, **options: Any) -> Array:
        return self._draw(method, *args, **options)

    draw.__name__, draw.__qualname__ = method, f"Generator.{method}"
    draw.__doc__ = f"Return what ``numpy.random.Generator.{method}`` draws."
    return draw


for _method in DRAWS:
    if _method not in vars(Generator):
        setattr(Generator, _method, _drawing(_method))


def make_generator(device: Device, seed: Any = None) -> Generator:
    """Return a generator seeded as ``numpy.random.Philox(seed)``."""
    return Generator(from_host(Array, device, state_words(np.random.Philox(seed))))
