"""A tensor that is given other looks in place, at its address, is another."""

from __future__ import annotations

import contextlib
import threading
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from sapwood import _fast  # noqa: E402
from sapwood.tree.call.signature import (  # noqa: E402
    Whereabouts,
    describe,
    probe_of,
)
from sapwood.tree.choose.function_cache import ambient_arrays  # noqa: E402
from sapwood.tree.guards import Surveyor  # noqa: E402
from sapwood.tree.regions.crossing import Passed  # noqa: E402
from sapwood.tree.replay.last_call import LastCall  # noqa: E402

# Ways to change a tensor of four by four, its address and its bytes excepted.


def _turned_data(p):
    p.data = p.data.t()


def _turned_data_inside(p):
    p.data.t_()  # of another object
    p.data = p.data.t()


def _turned(p):
    with torch.no_grad():
        p.t_()


def _smaller(p):
    with torch.no_grad():
        p.resize_(2, 4)


def _reshaped(p):
    p.data = p.data.view(2, 8)


def _one_more(p):
    with torch.no_grad():
        p.unsqueeze_(-1)


def _other_numbers(p):
    p.data = p.data.view(torch.int32)


def _strided(p):
    with torch.no_grad():
        p.as_strided_((4, 4), (0, 1))


def _set(p):
    with torch.no_grad():
        p.set_(p.untyped_storage(), 0, (8, 2), (2, 1))


WAYS = {
    "another dtype": _other_numbers,
    "another shape": _reshaped,
    "as_strided_": _strided,
    "fewer elements": _smaller,
    "one more dimension": _one_more,
    "set_": _set,
    "t_": _turned,
    "turned data": _turned_data,
    "turned data, twice": _turned_data_inside,
}

MAKES = {
    "tensor": lambda made: made,
    "parameter": lambda made: torch.nn.Parameter(made, requires_grad=False),
    "trained": torch.nn.Parameter,
    "buffer": torch.nn.Buffer,
}


def _made(kind, device="cpu"):
    return MAKES[kind](torch.arange(1.0, 17.0, device=device).view(4, 4))


def _restored(tensor, before):
    tensor.data = before


@pytest.fixture(params=WAYS)
def way(request):
    """Return one way of changing a tensor in place."""
    return WAYS[request.param]


@pytest.fixture(params=MAKES)
def kind(request):
    """Return which kind of tensor is changed."""
    return request.param


@pytest.fixture
def changes(way, kind):
    """Return what changes a tensor; where torch refuses, there is nothing to test."""
    trial = _made(kind)
    try:
        way(trial)
    except RuntimeError:
        pytest.skip("torch does not let this be done to this kind")
    return way


@pytest.fixture(params=["in C", "in Python"])
def told(request, monkeypatch):
    """Have tensors looked at so."""
    if request.param == "in Python":
        monkeypatch.setattr(_fast, "native", lambda: None)
    elif _fast.native() is None:
        pytest.skip("nothing in C here")


def _holds(integration, tensors):
    """Return what says whether tensors look as these do now."""
    layouts = [integration.look(x).layout for x in tensors]
    probe = probe_of(tensors, layouts, integration)
    return lambda values: probe(values) is not None


@pytest.mark.usefixtures("told")
def test_other_looks_are_no_longer_those(integration, kind, changes):
    """Of the first of two, or of the second, and whoever is asked in both places."""
    one, two = _made(kind), _made("tensor")
    for tensors in ([one], [one, two], [two, one], [one, two, one]):
        holds = _holds(integration, tensors)
        before = one.data
        assert holds(tensors)
        others = {id(one): _made(kind), id(two): _made("tensor")}
        assert holds([others[id(each)] for each in tensors])
        changes(one)
        assert not holds(tensors)
        _restored(one, before)
        assert holds(tensors)


@pytest.mark.usefixtures("told")
def test_no_tensors_are_as_they_were(integration):
    """There is something to ask all the same: tensors can change."""
    assert _holds(integration, [])([])
    assert not _holds(integration, [])([_made("tensor")])


