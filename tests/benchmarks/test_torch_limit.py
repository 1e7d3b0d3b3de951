"""What is not measured says why."""

from __future__ import annotations

import time

import pytest


@pytest.fixture
def limit(benchmark_of):
    return benchmark_of("torch_limit")


def test_what_takes_too_long_is_left(limit):
    """Nothing that catches exceptions on the way keeps it going."""

    def slow():
        with limit.at_most(1):
            while True:
                try:
                    time.sleep(5)
                except Exception:  # noqa: BLE001 - as a compiler may
                    continue

    assert limit.tried(slow) == {"says": "skipped: it takes longer than 1 s"}


def test_what_is_in_time_is_measured(limit):
    """The alarm is off afterwards."""

    def quick():
        with limit.at_most(1):
            return {"mib": 1.0}

    assert limit.tried(quick) == {"mib": 1.0}
    time.sleep(1.1)


def test_what_fails_says_how(limit, capsys):
    """In short in the figures, with its lines where errors go."""

    def wrong():
        raise RuntimeError("no recording " * 40)

    says = limit.tried(wrong)["says"]
    assert says.startswith("failed: RuntimeError: no recording")
    assert len(says) < 230
    assert "in wrong" in capsys.readouterr().err
