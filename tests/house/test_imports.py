"""``import sapwood`` is light, and framework rooms wait for their framework."""

from __future__ import annotations

import json
import subprocess
import sys

FRAMEWORKS = {"cuda", "cupy", "numba", "torch", "triton"}
TOOLS = {"argparse", "hypothesis", "pytest", "rich", "sklearn"}

PROBE = """
import json, sys, numpy
before = set(sys.modules)
import sapwood
{}
print(json.dumps(sorted(set(sys.modules) - before)))
"""

UNUSED = (
    *("sapwood.allocator.planner", "sapwood.allocator.caching.shortage"),
    *("sapwood.driver.cuda", "sapwood.persist", "sapwood.tree.regions", "sapwood.view"),
)
"""What a runtime on the emulated device is made without: half of what there is."""


def _pulled_in(then: str = "") -> set[str]:
    probe = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROBE.format(then)],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(probe.stdout))


def test_import_pulls_in_no_framework_and_no_tool():
    """F test_no_triton_on_import: nothing that a caller has not asked for."""
    roots = {name.partition(".")[0] for name in _pulled_in()}
    assert roots & (FRAMEWORKS | TOOLS) == set()


def test_import_pulls_in_no_integration():
    """An integration, the tests' room and the command are imported when used."""
    rooms = ("sapwood.integrations.", "sapwood.testing", "sapwood.cli")
    assert [name for name in _pulled_in() if name.startswith(rooms)] == []


def test_a_runtime_loads_what_it_is_made_of():
    """Stores, files, plans and GPUs are loaded by whoever uses them."""
    loaded = _pulled_in("sapwood.Runtime('emulated').close()")
    assert "sapwood.driver.emulated" in loaded
    assert [name for name in loaded if name.startswith(UNUSED)] == []
