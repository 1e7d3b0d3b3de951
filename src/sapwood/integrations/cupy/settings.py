"""CuPy's settings, which decide which routines compute a result, and how precisely."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import cupyx
import numpy as np
from cupy import _core
from cupy._core import _routines_linalg

from sapwood.tree.guards.frameworks import Modes
from sapwood.tree.guards.views import Way

__all__ = ["SETTINGS"]

_interned: dict[Any, Any] = {}


def _same(get: Callable[[], Any]) -> Any:
    """Return what is got as a tuple, the same object for the same values."""
    value = get()
    value = tuple(value.items() if isinstance(value, dict) else value)
    return _interned.setdefault(value, value)


_theirs: Final[Any] = _routines_linalg
_CHARS: Final = "efdFD"
"""The dtypes for which one may choose what products are computed in."""

SETTINGS: Final = Modes(
    "cupy",
    Way(
        getters={
            **{
                f"_core.get_compute_type({np.dtype(char)})": partial(
                    _theirs.get_compute_type, np.dtype(char)
                )
                for char in _CHARS
            },
            "_core.get_routine_accelerators()": partial(
                _same, _core.get_routine_accelerators
            ),
            "_core.get_reduction_accelerators()": partial(
                _same, _core.get_reduction_accelerators
            ),
            "geterr()": partial(_same, cupyx.geterr),
        }
    ),
)
"""What a replay has baked in. Compute types are CuPy's, by environment or by code."""
