"""What starting costs in a fresh process: NumPy, sapwood after it, a first runtime.

Processor time, with bytecode cached; a first runtime is one of the emulated device.
"""

from __future__ import annotations

import os
import subprocess
import sys
from statistics import median

IMPORT, RUNTIME = "import sapwood after numpy, ms", "first emulated runtime, ms"
GOALS = {IMPORT: 8.0, RUNTIME: 100.0}

REPEATS = 15
PROBE = """
from time import process_time
times = [process_time()]
import numpy
times.append(process_time())
import sapwood
times.append(process_time())
runtime = sapwood.Runtime("emulated")
times.append(process_time())
runtime.close()
print(*[after - before for before, after in zip(times, times[1:])])
"""


def measure() -> dict[str, float]:
    """Return medians over fresh processes; the first only warms the caches."""
    times = zip(*[_once() for _ in range(REPEATS + 1)][1:], strict=True)
    names = ("import numpy, ms", IMPORT, RUNTIME)
    return {name: 1e3 * median(each) for name, each in zip(names, times, strict=True)}


def _once() -> list[float]:
    # Without it every module is compiled by every process.
    cached = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    probe = subprocess.run(
        [sys.executable, "-c", PROBE],
        capture_output=True,
        text=True,
        check=True,
        env=cached,
    )
    return [float(each) for each in probe.stdout.split()]
