"""What is no size, address, stream or setting is refused by name."""

from __future__ import annotations

import pytest

from sapwood.allocator.caching.allocator import Allocator
from sapwood.allocator.caching.settings import Settings
from sapwood.driver.emulated import Emulated
from sapwood.errors import MisuseError

MIB = 1 << 20


class Index:
    """A whole number that is no int, as other libraries have."""

    def __init__(self, number):
        self.number = number

    def __index__(self):
        return self.number


WRONG = {
    "size of 1.5": (lambda a, s: a.malloc(1.5, s), "whole number of bytes, not float"),
    "size of nothing": (lambda a, s: a.malloc(None, s), "not NoneType None"),
    "size in text": (lambda a, s: a.malloc("8", s), "not str '8'"),
    "stream of none": (lambda a, _: a.malloc(8, None), "stream .* not NoneType"),
    "stream in text": (lambda a, _: a.malloc(8, "own"), "stream .* not str 'own'"),
    "stream in a list": (lambda a, s: a.malloc(8, [s]), "stream .* not list"),
    "free of nothing": (lambda a, _: a.free(None), "address .* not NoneType"),
    "free of text": (lambda a, _: a.free("0x1"), "address .* not str"),
    "free of a list": (lambda a, _: a.free([1]), "address .* not list"),
    "use of nothing": (lambda a, s: a.record_stream(None, s), "address .* NoneType"),
    "use on nothing": (lambda a, _: a.record_stream(512, None), "stream .* NoneType"),
    "a successor in text": (lambda a, s: a.forget_stream(s, "x"), "stream .* not str"),
    "settings of 3": (lambda a, _: a.configure(3), "settings are text .* not int"),
    "no settings": (lambda a, _: a.configure(None), "settings .* not NoneType"),
    "trim to 1.5": (lambda a, _: a.trim(1.5), "whole number of bytes, not float"),
    "trim to nothing": (lambda a, _: a.trim(None), "whole number .* not NoneType"),
    "fraction of 1": (lambda a, _: setattr(a, "memory_fraction", 1), "float, not int"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("history", [None, "all"], ids=["short way", "long way"])
def test_a_wrong_type_is_named(rig, name, history):
    """TypeError with what it is and what to pass; afterwards all is as before."""
    call, said = WRONG[name]
    stream = rig.stream()
    rig.allocator.free(rig.allocator.malloc(3 * MIB, stream))
    rig.allocator.record_history(history)
    before = rig.check().segments
    with pytest.raises(TypeError, match=said):
        call(rig.allocator, stream)
    assert rig.check().segments == before
    assert rig.allocator.malloc(3 * MIB, stream)


@pytest.mark.parametrize("size", [-1, -512, -(1 << 70)])
def test_what_is_below_nothing_is_refused(rig, size):
    """A negative size, or one to keep, is a misuse that says so."""
    stream = rig.stream()
    with pytest.raises(MisuseError, match=rf"cannot allocate {size} bytes"):
        rig.allocator.malloc(size, stream)
    with pytest.raises(MisuseError, match=rf"cannot keep {size} bytes"):
        rig.allocator.trim(size)
    assert rig.check().segments == ()


def test_whole_numbers_of_other_kinds_are_taken(rig):
    """True is 1, and what has an index is that number."""
    stream = rig.stream()
    one = rig.allocator.malloc(True, stream)
    assert rig.allocator.trim(Index(0)) == 0
    rig.allocator.free(one)
    assert rig.allocator.trim(Index(0)) == 2 * MIB


@pytest.mark.parametrize("driver", [None, "cuda", 0, Emulated])
def test_what_is_no_driver_is_refused(driver):
    """Where the allocator is made, by what is shown of it."""
    with pytest.raises(TypeError, match=r"driver=.* is no Driver: open one"):
        Allocator(driver)


def test_what_is_made_with_settings_takes_what_configure_takes(rig):
    """A value or text; anything else, and wrong text, is refused there and then."""
    text = "max_split_size_mb:64"
    made = Allocator(rig.checked, text)
    rig.allocator.configure(text)
    assert made.settings == rig.allocator.settings == Settings.parse(text)
    made.close()
    with pytest.raises(TypeError, match=r"settings are text .* not int 5"):
        Allocator(rig.checked, 5)
    with pytest.raises(MisuseError, match="max_split_size"):
        Allocator(rig.checked, "max_split:64")
