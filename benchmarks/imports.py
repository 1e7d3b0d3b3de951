"""The time of ``import sapwood`` over that of ``import numpy``, in fresh processes."""

from __future__ import annotations

import subprocess
import sys
from statistics import median

GOALS = {"import sapwood after numpy, ms": 40.0}

REPEATS = 15
PROBE = """
import time
start = time.perf_counter()
import numpy
between = time.perf_counter()
import sapwood
print(between - start, time.perf_counter() - between)
"""


def measure() -> dict[str, float]:
    """Return medians over fresh processes; the first only warms the file cache."""
    times = [_once() for _ in range(REPEATS + 1)][1:]
    return {
        "import numpy, ms": 1e3 * median(numpy for numpy, _ in times),
        "import sapwood after numpy, ms": 1e3 * median(ours for _, ours in times),
    }


def _once() -> tuple[float, float]:
    probe = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=True
    )
    numpy, ours = map(float, probe.stdout.split())
    return numpy, ours
