"""From the start of a process to its first replay: with an empty store, and a full one.

Both processes run the same module on the same state, and neither loads the digits from
scikit-learn, as the first process of the demo does; so most of what they do is to
import NumPy and this library, which no store makes faster.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import sapwood as sw
from examples.digits import program as digits
from examples.digits.second import Second, go_on, save_state
from examples.digits.training import Training, places

GOALS: dict[str, float] = {}

ROUNDS = 7


def measure() -> dict[str, float]:
    """Return seconds, medians over rounds that take turns, and their ratio."""
    first: list[Second] = []
    second: list[Second] = []
    with TemporaryDirectory() as name, sw.Runtime() as rt:
        folder = Path(name)
        state = folder / "state.npz"
        functions = rt.graph(digits.train_step), rt.graph(digits.evaluate)
        training = Training(places(rt, *functions)[0], digits.load_digits(0), 0)
        save_state(state, training, 0)
        for number in range(ROUNDS):
            store = folder / f"store {number}"
            first.append(go_on(state, store))
            second.append(go_on(state, store))
    empty = median(each.first_replay_s for each in first)
    full = median(each.first_replay_s for each in second)
    imports = median(each.imports_s for each in (*first, *second))
    return {
        "with an empty store, s": empty,
        "with a full store, s": full,
        "of both, until NumPy is imported, s": imports,
        "with a full store / with an empty one": full / empty,
        "recordings made with a full store": float(sum(e.recordings for e in second)),
    }