@pytest.mark.usefixtures("told")
def test_a_conjugate_is_another(integration):
    """At the same address, and of the same shape."""
    spun = torch.ones(4, dtype=torch.complex64) * 1j
    holds = _holds(integration, [spun])
    assert holds([spun])
    at = spun.data_ptr()
    spun.data = spun.data.conj()
    assert spun.data_ptr() == at
    assert not holds([spun])


@pytest.mark.usefixtures("told")
def test_where_tensors_are_is_not_asked(integration):
    """Nor what is in them: that is for others to say."""
    tensors = [_made("trained"), _made("tensor")]
    holds = _holds(integration, tensors)
    tensors[0].data = torch.zeros(4, 4)
    with torch.no_grad():
        tensors[1].zero_()
    assert holds(tensors)


def test_an_argument_that_is_changed_is_another(integration, kind, changes):
    """Till it is as it was again."""
    array, other = _made(kind), _made("tensor")
    with torch.no_grad():
        last_call = LastCall.of(describe((array, other), {}, integration), integration)
        for _ in range(3):
            assert last_call.whereabouts((array, other)) is last_call.lows
            before = array.data
            changes(array)
            assert last_call.recognise((array, other), {}) is None
            _restored(array, before)
            assert last_call.recognise((array, other), {}) is not None


def _recording(integration, fn):
    """Return what is asked of a recording of a function."""
    surveyor = Surveyor(lambda: fn, integration)
    ambient = surveyor.survey({"x": 1}).guards(lambda _: True)
    return SimpleNamespace(ambient=ambient, whereabouts=Whereabouts()), surveyor


def test_an_eager_region_that_gives_other_memory_is_noticed(integration, kind):
    """Of the same looks; and what is as it was again is so."""
    array = _made(kind)
    before, passed = array.data, Passed((array,), {}, integration)
    array.data = torch.zeros(4, 4)
    assert passed.reshaped()
    _restored(array, before)
    assert not passed.reshaped()


def test_what_an_eager_region_was_passed_and_changes_is_noticed(
    integration, kind, changes
):
    """However it was passed, and in whatever container; values may be written."""
    array, other = _made(kind), _made("tensor")
    ways = (
        ((array, other), {}),
        ((other,), {"y": array}),
        (([other, {"k": array}],), {}),
    )
    for args, kwargs in ways:
        before, passed = array.data, Passed(args, kwargs, integration)
        with torch.no_grad():
            array.add_(1)
        assert not passed.reshaped()
        changes(array)
        assert passed.reshaped()
        assert not passed.changed()
        _restored(array, before)
        assert not passed.reshaped()


def test_what_a_function_reads_and_is_changed_is_another(integration, kind, changes):
    """Till it is as it was again; why is told, and a survey sees it, too."""
    weight, more = _made(kind), [_made("tensor")]
    node, surveyor = _recording(integration, lambda x: (x, weight, more))
    key = surveyor.survey({"x": 1}).key
    for turn in range(12):
        found = ambient_arrays(node, integration)
        assert [each.data_ptr() for each in found.arrays] == [
            slot.read().data_ptr() for slot in node.ambient.arrays
        ]
        assert node.ambient.miss() is None
        before = weight.data
        changes(weight)
        assert weight.data_ptr() == before.data_ptr()
        assert ambient_arrays(node, integration) is None, turn
        assert node.ambient.miss().startswith("weight had layout (torch.Size([4, 4]), ")
        assert surveyor.survey({"x": 1}).key != key
        _restored(weight, before)
        assert surveyor.survey({"x": 1}).key == key


def test_what_is_changed_while_it_is_looked_at_is_another(integration):
    """Another thread turns it over and back, and later for good."""
    weight = _made("tensor")
    node, _ = _recording(integration, lambda x: (x, weight))

    def hasty(arrays):
        weight.t_()
        made = type(integration).probe(integration, arrays)
        weight.t_()
        return made

    integration.probe = hasty
    assert ambient_arrays(node, integration) is None
    del integration.probe
    assert ambient_arrays(node, integration) is not None
    weight.t_()
    assert ambient_arrays(node, integration) is None


