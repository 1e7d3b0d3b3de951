"""A replayed training step against the same step run eagerly and in plain NumPy.

All ratios are of medians in one process, in rounds that take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

import sapwood as sw
from examples.digits import program as digits
from examples.digits.training import BATCH, Training, places, step_seconds
from sapwood.driver.api import ExecHandle, StreamHandle
from sapwood.driver.emulated import Emulated

GOALS = {
    "replayed / plain NumPy": 1.15,
    "replayed / emulated eager": 0.5,
    "own cost of a replay, train_step, us": 15.0,
    "own cost of a replay, x += 1, us": 15.0,
}

REPEATS = 400


class Timed(Emulated):
    """Adds up the seconds inside ``launch_graph``: the kernels, bound and called.

    With ``silent`` it launches nothing.
    """

    inside = 0.0
    silent = False

    def launch_graph(self, exec_: ExecHandle, stream: StreamHandle) -> None:
        """Launch, and add the time."""
        start = time.perf_counter()
        try:
            if not self.silent:
                super().launch_graph(exec_, stream)
        finally:
            self.inside += time.perf_counter() - start


def measure() -> dict[str, float]:
    """Return ratios, and times in milliseconds and microseconds."""
    data = digits.load_digits(seed=0)
    with sw.Runtime("emulated") as rt:
        replayed, eager, numpy = map(median, _step_seconds(rt, data))
    return {
        "replayed, ms": 1e3 * replayed,
        "emulated eager, ms": 1e3 * eager,
        "plain NumPy, ms": 1e3 * numpy,
        "replayed / plain NumPy": replayed / numpy,
        "replayed / emulated eager": replayed / eager,
        **_own_costs(data),
    }


def _step_seconds(rt: sw.Runtime, data: digits.Digits) -> list[list[float]]:
    where = places(rt, rt.graph(digits.train_step), rt.graph(digits.evaluate))
    trainings = [Training(place, data, seed=0) for place in where]
    return step_seconds(trainings, rounds=20, steps=20)


def _own_costs(data: digits.Digits) -> dict[str, float]:
    """Return what replays take besides their launch, where work is done at once.

    Once with the kernels left out, which is the cost of the replay itself, and once
    with them: what kernels do to the machine's caches and page tables, those above all
    that allocate, then slows whatever Python runs next.
    """
    driver = Timed(schedule="earliest")
    with sw.Runtime(driver) as rt:
        x = rt.array(np.zeros(4, np.float32))
        bump = rt.graph(_bump)
        place, *_ = places(rt, rt.graph(digits.train_step), rt.graph(digits.evaluate))
        training = Training(place, data, seed=0)
        images, labels = map(rt.array, next(digits.batches(data, BATCH, (0, 0))))

        def step() -> None:
            training.step(images, labels)

        after = _own_cost(driver, step), _own_cost(driver, lambda: bump(x))
        driver.silent = True
        return {
            "own cost of a replay, train_step, us": _own_cost(driver, step),
            "own cost of a replay, x += 1, us": _own_cost(driver, lambda: bump(x)),
            "right after its kernels, train_step, us": after[0],
            "right after its kernels, x += 1, us": after[1],
        }


def _own_cost(driver: Timed, call: Callable[[], Any]) -> float:
    costs = []
    for _ in range(REPEATS):
        inside, start = driver.inside, time.perf_counter()
        call()
        whole = time.perf_counter() - start
        costs.append(whole - (driver.inside - inside))
    return 1e6 * median(costs[REPEATS // 4 :])


def _bump(x: Any) -> None:
    x += 1
