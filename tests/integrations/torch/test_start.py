"""What a first recording has a process load."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

_FRESH = """
import sys
import threading
import torch
import sapwood as sw

def is_loaded(library):
    with open("/proc/self/maps") as maps:
        return library in maps.read()

def product(x):
    return (x @ x).relu()

def smooth(x):
    return torch.nn.functional.conv2d(x, kernel)

with torch.no_grad(), sw.Runtime(device="cuda:0", arrays="torch") as rt:
    x, f = torch.randn(8, 8, device="cuda"), rt.graph(product)
    for _ in range(4):
        assert torch.equal(f(x), product(x))
    assert f.stats().replays == 3, f.explain()
    assert not {"torch._dynamo", "sympy"} & {*sys.modules}
    used = is_loaded("libcudnn_graph") or not is_loaded("libcudnn.so.9")
    kernel, g = torch.randn(1, 1, 3, 3, device="cuda"), rt.graph(smooth)
    image, found = torch.randn(1, 1, 16, 16, device="cuda"), []
    g(image)
    assert is_loaded("libcudnn_graph") or not is_loaded("libcudnn.so.9")
    thread = threading.Thread(target=lambda: found.append(g(image)))
    thread.start()
    thread.join()
    assert g.stats().recordings == 1, g.explain()
    assert torch.equal(found.pop(), g(image))
    assert torch.equal(g(image), smooth(image))
print("used" if used else "not used")
"""


@pytest.mark.gpu
def test_a_recording_loads_no_more_than_it_needs():
    """Neither torch's compiler nor cuDNN; any thread may capture what uses the latter.

    Where cuDNN is of another make, it is loaded for everybody.
    """
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _FRESH],
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert ran.stdout == "not used\n", ran.stderr


def test_where_cudnn_is_not_known_it_is_loaded(monkeypatch):
    """Only a shell that is loaded without what it loads first says that nobody does."""
    from sapwood.integrations.torch import cudnn

    known = set()
    monkeypatch.setattr(cudnn, "_is_loaded", known.__contains__)
    monkeypatch.setattr("torch.backends.cudnn.version", lambda: 91_002)
    assert cudnn.may_be_in_use()
    known.add("libcudnn.so.9")
    assert not cudnn.may_be_in_use()
    known.add("libcudnn_graph.so.9")
    assert cudnn.may_be_in_use()
    for other in (8_907, None):
        monkeypatch.setattr("torch.backends.cudnn.version", lambda other=other: other)
        assert cudnn.may_be_in_use()


def test_what_is_loaded_is_known():
    """A library that is not loaded is not loaded by the question."""
    from sapwood.integrations.torch import cudnn

    assert cudnn._is_loaded("libc.so.6")
    assert not cudnn._is_loaded("libsapwood_is_no_library.so.1")
