"""Sites that are built of packages, and a browser to look at one."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONF = """\
import sys
sys.path.insert(0, {extensions!r})
extensions = ["codemap"]
nitpicky = True
codemap_packages = {packages!r}
"""
INDEX = """\
Site
====

.. toctree::

"""


@pytest.fixture(scope="session")
def build():
    """Return what builds a site in a folder, without a warning, and gives its words."""

    def build(folder, packages, more=""):
        source = folder / "source"
        source.mkdir(exist_ok=True)
        conf = CONF.format(extensions=str(ROOT / "sphinxext"), packages=packages)
        (source / "conf.py").write_text(conf + more)
        pages = "".join(f"   map/{name}\n" for name in packages)
        (source / "index.rst").write_text(INDEX + pages)
        command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-d"]
        done = subprocess.run(
            [*command, folder / "read", source, folder / "site"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return build


@pytest.fixture(scope="session")
def site():
    """Return where the project's own site is, built as users build it."""
    held = ROOT / ".cache/docs.lock"
    held.parent.mkdir(exist_ok=True)
    with held.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one worker builds, the others wait
        done = subprocess.run(
            [ROOT / "scripts/docs"], capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    return ROOT / ".cache/docs/site"
