"""Nothing but growth calls the device under the lock; what goes, goes without it.

Every rig has a `Witness` that refuses other calls, so all tests here are about that.
These say what each operation calls, and what other threads meet meanwhile.
"""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from sapwood.allocator.caching.settings import DEFAULT
from sapwood.allocator.caching.validate import validate
from sapwood.driver.results import Refusal, Result
from sapwood.errors import DriverError, InternalError, MisuseError, OutOfMemory
from tests.support.caching_rig import recount
from tests.support.witness import GROWTH

MIB = 1 << 20
CROSSING = DEFAULT.replace(cross_stream_reuse=True)
CLASSIC = DEFAULT.replace(expandable_segments=False)
EVENTS = {"create_event", "record_event"}
REMOVAL = {"query_stream", "unmap", "release", "unreserve"}

pytestmark = pytest.mark.parametrize("open_rig", ["latest"], indirect=True)


class Bench:
    """An allocator with two streams, and what operations need to start from."""

    def __init__(self, rig):
        self.rig, self.allocator = rig, rig.allocator
        self.own, self.other = rig.stream(), rig.stream()

    def calls(self, operation):
        """Return what an operation calls under the lock, and without it."""
        self.rig.witness.forget()
        operation()
        return self.rig.witness.locked, self.rig.witness.free

    def have(self, size=3 * MIB, stream=None):
        return self.allocator.malloc(size, stream or self.own)

    def used(self, size=3 * MIB):
        """Return a block that another stream works on."""
        address = self.have(size)
        self.allocator.record_stream(address, self.other)
        self.rig.busy.keep(self.other, seconds=0.3)
        return address

    def cache(self, *sizes, stream=None):
        """Let there be free memory of these sizes."""
        for address in [self.have(size, stream) for size in sizes]:
            self.allocator.free(address)


def _hit(bench):
    bench.cache(3 * MIB)
    return (lambda: bench.cache(3 * MIB)), set(), set()


def _growth(bench):
    return bench.have, GROWTH, set()


def _free_of_a_used_block(bench):
    address = bench.used()
    return (lambda: bench.allocator.free(address)), set(), EVENTS


def _hit_while_something_waits(bench):
    bench.cache(1000)
    bench.allocator.free(bench.used())
    return (lambda: bench.have(1000)), set(), {"query_event"}


def _emptying(bench):
    bench.cache(3 * MIB, 1000)
    return bench.allocator.empty_cache, set(), REMOVAL


def _emptying_after_work(bench):
    address = bench.used()
    bench.cache(MIB, stream=bench.other)
    bench.allocator.free(address)
    bench.rig.busy.keep(bench.own, seconds=0.3)
    waits = {"record_event", "synchronize_event"}
    return bench.allocator.empty_cache, set(), REMOVAL | waits


def _trimming(bench):
    bench.cache(3 * MIB, 30 * MIB)
    return (lambda: bench.allocator.trim(MIB)), set(), REMOVAL


def _releasing_a_pool(bench):
    pool = bench.allocator.create_pool()
    with bench.allocator.using(pool):
        bench.cache(3 * MIB)
    return (lambda: bench.allocator.release_pool(pool)), set(), REMOVAL


def _closing(bench):
    bench.allocator.free(bench.used())
    freed = {"destroy_event", "synchronize_event"}
    return bench.allocator.close, set(), REMOVAL | freed


def _moving_pages(bench):
    blocks = [bench.have(20 * MIB) for _ in range(6)]
    for block in blocks[::2]:
        bench.allocator.free(block)
    moved = {"query_stream", "unmap"}
    return (lambda: bench.have(50 * MIB)), GROWTH - {"create"}, moved


def _borrowing(bench):
    bench.cache(3 * MIB, stream=bench.other)
    bench.rig.busy.keep(bench.other, seconds=0.3)
    return bench.have, set(), {"query_stream", "wait_event", *EVENTS}


def _borrowing_what_waits(bench):
    bench.allocator.free(bench.used())
    return bench.have, set(), {"wait_event", *EVENTS}


def _shortage(bench):
    def fail():
        with pytest.raises(OutOfMemory):
            bench.have(500 * MIB)

    return fail, set(), {"memory_info"}


def _freeing_inside_a_capture(bench):
    pool = bench.allocator.create_pool(capture=True)
    bench.allocator.begin(pool, stream=bench.own)
    bench.rig.checked.begin_capture(bench.own)
    address = bench.have()

    def end():
        bench.allocator.free(address)
        bench.allocator.end(pool)

    bench.rig.checked.destroy_graph(bench.rig.checked.end_capture(bench.own))
    return end, set(), {"capture_status"}


