"""What a recording touches is found from its parameters, and nobody is believed."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from sapwood.driver.layers import Layer
from sapwood.errors import DriverError, StoreError
from sapwood.graphs.capture import ops_of
from sapwood.graphs.inspect import inspect, is_refused, strays
from sapwood.graphs.recording import Kind, RecordedOp, Recording, Relocation, Touch

SIZE = 32


@pytest.fixture
def places(bench):
    """Return three pages."""
    return [bench.memory(value) for value in (3, 5, 7)]


@pytest.fixture
def recording(bench, places):
    """Return a recording of kernels, a copy and a set on these pages."""
    a, b, c = places

    def program():
        bench.launch(a, b, 1)
        bench.driver.copy(c + 8, a, SIZE, bench.stream)
        bench.driver.set(a, 1, 8, bench.stream)

    graph = bench.captured(program)
    found = ops_of(bench.driver, graph, bench.named).recording(bench.regions(*places))
    bench.driver.destroy_graph(graph)
    return found


@pytest.fixture
def function(bench):
    """Return what finds a kernel in any image."""

    def function(image, name):
        module = bench.driver.load_module(image)
        try:
            return bench.driver.find_function(module, name)
        finally:
            modules.append(module)

    modules = []
    yield function
    for module in modules:
        bench.driver.unload_module(module)


@pytest.fixture
def look(bench, function):
    """Return what inspects a recording on the bench's driver."""
    return lambda recording, addresses: inspect(
        recording, addresses, bench.driver, function
    )


def test_touches_are_those_of_the_capture(look, recording, places, bench):
    """The same bytes of the same symbols, here and at any other addresses."""
    bare = replace(recording, touches=())
    assert set(look(bare, places).touches) == set(recording.touches)
    others = [bench.memory() for _ in places]
    found = look(bare, others)
    assert set(found.touches) == set(recording.touches)
    assert replace(found, touches=()) == bare


def test_what_a_file_says_of_touches_is_not_believed(look, recording, places):
    """They are found anew, whatever was there."""
    lying = replace(recording, touches=(Touch(2, 0, 1 << 40, True),))
    assert set(look(lying, places).touches) == set(recording.touches)


def _changed(recording, number, **fields):
    ops = list(recording.ops)
    ops[number] = replace(ops[number], **fields)
    return replace(recording, ops=tuple(ops))


def _relocated(recording, number, **fields):
    relocations = list(recording.relocations)
    relocations[number] = replace(relocations[number], **fields)
    return replace(recording, relocations=tuple(relocations))


@pytest.mark.parametrize("number", range(5))
def test_every_address_is_a_relocated_one(look, recording, places, number):
    """A word that is taken for an address must not be any number of the file's."""
    assert len(recording.relocations) == 5
    kept = [r for i, r in enumerate(recording.relocations) if i != number]
    with pytest.raises(StoreError, match="holds an address that is not relocated"):
        look(replace(recording, relocations=tuple(kept)), places)


def test_every_relocated_word_is_an_address(look, recording, places):
    """A size or a number is never made of an address."""
    for number, offset in ((0, 4), (0, 12), (1, 16), (2, 8), (2, 16)):
        more = Relocation(number, offset, 0, 0)
        wrong = replace(recording, relocations=(*recording.relocations, more))
        with pytest.raises(StoreError, match=r"where no address is|not relocated"):
            look(wrong, places)


@pytest.mark.parametrize("addend", [-(1 << 47), -(1 << 48), (1 << 48) - 1], ids=hex)
def test_addresses_that_cannot_be_are_refused_or_stray(look, recording, places, addend):
    """Below nothing there is no address; and far away is outside."""
    wrong = _relocated(recording, 0, addend=addend)
    try:
        found = look(wrong, places)
    except StoreError:
        assert addend < 0
        return
    assert strays(found, lambda _: [(0, 1 << 16)])


@pytest.mark.parametrize(
    "fields",
    [
        {"image": b"nobody's"},
        {"name": "nothing"},
        {"params": b""},
        {"params": bytes(23)},
        {"kind": Kind.EMPTY, "params": bytes(24)},
    ],
    ids=str,
)
def test_kernels_and_parameters_are_known(look, recording, places, fields):
    """An op is refused that the device does not know, or not with such parameters."""
    with pytest.raises(StoreError, match=r"^op 0"):
        look(_changed(recording, 0, **fields), places)


def test_a_device_that_fails_is_no_fault_of_the_recording(
    bench, recording, places, function
):
    """Only what the device refuses is the recording's: all else is raised as it is."""
    handle = function(recording.ops[0].image, "mix")
    bench.driver.plan = (bench.driver.position,)
    with pytest.raises(DriverError) as failed:
        inspect(recording, places, bench.driver, lambda *_: handle)
    assert bench.driver.fired == "pointers"
    assert not is_refused(failed.value)
    assert not is_refused(StoreError("no driver said so"))


class _Blind(Layer):
    """A device that does not know which parameters are addresses."""

    def around(self, name, call, args):
        return None if name == "pointers" else call(*args)


def test_a_device_that_knows_no_addresses_is_not_guessed_for(
    bench, recording, places, function
):
    """Where addresses cannot be told from numbers, nothing is linked anew."""
    with pytest.raises(StoreError, match="does not know which are addresses"):
        inspect(recording, places, _Blind(bench.driver), function)


def test_nothing_is_touched_by_empty_ops_and_empty_intervals(look, places):
    """An address with which nothing is done need not be relocated."""
    params = struct.pack("<3Q", 1, 2, 0)
    ops = (RecordedOp(Kind.EMPTY, b""), RecordedOp(Kind.COPY, params))
    assert look(Recording(ops, (), (), ()), places).touches == ()


def test_strays_are_what_no_interval_holds():
    """Each touch lies in one of its symbol's intervals, or is a stray."""
    inside = Touch(0, 0, 8, True), Touch(1, 16, 24, False), Touch(1, 20, 24, True)
    outside = Touch(0, 1, 9, False), Touch(1, -1, 4, True), Touch(1, 7, 17, True)
    bounds = {0: [(0, 8)], 1: [(0, 8), (16, 24)]}
    recording = Recording((), (), (), (*inside, *outside))
    assert strays(recording, bounds.__getitem__) == list(outside)
