"""How a function is graphed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Options:
    """How a function is graphed, as the user said.

    Where they cannot be recorded, ``fullgraph`` functions raise, and others run
    eagerly; ``told`` are the reasons that were warned of, of all objects of a method,
    and ``hears`` is called with each, too. Whoever calls a ``guarded`` function has
    compared all but the addresses of the arrays that are passed.
    """

    name: str
    donate: tuple[str, ...] = ()
    pinned: tuple[str, ...] = ()
    max_variants: int = 4
    max_recordings: int = 64
    fullgraph: bool = False
    verify: int = 0
    told: set[str] = field(default_factory=set, compare=False, repr=False)
    hears: Callable[[str], None] | None = field(default=None, compare=False, repr=False)
    guarded: bool = False
