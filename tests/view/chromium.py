"""A real Chromium, driven by Selenium, or the reason why there is none here.

Loaded by path, by the tests and by the benchmark; scripts/debian installs it.
"""

from __future__ import annotations

import shutil
from typing import Any


def missing() -> str:
    """Return why no browser can be driven here; empty if one can."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed: it comes with the dependency group tests"
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            return f"{program} is not installed: scripts/debian installs it"
    return ""


def start(width: int = 1440, height: int = 1000) -> Any:
    """Return a new headless Chromium; ``quit()`` ends it.

    It runs without its sandbox, which a container's root cannot have: it only ever
    opens pages made here, and there is no network for it.
    """
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for switch in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--hide-scrollbars",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--window-size={width},{height}",
    ):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options, Service(shutil.which("chromedriver")))
