"""The demo's second process: goes on where the first one was, and records nothing.

    python -m examples.digits.second STATE STORE

It trains one more epoch from the state in a file, with the recordings in a store, and
prints figures as JSON.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import sapwood as sw
from examples.digits import program as digits
from examples.digits.training import Training, places
from sapwood.errors import InternalError

__all__ = ["Second", "digest", "go_on", "process_seconds", "save_state"]

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Second:
    """What the second process found.

    ``bits`` is the digest of weights and momenta; ``first_replay_s`` the time from the
    start of the process to the end of its first replay, ``imports_s`` the first part of
    that, until everything is imported.
    """

    restored: int
    recordings: int
    warmups: int
    bits: str
    imports_s: float
    first_replay_s: float


def process_seconds() -> float:
    """Return how long ago this process began, to a hundredth of a second.

    From field 22 of ``/proc/self/stat``, see proc(5): clock ticks since boot.
    """
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2]
    ticks = int(fields.split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / 100


def digest(training: Training) -> str:
    """Return a digest of all weights and momenta."""
    return hashlib.sha256(training.bits()).hexdigest()


def save_state(path: Path, training: Training, epoch: int) -> None:
    """Write all that is needed to go on with ``epoch``."""
    data = dataclasses.asdict(training.data)
    np.savez(path, seed=training.seed, epoch=epoch, **data, **training.state())


def go_on(state: Path, store: Path) -> Second:
    """Train one epoch in a process of its own, from a file.

    Raises `InternalError` where that process fails.
    """
    done = subprocess.run(  # noqa: S603 - this Python, and this module
        [sys.executable, "-m", "examples.digits.second", str(state), str(store)],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise InternalError(f"the second process ends well:\n{done.stderr}")
    return Second(**json.loads(done.stdout))


def _train(state: Mapping[str, Any], store: str, imports: float) -> Second:
    data = digits.Digits(
        **{field.name: state[field.name] for field in dataclasses.fields(digits.Digits)}
    )
    ready: list[float] = []
    with sw.Runtime(store=store) as rt:
        functions = rt.graph(digits.train_step), rt.graph(digits.evaluate)
        training = Training(places(rt, *functions)[0], data, int(state["seed"]))
        training.restore(state)

        def stepped() -> None:
            if not ready and rt.stats().replays + rt.stats().restored:
                rt.synchronize()
                ready.append(process_seconds())

        epoch = int(state["epoch"])
        for _ in training.run(epoch, epoch + 1, stepped):
            pass
        stats = rt.stats()
        return Second(
            restored=stats.restored,
            recordings=stats.recordings,
            warmups=stats.warmups,
            bits=digest(training),
            imports_s=imports,
            first_replay_s=ready[0] if ready else process_seconds(),
        )


def main() -> None:
    """Go on from the state and the store that the command line names."""
    imports = process_seconds()
    _, path, store = sys.argv
    with np.load(path, allow_pickle=False) as state:
        print(json.dumps(dataclasses.asdict(_train(state, store, imports))))


if __name__ == "__main__":
    main()
