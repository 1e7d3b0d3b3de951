"""Seconds from import to a first step of training, compiled: what a cache is worth.

Each figure is the median of new processes, with a folder of torch's that is empty, or
warm. Run it by path for a table; ``--out`` keeps the figures as code-cache.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Final

PROGRAM: Final = """
import sys, time, warnings
warnings.simplefilter("ignore")
import torch
import sapwood as sw

if sys.argv[1]:
    cache = sw.install_cache(sys.argv[1])
torch.manual_seed(3)
layers = torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)
model = torch.nn.Sequential(*layers)
step = torch.compile(model)
began = time.perf_counter()
step(torch.randn(3, 8)).square().sum().backward()
print(time.perf_counter() - began)
"""


def seconds(store: str, folder: str) -> float:
    """Return how long a process takes to its first step.

    Torch keeps headers that it has prepared with other temporary files.
    """
    temporary = Path(folder, "tmp")
    temporary.mkdir(parents=True, exist_ok=True)
    own = {"TORCHINDUCTOR_CACHE_DIR": folder, "TMPDIR": str(temporary)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, store],
        env=os.environ | own,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.split()[-1])


def main() -> None:
    """Measure, print a table, and keep the figures."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--out", default="", help="a folder")
    options = arguments.parse_args()
    found: dict[str, list[float]] = {"nothing cached": [], "the cache": [], "warm": []}
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as made:
            store, first, new = f"{made}/store", f"{made}/first", f"{made}/new"
            found["nothing cached"].append(seconds("", f"{made}/none"))
            seconds(store, first)
            found["the cache"].append(seconds(store, new))
            found["warm"].append(seconds("", first))
    kept = {name: median(each) for name, each in found.items()}
    for name, value in kept.items():
        print(f"{name:16} {value:6.2f} s")
    if options.out:
        text = json.dumps({"seconds": kept, "rounds": options.rounds}, indent=1)
        (Path(options.out) / "code-cache.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
