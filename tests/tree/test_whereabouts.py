"""Where arrays are is remembered while they look as they did, and no longer."""

from __future__ import annotations

import contextlib
import gc
import random

import pytest

from sapwood.tree.call.integration import LayoutProbe, Look
from sapwood.tree.call.signature import Whereabouts, look, probe_of


class _Looks(str):
    """A layout."""

    extent = 0, 8


class _Thing:
    """An array or a storage, that can be held weakly."""

    stale = None

    def __init__(self, at=0, storage=None):
        self.at, self.storage, self.looks = at, storage, "plain"


class _Adapter:
    """Arrays of which some have storages that nobody keeps; counts looks.

    ``meanwhile`` is called while it looks at many.
    """

    def __init__(self):
        self.asked, self.meanwhile = 0, lambda: None

    def is_array(self, value):
        return type(value) is _Thing

    def look(self, array):
        self.asked += 1
        return Look(_Looks(array.looks), array.storage or _Thing(), array.at)

    def probe(self, arrays):
        """Return what looks at arrays again, unless they are the same ones."""
        self.meanwhile()
        known = [array.looks for array in arrays]
        made = LayoutProbe(
            self, arrays, lambda same: [array.looks for array in same] == known
        )
        self.meanwhile()
        return made


class _Alert(_Adapter):
    """Arrays that are looked at each time."""

    def probe(self, arrays):
        return LayoutProbe(self, arrays, lambda _: False)


KINDS = [_Adapter, _Alert]


def _plain(arrays):
    return [_Looks("plain") for _ in arrays]


def seen(where, arrays, integration):
    """Return what is told of arrays that were plain."""
    return where.look(arrays, _plain(arrays), integration)


def _seen(found):
    return list(found.arrays), list(found.lows), found.sharing


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(5))
def test_it_tells_what_looking_tells(kind, seed):
    """Whatever arrays come and go, and share storages or not."""
    draw, integration = random.Random(seed), kind()
    storages = [_Thing() for _ in range(3)]
    pool = [_Thing(8 * i, draw.choice(storages)) for i in range(6)]
    for count in range(4):
        where = Whereabouts()
        for _ in range(50):
            arrays = draw.sample(pool, count)
            for _ in range(2):
                found = seen(where, arrays, integration)
                expected = look(arrays, integration)
                assert _seen(found) == _seen(expected)
                assert list(found.storages) == list(expected.storages)
            at = 64 + 8 * draw.randrange(1 << 20)
            pool[draw.randrange(6)] = _Thing(at, draw.choice(storages))


def test_the_same_arrays_are_not_looked_at():
    """Nor is their memory, or anybody, kept alive."""
    integration, where = _Adapter(), Whereabouts()
    arrays = [_Thing(8, _Thing()), _Thing(16, _Thing())]
    seen(where, arrays, integration)
    asked = integration.asked
    seen(where, list(arrays), integration)
    assert integration.asked == asked
    arrays[0] = _Thing(8, _Thing())
    gc.collect()
    assert seen(where, arrays, integration).storages[0] is arrays[0].storage


@pytest.mark.parametrize("kind", KINDS)
def test_a_storage_may_go_before_its_array(kind):
    """One that stands for somebody else's memory is asked for anew."""
    integration, where = kind(), Whereabouts()
    arrays = [_Thing(16)]
    for _ in range(3):
        found = seen(where, arrays, integration)
        assert found.storages[0] is not None
        del found


@pytest.mark.parametrize("kind", KINDS)
def test_a_stale_storage_is_none_of_what_lies_there_now(kind):
    """Somebody may have it still, as a donated array."""
    integration, where, old = kind(), Whereabouts(), _Thing(8, _Thing())
    seen(where, [old], integration)
    old.storage.stale = "donated"
    new = _Thing(8, _Thing())
    assert seen(where, [new], integration).storages == [new.storage]


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_that_look_otherwise_are_none_of_those(kind):
    """The same object at the same address; and as it was again, it is known again."""
    integration, where = kind(), Whereabouts()
    arrays = [_Thing(8, _Thing()), _Thing(16, _Thing())]
    for each in (*arrays, *arrays):
        for _ in range(2):
            assert seen(where, arrays, integration).lows == [8, 16]
        each.looks = "turned"
        for _ in range(2):
            assert seen(where, arrays, integration) is None
        each.looks = "plain"


@pytest.mark.parametrize("kind", KINDS)
def test_where_others_lie_that_look_otherwise_is_not_learnt(kind):
    """Nothing that is told of them later is of what was there before."""
    integration, where = kind(), Whereabouts()
    arrays = [_Thing(8, _Thing())]
    seen(where, arrays, integration)
    arrays[0] = _Thing(16, _Thing())
    arrays[0].looks = "turned"
    assert seen(where, arrays, integration) is None
    arrays[0].looks = "plain"
    assert seen(where, arrays, integration).lows == [16]


@pytest.mark.parametrize("kind", KINDS)
def test_values_that_are_no_arrays_look_otherwise(kind):
    """Also where there are too few, or too many."""
    integration, array = kind(), _Thing(8, _Thing())
    probe = probe_of([array], _plain([array]), integration)
    assert probe([array]) == probe.lows == [8]
    for values in ([], [array, array], [3], [None], [_Looks("plain")]):
        assert probe(values) is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_probe_is_made_of_those_layouts_alone(kind):
    """Of others there is none."""
    integration, array = kind(), _Thing(8, _Thing())
    assert probe_of([array], [_Looks("turned")], integration) is None


def test_nothing_stands_for_what_was_so_for_a_moment():
    """Another thread turned an array over and back while it was looked at."""
    integration, array = _Adapter(), _Thing(8, _Thing())

    def turn():
        array.looks = "turned" if array.looks == "plain" else "plain"

    integration.meanwhile = turn
    made = probe_of([array], _plain([array]), integration)
    array.looks = "turned"
    assert made is None or made([array]) is None


class _Interrupted(_Alert):
    """An adapter that may be interrupted when it is asked."""

    left = None

    def look(self, array):
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
        return super().look(array)


@pytest.mark.parametrize("steps", range(9))
@pytest.mark.parametrize("known", [False, True])
def test_a_look_that_is_interrupted_is_none(steps, known):
    """What it had found by then is not taken for what is there."""
    integration, where = _Interrupted(), Whereabouts()
    before = [_Thing(8, _Thing()), _Thing(16, _Thing())]
    after = [_Thing(24, _Thing()), _Thing(32, _Thing())]
    if known:
        seen(where, before, integration)
    integration.left = steps
    with contextlib.suppress(KeyboardInterrupt):
        seen(where, after, integration)
    integration.left = None
    for arrays in (after, before, after):
        assert _seen(seen(where, arrays, integration)) == _seen(
            look(arrays, integration)
        )
