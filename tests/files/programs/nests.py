"""Classes of results, and a picture of a nest that two processes can compare."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


@dataclass
class Pair:
    """A dataclass as a result."""

    left: Any
    right: Any


@dataclass(frozen=True, slots=True)
class Frozen:
    """One that forbids its own setattr."""

    value: Any


class Outer:
    """Holds a class whose name has a dot."""

    @dataclass
    class Inner:
        """The class."""

        value: Any


class Point(NamedTuple):
    """A named tuple as a result."""

    x: Any
    y: Any


class Picture:
    """Leaves with every bit, classes and keys, and who shares memory with whom."""

    def __init__(self):
        self.arrays, self.leaves = [], []

    def of(self, nest, *more):
        """Return what two processes must agree on, as JSON."""
        shape = self._fold(nest), *map(self._fold, more)
        numbers = {}
        owners = [
            numbers.setdefault(id(array.storage), len(numbers)) for array in self.arrays
        ]
        same = [
            next(i for i, other in enumerate(self.arrays) if other is array)
            for array in self.arrays
        ]
        return [shape, self.leaves, owners, same]

    def _fold(self, value):
        cls = type(value)
        if isinstance(value, dict):
            return [str(cls), [[repr(k), self._fold(v)] for k, v in value.items()]]
        if isinstance(value, (list, tuple, deque)):
            rest = [repr(value.maxlen)] if isinstance(value, deque) else []
            return [str(cls), *rest, [self._fold(v) for v in value]]
        if dataclasses.is_dataclass(value):
            names = [field.name for field in dataclasses.fields(value)]
            parts = [[name, self._fold(getattr(value, name))] for name in names]
            return [str(cls), parts]
        if hasattr(value, "storage"):
            self.arrays.append(value)
            self.leaves.append(array_text(value))
        elif hasattr(value, "state"):
            return [str(cls), self._fold(value.state)]
        else:
            self.leaves.append([str(cls), repr(value)])
        return len(self.leaves)


def array_text(value):
    """Return dtype, shape, strides that matter, and a digest of all bits."""
    host = np.asarray(value)
    steps = [
        step
        for step, length in zip(value.strides, value.shape, strict=True)
        if length > 1 and host.size
    ]
    return [str(host.dtype), list(host.shape), steps, bits(host)]


def bits(host):
    """Return a digest of an array's bytes; padding of long doubles is not theirs."""
    if host.dtype.char in "gG":
        host = np.array([repr(x) for x in host.ravel().tolist()] or [""])
    return hashlib.sha256(host.tobytes()).hexdigest()[:16]
