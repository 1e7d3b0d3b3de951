"""Where arrays are is remembered while they are the same objects, and no longer."""

from __future__ import annotations

import contextlib
import gc
import random

import pytest

from sapwood.tree.call.integration import Look
from sapwood.tree.call.signature import Whereabouts, look


class _Looks(str):
    """A layout."""

    extent = 0, 8


class _Thing:
    """An array or a storage, that can be held weakly."""

    stale = None

    def __init__(self, at=0, storage=None):
        self.at, self.storage, self.looks = at, storage, "plain"


class _Adapter:
    """Arrays of which some have storages that nobody keeps."""

    settled = False

    def __init__(self):
        self.asked = 0

    def look(self, array):
        self.asked += 1
        return Look(_Looks(array.looks), array.storage or _Thing(), array.at)

    def marks(self, _):
        return None

    def steady(self, arrays):
        known = [array.looks for array in arrays]
        return lambda values: [array.looks for array in values] == known


def seen(where, arrays, integration):
    """Return what is told of arrays that were plain."""
    return where.look(arrays, integration, [_Looks("plain") for _ in arrays])


def _seen(found):
    return list(found.arrays), list(found.lows), found.sharing


@pytest.mark.parametrize("seed", range(5))
def test_it_tells_what_looking_tells(seed):
    """Whatever arrays come and go, and share storages or not."""
    draw, integration, where = random.Random(seed), _Adapter(), Whereabouts()
    storages = [_Thing() for _ in range(3)]
    pool = [_Thing(8 * i, draw.choice(storages)) for i in range(6)]
    for _ in range(200):
        arrays = draw.sample(pool, draw.randrange(4)) if draw.random() < 0.5 else pool
        for _ in range(2):
            found, expected = (
                seen(where, arrays, integration),
                look(arrays, integration),
            )
            assert _seen(found) == _seen(expected)
            assert list(found.storages) == list(expected.storages)
        pool[draw.randrange(6)] = _Thing(draw.randrange(64), draw.choice(storages))


def test_arrays_that_are_known_are_not_asked_about():
    """Nor is their memory, or anybody, kept alive."""
    integration, where = _Adapter(), Whereabouts()
    arrays = [_Thing(storage=_Thing()), _Thing(storage=_Thing())]
    seen(where, arrays, integration)
    asked = integration.asked
    seen(where, list(arrays), integration)
    assert integration.asked == asked
    arrays[0] = _Thing(storage=_Thing())
    gc.collect()
    assert seen(where, arrays, integration).storages[0] is arrays[0].storage


def test_a_storage_may_go_before_its_array():
    """One that stands for somebody else's memory is asked for anew."""
    integration, where = _Adapter(), Whereabouts()
    arrays = [_Thing(16)]
    for _ in range(3):
        found = seen(where, arrays, integration)
        assert found.storages[0] is not None
        del found


class _Marked(_Adapter):
    """Arrays that are known by their addresses, and by something else."""

    def __init__(self):
        super().__init__()
        self.others = ["plain"]

    def marks(self, arrays):
        return [array.at for array in arrays], self.others


def test_marks_stand_for_the_arrays():
    """New objects at the same addresses are known; at others they are asked about."""
    integration, where, storage = _Marked(), Whereabouts(), _Thing()
    where.others = ["plain"]
    seen(where, [_Thing(8, storage)], integration)
    asked = integration.asked
    again = [_Thing(8, storage)]
    found = seen(where, again, integration)
    assert integration.asked == asked
    assert _seen(found) == ([*again], [8], None)
    assert found.storages == [storage]
    moved = [_Thing(16, storage)]
    assert _seen(seen(where, moved, integration)) == _seen(look(moved, integration))


def test_other_marks_are_another_recording_s():
    """Where anything but an address differs, nothing is told."""
    integration, where = _Marked(), Whereabouts()
    assert seen(where, [_Thing(8, _Thing())], integration) is None
    where.others = ["plain"]
    assert seen(where, [_Thing(8, _Thing())], integration) is not None
    integration.others = ["frozen"]
    assert seen(where, [_Thing(8, _Thing())], integration) is None


@pytest.mark.parametrize("kind", [_Adapter, _Marked])
def test_arrays_that_look_otherwise_are_none_of_those(kind):
    """The same object at the same address; and as it was again, it is known again."""
    integration, where = kind(), Whereabouts()
    where.others = ["plain"]
    arrays = [_Thing(8, _Thing()), _Thing(16, _Thing())]
    for each in (*arrays, *arrays):
        for _ in range(2):
            assert seen(where, arrays, integration).lows == [8, 16]
        each.looks = "turned"
        for _ in range(2):
            assert seen(where, arrays, integration) is None
        each.looks = "plain"


def test_where_others_lie_that_look_otherwise_is_not_learnt():
    """Nothing that is told of them later is of what was there before."""
    integration, where = _Marked(), Whereabouts()
    where.others = ["plain"]
    array = _Thing(8, _Thing())
    seen(where, [array], integration)
    array.at, array.looks = 16, "turned"
    assert seen(where, [array], integration) is None
    array.looks = "plain"
    assert seen(where, [array], integration).lows == [16]


class _Interrupted(_Adapter):
    """An adapter that may be interrupted when it is asked; with marks, or without."""

    def __init__(self, *, marked):
        super().__init__()
        self.marked, self.left = marked, None

    def _count(self):
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt

    def look(self, array):
        self._count()
        return super().look(array)

    def marks(self, arrays):
        return ([array.at for array in arrays], ()) if self.marked else None


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("steps", range(5))
@pytest.mark.parametrize("known", [False, True])
def test_a_look_that_is_interrupted_is_none(marked, steps, known):
    """What it had found by then is not taken for what is there."""
    integration, where = _Interrupted(marked=marked), Whereabouts()
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
