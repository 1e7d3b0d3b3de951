"""Running a state machine under fixed seeds: until a law breaks, or to the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from sapwood.errors import InternalError, SapwoodError
from tests.support.machine import Machine

__all__ = ["steps_under", "steps_until_caught"]

_STEPS: Final = 30


def steps_until_caught(
    machine: type[Machine],
    number: int,
    *,
    examples: int,
    expected: Sequence[type[Exception]] = (),
    **attributes: Any,
) -> int | None:
    """Run a machine under one seed; return the steps until a law broke, or None.

    ``attributes`` are those of the class that runs. What no wait orders may differ
    when Hypothesis runs it again. Errors that are no broken law are raised, but a
    faulty variant may end in an ``expected`` one behind it.
    """
    begin = {"steps": 0, "caught": None, **attributes}
    chosen: Any = type("Seeded", (machine,), begin)
    allowed: tuple[type[Exception], ...] = (SapwoodError, Flaky, *expected)
    try:
        run_state_machine_as_test(
            seed(number)(chosen),
            settings=settings(
                max_examples=examples,
                stateful_step_count=_STEPS,
                deadline=None,
                database=None,
                derandomize=False,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
                verbosity=Verbosity.quiet,
            ),
        )
    except allowed:
        if chosen.caught is None:
            raise
    caught: int | None = chosen.caught
    return caught


def steps_under(
    name: str,
    patch: Callable[[], AbstractContextManager[object]],
    seeds: Sequence[int],
    run: Callable[[int], int | None],
) -> list[int]:
    """Return the steps until ``run`` catches a faulty variant, under each seed.

    Raises `InternalError` where it lives under one of them.
    """
    steps = []
    for number in seeds:
        with patch():
            found = run(number)
        if found is None:
            raise InternalError(f"{name} is caught under seed {number}")
        steps.append(found)
    return steps
