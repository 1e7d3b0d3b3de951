"""Arrays that a function reads: their looks are guarded, where they lie is told."""

from __future__ import annotations

import pytest

from sapwood.errors import MisuseError, StaleOutput
from sapwood.tree.guards import survey
from sapwood.tree.nests.containers import register_container


class Model:
    def __init__(self, make):
        self.w, self.b, self.unread = make(2, 3), make(3), make(9)
        self.more = [{"g": make(4)}, make(5)]
        self.h = None

    def forward(self, x):
        return self.w, self.b, self.more, self.h, x


def test_used_arrays_are_found_in_order(guard, array):
    """The slots of used arrays, what they hold, and their paths go together."""
    model = Model(array)
    ambient = guard(model.forward, used=lambda a: a.shape != (3,))
    assert [slot.path for slot in ambient.arrays] == [
        "self.w",
        "self.more[1]",
        "self.more[0]['g']",
    ]
    now = ambient.match()
    assert [slot.read() for slot in ambient.arrays] == now
    assert [a.shape for a in now] == [(2, 3), (5,), (4,)]


def test_replaced_arrays_are_seen(guard, array):
    """An array that looks the same may take the place of another, and is found."""
    model = Model(array)
    ambient = guard(model.forward)
    model.w = new = array(2, 3)
    assert (
        dict(zip(ambient.arrays, ambient.match(), strict=True))[
            next(slot for slot in ambient.arrays if slot.path == "self.w")
        ]
        is new
    )


@pytest.mark.parametrize("used", [True, False])
def test_other_looks_are_a_miss(guard, array, used):
    """An array of another shape, none at all, or one where there was none: a miss."""
    for name, value in [("w", array(9)), ("b", None), ("h", array(1))]:
        model = Model(array)
        ambient = guard(model.forward, used=lambda _: used)
        setattr(model, name, value)
        assert not ambient.holds()
        assert ambient.miss().startswith(f"self.{name} was ")


def test_arguments_are_left_to_the_signature(guard, array):
    """Leaves of argument containers are not guarded; objects in them are."""
    model = Model(array)
    state = {"x": array(1), "n": 1}
    ambient = guard(
        lambda state, models: (models[0].w, state), state=state, models=[model]
    )
    assert [slot.path for slot in ambient.arrays] == ["models[0].w"]
    state["n"] = 2
    assert ambient.holds()
    assert ambient.match() == [model.w]
    model.w = array(7)
    assert ambient.miss() == "models[0].w was <FakeArray>, is another <FakeArray>"


def test_an_argument_that_is_also_ambient_is_guarded(guard):
    """What the function reaches by itself is not covered by being passed as well."""
    state = {"n": 1}
    ambient = guard(lambda x: (state["n"], x), x=state)
    state["n"] = 2
    assert ambient.miss() == "state['n'] was 1, is 2"


def test_registered_containers_are_their_arrays(guard, array, watch):
    """What a registered container holds is found, made anew by each look or not."""

    class Box:
        def __init__(self, inner, kind):
            self.inner, self.kind = inner, kind

    def flatten(box):
        fresh = array(*box.inner.shape)
        fresh.address = box.inner.address
        return [fresh], box.kind

    register_container(Box, flatten, lambda kind, children: Box(children[0], kind))
    box = Box(array(2), "a")

    def fn():
        return box

    ambient = guard(fn)
    assert [a.address for a in ambient.match()] == [box.inner.address]
    assert watch(fn) == ()
    box.kind = "b"
    assert ambient.miss() == "box[1] was 'a', is 'b'"


def test_revoked_arrays_may_lie_around(arrays, array):
    """An array that has no layout any more does not hinder a survey."""

    class Revoking(type(arrays)):
        def layout(self, _):
            raise StaleOutput("it", "it was revoked", "Copy it.")

    x = array(2)

    def fn():
        return x

    ambient = survey(fn, {}, Revoking()).guards(bool)
    assert ambient.holds()


def test_a_slot_that_is_gone_says_so(guard, array):
    """Reading where nothing is any more raises, and names the slot."""
    model = Model(array)
    slot = guard(model.forward).arrays[0]
    delattr(model, slot.path.removeprefix("self."))
    with pytest.raises(MisuseError, match=f"{slot.path} is not there any more"):
        slot.read()
    del model
    with pytest.raises(MisuseError, match="is gone"):
        slot.read()


def test_surveys_tell_arrays_and_keys(arrays, array):
    """All arrays reached are told; equal surroundings have equal, hashable keys."""
    model = Model(array)
    first = survey(model.forward, {"x": array(1)}, arrays)
    assert {a.shape for a in first.arrays()} == {(2, 3), (3,), (4,), (5,)}
    assert hash(first.key) == hash(survey(model.forward, {"x": array(2)}, arrays).key)
    model.h = 1
    assert first.key != survey(model.forward, {"x": array(1)}, arrays).key
