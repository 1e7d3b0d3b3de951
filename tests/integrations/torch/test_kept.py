"""Storages that are kept for the next replay: what tells that nobody else has one."""

from __future__ import annotations

import gc
import weakref

import pytest

from sapwood.memory.storage import Storage
from sapwood.units import Addr, Size

torch = pytest.importorskip("torch")


class Token:
    """What a storage gives back when nobody views it any more."""

    def ended(self, _):
        pass


@pytest.fixture
def kept(integration, returns):
    """Return two storages that are kept, of three tensors."""
    # The bytes are torch's: they stay for as long as these tensors do.
    memories = [torch.randn(6, 7), torch.randn(5)]
    storages = [
        Storage(Addr(each.data_ptr()), Size(each.nbytes), Token(), returns)
        for each in memories
    ]
    first, second = (integration.look(x).layout for x in memories)
    part = integration.look(memories[0][1:]).layout
    made = [
        (0, first, storages[0].address),
        (0, part, Addr(memories[0][1:].data_ptr())),
        (1, second, storages[1].address),
    ]
    yield integration.keep(storages, made)
    del memories


def test_storages_without_tensors_are_idle(kept):
    """Before the first replay, and whenever all of its tensors are gone."""
    assert kept.is_idle()
    for _ in range(50):
        made = [make() for make in kept.makers]
        assert not kept.is_idle()
        for _ in range(3):
            made.pop()
            assert kept.is_idle() is (not made)


@pytest.mark.parametrize("which", [0, 1])
def test_whoever_holds_a_tensor_is_noticed(kept, hold, which):
    """A storage is not idle while there is any way to read what it holds."""
    for _ in range(5):
        made = [make() for make in kept.makers]
        expected = hold(made[which].clone())()
        read = hold(made[which])
        del made
        assert not kept.is_idle()
        assert torch.equal(read(), expected)
        del read
        gc.collect()
        assert kept.is_idle()


def test_weak_references_hold_nothing(kept):
    """What is known weakly alone is gone, and its storage is idle."""
    made = [make() for make in kept.makers]
    known = [*map(weakref.ref, made)]
    assert not kept.is_idle()
    del made
    assert all(each() is None for each in known)
    assert kept.is_idle()


def test_a_storage_that_was_known_weakly_is_noticed_again(kept):
    """Whoever gets at a storage by a weak reference has it."""
    known = weakref.ref(kept.makers[0]().untyped_storage())
    assert kept.is_idle()
    again = known()
    assert (again is None) is kept.is_idle()
    del again
    assert kept.is_idle()


def test_tensors_given_other_memory_hold_nothing(kept):
    """It is the storage that counts, not the tensor that was made over it."""
    made = [make() for make in kept.makers]
    for each in made:
        each.data = torch.zeros(3)
    assert kept.is_idle()
