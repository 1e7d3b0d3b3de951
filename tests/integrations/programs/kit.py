"""What programs are written with: they are called ten times, old results kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from tests.integrations.models.worlds import Trial, World

torch = pytest.importorskip("torch")

CALLS = 10


def trial(trials: list[Trial], **told: Any) -> Callable[[Any], Any]:
    """Return what adds a program to a list, with what is expected of it."""

    def add(program: Callable[[World], Iterable[Any]]) -> Any:
        trials.append(Trial(program.__name__.replace("_", " "), program, **told))
        return program

    return add


def called(
    w: World, fn: Any, make: Callable[[], Any], last: int | None = 3
) -> Iterator[list[Any]]:
    """Call a function without gradients; yield its last results after each call."""
    f, kept = w.graph(fn), deque(maxlen=last)
    for _ in range(CALLS):
        given = make()
        with torch.no_grad():
            kept.append(f(*given))
        yield list(kept)


def stepped(
    w: World,
    step: Any,
    make: Callable[[], Any],
    writes: Callable[[], Any],
    last: int | None = 2,
    calls: int = CALLS,
) -> Iterator[tuple[list[Any], Any]]:
    """Call what writes to tensors; yield its last results and what it has written."""
    f, kept = w.graph(step, reads=writes), deque(maxlen=last)
    for _ in range(calls):
        kept.append(f(*make()))
        yield list(kept), writes()


def adamw(parameters: Any, **options: Any) -> Any:
    """Return an optimizer that can be captured."""
    return torch.optim.AdamW(parameters, lr=1e-2, capturable=True, **options)
