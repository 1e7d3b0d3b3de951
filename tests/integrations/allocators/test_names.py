"""Allocators by the name of the library that wants one."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest

from sapwood import MisuseError, NoDevice
from sapwood.driver.emulated import Emulated
from sapwood.runtime import allocators

NAMES = ("cupy", "numba", "rmm", "cuda.core")


@pytest.fixture
def gpus(monkeypatch):
    """Two emulated devices in the place of GPUs."""
    opened = {}

    def open_gpu(number: int) -> Emulated:
        if number > 1:
            raise NoDevice("open", 100, "NO_DEVICE", "there are two")
        assert number not in opened
        opened[number] = Emulated()
        return opened[number]

    monkeypatch.setattr(allocators, "Cuda", open_gpu)
    monkeypatch.setattr(allocators, "_lenders", {})
    yield opened
    for number, driver in opened.items():
        lender = allocators.lender(number)
        lender.close()
        lender.allocator.close()
        assert sum(driver.live_handles().values()) == 0
        driver.close()


@pytest.fixture
def adapted(monkeypatch):
    """Adapters that return what they were handed."""
    for home, name in (
        ("cupy_allocator", "allocator"),
        ("numba", "plugin"),
        ("rmm", "resource"),
        ("cuda_core", "resource"),
    ):
        module = importlib.import_module(f"sapwood.integrations.{home}")
        monkeypatch.setattr(module, name, lambda *given: SimpleNamespace(given=given))


def test_a_gpu_has_one_lender(gpus):
    """All libraries share what is cached for a GPU; another GPU has its own."""
    assert allocators.lender() is allocators.lender(0)
    assert allocators.lender(1) is not allocators.lender(0)
    assert sorted(gpus) == [0, 1]
    with pytest.raises(NoDevice):
        allocators.lender(2)
    assert sorted(gpus) == [0, 1]


def test_the_environment_sets_a_lender(gpus, monkeypatch):
    """SAPWOOD_ALLOC_CONF is what a lender begins with; a wrong one opens no GPU."""
    monkeypatch.setenv("SAPWOOD_ALLOC_CONF", "max_split_size_mb:1")
    with pytest.raises(MisuseError, match="SAPWOOD_ALLOC_CONF: max_split_size: 1 MiB"):
        allocators.lender()
    assert gpus == {}
    text = "expandable_segments:False,per_process_memory_fraction:0.5"
    monkeypatch.setenv("SAPWOOD_ALLOC_CONF", text)
    chosen = allocators.lender().allocator.settings
    assert (chosen.expandable_segments, chosen.per_process_memory_fraction) == (0, 0.5)


@pytest.mark.usefixtures("adapted", "gpus")
def test_every_library_is_handed_a_lender():
    """Those that ask for all GPUs the function, the others one GPU's."""
    for name in ("cupy", "numba"):
        assert allocators.allocator_for(name).given == (allocators.lender,)
    assert allocators._numba_memory_manager.given == (allocators.lender,)
    assert allocators.allocator_for("rmm", 1).given == (allocators.lender(1),)
    assert allocators.allocator_for("cuda.core", 1).given == (allocators.lender(1),)


def test_other_names_are_refused_with_those_there_are():
    """A name that is none of theirs leads to all that are."""
    with pytest.raises(MisuseError, match="torch_pool") as refused:
        allocators.allocator_for("jax")
    assert all(name in str(refused.value) for name in NAMES)
    assert not hasattr(allocators, "nothing")


def test_a_pool_for_torch_is_of_the_gpu_that_is_named(gpus, monkeypatch):
    """Size, number and options arrive."""
    from sapwood.integrations import torch_pool

    monkeypatch.setattr(torch_pool, "open_pool", lambda *given, **named: (given, named))
    given, named = allocators.torch_pool(5, 1, no_split=True)
    assert given == (allocators.lender(1), 5)
    assert named == {"no_split": True}
    assert list(gpus) == [1]
