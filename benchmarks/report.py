"""The page about 1,000 recordings: how large it is, and how soon it is to be seen."""

from __future__ import annotations

import runpy
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from sapwood.view import render

GOALS = {"page of 1,000 recordings, MB": 3.0, "opens in Chromium, s": 2.0}

REPEATS = 5
TESTS = Path(__file__).resolve().parent.parent / "tests" / "view"


def measure() -> dict[str, float]:
    """Return size and times; that of opening only where there is a browser."""
    snapshot = runpy.run_path(str(TESTS / "snapshots.py"))["snapshot"](1000)
    started = time.perf_counter()
    page = render(snapshot).encode()
    figures = {
        "page of 1,000 recordings, MB": len(page) / 1e6,
        "made in, s": time.perf_counter() - started,
    }
    chromium = runpy.run_path(str(TESTS / "chromium.py"))
    missing = chromium["missing"]()
    if missing:
        print(f"not measured in a browser: {missing}")
        return figures
    browser = chromium["start"]()
    try:
        with TemporaryDirectory() as directory:
            path = Path(directory) / "page.html"
            path.write_bytes(page)
            figures["opens in Chromium, s"] = _opening(browser, path.as_uri())
    finally:
        browser.quit()
    return figures


def _opening(browser: Any, address: str) -> float:
    """Return the median time from asking for the page to all of it being drawn."""
    times = []
    for _ in range(REPEATS):
        browser.get(address)
        drawn = "return Number(document.documentElement.dataset.drawn)"
        times.append(browser.execute_script(drawn) / 1e3)
    return median(times)
