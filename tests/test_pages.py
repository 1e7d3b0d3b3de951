"""The programs in README and docs run as they stand, each in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", *(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")))
FRAMEWORKS = ("cupy", "numba", "rmm", "torch")

FIRST = """\
import warnings
import sapwood
warnings.simplefilter("error", sapwood.GraphSkipWarning)
"""
"""What is said to work is recorded: a skip ends the program."""

OURS = """
import torch
x, y = torch.randn(8, 64, device="cuda"), torch.randn(8, 64, device="cuda")
"""

REPLAYED = """
for _ in range(8):
    step(x, y)
assert step.stats().replays >= 3, step.explain()
"""

BEFORE = {
    "README.md#Three ways in": OURS
    + """
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
""",
    "docs/torch.md#Eager regions": OURS,
    "docs/torch.md#Results that require grad": OURS
    + """
model, head = torch.nn.Linear(64, 64).cuda(), torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()])
""",
}
"""What a page says is the reader's."""

AFTER = {
    "README.md#Three ways in, 3": "assert step.stats().replays == 10, step.explain()",
    "README.md#What works, and what you give up": """
rt = sw.Runtime()

@rt.graph
def step(x, y):
    log((x - y).sum())
    return x * 2

x = y = rt.array([1.0, 2.0])
"""
    + REPLAYED,
    "README.md#Three ways in": REPLAYED,
    "README.md#Three ways in, 2": "assert step.stats().replays >= 1, step.explain()",
    "docs/graph.md#Graphed functions": "assert step.stats().replays == 3",
    "docs/torch.md#Torch": f"{OURS}{REPLAYED}",
    "docs/torch.md#Eager regions": REPLAYED,
    "docs/torch.md#Results that require grad": """
assert block.stats().replays >= 6, block.explain()
assert "backward" in block.explain()
""",
    "docs/settings.md#Settings": """
for _ in range(4):
    double(rt.array([1.0, 2.0]))
assert double.stats().replays >= 1
""",
}
"""Calls of what a block only defines, and what it says of its calls."""


class Block(NamedTuple):
    """A program on a page, under a heading; others may go on from it."""

    name: str
    text: str
    line: int

    def program(self, before: Block | None) -> str:
        """Return it, with what goes before it and comes after it."""
        goes_on = "Goes on from the block above" in self.text
        above = before.text if goes_on and before else ""
        first, last = BEFORE.get(self.name, ""), AFTER.get(self.name, "")
        return "\n".join([FIRST, above, first, self.text, last])


def _blocks(page: str) -> list[Block]:
    found: list[Block] = []
    heading, lines = "", (ROOT / page).read_text().splitlines()
    begun: int | None = None
    for number, line in enumerate(lines):
        if begun is None and line.startswith("#"):
            heading = line.lstrip("# ")
        elif line == "```python":
            begun = number + 1
        elif line == "```" and begun is not None:
            names = [block.name for block in found]
            name = f"{page}#{heading}"
            again = sum(each.startswith(name) for each in names)
            name = f"{name}, {again + 1}" if again else name
            found.append(Block(name, "\n".join(lines[begun:number]), begun))
            begun = None
    return found


def _programs() -> list[object]:
    """Return each block's program; those of frameworks need a GPU."""
    programs = []
    for page in PAGES:
        before = None
        for block in _blocks(page):
            text = block.program(before)
            uses = [name for name in FRAMEWORKS if re.search(rf"import {name}\b", text)]
            if not uses:
                programs.append(pytest.param("emulated", (), text, id=block.name))
            gpu = pytest.param(
                "cuda", uses, text, id=f"{block.name}-cuda", marks=pytest.mark.gpu
            )
            programs.append(gpu)
            before = block
    return programs


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("device", "uses", "program"), _programs())
def test_a_program_on_a_page_runs(device, uses, program, tmp_path):
    """It ends well, and records what it says is recorded."""
    for name in uses:
        pytest.importorskip(name)
    if device == "cuda" and not uses and find_spec("cupy") is None:
        pytest.skip("a runtime on a GPU needs arrays: CuPy")
    path = tmp_path / "program.py"
    path.write_text(program)
    home = {"HOME": str(tmp_path), "SAPWOOD_DEVICE": device}
    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=tmp_path,
        env=os.environ | home,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_what_is_added_is_added_to_a_program():
    """Each name here is a block's."""
    names = {block.name for page in PAGES for block in _blocks(page)}
    assert len(names) >= 15
    assert {*BEFORE, *AFTER} <= names
