"""What is no driver, size, address, stream or setting is refused by name."""

from __future__ import annotations

import pytest

from sapwood.allocator.pinned import PinnedAllocator
from sapwood.driver.emulated import Emulated

WRONG = {
    "size in text": (lambda a: a.malloc("a"), "whole number of bytes, not str 'a'"),
    "size of 1.5": (lambda a: a.malloc(1.5), "whole number of bytes, not float"),
    "size of nothing": (lambda a: a.malloc(None), "not NoneType None"),
    "free of text": (lambda a: a.free("0x1"), "address .* not str '0x1'"),
    "use of text": (lambda a: a.record_use("0x1", 1), "address .* not str"),
    "use on text": (lambda a: a.record_use(512, "own"), "stream .* not str 'own'"),
    "settings of 3": (lambda a: a.configure(3), "settings are text .* not int 3"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_type_is_named(rig, name):
    """TypeError with what it is and what to pass; afterwards all is as before."""
    call, said = WRONG[name]
    allocator = rig.allocator()
    allocator.free(allocator.malloc(4096))
    before = allocator.memory_stats()
    with pytest.raises(TypeError, match=said):
        call(allocator)
    assert allocator.memory_stats() == before
    assert allocator.malloc(4096)


@pytest.mark.parametrize("driver", [None, "cuda", 0, Emulated])
def test_what_is_no_driver_is_refused(driver):
    """Where the allocator is made, not where it is first asked."""
    with pytest.raises(TypeError, match=r"driver=.* is no Driver: open one"):
        PinnedAllocator(driver)


def test_settings_may_be_text(rig):
    """As in the environment, when it is made and later."""
    allocator = PinnedAllocator(rig.driver, "pinned_max_round_threshold:0")
    assert allocator.settings.pinned_max_round_threshold == 0
    allocator.configure("pinned_free_catch_all:True")
    assert allocator.settings.pinned_free_catch_all
    allocator.close()
