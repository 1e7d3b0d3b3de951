"""What a range serves: whole pages, never twice, and to whom they may go again."""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood import MisuseError
from sapwood.memory.native import open_segments
from tests.support.threads import in_threads

MIB = 1 << 20
PAGE = 2 * MIB
BASE = 1 << 40
WORD, NUMBER = ctypes.c_void_p, ctypes.c_int
SERVE = ctypes.CFUNCTYPE(WORD, ctypes.c_size_t, NUMBER, WORD)
TAKE_BACK = ctypes.CFUNCTYPE(None, WORD, ctypes.c_size_t, NUMBER, WORD)


def pages_of(size: int) -> int:
    return -(-size // PAGE)


def test_segments_are_whole_pages_in_the_range(opened):
    """Every size is served at a multiple of the page, inside, and without overlap."""
    caller = opened(16)
    sizes = [1, PAGE, PAGE + 1, 5 * MIB, 8 * MIB]
    addresses = [caller.serve(size) for size in sizes]
    assert all(address % PAGE == 0 for address in addresses)
    ends = [a + pages_of(s) * PAGE for a, s in zip(addresses, sizes, strict=True)]
    assert addresses[0] == BASE
    assert addresses[1:] == ends[:-1]
    assert ends[-1] <= BASE + 16 * PAGE
    for address in addresses:
        caller.take_back(address)


def test_what_does_not_fit_is_null_and_counted(opened):
    """Exhaustion, no bytes, another device, huge sizes: NULL, and nothing changes."""
    caller = opened(4)
    first = caller.serve(3 * PAGE)
    before = caller.segments.counters()
    assert caller.serve(2 * PAGE) is None
    assert caller.serve(0) is None
    assert caller.serve(PAGE, device=1) is None
    assert caller.serve((1 << 64) - 1) is None
    after = caller.segments.counters()
    assert (after.held, after.held_bytes) == (before.held, before.held_bytes)
    assert (after.refused, after.wanted) == (4, (1 << 64) - 1)
    last = caller.serve(PAGE)
    assert last == BASE + 3 * PAGE
    caller.take_back(first)
    caller.take_back(last)


def test_pages_come_back_to_their_own_stream_at_once(opened):
    """What a stream gave back may be overwritten by what that stream does next."""
    caller = opened(2)
    first = caller.serve(2 * PAGE, stream=7)
    caller.take_back(first, stream=7)
    again = caller.serve(2 * PAGE, stream=7)
    assert again == first
    caller.take_back(again, stream=7)


def test_pages_wait_for_others_until_they_are_settled(opened):
    """Another stream is not ordered after the work on pages that were given back."""
    caller = opened(2)
    first = caller.serve(2 * PAGE, stream=7)
    caller.take_back(first, stream=7)
    assert caller.serve(PAGE, stream=8) is None
    caller.segments.settle()
    other = caller.serve(PAGE, stream=8)
    assert other == first
    caller.take_back(other, stream=8)


def test_settling_does_not_free_what_is_out(opened):
    """Work on a segment that is out goes on: its pages stay its stream's."""
    caller = opened(3)
    held = caller.serve(3 * PAGE, stream=7)
    caller.segments.settle()
    caller.take_back(held, stream=7)
    assert caller.serve(PAGE, stream=8) is None
    assert caller.serve(3 * PAGE, stream=7) == held
    caller.take_back(held, stream=7)


@pytest.mark.parametrize("pages", [1, 3])
def test_pages_given_back_on_another_stream_wait_for_all(opened, pages):
    """Two streams may be using each of them: neither is ordered after the other."""
    caller = opened(pages)
    held = caller.serve(pages * PAGE, stream=7)
    caller.take_back(held, stream=8)
    assert caller.serve(PAGE, stream=7) is None
    assert caller.serve(PAGE, stream=8) is None
    caller.segments.settle()
    assert caller.serve(PAGE, stream=9) == held
    caller.take_back(held, stream=9)


def test_neighbours_given_back_are_one(opened):
    """Free neighbours serve what neither could alone."""
    caller = opened(3)
    parts = [caller.serve(PAGE) for _ in range(3)]
    for part in parts:
        caller.take_back(part)
    whole = caller.serve(3 * PAGE)
    assert whole == BASE
    caller.take_back(whole)


def test_without_reuse_no_address_is_served_twice(opened):
    """Each segment of a recording has addresses of its own, until the reset."""
    caller = opened(3, reuse=False)
    for page in range(3):
        assert caller.serve(PAGE) == BASE + page * PAGE
        caller.take_back(BASE + page * PAGE)
    assert caller.serve(PAGE) is None
    caller.segments.reset()
    assert caller.segments.counters().served == 0
    assert caller.serve(3 * PAGE) == BASE
    caller.take_back(BASE)


@pytest.mark.parametrize("stray", [0, BASE - PAGE, BASE + 1, BASE + PAGE, BASE + 4096])
def test_strays_change_nothing(opened, stray):
    """What is no segment's address, or was given back, is counted and no more."""
    caller = opened(2)
    held = caller.serve(PAGE)
    caller.take_back(stray)
    counters = caller.segments.counters()
    assert (counters.strays, counters.held, counters.returned) == (1, 1, 0)
    caller.take_back(held)
    caller.take_back(held)
    counters = caller.segments.counters()
    assert (counters.strays, counters.held, counters.returned) == (2, 0, 1)


def test_the_log_tells_every_request_in_order(opened):
    """Address, size, stream and what became of it; the first are kept."""
    caller = opened(2, log=4)
    held = caller.serve(5, stream=3)
    caller.serve(3 * PAGE, stream=4)
    caller.take_back(held, 5, stream=3)
    caller.take_back(held, 5, stream=3)
    assert [(r.what, r.address, r.size, r.stream) for r in caller.segments.log()] == [
        ("served", BASE, 5, 3),
        ("refused", 0, 3 * PAGE, 4),
        ("returned", BASE, 5, 3),
        ("stray", BASE, 5, 3),
    ]
    assert caller.serve(0) is None
    assert len(caller.segments.log()) == 4
    assert caller.segments.counters().logged == 5
    assert [r.what for r in caller.segments.log(2)] == ["returned", "stray"]
    assert caller.segments.log(9) == ()


def test_ranges_do_not_know_each_other(opened):
    """Two ranges open at once serve their own addresses, and take only those back."""
    one, two = opened(2), opened(2, base=BASE + (1 << 38))
    a, b = one.serve(PAGE), two.serve(PAGE)
    assert (a, b) == (BASE, BASE + (1 << 38))
    one.take_back(b)
    assert one.segments.counters().strays == 1
    assert two.segments.counters().held == 1
    one.take_back(a)
    two.take_back(b)


def test_a_range_with_segments_out_is_neither_reset_nor_closed(opened):
    """Somebody would be handed addresses that somebody else still uses."""
    caller = opened(2)
    held = caller.serve(PAGE)
    with pytest.raises(MisuseError, match=r"1 segments .*empty_cache"):
        caller.segments.reset()
    with pytest.raises(MisuseError, match="still out"):
        caller.segments.close()
    assert caller.segments.counters().held == 1
    caller.take_back(held)
    caller.segments.close()
    caller.segments.close()


def test_a_closed_range_serves_nothing(opened):
    """Its functions answer NULL; whoever asks for counters is told what to do."""
    caller = opened(2)
    caller.segments.close()
    assert caller.serve(PAGE) is None
    caller.take_back(BASE)
    with pytest.raises(MisuseError, match=r"closed. Open another"):
        caller.segments.counters()


@pytest.mark.parametrize(
    ("base", "size"),
    [(BASE + 1, PAGE), (BASE, PAGE + 1), (0, PAGE), (BASE, 0), (-PAGE, PAGE)],
)
def test_ranges_are_whole_pages(base, size):
    """A range that is not some whole pages is refused, by its ends."""
    with pytest.raises(MisuseError, match="Align both ends"):
        open_segments(base, size)


def test_there_are_1024_ranges_and_no_more():
    """The 1025th is refused with what to do, and closing one makes room."""
    ranges = []
    with pytest.raises(MisuseError, match=r"1024 ranges .* Close some"):
        while len(ranges) <= 1024:
            ranges.append(open_segments(BASE, PAGE, log=0))
    assert len({segments.serve for segments in ranges}) == len(ranges) == 1024
    ranges.pop().close()
    ranges.append(open_segments(BASE, PAGE, log=0))
    for segments in ranges:
        segments.close()


def test_any_number_of_ranges_shares_functions():
    """Requests go to the range whose turn it is; what comes back, to where it is of."""
    bases = [BASE + (k << 30) for k in range(3000)]
    ranges = [open_segments(base, 2 * PAGE, log=0, shares=True) for base in bases]
    serve = SERVE(ranges[0].serve)
    take_back = TAKE_BACK(ranges[0].take_back)
    assert {each.serve for each in ranges} == {ranges[0].serve}
    assert serve(PAGE, 0, 5) is None, "it is nobody's turn"
    for k in (7, 2999, 0):
        ranges[k].begin()
        ranges[5].rest()  # whose turn it is not
        assert serve(PAGE, 0, 5) == bases[k]
        assert serve(PAGE, 1, 5) is None, "it is nobody's turn there"
    ranges[0].rest()
    assert serve(PAGE, 0, 5) is None
    for k in (2999, 7, 0):
        with pytest.raises(MisuseError, match="1 segments"):
            ranges[k].close()
        take_back(bases[k], PAGE, 0, 5)
        assert ranges[k].counters().held == 0
    ranges[7].begin()
    for each in ranges:
        each.close()
    assert serve(PAGE, 0, 5) is None, "a range that is closed has no turn"


def test_turns_are_for_so_many_gpus():
    """What could not be served is refused where it is opened."""
    with pytest.raises(MisuseError, match="shares=True"):
        open_segments(BASE, PAGE, device=64, shares=True)


def test_a_range_with_functions_of_its_own_has_no_turn():
    """Its functions are its alone."""
    own = open_segments(BASE, PAGE)
    with pytest.raises(MisuseError, match="shares=True"):
        own.begin()
    own.close()


def test_its_functions_have_names(opened):
    """A library that wants a file and two symbols is served by the same range."""
    for caller in (opened(2), opened(2, base=BASE + (1 << 38))):
        path, serve, take_back = caller.segments.symbols
        named = ctypes.CDLL(path)
        address = SERVE((serve, named))(PAGE, 0, 5)
        assert address == caller.segments.base
        assert caller.segments.log()[-1].stream == 5
        TAKE_BACK((take_back, named))(address, PAGE, 0, 5)
        assert caller.segments.counters().held == 0


steps = st.lists(
    st.one_of(
        st.tuples(st.just("serve"), st.integers(1, 5 * PAGE), st.integers(1, 3)),
        st.tuples(st.just("take back"), st.integers(0, 9), st.integers(1, 3)),
        st.tuples(st.just("settle"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


class Pages:
    """The law, page by page: who may be using each of them."""

    def __init__(self, count: int) -> None:
        self.users: list[set[int]] = [set() for _ in range(count)]
        self.held: dict[int, tuple[int, int]] = {}

    def first(self, count: int, stream: int) -> int | None:
        taken = {p for at, (n, _) in self.held.items() for p in range(at, at + n)}
        fit = [p not in taken and u <= {stream} for p, u in enumerate(self.users)]
        runs = range(len(fit) - count + 1)
        return next((p for p in runs if all(fit[p : p + count])), None)

    def take(self, first: int, count: int, stream: int) -> None:
        self.held[first] = (count, stream)
        for page in range(first, first + count):
            self.users[page] = {stream}

    def give(self, first: int, stream: int) -> None:
        count, _ = self.held.pop(first)
        for page in range(first, first + count):
            self.users[page].add(stream)

    def settle(self) -> None:
        self.users = [set() for _ in self.users]
        for first, (count, stream) in self.held.items():
            for page in range(first, first + count):
                self.users[page] = {stream}


@given(steps)
def test_a_range_does_as_the_law_says(program):
    """Any program of requests is served as a table of pages and users would."""
    segments = open_segments(BASE, 8 * PAGE)
    serve, take_back = SERVE(segments.serve), TAKE_BACK(segments.take_back)
    law = Pages(8)
    for verb, number, stream in program:
        if verb == "serve":
            count = pages_of(number)
            first = law.first(count, stream)
            expected = None if first is None else BASE + first * PAGE
            assert serve(number, 0, stream) == expected
            if first is not None:
                law.take(first, count, stream)
        elif verb == "take back" and law.held:
            first = sorted(law.held)[number % len(law.held)]
            take_back(BASE + first * PAGE, 0, 0, stream)
            law.give(first, stream)
        elif verb == "settle":
            segments.settle()
            law.settle()
        held = sum(count for count, _ in law.held.values())
        assert segments.counters().held_bytes == held * PAGE
    for first in law.held:
        take_back(BASE + first * PAGE, 0, 0, 0)
    segments.close()


def _play(caller, stream: int, barrier: threading.Barrier) -> None:
    held: list[int] = []
    barrier.wait()
    for turn in range(400):
        if turn % 20 == stream:
            caller.segments.settle()
        if turn % 3 < 2 and (found := caller.serve(PAGE * (1 + turn % 4), stream)):
            held.append(found)
        elif held:
            caller.take_back(held.pop(turn % len(held)), stream=stream)
    for address in held:
        caller.take_back(address, stream=stream)


def _most_holders_of_a_page(log) -> int:
    """Return how many held one page at once, by the log; all must come back."""
    out: dict[int, range] = {}
    holders: Counter[int] = Counter()
    most = 0
    for request in log:
        if request.what == "served":
            count = pages_of(request.size)
            out[request.address] = range(
                request.address, request.address + count * PAGE, PAGE
            )
            holders.update(out[request.address])
            most = max(most, *(holders[page] for page in out[request.address]))
        elif request.what == "returned":
            holders.subtract(out.pop(request.address))
    assert out == {}
    return most


def test_threads_never_share_a_segment(opened):
    """Eight threads, served without the interpreter's lock: no page is out twice."""
    caller = opened(64, log=100_000)
    barrier = threading.Barrier(8)
    in_threads(*(partial(_play, caller, stream, barrier) for stream in range(1, 9)))
    counters = caller.segments.counters()
    assert counters.logged <= 100_000
    # How many are refused depends on how the threads meet.
    assert counters.served == counters.returned > 0
    assert (counters.held, counters.strays) == (0, 0)
    assert _most_holders_of_a_page(caller.segments.log()) == 1
