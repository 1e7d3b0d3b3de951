"""The programs in README and docs run as they stand, each in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    "README.md",
    *sorted(
        page.relative_to(ROOT).as_posix()
        for page in (ROOT / "docs").rglob("*.md")
        if "map" not in page.relative_to(ROOT / "docs").parts  # which is generated
    ),
)
FRAMEWORKS = ("cupy", "numba", "rmm", "torch", "transformers")

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

TRAINED = f"""
import sapwood as sw
{OURS}
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW(model.parameters())
"""

LLAMA = """
import torch
import transformers
import sapwood as sw
config = transformers.LlamaConfig(
    vocab_size=1000, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2,
)
model = transformers.LlamaForCausalLM(config).cuda()
"""

LONGER = """
for _ in range(24):
    step(x, y)
assert step.stats().replays >= 8, step.explain()
"""
"""So many calls, as each read, and each state that is made lazily, takes some more."""

REGISTERED = """
from torch._dynamo import register_backend
from sapwood.integrations.torch.backend import backend
register_backend(backend, name="sapwood")
"""
"""As where the package is installed, which here it may not be."""

BEFORE = {
    "docs/compile.md#Compiled functions: a backend of torch.compile": REGISTERED,
    "README.md#Ways in": OURS
    + """
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
""",
    "docs/tutorials/first-recording.md#An error, mended by its message": """
warnings.simplefilter("always")
""",
    "docs/tutorials/training-step.md#A loss as a number": TRAINED,
    "docs/tutorials/training-step.md#A schedule": TRAINED,
    "docs/tutorials/training-step.md#A GradScaler": TRAINED,
    "docs/tutorials/hugging-face.md#Training": LLAMA,
    "docs/tutorials/many-shapes.md#Bound it": """
warnings.simplefilter("always")
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
    "docs/compile.md#Compiled functions: a backend of torch.compile": """
assert sw.default_runtime().stats().replays >= 12
""",
    "docs/compile.md#Compiled functions: a backend of torch.compile, 2": """
assert sw.default_runtime().stats().replays >= 15
""",
    "README.md#Ways in, 3": "assert step.stats().replays == 10, step.explain()",
    "README.md#What works, and what you give up": """
rt = sw.Runtime()

@rt.graph
def step(x, y):
    log((x - y).sum())
    return x * 2

x = y = rt.array([1.0, 2.0])
"""
    + REPLAYED,
    "README.md#Ways in": REPLAYED,
    "README.md#Ways in, 2": "assert step.stats().replays >= 1, step.explain()",
    "docs/tutorials/first-recording.md#Three stages": """
assert (step.stats().warmups, step.stats().replays) == (1, 4)
""",
    "docs/tutorials/first-recording.md#A value that changes": """
assert (step.stats().warmups, step.stats().recordings) == (2, 2)
assert "rate was 1.0, is 0.5" in step.explain()
""",
    "docs/tutorials/first-recording.md#An output that is kept": """
assert [float(y[0]) for y in kept] == [number / 2 for number in range(8)]
assert (half.stats().recordings, half.stats().escaped) == (3, 5)
assert (turn.stats().recordings, turn.stats().replays) == (2, 17)
""",
    "docs/tutorials/training-step.md#The whole step": """
assert step.stats().replays >= 8, step.explain()
assert len(losses) == 20
""",
    "docs/tutorials/training-step.md#A loss as a number": LONGER,
    "docs/tutorials/training-step.md#A schedule": LONGER,
    "docs/tutorials/training-step.md#A GradScaler": LONGER,
    "docs/tutorials/hugging-face.md#Forward": """
assert forward.stats().replays >= 3, forward.explain()
""",
    "docs/tutorials/hugging-face.md#One word after the other": """
assert decode.stats().replays >= 8, decode.explain()
""",
    "docs/tutorials/hugging-face.md#Training": """
assert block.stats().replays >= 3, block.explain()
""",
    "docs/howto/from-make-graphed-callables.md#Side by side, 2": """
assert graphed.stats().replays >= 3, graphed.explain()
""",
    "docs/howto/from-make-graphed-callables.md#Graph the whole step instead": """
assert step.stats().replays >= 3, step.explain()
""",
    "docs/howto/from-reduce-overhead.md#Side by side, 2": """
assert infer.stats().replays >= 3, infer.explain()
""",
    "docs/howto/from-reduce-overhead.md#Side by side, 3": """
assert compiled.stats().replays >= 3, compiled.explain()
""",
    "docs/howto/from-cupy-graphs.md#Side by side, 2": """
assert fn.stats().replays >= 3
""",
    "docs/tutorials/many-shapes.md#Recordings share pages": """
assert (memory["pages.mapped"], memory["ranges.pages"]) == (9, 19)
""",
    "docs/tutorials/many-shapes.md#Read it from a snapshot": """
assert [len(each["clobbers"]) for each in snapshot["recordings"]] == [9, 5, 3, 2]
""",
    "docs/tutorials/many-shapes.md#Results that are kept": """
assert (live, output, memory["heap.bytes"] >> 20, copied) == (8, 8, 40, 3)
""",
    "docs/tutorials/many-shapes.md#Bound it": "assert len(kept) == 15",
    "docs/tutorials/many-shapes.md#End results with each step": """
assert (rt.memory_stats()["pages.live"], double.stats().recordings) == (2, 1)
""",
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


def _install_names(folder):
    """Have programs of a folder find what an installed package is found by."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    about = folder / "sapwood-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: sapwood\nVersion: 0\n"
    )
    lines = []
    for group, names in declared["project"]["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {at}" for name, at in names.items())]
    (about / "entry_points.txt").write_text("\n".join(lines))


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
    if not entry_points(name="sapwood"):  # it is only on a path
        _install_names(tmp_path)
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
