"""Every policy that a trace can be replayed on, by name.

``default`` is this library's allocator, and so are the names that begin with it: they
run its own code. ``planned`` is its planner. All others are models of others.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from sapwood.allocator.caching.settings import Settings
from sapwood.allocator.simulate.models.classic import Classic
from sapwood.allocator.simulate.models.expandable import Expandable
from sapwood.allocator.simulate.models.model import Model
from sapwood.allocator.simulate.models.planned import Planned
from sapwood.allocator.simulate.models.ranges import BestFit, FirstFit, Stitched
from sapwood.allocator.simulate.ours import Ours
from sapwood.allocator.simulate.trace import Trace
from sapwood.errors import MisuseError

Kind = Literal["ours", "plan", "model"]
"""Whether a policy runs the allocator, plans with hindsight, or models another."""

_Start = Callable[[Trace, Settings, int], Model]


@dataclass(frozen=True, slots=True)
class Policy:
    """A way to serve a trace; ``start`` takes it, settings and the device's bytes."""

    name: str
    kind: Kind
    about: str
    start: _Start


def find_policy(name: str) -> Policy:
    """Return the policy called ``name``; raises `MisuseError` where there is none."""
    policy = POLICIES.get(name)
    if policy is None:
        near = difflib.get_close_matches(name, POLICIES, 1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        raise MisuseError(
            f"there is no policy {name!r}{meant}. Name one of {', '.join(POLICIES)}"
        )
    return policy


def _ours(settings: Settings, total: int, **changes: object) -> Model:
    return Ours(settings.replace(**changes), total)


def _of(model: Callable[[Settings, int], Model]) -> _Start:
    return lambda _, settings, total: model(settings, total)


_ALL = (
    Policy("default", "ours", "Sapwood's allocator as it comes", _of(_ours)),
    Policy(
        "default-fixed",
        "ours",
        "Sapwood's with expandable_segments:False",
        _of(partial(_ours, expandable_segments=False)),
    ),
    Policy(
        "default-shared",
        "ours",
        "Sapwood's with cross_stream_reuse:True",
        _of(partial(_ours, cross_stream_reuse=True)),
    ),
    Policy("classic", "model", "PyTorch-like, fixed segments", _of(Classic)),
    Policy("expandable", "model", "PyTorch-like, expandable segments", _of(Expandable)),
    Policy("stitched", "model", "GMLake-like: any free pages", _of(Stitched)),
    Policy("best-fit", "model", "one range, the smallest gap", _of(BestFit)),
    Policy("first-fit", "model", "one range, the lowest gap", _of(FirstFit)),
    Policy("planned", "plan", "one range, laid out with hindsight", Planned),
)

POLICIES = {policy.name: policy for policy in _ALL}
"""The policies by name, ours first."""