@pytest.mark.usefixtures("told")
def test_a_probe_tells_the_same_tensors_from_their_like(integration):
    """Where those are is the very list that it has; others' places are another."""
    tensors = [_made("trained"), _made("tensor")]
    probe = integration.probe(tensors)
    assert [*probe.lows] == [each.data_ptr() for each in tensors]
    assert probe(tensors) is probe.lows
    others = [tensors[0], tensors[1].view(4, 4)]
    assert [*probe(others)] == [*probe.lows]
    assert probe(others) is not probe.lows
    tensors[0].data = _made("tensor")
    assert [*probe(tensors)] == [each.data_ptr() for each in tensors]


def test_a_probe_is_of_the_mode_that_it_was_made_in(integration):
    """What requires grad, and was computed, is no argument where grad is enabled."""
    computed = _made("trained") * 2
    with torch.no_grad():
        last_call = LastCall.of(describe((computed,), {}, integration), integration)
        assert last_call.recognise((computed,), {}) is not None
    with torch.enable_grad(), contextlib.suppress(TypeError):
        assert last_call.recognise((computed,), {}) is None


# On a GPU.


class Weights:
    """What a function reads."""

    def __init__(self, kind):
        self.weight, self.other = (_made(kind, "cuda") for _ in range(2))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["tensor", "trained"])
def test_functions_see_what_is_changed_in_place(alike, kind, changes):
    """What is read, and what is passed: there and back, all is as it is eagerly."""

    def program(w):
        o, x = Weights(kind), torch.ones(1, device="cuda")
        reads = w.graph(lambda x: (o.weight * 2 + x, o.other - x))
        given = w.graph(lambda p, x: (p * 2 + x, o.other - x))

        def calls():
            for _ in range(12):
                with torch.no_grad():
                    shown = reads(x), given(o.weight, x)
                yield shown

        yield from calls()
        for _ in range(3):
            before = o.weight.data
            changes(o.weight)
            assert o.weight.data_ptr() == before.data_ptr()
            yield from calls()
            _restored(o.weight, before)
            yield from calls()

    world = alike(program)
    # Two functions, two kinds of looks, and whether the results before are kept.
    assert world.count("recordings") <= 8
    assert world.count("replays") > 60


@pytest.mark.gpu
@pytest.mark.parametrize("role", ["read", "passed"])
def test_functions_see_a_conjugate(alike, role):
    """Complex tensors at the same address, and of the same shape."""

    def program(w):
        weight, x = w.values(4, dtype=torch.complex64), torch.ones(1, device="cuda")
        if role == "read":
            f, args = w.graph(lambda x: weight * 2 + x), (x,)
        else:
            f, args = w.graph(lambda p, x: p * 2 + x), (weight, x)
        for turn in range(72):
            yield f(*args)
            if turn % 12 == 11:
                weight.data = weight.data.conj()

    assert alike(program).count("replays") > 60


@pytest.mark.gpu
def test_a_training_step_sees_what_is_changed_in_place(alike):
    """Between steps, on this thread and on another."""

    def program(w):
        net = torch.nn.Module()
        net.weight = torch.nn.Parameter(_made("tensor", "cuda"))
        x = w.values(4, 4)

        @w.graph
        def step(x):
            net.weight.grad = None
            loss = (x * net.weight).sin().sum()
            loss.backward()
            with torch.no_grad():
                net.weight.sub_(net.weight.grad, alpha=0.1)
            return loss.detach()

        def turn():
            net.weight.data = net.weight.data.t()

        for turns in range(4):
            for _ in range(8):
                yield step(x), net.weight.detach()
            thread = threading.Thread(target=turn)
            if turns % 2:
                turn()
            else:
                thread.start()
                thread.join()

    assert alike(program).count("replays") > 12