def _watching(bench):
    bench.cache(3 * MIB)

    def watch():
        bench.allocator.counters()
        bench.allocator.record_history("all")
        bench.allocator.configure("roundup_power2_divisions:4")
        bench.allocator.forget_stream(bench.other, bench.own)
        bench.allocator.picture()

    return watch, set(), {"memory_info"}


OPERATIONS = {
    "hit": (_hit, DEFAULT),
    "growth": (_growth, DEFAULT),
    "growth, classic": (_growth, CLASSIC),
    "free of a used block": (_free_of_a_used_block, DEFAULT),
    "hit while something waits": (_hit_while_something_waits, DEFAULT),
    "emptying": (_emptying, DEFAULT),
    "emptying, classic": (_emptying, CLASSIC),
    "emptying after work": (_emptying_after_work, DEFAULT),
    "trimming": (_trimming, CLASSIC),
    "releasing a pool": (_releasing_a_pool, DEFAULT),
    "closing": (_closing, DEFAULT),
    "moving pages": (_moving_pages, DEFAULT),
    "borrowing": (_borrowing, CROSSING),
    "borrowing what waits": (_borrowing_what_waits, CROSSING),
    "shortage": (_shortage, DEFAULT),
    "freeing inside a capture": (_freeing_inside_a_capture, DEFAULT),
    "watching": (_watching, DEFAULT),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_each_operation_calls(make_rig, name):
    """Growth makes memory under the lock; all else is called without it."""
    prepare, settings = OPERATIONS[name]
    bench = Bench(make_rig(settings=settings))
    operation, locked, free = prepare(bench)
    assert bench.calls(operation) == (locked, free)


@pytest.mark.parametrize("call", ["query_event", "release", "unmap", "unreserve"])
def test_the_witness_refuses_other_calls(rig, call):
    """A call that does not grow is refused inside the lock, and only there."""
    seen = []
    rig.witness.around(call, seen.append, (1,))
    with rig.allocator._gate.lock, pytest.raises(InternalError, match=call):
        rig.witness.around(call, seen.append, (2,))
    assert seen == [1]


# Other threads, while a call of one does not return.


@contextmanager
def _held_up(rig, call):
    """Let the first call of a name wait; yield what tells so, and what lets it go."""
    reached, go_on, below = threading.Event(), threading.Event(), rig.faulty.around

    def slow(name, driver_call, args):
        if name == call and not reached.is_set():
            reached.set()
            assert go_on.wait(30), "nobody let it go on"
        return below(name, driver_call, args)

    rig.faulty.around = slow
    try:
        yield reached, go_on
    finally:
        go_on.set()
        del rig.faulty.around


def _consistent(rig):
    """Return whether books and counters say the same, whatever the device does."""
    allocator = rig.allocator
    picture, counters = allocator.picture(), allocator.counters()
    total = recount(picture.segments)
    found = {name: getattr(counters.total, name).current for name in total}
    return validate(picture) == [] and found == total


@pytest.mark.parametrize("call", ["query_stream", "unmap", "release", "unreserve"])
def test_a_hit_does_not_wait_for_what_goes(either, call):
    """While one thread gives memory back, others find blocks, and grow elsewhere."""
    bench = Bench(either)
    bench.cache(3 * MIB, 30 * MIB)
    mine = bench.have(1000, bench.other)
    bench.cache(1000, stream=bench.other)
    with ThreadPoolExecutor(1) as executor, _held_up(either, call) as (reached, go_on):
        emptying = executor.submit(either.allocator.empty_cache)
        assert reached.wait(10)
        bench.cache(1000, stream=bench.other)
        larger = bench.have(5 * MIB, bench.other)
        assert _consistent(either)
        either.allocator.free(mine)
        assert not emptying.done()
        go_on.set()
        emptying.result(10)
    either.allocator.free(larger)
    either.check()


@pytest.mark.parametrize("call", ["unmap", "release"])
def test_nobody_fails_for_what_is_on_its_way(either, call):
    """Who needs what another thread gives back waits for it, and then has it."""
    bench = Bench(either)
    bench.cache(100 * MIB)
    with ThreadPoolExecutor(2) as executor, _held_up(either, call) as (reached, go_on):
        emptying = executor.submit(either.allocator.empty_cache)
        assert reached.wait(10)
        asking = executor.submit(bench.have, 120 * MIB, bench.other)
        with pytest.raises(TimeoutError):
            asking.result(0.05)
        assert _consistent(either)
        go_on.set()
        assert asking.result(10)
        emptying.result(10)
    either.check()


def test_its_own_addresses_are_grown_into_again(rig):
    """Growth waits for what leaves its segment, and opens no other meanwhile."""
    bench = Bench(rig)
    bench.have(1000)
    address = bench.have(30 * MIB)
    live = bench.have(2 * MIB)
    rig.allocator.free(address)
    with ThreadPoolExecutor(2) as executor, _held_up(rig, "unmap") as (reached, go_on):
        trimming = executor.submit(rig.allocator.trim)
        assert reached.wait(10)
        asking = executor.submit(bench.have, 30 * MIB)
        go_on.set()
        assert asking.result(10) == address
        trimming.result(10)
    rig.allocator.free(live)
    assert len(rig.allocator.picture().segments) == 2


def test_what_goes_is_within_the_limit(rig):
    """Memory on its way out counts until it has gone."""
    bench = Bench(rig)
    rig.allocator.memory_fraction = 0.5
    bench.cache(60 * MIB)
    most = []
    with ThreadPoolExecutor(2) as executor, _held_up(rig, "release") as held:
        reached, go_on = held
        emptying = executor.submit(rig.allocator.empty_cache)
        assert reached.wait(10)
        asking = executor.submit(bench.have, 50 * MIB, bench.other)
        with pytest.raises(TimeoutError):
            asking.result(0.05)
        most.append(rig.atlas.used())
        go_on.set()
        assert asking.result(10)
        emptying.result(10)
    assert max(*most, rig.atlas.used()) <= 64 * MIB


def test_a_stream_stays_while_it_is_asked(rig):
    """Who hands a stream on waits until no call is made about it."""
    bench = Bench(rig)
    bench.cache(3 * MIB)
    order = []

    def leave():
        rig.allocator.forget_stream(bench.own, bench.other)
        order.append("left")

    with ThreadPoolExecutor(2) as executor, _held_up(rig, "query_stream") as held:
        reached, go_on = held
        emptying = executor.submit(rig.allocator.empty_cache)
        assert reached.wait(10)
        leaving = executor.submit(leave)
        with pytest.raises(TimeoutError):
            leaving.result(0.05)
        order.append("asked")
        go_on.set()
        leaving.result(10)
        emptying.result(10)
    assert order == ["asked", "left"]


def test_a_stream_goes_while_its_pages_are_wanted(make_rig):
    """What its successor has allocated by then is not moved."""
    rig = make_rig(settings=CLASSIC)
    bench = Bench(rig)
    bench.cache(100 * MIB, stream=bench.other)
    bench.have(12 * MIB, bench.other)
    rig.busy.keep(bench.other, seconds=0.3)
    with (
        ThreadPoolExecutor(1) as executor,
        _held_up(rig, "synchronize_event") as (reached, go_on),
    ):
        asking = executor.submit(bench.have, 60 * MIB)
        assert reached.wait(10)
        rig.allocator.forget_stream(bench.other, bench.own)
        assert bench.have(70 * MIB)
        go_on.set()
        with pytest.raises(OutOfMemory):
            asking.result(10)
    rig.check()


def test_a_mark_is_ended_once(rig):
    """Of two that ask about the same mark the later one ends no other by its event."""
    bench, below = Bench(rig), rig.faulty.around
    reached, go_on = threading.Event(), threading.Event()
    bench.allocator.free(bench.used())

    def answer_late(name, call, args):
        answer = below(name, call, args)
        if name == "query_event" and not reached.is_set():
            reached.set()
            assert go_on.wait(30), "nobody let it go on"
        return answer

    rig.busy.let_go(bench.other)
    rig.faulty.around = answer_late
    with ThreadPoolExecutor(1) as executor:
        asking = executor.submit(bench.have, 1000)
        assert reached.wait(10)
        # This request ends the mark, and its event marks what is used next.
        bench.allocator.free(bench.used())
        go_on.set()
        asking.result(10)
    del rig.faulty.around
    assert [block.state for block in rig.blocks("pending")] == ["pending"]
    rig.check()


def test_an_event_is_nobody_else_s_while_it_is_waited_for(rig):
    """What one thread waits for, others neither record anew nor destroy."""
    bench, below, calls = Bench(rig), rig.faulty.around, []
    bench.allocator.free(bench.used())
    (mark,) = rig.allocator._gate.state.pending.marked()

    def watch(name, call, args):
        if mark.event in args:
            calls.append(name)
        return below(name, call, args)

    rig.faulty.around = watch
    with ThreadPoolExecutor(1) as executor, _held_up(rig, "synchronize_event") as held:
        reached, go_on = held
        emptying = executor.submit(rig.allocator.empty_cache)
        assert reached.wait(10)
        rig.busy.let_go(bench.other)
        bench.allocator.free(bench.used())
        rig.allocator.close()
        meanwhile = set(calls)
        go_on.set()
        emptying.result(10)
    assert meanwhile == {"query_event"}
    assert calls[-1] == "destroy_event"


def test_a_use_that_is_not_recorded_stays(rig):
    """What could not be marked waits to be marked; the rest is."""
    bench, state = Bench(rig), rig.allocator._gate.state
    address = bench.used()
    rig.faulty.plan, rig.faulty.position = {0}, 0
    with pytest.raises(DriverError):
        bench.allocator.free(address)
    rig.faulty.plan = ()
    assert [set(users) for users in state.pending.unmarked.values()] == [{bench.other}]
    assert bench.have() != address
    rig.busy.let_go(bench.other)
    assert bench.have() == address


@pytest.mark.parametrize("operation", ["empty_cache", "trim", "have"])
@pytest.mark.parametrize("position", [1, 2])
def test_what_cannot_go_is_put_back(either, operation, position):
    """Where a stream cannot be asked, its memory is as it was, to the block."""
    bench = Bench(either)
    blocks = [bench.have(12 * MIB) for _ in range(9)]
    for block in blocks[::2]:
        either.allocator.free(block)
    bench.cache(MIB, stream=bench.other)
    before, below, asked = either.check(), either.faulty.around, []

    def fail(name, call, args):
        if (name, *args) == ("query_stream", bench.own):
            asked.append(name)
            if len(asked) == position:
                raise Refusal(Result.UNKNOWN, "it is a test").error(name)
        return below(name, call, args)

    actions = {
        "empty_cache": either.allocator.empty_cache,
        "trim": lambda: either.allocator.trim(0),
        "have": lambda: bench.have(30 * MIB),
    }
    either.faulty.around = fail
    try:
        with pytest.raises(DriverError):
            actions[operation]()
    finally:
        del either.faulty.around
    kept = [s for s in before.segments if s.stream == bench.own]
    assert [s for s in either.check().segments if s.stream == bench.own] == kept
    actions[operation]()
    either.check()


# Finalisers, inside and outside the lock.


@pytest.mark.parametrize("call", ["map", "unmap", "record_event", "query_event"])
def test_a_finaliser_frees_in_the_middle_of_any_call(rig, call):
    """Whatever is under way when it runs, its block is free, or waits, afterwards."""
    bench = Bench(rig)
    bench.cache(30 * MIB)
    late = [bench.used(1000), bench.have(2000)]
    below = rig.faulty.around

    def collect(name, driver_call, args):
        if name == call and late:
            rig.allocator.free(late.pop())
            rig.allocator.free(late.pop())
        return below(name, driver_call, args)

    rig.faulty.around = collect
    try:
        address = bench.used(5 * MIB)
        rig.allocator.free(address)
        bench.have(4 * MIB)
        rig.allocator.empty_cache()
        bench.have(6 * MIB)
    finally:
        del rig.faulty.around
    assert late == []
    rig.check()
    assert {b.requested for b in rig.blocks("allocated")} == {4 * MIB, 6 * MIB}


def test_only_free_is_possible_inside(rig):
    """A finaliser that runs inside growth may free, and nothing else."""
    bench, below, refused = Bench(rig), rig.faulty.around, []

    def meddle(name, driver_call, args):
        if name == "map":
            for call in (bench.have, rig.allocator.empty_cache, rig.allocator.close):
                try:
                    call()
                except MisuseError:
                    refused.append(call)
        return below(name, driver_call, args)

    rig.faulty.around = meddle
    try:
        bench.have()
    finally:
        del rig.faulty.around
    assert {*refused} == {bench.have, rig.allocator.empty_cache, rig.allocator.close}
    rig.check()


def test_the_lock_may_be_held_outside(rig):
    """A free inside the lock that is no call yet makes no call; the next call does."""
    bench = Bench(rig)
    address = bench.used()
    with rig.allocator._gate.lock:
        rig.allocator.free(address)
        with pytest.raises(MisuseError):
            rig.allocator.free(address)
    assert bench.have() != address
    assert [block.address for block in rig.blocks("pending")] == [address]


# All at once.


@pytest.mark.parametrize("slow", ["unmap", "record_event", "map"])
@pytest.mark.deep
def test_all_at_once(either, slow):
    """Threads that ask, free and empty, and collect, leave true books and no memory."""
    streams = [either.stream() for _ in range(4)]
    below, pause = either.faulty.around, threading.Event()

    def dawdle(name, call, args):
        if name == slow:
            pause.wait(0.001)
        return below(name, call, args)

    def work(number):
        for step in range(40):
            size = (1 + (number + step) % 5) * 7 * MIB
            try:
                address = either.allocator.malloc(size, streams[number])
            except OutOfMemory:
                continue
            either.allocator.record_stream(address, streams[step % 4])
            either.allocator.free(address)
            if step % 5 == number:
                either.allocator.empty_cache()
            elif step % 7 == number:
                gc.collect(0)
                either.allocator.trim(10 * MIB)

    either.faulty.around = dawdle
    try:
        with ThreadPoolExecutor(4) as executor:
            list(executor.map(work, range(4)))
    finally:
        del either.faulty.around
    either.check()
    either.allocator.empty_cache()
    assert either.atlas.used() == 0
    either.check()
