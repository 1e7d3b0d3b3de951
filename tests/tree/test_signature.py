"""The key of a call says everything about its arguments but the addresses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.errors import StaleOutput
from sapwood.tree.call.signature import Arrays, Place, describe, look

# What an argument may be: ``(storage, offset, size)`` of an array, or a plain value.
_array = st.tuples(st.integers(0, 2), st.integers(0, 2), st.sampled_from([8, 16]))
_plain = st.sampled_from([None, 0, False, 0.0, -0.0, "x", b"x"])
_arguments = st.lists(_array | _plain, max_size=5)


def _make(arguments, bases, make_array, make_storage):
    storages = [make_storage(base) for base in bases]
    return [
        make_array(bases[a[0]] + 8 * a[1], a[2], storage=storages[a[0]])
        if isinstance(a, tuple)
        else a
        for a in arguments
    ]


@given(arguments=_arguments)
def test_addresses_are_not_in_the_key(make_array, make_storage, integration, arguments):
    """The same call elsewhere has the same key, and its own storages."""
    calls = [
        describe(
            tuple(_make(arguments, bases, make_array, make_storage)), {}, integration
        )
        for bases in ((0x1000, 0x2000, 0x3000), (0x9000, 0x5000, 0x7000))
    ]
    assert calls[0].key == calls[1].key
    assert hash(calls[0].key) == hash(calls[1].key)
    assert not set(calls[0].given.storages) & set(calls[1].given.storages)


@given(one=_arguments, other=_arguments)
def test_calls_of_different_kinds_have_different_keys(
    make_array, make_storage, integration, one, other
):
    """Values differ by type and bits, arrays by layout and by what they share."""
    bases = (0x1000, 0x2000, 0x3000)
    keys = [
        describe(
            tuple(_make(each, bases, make_array, make_storage)), {}, integration
        ).key
        for each in (one, other)
    ]
    assert (keys[0] == keys[1]) == (_kind(one) == _kind(other))


def _kind(arguments):
    """Return what a call is, in other words: values by text, arrays by relation."""
    arrays = [a for a in arguments if isinstance(a, tuple)]
    relations = [
        (i, j, b[1] - a[1])
        for i, a in enumerate(arrays)
        for j, b in enumerate(arrays)
        if a[0] == b[0]
    ]
    return [a[2] if isinstance(a, tuple) else repr(a) for a in arguments], relations


def test_nesting_and_keywords_are_in_the_key(make_array, integration):
    """How arrays are nested, and what they are called, tells calls apart."""
    x, y = make_array(0x1000), make_array(0x2000)
    calls = [
        ((x, y), {}),
        (((x, y),), {}),
        (([x, y],), {}),
        ((x,), {"y": y}),
        ((x,), {"z": y}),
        ((), {"x": x, "y": y}),
    ]
    assert len({describe(*call, integration).key for call in calls}) == len(calls)


def test_a_call_knows_its_arrays(make_array, integration):
    """Which leaves they are, and where they lie."""
    x, y = make_array(0x1000), make_array(0x2000)
    call = describe((1.0, [x, "mode"]), {"y": y}, integration)
    assert [call.leaves[i] for i in call.positions] == [x, y]
    assert call.given == Arrays([x, y], [x.storage, y.storage], [0x1000, 0x2000], None)


def test_what_the_adapter_refuses_is_no_argument(integration):
    """With the adapter's words."""
    with pytest.raises(TypeError, match="bytes of the host"):
        describe((bytearray(2),), {}, integration)


def test_what_has_ended_is_no_argument(make_array, integration):
    """An array whose lease was revoked says so."""
    x = make_array(0x1000)
    x.storage.stale = "a later step() began"
    with pytest.raises(StaleOutput, match="later step"):
        describe((x,), {}, integration)


@given(arguments=st.lists(_array, max_size=5))
def test_places_are_the_storages_with_their_bounds(
    make_array, make_storage, integration, arguments
):
    """Every array is in the place of its storage, which holds its bytes and no more."""
    bases = (0x1000, 0x2000, 0x3000)
    arrays = _make(arguments, bases, make_array, make_storage)
    found = look(arrays, integration)
    places = found.places(integration)
    assert len({id(a.storage) for a in arrays}) == len(places)
    assert sorted(i for place in places for i in place.arrays) == list(
        range(len(arrays))
    )
    assert [place.arrays for place in places] == found.groups()
    for place in places:
        spans = [integration.look(arrays[i]).span for i in place.arrays]
        assert all(arrays[i].storage is place.storage for i in place.arrays)
        assert place.lo == min(lo for lo, _ in spans)
        assert place.hi == max(hi for _, hi in spans)


@given(arguments=st.lists(_array, max_size=5), wanted=st.sets(st.integers(0, 4)))
def test_places_that_hold_arrays_are_found(
    make_array, make_storage, integration, arguments, wanted
):
    """Those, and no others."""
    bases = (0x1000, 0x2000, 0x3000)
    arrays = _make(arguments, bases, make_array, make_storage)
    found = look(arrays, integration)
    places = found.places(integration)
    assert found.holding(wanted) == {
        i for i, place in enumerate(places) if wanted & set(place.arrays)
    }


def test_a_place_bounds_overlapping_arrays(make_array, make_storage, integration):
    """From the first byte of any to the last byte of any."""
    storage = make_storage(0x1000)
    arrays = [
        make_array(0x1008, 8, storage=storage),
        make_array(0x1000, 24, storage=storage),
    ]
    assert look(arrays, integration).places(integration) == [
        Place(storage, 0x1000, 0x1018, (0, 1))
    ]
