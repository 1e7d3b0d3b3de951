"""What the history of torch's allocator says, and when it is not believed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.memory.fold import Life

torch = pytest.importorskip("torch")

STREAM, OTHER = 7, 0
SEGMENT = 1 << 21
BASE = 1 << 36
BLOCKS = 4
SIZE = SEGMENT // BLOCKS
ELSEWHERE = BASE - SEGMENT


@pytest.fixture(scope="module")
def lives_of():
    """Return what reads events."""
    from sapwood.integrations.torch.history import lives_of

    return lives_of


def _event(action, addr, size, stream=STREAM):
    return {"action": action, "addr": addr, "size": size, "stream": stream}


@st.composite
def histories(draw):
    """Draw the events of a capture, the segments, and when each block was in use."""
    events, spans, lives, alive = [], [], [], {}
    free: list[int] = []
    for _ in range(draw(st.integers(1, 20))):
        if draw(st.booleans()):
            events.append(_event("alloc", ELSEWHERE, SIZE, OTHER))
        if alive and draw(st.booleans()):
            address = draw(st.sampled_from(sorted(alive)))
            if draw(st.booleans()):
                events.append(_event("free_requested", address, SIZE))
            lives.append(Life(address, address + SIZE, alive.pop(address), len(events)))
            events.append(_event("free_completed", address, SIZE))
            free.append(address)
            continue
        if not free:
            start = BASE + len(spans) * SEGMENT
            spans.append((start, start + SEGMENT))
            events.append(_event("segment_alloc", start, SEGMENT))
            free += range(start, start + SEGMENT, SIZE)
        address = free.pop(draw(st.integers(0, len(free) - 1)))
        alive[address] = len(events)
        events.append(_event("alloc", address, SIZE))
    lives += [Life(at, at + SIZE, born, None) for at, born in alive.items()]
    return events, spans, lives


@given(histories())
def test_a_block_lives_from_its_alloc_to_its_free(lives_of, history):
    """By the places of these events; one that has no free lives on."""
    events, spans, lives = history
    assert sorted(lives_of(events, spans, STREAM), key=str) == sorted(lives, key=str)


@given(histories(), st.data())
def test_a_history_without_its_beginning_is_not_believed(lives_of, history, data):
    """Where events were lost, be it because there were too many, the first are."""
    events, spans, _ = history
    inside = [i for i, event in enumerate(events) if event["addr"] >= BASE]
    cut = data.draw(st.integers(inside[0] + 1, len(events)))
    assert lives_of(events[cut:], spans, STREAM) is None


@given(histories(), st.data())
def test_a_history_with_a_hole_is_not_believed(lives_of, history, data):
    """Where an event is missing that a later one follows from."""
    events, spans, _ = history
    needed = [
        i
        for i, event in enumerate(events)
        if event["action"] == "segment_alloc" or _is_followed(events, i)
    ]
    hole = data.draw(st.sampled_from(needed))
    assert lives_of(events[:hole] + events[hole + 1 :], spans, STREAM) is None


def _is_followed(events, i):
    """Return whether an alloc is followed by its free, or a free by another alloc."""
    after = {"alloc": "free_completed", "free_completed": "alloc"}
    event = events[i]
    return event["addr"] >= BASE and any(
        later["addr"] == event["addr"] and later["action"] == after[event["action"]]
        for later in events[i + 1 :]
        if event["action"] in after
    )


@given(histories(), st.data())
def test_what_another_stream_allocates_in_between_is_not_believed(
    lives_of, history, data
):
    """Its work is in no order with that of the stream which was captured."""
    events, spans, _ = history
    allocs = [
        i
        for i, event in enumerate(events)
        if event["action"] == "alloc" and event["addr"] >= BASE
    ]
    i = data.draw(st.sampled_from(allocs))
    changed = [*events[:i], events[i] | {"stream": OTHER}, *events[i + 1 :]]
    assert lives_of(changed, spans, STREAM) is None


@pytest.mark.parametrize(
    "more",
    [
        _event("alloc", BASE + SIZE // 2, SIZE),
        _event("free_completed", BASE + SIZE, SIZE),
        _event("segment_free", BASE, SEGMENT),
        _event("segment_map", BASE, SEGMENT),
        _event("segment_alloc", BASE, SEGMENT),
    ],
    ids=lambda event: event["action"],
)
def test_what_cannot_follow_is_not_believed(lives_of, more):
    """Blocks that overlap, a free of nothing, and what is not understood."""
    events = [_event("segment_alloc", BASE, SEGMENT), _event("alloc", BASE, SIZE)]
    spans = [(BASE, BASE + SEGMENT)]
    assert lives_of(events, spans, STREAM) == [Life(BASE, BASE + SIZE, 1, None)]
    assert lives_of([*events, more], spans, STREAM) is None


def test_nothing_served_is_nothing_alive(lives_of):
    """A capture that allocates nothing has no lives, and that is believed."""
    assert lives_of([_event("alloc", ELSEWHERE, 1, OTHER)], [], STREAM) == []


@pytest.mark.gpu
def test_a_history_of_somebody_elses_is_left_alone():
    """It stays on and is not read; without one there is none when it is over."""
    from sapwood.integrations.torch.history import History

    pool = torch.cuda.MemPool()
    torch.cuda.memory._record_memory_history("all")
    try:
        mine = History(0)
        mine.begin()
        kept = torch.ones(3, device="cuda")
        mine.end(pool.id)
        assert mine.taken() == ()
        assert torch._C._cuda_isHistoryEnabled()
        snapshot = torch.cuda.memory._snapshot()
        assert any(
            event["addr"] == kept.data_ptr() for event in snapshot["device_traces"][0]
        )
    finally:
        torch.cuda.memory._record_memory_history(None)
    again = History(0)
    again.begin()
    assert torch._C._cuda_isHistoryEnabled()
    again.end(pool.id)
    assert not torch._C._cuda_isHistoryEnabled()
