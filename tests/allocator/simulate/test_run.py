"""Outcomes are exact, repeatable and bounded, and the allocator is no worse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sapwood.allocator.caching.picture import Picture
from sapwood.allocator.caching.settings import DEFAULT
from sapwood.allocator.caching.validate import Mapped, validate
from sapwood.allocator.simulate import (
    POLICIES,
    Buffer,
    Trace,
    compare,
    read_trace,
    simulate,
)
from sapwood.allocator.simulate.ours import PAGE, Ours
from sapwood.allocator.simulate.reading import from_picture
from sapwood.errors import MisuseError
from sapwood.testing.traces import FAMILIES, make_trace

MIB = 1 << 20
TRACES = Path(__file__).parent / "traces"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("family", ["churn", "streams", "training"])
def test_outcomes_are_repeatable(policy, family):
    """The same replay has the same outcome; what is reserved covers the peak."""
    trace = make_trace(family, 2, 300)
    outcome = simulate(trace, policy)
    assert outcome == simulate(trace, policy)
    assert outcome.ratio >= 1.0
    assert outcome.requests == sum(step >= 0 for step in trace.steps)
    assert outcome.failure is None


@pytest.mark.parametrize("name", ["resnet50", "G_1"])
def test_public_traces_take_no_more_than_elsewhere(name):
    """On public traces the allocator holds no more than either model of PyTorch's."""
    trace = read_trace(TRACES / f"{name}.csv")
    ours, *models = compare(trace, ["default", "classic", "expandable"])
    assert ours.reserved <= min(model.reserved for model in models)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(3))
def test_programs_take_no_more_than_elsewhere(family, seed):
    """Nor does it on programs of every kind, but for a page: the unit of memory."""
    trace = make_trace(family, seed, 900)
    ours, *models = compare(trace, ["default", "classic", "expandable"])
    assert ours.reserved <= min(model.reserved for model in models) + PAGE


@pytest.mark.parametrize("family", FAMILIES)
def test_fixed_segments_are_those_of_the_model(family):
    """With fixed segments the allocator holds what its model, written apart, holds."""
    trace = make_trace(family, 4, 900)
    ours, model = compare(trace, ["default-fixed", "classic"])
    assert ours.reserved == model.reserved


def _run(ours: Ours, trace: Trace) -> Iterator[Picture]:
    """Yield pictures of the allocator now and then, while it serves a trace."""
    live: dict[int, int] = {}
    for number, step in enumerate(trace.steps):
        if step < 0:
            ours.free(live.pop(~step))
        else:
            buffer = trace.buffers[step]
            live[step] = ours.allocate(buffer.size, buffer.stream)
        if number % 97 == 0:
            yield ours.allocator.picture()


def _physical(memory):
    """Return what is mapped where, in the order of addresses."""
    handles = {id(extent): each for each, extent in memory.extents.values.items()}
    return [
        Mapped(address, mapping.extent.size, handles[id(mapping.extent)])
        for address, mapping in sorted(memory.mappings.items())
    ]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("policy", ["expandable", "fixed", "shared"])
def test_the_allocator_keeps_its_laws_on_a_strict_device(policy, family):
    """Pictures agree with the device all the way; in the end everything is given back.

    The device itself complains of calls that a driver would not allow.
    """
    trace = make_trace(family, 5, 500)
    settings = DEFAULT.replace(
        expandable_segments=policy != "fixed", cross_stream_reuse=policy == "shared"
    )
    ours = Ours(settings, 1 << 40)
    for _ in range(2):
        for picture in _run(ours, trace):
            physical = _physical(ours.ground.memory)
            assert validate(picture, physical) == []
    assert ours.reserved >= trace.peak
    ours.allocator.close()
    ours.ground.close()
    assert (ours.ground.held, ours.ground.memory.reservations) == (0, {})


@pytest.mark.parametrize("family", FAMILIES)
def test_a_history_replays_as_it_happened(family):
    """What the allocator remembers of a program takes as much memory as the program."""
    trace = make_trace(family, 6, 500)
    ours = Ours(DEFAULT, 1 << 40)
    ours.allocator.record_history(context=None)
    most = max(_mapped(picture) for picture in _run(ours, trace))
    again = from_picture("again", ours.allocator.picture())
    assert again.peak == trace.peak
    assert [b.size for b in again.buffers] == [b.size for b in trace.buffers]
    assert simulate(again, "default").reserved >= most
    assert simulate(again, "default").reserved == simulate(trace, "default").reserved


def _mapped(picture: Picture) -> int:
    return sum(size for segment in picture.segments for _, size in segment.extents)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_steady_program_stays_where_it_was(policy):
    """A trace three times over needs hardly more than once, and no fewer requests."""
    trace = read_trace(TRACES / "resnet50.csv")
    once, thrice = simulate(trace, policy), simulate(trace, policy, repeat=3)
    assert thrice.requests == 3 * once.requests
    assert once.reserved <= thrice.reserved <= 1.02 * once.reserved


@pytest.mark.parametrize("policy", POLICIES)
def test_a_small_device_is_run_out_of(policy):
    """Where memory runs out, the outcome says for which buffer, and beside what."""
    trace = Trace.of(
        "large",
        [
            Buffer("first", 0, 9, 30 * MIB),
            Buffer("second", 1, 9, 30 * MIB),
            Buffer("third", 2, 9, 30 * MIB),
        ],
    )
    outcome = simulate(trace, policy, device_memory=64 * MIB)
    assert outcome.ratio is None
    assert outcome.reserved <= 64 * MIB
    failure = outcome.failure
    if POLICIES[policy].kind == "plan":  # takes all of its memory at once
        assert (failure.buffer, failure.live) == ("first", 0)
    else:
        assert (failure.buffer, failure.live) == ("third", 60 * MIB)
        assert outcome.requests == 2
    assert "OUT_OF_MEMORY" in failure.text
    assert "record_history" not in failure.text
    assert simulate(trace, policy, device_memory=128 * MIB).failure is None


def test_settings_are_what_if():
    """A setting changes the outcome as it would change the allocator."""
    trace = Trace.of("rounded", [Buffer("one", 0, 1, 33 * MIB)])
    changed = DEFAULT.replace(roundup_power2_divisions=2)
    for policy in ("default", "default-fixed", "classic"):
        assert simulate(trace, policy).reserved == 34 * MIB
        assert simulate(trace, policy, settings=changed).reserved == 48 * MIB


def test_streams_may_be_shared():
    """With cross-stream reuse, what one stream freed serves another."""
    trace = Trace.of(
        "turns",
        [Buffer(str(n), n, n + 1, 40 * MIB, stream=n) for n in range(4)],
    )
    apart, shared = compare(trace, ["classic", "default-shared"])
    assert apart.reserved == 160 * MIB
    assert shared.reserved == 40 * MIB


def test_nothing_takes_nothing():
    """A trace without bytes has the ratio of one that is served exactly."""
    for outcome in compare(Trace.of("empty", []), POLICIES):
        assert (outcome.reserved, outcome.ratio, outcome.requests) == (0, 1.0, 0)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"policy": "clasic"}, r"no policy 'clasic' \(did you mean classic\?\)"),
        ({"repeat": 0}, "repeat is 0"),
        ({"device_memory": 0}, "device_memory is 0"),
        ({"device_memory": 2**50 + 1}, "more than any device has. Give at most 1024"),
    ],
)
def test_what_cannot_be_simulated_is_refused(wrong, said):
    """Unknown policies and numbers below 1 are named."""
    with pytest.raises(MisuseError, match=said):
        simulate(Trace.of("empty", []), **wrong)
