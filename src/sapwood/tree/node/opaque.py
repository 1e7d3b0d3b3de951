"""What a result holds and nobody can take apart: told by its class, with what helps."""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterator, Sequence
from types import FunctionType, ModuleType
from typing import Any, Final

from sapwood.errors import CaptureError
from sapwood.tree.call.integration import Integration
from sapwood.tree.node.outputs import Outputs
from sapwood.units import Addr

__all__ = ["keeping", "made_anew"]

_FAR: Final = 1000
"""So many things are looked at for an array: who holds one is near it."""

_PLAIN: Final = {"builtins", "types"}


def made_anew(value: object) -> CaptureError:
    """Return an error of an object in a result that was another one before."""
    name = type(value).__name__
    return CaptureError(
        f"the result holds {_a(name)}, which each call makes anew, and no replay can",
        remedy=f"Return arrays and plain values, and make the {name} of them "
        f"outside the graphed function{_taught(value)}",
    )


def keeping(
    outputs: Outputs,
    lost: Collection[Addr],
    integration: Integration,
    where: str | None,
) -> CaptureError | None:
    """Return an error of what in a result holds arrays that nothing accounts for."""
    for value in (leaf.value for leaf in outputs.plain()):
        if any(
            integration.is_array(each) and integration.storage(each).address in lost
            for each in _near(value)
        ):
            name = type(value).__name__
            return CaptureError(
                f"the result holds {_a(name)}, which is not taken apart, and an array "
                "is in it",
                where=where,
                remedy=f"Return a dataclass, tuple or dict{_taught(value)}",
            )
    return None


def _near(value: Any) -> Iterator[Any]:
    """Yield what an object holds, the nearest first."""
    found, seen = [value], {id(value)}
    for each in found:
        yield each
        for one in _held(each) if len(found) < _FAR else ():
            if id(one) not in seen and not isinstance(one, type | ModuleType):
                seen.add(id(one))
                found.append(one)


def _held(value: Any) -> Sequence[Any]:
    if isinstance(value, FunctionType):  # and not all that its globals name
        return value.__closure__, value.__defaults__, value.__kwdefaults__
    return gc.get_referents(value)


def _a(name: str) -> str:
    return f"{'an' if name[:1] in 'aeiouAEIO' else 'a'} {name}"


def _taught(value: Any) -> str:
    cls = type(value)
    if cls.__module__ in _PLAIN:
        return ""
    return f", or call sapwood.register_container({cls.__name__}, flatten, unflatten)"
