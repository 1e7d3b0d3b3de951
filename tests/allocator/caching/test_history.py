"""The ring of events: the last ones, in order, with the stacks that were asked for."""

from __future__ import annotations

import time
import traceback
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.allocator.caching.picture import DEFAULT_POOL, Action, PoolId
from sapwood.allocator.caching.records.history import (
    NO_STACK,
    Context,
    History,
    HistoryOptions,
    gather,
)
from sapwood.errors import MisuseError

ACTIONS = get_args(Action)

events = st.lists(
    st.tuples(
        st.sampled_from(ACTIONS),
        st.integers(0, 1 << 47),
        st.integers(0, 1 << 40),
        st.integers(0, 3),
        st.sampled_from([DEFAULT_POOL, PoolId(0, 1)]),
    ),
    max_size=30,
)


def _kept(history):
    return [(e.action, e.address, e.size, e.stream, e.pool) for e in history.entries()]


@given(events, st.integers(1, 40), st.sets(st.sampled_from(ACTIONS)))
def test_the_last_events_are_kept_in_order(recorded, size, skip):
    """A full ring forgets its oldest event; what is skipped is never in it."""
    history = History(HistoryOptions(max_entries=size, skip=skip))
    for event in recorded:
        history.record(*event)
    wanted = [event for event in recorded if event[0] not in skip]
    assert _kept(history) == wanted[-size:]


@given(events, events, st.integers(1, 40), st.integers(1, 40))
def test_other_options_go_on_with_the_same_events(before, after, first, second):
    """A change of options keeps what the new ring has room for."""
    old = History(HistoryOptions(max_entries=first, annotation="warm-up"))
    for event in before:
        old.record(*event)
    history = old.revised(HistoryOptions(max_entries=second, annotation="step"))
    for event in after:
        history.record(*event)
    assert _kept(history) == [*before[-first:], *after][-second:]
    notes = ["warm-up"] * len(before[-first:]) + ["step"] * len(after)
    assert [entry.annotation for entry in history.entries()] == notes[-second:]


def test_times_are_microseconds_of_now():
    """An event says when it was, in microseconds since the epoch."""
    history = History(HistoryOptions())
    before = time.time_ns() // 1000
    history.record("alloc", 0, 1, 0)
    (entry,) = history.entries()
    assert before <= entry.time_us <= time.time_ns() // 1000


@pytest.mark.parametrize("enabled", ["state", "all"])
@pytest.mark.parametrize("context", [None, *get_args(Context)])
@pytest.mark.parametrize("action", ACTIONS)
def test_stacks_are_gathered_where_somebody_reads_them(enabled, context, action):
    """Live blocks need the stacks of allocations; other events only on request."""
    history = History(HistoryOptions(enabled=enabled, context=context))
    if action == "alloc":
        assert history.wants_stack(action) == (context is not None)
    else:
        assert history.wants_stack(action) == (context == "all" and enabled == "all")
    history.record(action, 0, 1, 0, DEFAULT_POOL, gather())
    kept = [entry.frames != () for entry in history.entries()]
    assert kept == ([context not in {None, "state"}] if enabled == "all" else [])


def test_stacks_are_the_callers_lines():
    """A gathered stack reads as the traceback module would have shown it."""
    stack, shown = gather(), traceback.extract_stack()
    frames = [(frame.filename, frame.line) for frame in stack.frames()]
    assert frames == [(line.filename, line.lineno) for line in reversed(shown)]
    assert stack.frames()[0].name == "test_stacks_are_the_callers_lines"
    assert NO_STACK.frames() == ()


def test_a_stack_may_leave_its_gatherer_out():
    """Functions between the user and `gather` are skipped by their number."""

    def gather_for_caller():
        return gather(skip=1)

    assert gather_for_caller().frames()[0] == gather().frames()[0]


def test_a_stack_keeps_nothing_alive():
    """Local variables of the functions in a stack may go while it stays."""

    class Local:
        alive = 0

        def __init__(self):
            Local.alive += 1

        def __del__(self):
            Local.alive -= 1

    def gather_beside_local():
        local = Local()
        return gather(), local is not None

    assert gather_beside_local()[1]
    assert Local.alive == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"enabled": None}, "enabled: None is not allowed. Choose from 'state', 'all'"),
        ({"enabled": True}, "enabled: True"),
        ({"context": "stat"}, "did you mean 'state'?"),
        ({"max_entries": 0}, "max_entries: 0 is not allowed. Set a whole number"),
        ({"max_entries": True}, "max_entries: True"),
        ({"max_entries": 1 << 64}, "max_entries: 18446744073709551616"),
        ({"skip": ["aloc"]}, "skip: 'aloc' is not allowed"),
        ({"skip": "alloc"}, "Give a list of actions"),
        ({"annotation": 3}, "annotation: 3 is no text"),
    ],
)
def test_wrong_options_are_refused_by_name(options, said):
    """An error names the option, the value, and what may be chosen."""
    with pytest.raises(MisuseError) as refused:
        HistoryOptions(**options)
    assert said in str(refused.value)


@pytest.mark.parametrize("goes_on", [True, False])
def test_an_allocator_clears_what_it_has_recorded(rig, goes_on):
    """Earlier events are gone, whether more are recorded or not."""
    allocator, stream = rig.allocator, rig.stream()
    allocator.record_history()
    allocator.free(allocator.malloc(1000, stream))
    allocator.record_history("all" if goes_on else None, clear=True)
    assert allocator.history() == ()
    allocator.malloc(1000, stream)
    assert [entry.action for entry in allocator.history()] == ["alloc"] * goes_on
