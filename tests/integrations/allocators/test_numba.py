"""Numba on lent memory: what ends waits for all work, and for company."""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from contextlib import contextmanager
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from sapwood import MisuseError
from sapwood.integrations.numba import library, plugin


class HostOnly:
    """Numba's base of managers: sees to host memory, and may be told to defer."""

    def __init__(self, *, context) -> None:
        self.context, self.told = context, []

    def reset(self) -> None:
        self.told.append("reset")

    @contextmanager
    def defer_cleanup(self):
        self.told.append("defer")
        yield


class MemoryPointer:
    """Numba's: runs a finalizer when it is gone, on a context known by a proxy."""

    def __init__(self, context, pointer, size, finalizer) -> None:
        assert isinstance(context, weakref.ProxyType)
        assert isinstance(pointer, ctypes.c_void_p)
        self.pointer, self.size = pointer, size
        weakref.finalize(self, finalizer)


class Context:
    device = SimpleNamespace(id=2)


@pytest.fixture
def numba(face):
    contents = {
        "HostOnlyCUDAMemoryManager": HostOnly,
        "MemoryPointer": MemoryPointer,
        "MemoryInfo": lambda free, total: (free, total),
    }
    face(numba={}, numba__cuda=contents)


@pytest.fixture
def context():
    return Context()


@pytest.fixture
def manager(request, lender, context):
    """A manager as Numba makes it, once without a context to look at it."""
    request.getfixturevalue("numba")
    asked = []
    kind = plugin(lambda device: asked.append(device) or lender)
    assert kind(context=None).interface_version == 1
    made = kind(context=context)
    made.initialize()
    yield made
    assert set(asked) <= {2}
    gc.collect()
    made.reset()


def test_memory_is_lent_by_the_contexts_device(manager, lender):
    """A pointer has the bytes, and gives them back only after all work."""
    pointer = manager.memalloc(1000)
    assert (pointer.size, lender.lent()) == (1000, 1)
    ran = []
    stream = lender.driver.create_stream()
    lender.driver.call_host(lambda: ran.append(True), stream)
    del pointer
    assert (ran, lender.lent()) == ([], 1)
    manager.reset()
    assert (ran, lender.lent()) == ([True], 0)
    assert manager.told == ["reset"]
    lender.driver.destroy_stream(stream)


def test_what_ended_waits_for_company(manager, lender):
    """One wait gives back many: the device is not stopped for each array."""
    waits, wait = [], lender.driver.synchronize
    lender.driver.synchronize = lambda: waits.append(True) or wait()
    try:
        for _ in range(400):
            manager.memalloc(10)
    finally:
        del lender.driver.synchronize
    assert 1 <= len(waits) <= 4
    assert lender.lent() <= 129


def test_nothing_is_waited_for_while_cleanup_is_deferred(manager, lender):
    """Inside the block arrays that ended are kept, however many."""
    with manager.defer_cleanup():
        for _ in range(300):
            manager.memalloc(10)
        assert lender.lent() == 300
    manager.memalloc(10)
    assert lender.lent() <= 129
    assert manager.told == ["defer"]


def test_short_memory_gives_back_what_ended(manager, lender):
    """Before an allocation fails, what ended is waited for; then it fits."""
    most = lender.driver.memory_info().total * 3 // 4
    manager.memalloc(most)
    kept = manager.memalloc(most)
    assert lender.lent() == 1
    with pytest.raises(MemoryError):
        manager.memalloc(most)
    del kept


def test_it_says_how_much_there_is(manager, lender):
    """Free and total bytes are the device's."""
    info = lender.driver.memory_info()
    assert manager.get_memory_info() == (info.free, info.total)


def test_it_cannot_be_sent(manager):
    """Sharing with other processes is refused, with what to do instead."""
    with pytest.raises(MisuseError, match="send a copy"):
        manager.get_ipc_handle(object())


def test_without_numba_the_error_says_what_to_install(monkeypatch):
    """The remedy is in the text."""
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(MisuseError, match="Install it: pip install numba-cuda"):
        library()


PROGRAM = """
import json, warnings
warnings.simplefilter("ignore")
import numpy as np
# Numba for CUDA asks for it, up to 0.30; NumPy has it no more, from 2.5 on.
vars(np).setdefault("row_stack", np.vstack)
from numba import cuda
from sapwood.runtime.allocators import lender
add = cuda.reduce(lambda a, b: a + b)
right = True
for size in (1, 1000, 1 << 20):
    for turn in range(20):
        host = np.arange(size, dtype=np.int64) + turn
        array = cuda.to_device(host)
        right = right and add(array) == host.sum()
lent = lender().lent()
print(json.dumps({"right": bool(right), "lent": lent > 0}))
"""


@pytest.mark.gpu
@pytest.mark.skipif(not find_spec("numba"), reason="numba is not installed")
def test_reductions_are_right_on_lent_memory(run_program):
    """Sixty reductions equal NumPy's, on memory that was lent."""
    manager = {"NUMBA_CUDA_MEMORY_MANAGER": "sapwood.runtime.allocators"}
    assert run_program(PROGRAM, **manager) == {"right": True, "lent": True}
