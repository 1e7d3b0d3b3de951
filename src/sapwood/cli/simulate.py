"""``sapwood simulate``: how much memory a trace takes, on each policy.

Exit codes: 0 served; 1 a policy ran out of ``--device-memory``; 2 wrong usage, or a
file that is no trace.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from sapwood import knobs
from sapwood.allocator.caching.settings import Settings
from sapwood.allocator.simulate import POLICIES, Outcome, Trace, read_trace
from sapwood.allocator.simulate import simulate as outcome_of
from sapwood.cli.progress import progress
from sapwood.cli.tables import counted, print_table
from sapwood.errors import MisuseError
from sapwood.units import size_text


def simulate(
    path: str,
    policies: Sequence[str] = (),
    *,
    device: int | None = None,
    changes: Iterable[str] = (),
    device_memory: str | None = None,
    repeat: int = 1,
    as_json: bool = False,
) -> int:
    """Replay the trace in a file on ``policies``, all if there are none.

    ``device`` is which one's of a PyTorch snapshot; None: the only one that it has.
    ``changes`` are settings as ``key=value``, on top of those of the environment;
    ``device_memory`` is a size as text. Returns 1 where a policy ran out of memory.
    Raises `MisuseError` for what it does not understand.
    """
    named = ",".join(policies or ["all"]).split(",")
    names = [*POLICIES] if "all" in named else named
    run = partial(
        outcome_of,
        trace := read_trace(path, device),
        settings=_settings(changes),
        device_memory=knobs.limit("--device-memory", device_memory, "1 B"),
        repeat=repeat,
    )
    outcomes: list[Outcome] = []
    with progress(lambda: f"{trace.name}: {len(outcomes)} of {len(names)} policies"):
        outcomes.extend(map(run, names))
    if as_json:
        told = [_plain(outcome) for outcome in outcomes]
        print(json.dumps(told if len(told) > 1 else told[0]))
    else:
        _show(trace, outcomes)
    return 1 if any(outcome.failure for outcome in outcomes) else 0


def _settings(changes: Iterable[str]) -> Settings:
    settings = Settings.from_env()
    text = []
    for change in changes:
        key, equals, value = change.partition("=" if "=" in change else ":")
        if not equals:
            raise MisuseError(
                f"--set {change} changes nothing. Write KEY=VALUE, as in "
                "max_split_size_mb=64"
            )
        text.append(f"{key}:{value}")
    return settings.revised(",".join(text)) if text else settings


def _plain(outcome: Outcome) -> dict[str, Any]:
    return asdict(outcome) | {
        "kind": POLICIES[outcome.policy].kind,
        "lower_bound": outcome.peak,
        "ratio": outcome.ratio,
        "driver_calls": outcome.driver_calls,
    }


def _mib(size: int) -> str:
    """Return a size in one unit, so that those in a column can be compared."""
    return f"{size / (1 << 20):,.1f} MiB"


def _show(trace: Trace, outcomes: Sequence[Outcome]) -> None:
    title = (
        f"{trace.name}: {counted(len(trace.buffers), 'buffer')}, at most "
        f"{_mib(trace.peak)} alive at once"
    )
    rows = (
        (
            outcome.policy,
            _mib(outcome.reserved),
            "ran out" if outcome.ratio is None else f"{outcome.ratio:.3f}",
            f"{outcome.driver_calls:,}",
            f"{outcome.seconds:.2f}",
        )
        for outcome in outcomes
    )
    numbers = (">reserved", ">to peak", ">driver calls", ">seconds")
    print_table(title, ("policy", *numbers), rows)
    for outcome in outcomes:
        print(f"{outcome.policy:14} {POLICIES[outcome.policy].about}")
    for outcome in outcomes:
        if failure := outcome.failure:
            print(
                f"{outcome.policy} ran out of memory in pass {failure.turn}, at "
                f"time {failure.time}: buffer {failure.buffer} of "
                f"{size_text(failure.size)}, beside {size_text(failure.live)} alive. "
                f"{failure.text}"
            )
