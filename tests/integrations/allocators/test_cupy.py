"""CuPy on lent memory: whose stream, whose device, and back when the array is gone."""

from __future__ import annotations

import gc
import sys
from types import SimpleNamespace

import pytest

from sapwood import MisuseError
from sapwood.integrations.cupy_allocator import allocator, library


class BaseMemory:
    """CuPy's: an address, a size and a device that others may set, kept in C."""

    __slots__ = ("device_id", "ptr", "size")

    def __new__(cls):
        made = super().__new__(cls)
        for name in BaseMemory.__slots__:
            vars(BaseMemory)[name].__set__(made, 0)
        return made


class MemoryPointer:
    """CuPy's: keeps its memory alive, and reads its address as C does."""

    def __init__(self, mem, offset) -> None:
        self.mem, self.ptr = mem, BaseMemory.ptr.__get__(mem) + offset


@pytest.fixture
def cupy(face):
    """What is current in the face of CuPy."""
    now = SimpleNamespace(device=0, stream=0)
    face(
        cupy={
            "cuda": SimpleNamespace(
                BaseMemory=BaseMemory,
                MemoryPointer=MemoryPointer,
                runtime=SimpleNamespace(getDevice=lambda: now.device),
                get_current_stream=lambda: SimpleNamespace(ptr=now.stream),
            )
        }
    )
    return now


def test_an_array_is_on_the_current_stream(cupy, lender, raw):
    """Its bytes are what the allocator gave for that stream, and come back with it."""
    allocate = allocator(lambda _: lender)
    cupy.stream = raw[0]
    pointer = allocate(1000)
    (segment,) = lender.allocator.picture().segments
    assert lender.driver.raw_stream(segment.stream) == raw[0]
    assert (pointer.mem.size, pointer.mem.device_id) == (1000, 0)
    held = [block for block in segment.blocks if block.state == "allocated"]
    assert [block.address for block in held] == [pointer.ptr]
    assert lender.lent() == 1
    del pointer
    assert lender.lent() == 0


def test_an_array_is_on_the_current_device(cupy, lender):
    """The lender that is asked is that of the GPU in use."""
    asked = []
    allocate = allocator(lambda device: asked.append(device) or lender)
    for cupy.device in (0, 3, 1):
        assert allocate(10).mem.device_id == cupy.device
    assert asked == [0, 3, 1]


@pytest.mark.usefixtures("cupy")
def test_views_keep_the_memory(lender):
    """What comes back is given back when the last array on it is gone."""
    allocate = allocator(lambda _: lender)
    pointer = allocate(100)
    view = MemoryPointer(pointer.mem, 50)
    del pointer
    assert lender.lent() == 1
    del view
    assert lender.lent() == 0


def test_garbage_is_collected_at_any_moment(cupy, lender, raw):
    """Arrays in cycles end inside other calls of the allocator; nothing is lost."""
    allocate = allocator(lambda _: lender)
    usual = gc.get_threshold()
    gc.set_threshold(3)
    try:
        for turn in range(2000):
            cupy.stream = raw[turn % 2]
            cycle = [allocate(turn * 10)]
            cycle.append(cycle)
    finally:
        gc.set_threshold(*usual)
    del cycle
    gc.collect()
    assert lender.lent() == 0
    assert lender.allocator.counters().total.allocated_bytes.current == 0


@pytest.mark.usefixtures("cupy")
def test_an_empty_array_has_no_memory(lender):
    """Nothing is lent for no bytes."""
    assert allocator(lambda _: lender)(0).ptr == 0
    assert lender.lent() == 0


@pytest.mark.usefixtures("cupy")
def test_what_does_not_fit_is_a_memory_error(lender):
    """CuPy's users catch MemoryError; the array that failed holds nothing."""
    allocate = allocator(lambda _: lender)
    with pytest.raises(MemoryError):
        allocate(1 << 45)
    assert lender.lent() == 0


def test_without_cupy_the_error_says_what_to_install(monkeypatch):
    """The remedy is in the text."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(MisuseError, match="Install it: pip install cupy"):
        library()


@pytest.mark.gpu
def test_transforms_and_solutions_are_right_on_lent_memory():
    """FFTs and linear systems on two streams are right, and all memory comes back."""
    cupy = pytest.importorskip("cupy")
    import numpy as np

    from sapwood.runtime.allocators import allocator_for, lender

    random = np.random.default_rng(7)
    signal = random.normal(size=1 << 18)
    matrix, right = random.normal(size=(300, 300)), random.normal(size=300)
    before = lender().lent()
    with cupy.cuda.using_allocator(allocator_for("cupy")):
        for _ in range(3):
            streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
            for stream in streams:
                with stream:
                    there = cupy.fft.fft(cupy.asarray(signal))
                    back = cupy.fft.ifft(there).real.get()
                    solved = cupy.linalg.solve(
                        cupy.asarray(matrix), cupy.asarray(right)
                    ).get()
                    assert lender().lent() > before
                np.testing.assert_allclose(back, signal, atol=1e-12)
                np.testing.assert_allclose(matrix @ solved, right, atol=1e-8)
            del there
            cupy.fft.config.get_plan_cache().clear()
            for stream in streams:
                lender().forget_stream(stream.ptr)
    assert lender().lent() == before
