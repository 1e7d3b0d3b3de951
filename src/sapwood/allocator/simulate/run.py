"""Replaying a trace: the same calls in the same order, whatever serves them.

Every policy that serves has a name. ``default`` is this library's allocator, and so are
the names that begin with it: they run its own code. ``planned`` is its planner. All
others are models of others.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal

from sapwood.allocator.caching.settings import DEFAULT, Settings
from sapwood.allocator.planner.buffers import check_count
from sapwood.allocator.simulate.models.classic import Classic
from sapwood.allocator.simulate.models.expandable import Expandable
from sapwood.allocator.simulate.models.model import Model
from sapwood.allocator.simulate.models.planned import Planned
from sapwood.allocator.simulate.models.ranges import BestFit, FirstFit, Stitched
from sapwood.allocator.simulate.ours import Ours
from sapwood.allocator.simulate.trace import Trace
from sapwood.errors import MisuseError, OutOfMemory
from sapwood.units import Size, size_text

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


def _find_policy(name: str) -> Policy:
    """Return the policy called ``name``; raises `MisuseError` where there is none."""
    policy = POLICIES.get(name)
    if policy is None:
        near = difflib.get_close_matches(name, POLICIES, 1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        raise MisuseError(
            f"there is no policy {name!r}{meant}. Name one of {', '.join(POLICIES)}"
        )
    return policy


def _of(model: Callable[[Settings, int], Model]) -> _Start:
    return lambda _, settings, total: model(settings, total)


def _ours(name: str, changes: str) -> Policy:
    """Return the policy that is our allocator with some settings changed."""

    def start(settings: Settings, total: int) -> Model:
        return Ours(settings.revised(changes), total)

    return Policy(name, "ours", f"Sapwood's with {changes}", _of(start))


_ALL = (
    Policy("default", "ours", "Sapwood's allocator as it comes", _of(Ours)),
    _ours("default-fixed", "expandable_segments:False"),
    _ours("default-shared", "cross_stream_reuse:True"),
    Policy("classic", "model", "PyTorch-like, fixed segments", _of(Classic)),
    Policy("expandable", "model", "PyTorch-like, expandable segments", _of(Expandable)),
    Policy("stitched", "model", "GMLake-like: any free pages", _of(Stitched)),
    Policy("best-fit", "model", "one range, the smallest gap", _of(BestFit)),
    Policy("first-fit", "model", "one range, the lowest gap", _of(FirstFit)),
    Policy("planned", "plan", "one range, 20 steps of `sapwood plan`", Planned),
)

POLICIES = {policy.name: policy for policy in _ALL}
"""The policies by name, ours first."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Where a replay ran out of memory: in which pass, and for which buffer.

    ``live`` are the bytes that were alive without it, ``text`` what the policy said.
    """

    turn: int
    buffer: str
    time: int
    size: Size
    live: Size
    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a policy served a trace.

    ``peak`` is the most that the trace keeps alive at once: the lower bound of
    ``reserved``, the most physical memory that the policy held. ``calls`` are those
    of the driver, by name. ``requests`` were served before it ended. ``seconds`` is
    the time of it all, planning included, and no part of what makes outcomes equal.
    """

    trace: str
    policy: str
    reserved: Size
    peak: Size
    requests: int
    calls: Mapping[str, int]
    failure: Failure | None = None
    seconds: float = field(default=0.0, compare=False)

    @property
    def ratio(self) -> float | None:
        """``reserved`` to ``peak``; None where the policy ran out of memory."""
        if self.failure is not None:
            return None
        return self.reserved / self.peak if self.peak else 1.0

    @property
    def driver_calls(self) -> int:
        """How many calls of the driver there were."""
        return sum(self.calls.values())


_AMPLE = 1 << 40
_MARGIN = 64
_MOST_ALIVE = 512 << 30
_MOST_MEMORY: Final = 1 << 50


def simulate(
    trace: Trace,
    policy: str = "default",
    *,
    settings: Settings = DEFAULT,
    device_memory: Size | None = None,
    repeat: int = 1,
) -> Outcome:
    """Replay a trace on a policy, ``repeat`` times over, and return what came of it.

    ``device_memory`` are the bytes of the device; None: more than enough. Raises
    `MisuseError` for a policy that there is not, numbers below 1, a device of more
    than 1 PiB, and on our allocator for more than 512 GiB that are alive at once.
    """
    check_count("repeat", repeat)
    if device_memory is not None:
        _check_memory(device_memory)
    total = device_memory or max(_AMPLE, trace.peak * _MARGIN)
    chosen = _find_policy(policy)
    if chosen.kind == "ours":
        _check_peak(trace)
    started = time.perf_counter()
    model = chosen.start(trace, settings, total)
    reserved, requests, failure = _replay(trace, model, repeat)
    seconds = time.perf_counter() - started
    return Outcome(
        trace=trace.name,
        policy=policy,
        reserved=Size(reserved),
        peak=trace.peak,
        requests=requests,
        calls=dict(model.calls),
        failure=failure,
        seconds=seconds,
    )


def compare(
    trace: Trace,
    policies: Iterable[str],
    *,
    settings: Settings = DEFAULT,
    device_memory: Size | None = None,
    repeat: int = 1,
) -> tuple[Outcome, ...]:
    """Replay a trace on several policies, as `simulate` does on one."""
    run = partial(
        simulate, trace, settings=settings, device_memory=device_memory, repeat=repeat
    )
    return tuple(map(run, policies))


def _replay(trace: Trace, model: Model, repeat: int) -> tuple[int, int, Failure | None]:
    """Return the most that was reserved, how many requests were served, any failure."""
    buffers = trace.buffers
    reserved = requests = 0
    for turn in range(1, repeat + 1):
        addresses: dict[int, int] = {}
        for step in trace.steps:
            if step < 0:
                model.free(addresses.pop(~step))
                continue
            buffer = buffers[step]
            try:
                addresses[step] = model.allocate(buffer.size, buffer.stream)
            except OutOfMemory as error:
                live = Size(sum(buffers[number].size for number in addresses))
                where = (turn, buffer.name, buffer.lower, buffer.size, live)
                return reserved, requests, Failure(*where, str(error))
            requests += 1
            reserved = max(reserved, model.reserved)
    return reserved, requests, None


def _check_memory(device_memory: int) -> None:
    check_count("device_memory", device_memory)
    if device_memory > _MOST_MEMORY:
        raise MisuseError(
            f"a device memory of {size_text(device_memory)} is more than any device "
            f"has. Give at most {size_text(_MOST_MEMORY)}, or none: that is enough"
        )


def _check_peak(trace: Trace) -> None:
    """Raise where our allocator would take minutes, page by page, or never end."""
    if trace.peak > _MOST_ALIVE:
        largest = max(trace.buffers, key=lambda buffer: buffer.size)
        raise MisuseError(
            f"{trace.name} has {size_text(trace.peak)} alive at once, and buffer "
            f"{largest.name} alone {size_text(largest.size)}: our allocator is "
            f"simulated page by page, up to {size_text(_MOST_ALIVE)}. Mend the trace, "
            "or name other policies, such as classic"
        )
