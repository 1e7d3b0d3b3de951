"""Run benchmarks, all of these or those named: print their figures, keep them as JSON.

A benchmark here is a module beside this one with ``measure()``, which returns figures
by name, and ``GOALS``, the most that some of them should be. Goals are shown, not
enforced: machines differ, ratios less so.
"""

from __future__ import annotations

import importlib
import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
ALL = ("imports", "replay", "report", "start", "store")
"""Those that need nothing but this machine; the others are run by their paths."""
PACKAGES = ("sapwood", "numpy")


def main(names: list[str]) -> None:
    """Run the benchmarks called ``names``; all if there are none."""
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    versions = {package: version(package) for package in PACKAGES}
    versions |= {"python": platform.python_version(), "machine": platform.platform()}
    for name in names or ALL:
        module = importlib.import_module(name)
        figures = module.measure()
        print(f"\n{name}")
        for figure, value in figures.items():
            print(
                f"  {figure:44} {value:10.3f} {goal(module.GOALS.get(figure), value)}"
            )
        kept = {"figures": figures, "goals": module.GOALS, "versions": versions}
        (results / f"{name}.json").write_text(json.dumps(kept, indent=2) + "\n")


def goal(most: float | None, value: float) -> str:
    """Return the goal as text, and whether it is met."""
    if most is None:
        return ""
    return f"(goal: at most {most:g}{'' if value <= most else ', MISSED'})"


if __name__ == "__main__":
    main(sys.argv[1:])
