"""Arrays are known to look as they did, or it is denied; nothing is taken on trust."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import sapwood as sw
from sapwood import _fast
from sapwood.tree.call.signature import describe
from sapwood.tree.replay.last_call import LastCall
from tests.support.lending import relook
from tests.support.rig import IN_C, Rig

WAYS = {
    "turned": lambda face: face.T,
    "of another shape": lambda face: face.reshape(2, 8),
    "of one more dimension": lambda face: face[..., None],
    "of another dtype": lambda face: face.view(np.int64),
    "of every other element": lambda face: face[:, ::2],
}


@pytest.fixture(params=["in C", "in Python"])
def rig(request, monkeypatch):
    """Return a rig whose arrays may change, and whose fast replays are played so."""
    if request.param == "in Python":
        monkeypatch.setattr(_fast, "native", lambda: None)
    elif _fast.native() is None:
        pytest.skip("nothing in C here")
    made = Rig(IN_C)
    yield made
    gc.collect()
    made.finish()


@pytest.fixture(params=WAYS)
def way(request):
    """Return one way of giving an array other looks."""
    return WAYS[request.param]


def _agree(call, array, host, way):
    """Compare calls with what they give on the host, over changes there and back."""
    plain = array.face
    for change, now in [(way, way(host)), (lambda _: plain, host)] * 3:
        relook(array, change)
        for _ in range(12):
            found, expected = np.asarray(call()), now * 2.0 + 1.0
            assert found.shape == expected.shape
            assert found.tobytes() == np.ascontiguousarray(expected).tobytes()


def _read(rt, weight, x):
    f = rt.graph(lambda x: weight * 2.0 + x)
    return f, lambda: f(x)


def _passed(rt, weight, x):
    f = rt.graph(lambda weight, x: weight * 2.0 + x)
    return f, lambda: f(weight, x)


def _read_by_the_last_part(rt, weight, x):
    live = sw.eager(lambda y: y * 1.0)
    f = rt.graph(lambda x: live(x * 1.0) + weight * 2.0)
    return f, lambda: f(x)


@pytest.mark.parametrize("how", [_read, _passed, _read_by_the_last_part])
def test_what_changes_in_place_is_another(rig, way, how):
    """Each of its looks has one recording; all parts look before the first replays."""
    host = np.arange(16.0).reshape(4, 4)
    weight, x = rig.runtime.array(host), rig.runtime.array([1.0])
    f, call = how(rig.runtime, weight, x)
    for _ in range(12):
        call()
    _agree(call, weight, host, way)
    assert f.stats().recordings == 2
    if how is _read:
        assert "weight had layout ((4, 4), " in f.explain()


def test_a_memo_knows_the_same_arrays_by_their_looks(rig, way):
    """Changed in place they are no call like the one before, till they are again."""
    integration = rig.runtime._recordings.integration
    arrays = tuple(rig.runtime.array(np.ones((4, 4))) for _ in range(2))
    last_call = LastCall.of(describe(arrays, {}, integration), integration)
    for each in (*arrays, *arrays):
        assert last_call.whereabouts(arrays) is last_call.lows
        before = each.face
        relook(each, way)
        assert last_call.recognise(arrays, {}) is None
        relook(each, lambda _, before=before: before)
        assert last_call.recognise(arrays, {}) is not None


class Slots:
    """What functions with eager regions read."""


@pytest.mark.parametrize("before", [True, False])
def test_what_an_eager_region_changes_in_place_is_seen_behind_it(rig, way, before):
    """There and back with every call, whether it is read before that or not."""
    host = np.arange(16.0).reshape(4, 4)
    o, x = Slots(), rig.runtime.array([1.0])
    o.weight = rig.runtime.array(host)
    plain, looks = o.weight.face, [host, way(host)]

    @sw.eager
    def live(y):
        relook(o.weight, way if o.weight.face is plain else lambda _: plain)
        return y + 1.0

    def fn(x):
        y = (o.weight * 3.0).sum() + x if before else x * 3.0
        return live(y) + o.weight * 2.0

    f = rig.runtime.graph(fn)
    for turn in range(24):
        old, new = looks[turn % 2], looks[1 - turn % 2]
        first = (old * 3.0).sum() + 1.0 if before else 3.0
        assert np.array_equal(np.asarray(f(x)), first + 1.0 + new * 2.0)
    assert f.stats().recordings == 2


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "another array"])
def test_what_becomes_read_only_is_another(rig, in_place):
    """C is told so too, of what is passed and of what is read."""
    array, read = (rig.runtime.array(np.ones(4)) for _ in range(2))
    plain, faces = array.face, {True: read.face, False: np.broadcast_to(read.face, 4)}
    passed = rig.runtime.graph(lambda y: y * (2 if y.flags.writeable else 3))
    found = rig.runtime.graph(lambda: read * (2 if read.flags.writeable else 3))
    for writeable in [True, False] * 3:
        face = plain if writeable else np.broadcast_to(plain, plain.shape)
        if in_place:
            relook(array, lambda _, face=face: face)
        else:
            array = array.seen(face)
        relook(read, lambda _, way=faces[writeable]: way)
        for _ in range(12):
            for each in passed(array), found():
                assert np.asarray(each).tolist() == [2 if writeable else 3] * 4
