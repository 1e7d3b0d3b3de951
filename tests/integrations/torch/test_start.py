"""What first recordings have a process load, and a thread make."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

import sapwood

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

_FRESH = """
import sys
import torch
import sapwood as sw

def product(x):
    return (x @ x).relu()

with torch.no_grad(), sw.Runtime(device="cuda:0", arrays="torch") as rt:
    x, f = torch.randn(8, 8, device="cuda"), rt.graph(product)
    for _ in range(4):
        assert torch.equal(f(x), product(x))
    assert f.stats().recordings == 1, f.explain()
print(sorted({"torch._dynamo", "torch._inductor", "sympy"} & {*sys.modules}))
"""


def test_the_compiler_is_not_loaded_for_a_recording(new_process):
    """It takes seconds, which nobody need wait for who compiles nothing."""
    assert new_process(_FRESH) == "[]\n"


def test_any_thread_captures_what_another_has_warmed_up(rt, same, monkeypatch):
    """What torch makes for each thread is made before; not where a warm-up did."""
    framework, primed = rt._device.framework, []
    prime = framework.prime
    monkeypatch.setattr(framework, "prime", lambda: primed.append(prime()))
    kernel, linear = (torch.randn(1, 1, n, n, device="cuda") for n in (3, 14))

    def smooth(x):
        return torch.nn.functional.conv2d(x, kernel) @ linear[0, 0]

    with torch.no_grad():
        f = rt.graph(smooth)
        x, y = (torch.randn(n, 1, 16, 16, device="cuda") for n in (1, 2))
        for _ in range(3):
            same(f(x), smooth(x))
        assert not primed
        f(y)
        found = []
        for _ in range(2):
            thread = threading.Thread(target=lambda: found.append(f(y)))
            thread.start()
            thread.join()
        assert len(primed) == 1
        assert f.stats().recordings == 2
        for each in found:
            same(each, smooth(y))


_BARE = """
import sys
sys.path.insert(0, {path!r})
import warnings
import torch
import sapwood as sw

assert sw.__file__.startswith({path!r})
f = sw.graph(torch.sin)
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    for _ in range(4):
        x = torch.randn(8, device="cuda")
        assert torch.equal(f(x), x.sin())
print([str(each.message) for each in told if each.category is sw.GraphSkipWarning])
"""


def test_calls_are_eager_where_nothing_was_built(new_process, tmp_path):
    """Installed without a compiler, the package records nothing, and says why."""
    shutil.copytree(
        Path(sapwood.__file__).parent,
        tmp_path / "sapwood",
        ignore=shutil.ignore_patterns("*.so"),
    )
    said = new_process(_BARE.format(path=str(tmp_path)))
    assert said.count("sin runs eagerly") == 1
    assert "is missing" in said
