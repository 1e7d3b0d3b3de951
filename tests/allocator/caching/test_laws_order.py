"""Laws of the caching allocator that are about order: streams, threads, locks."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from sapwood.allocator.caching.settings import DEFAULT

MIB = 1 << 20
CROSSING = DEFAULT.replace(cross_stream_reuse=True)


def test_a_stream_s_cache_is_its_own(either):
    """What one stream freed serves that stream, and no other."""
    allocator = either.allocator
    one, two = either.stream(), either.stream()
    address = allocator.malloc(MIB, one)
    allocator.free(address)
    assert allocator.malloc(MIB, two) != address
    assert allocator.malloc(MIB, one) == address


def test_recorded_uses_are_waited_for(either):
    """C test_record_stream: not reused before the other stream is done, then it is."""
    allocator = either.allocator
    own, other = either.stream(), either.stream()
    address = allocator.malloc(3 * MIB, own)
    either.busy.keep(other)
    allocator.record_stream(address, other)
    allocator.free(address)
    assert allocator.malloc(3 * MIB, own) != address
    (pending,) = either.blocks("pending")
    assert (pending.address, pending.users) == (address, (other,))
    either.busy.let_go(other)
    assert allocator.malloc(3 * MIB, own) == address


@pytest.mark.parametrize("offset", [1, 512, MIB, 3 * MIB - 1])
def test_a_view_protects_its_block(either, offset):
    """C test_record_stream_on_shifted_view: an address inside stands for the block."""
    allocator = either.allocator
    own, other = either.stream(), either.stream()
    address = allocator.malloc(3 * MIB, own)
    either.busy.keep(other)
    allocator.record_stream(address + offset, other)
    allocator.free(address)
    assert allocator.malloc(3 * MIB, own) != address
    either.busy.let_go(other)
    assert allocator.malloc(3 * MIB, own) == address


@pytest.mark.parametrize("number", [1, 2, 3])
def test_all_users_are_waited_for(either, number):
    """A block with several users comes back when the last of them is done."""
    allocator, own = either.allocator, either.stream()
    users = [either.stream() for _ in range(number)]
    address = allocator.malloc(MIB, own)
    for user in (*users, own, *users):
        allocator.record_stream(address, user)
    for user in users:
        either.busy.keep(user)
    allocator.free(address)
    for user in users:
        again = allocator.malloc(MIB, own)
        assert again != address
        allocator.free(again)
        either.busy.let_go(user)
    assert allocator.malloc(MIB, own) == address


def test_later_work_is_not_waited_for(either):
    """A free waits for what its users were given before it, not for what came after."""
    allocator = either.allocator
    own, other = either.stream(), either.stream()
    address = allocator.malloc(MIB, own)
    allocator.record_stream(address, other)
    allocator.free(address)
    either.busy.let_go(other)
    either.busy.keep(other)
    assert allocator.malloc(MIB, own) == address


@pytest.mark.parametrize("size", [1000, 3 * MIB])
def test_crossing_streams_is_ordered_on_the_device(make_rig, size):
    """A miss may take another stream's block, and waits on the device for its work."""
    rig = make_rig(settings=CROSSING)
    allocator, own, other = rig.allocator, rig.stream(), rig.stream()
    address = allocator.malloc(size, own)
    rig.fill(address, size, 1, own)
    allocator.free(address)
    reserved = rig.atlas.used()
    again = allocator.malloc(size, other)
    assert rig.atlas.used() == reserved
    rig.fill(again, size, 2, other)
    rig.checked.synchronize_stream(other)
    rig.checked.synchronize_stream(own)
    assert rig.read(again, size, other).count(2) == size


def test_a_destroyed_stream_leaves_an_heir(either):
    """What a stream cached, and what it still has to free, is its successor's."""
    allocator = either.allocator
    old, successor = either.stream(), either.stream()
    cached, held = allocator.malloc(MIB, old), allocator.malloc(3 * MIB, old)
    allocator.free(cached)
    either.wait(successor, old)
    allocator.forget_stream(old, successor)
    either.streams.remove(old)
    either.checked.destroy_stream(old)
    allocator.free(held)
    reserved = either.atlas.used()
    assert allocator.malloc(MIB, successor) == cached
    assert allocator.malloc(3 * MIB, successor) == held
    assert either.atlas.used() == reserved
    assert {s.stream for s in allocator.picture().segments} == {successor}


def test_a_destroyed_stream_that_used_a_block(either):
    """A block that a forgotten stream used is waited for through its successor."""
    allocator = either.allocator
    own, user, successor = (either.stream() for _ in range(3))
    address = allocator.malloc(MIB, own)
    either.fill(address, MIB, 1, own)
    either.wait(user, own)
    either.fill(address, MIB, 2, user)
    allocator.record_stream(address, user)
    either.wait(successor, user)
    allocator.forget_stream(user, successor)
    either.streams.remove(user)
    either.checked.destroy_stream(user)
    allocator.free(address)
    again = allocator.malloc(MIB, own)
    either.fill(again, MIB, 3, own)
    either.checked.synchronize()
    assert either.read(again, MIB, own).count(3) == MIB


def test_growth_alone_keeps_others_waiting(either):
    """While a thread waits for the device, a hit of another goes on.

    Only what makes memory may hold the lock; a wait for work may not.
    """
    allocator = either.allocator
    own, other, third = (either.stream() for _ in range(3))
    allocator.free(allocator.malloc(1000, third))
    pending = allocator.malloc(60 * MIB, own)
    allocator.record_stream(pending, other)
    either.busy.keep(other)
    allocator.free(pending)
    waiting, go_on = threading.Event(), threading.Event()
    below = either.faulty.around

    def slow(name, call, args):
        if name.startswith("synchronize"):
            waiting.set()
            go_on.wait(10)
            either.busy.let_go(other)
        return below(name, call, args)

    either.faulty.around = slow
    try:
        with ThreadPoolExecutor(2) as executor:
            large = executor.submit(allocator.malloc, 100 * MIB, own)
            assert waiting.wait(10), "nothing was waited for"
            hit = executor.submit(allocator.malloc, 1000, third)
            try:
                assert hit.result(timeout=5)
            finally:
                go_on.set()
            assert large.result(timeout=10)
    finally:
        del either.faulty.around


def test_caches_are_emptied_by_all_at_once(either):
    """No memory is given back twice, however many threads empty the cache."""
    allocator = either.allocator
    streams = [either.stream() for _ in range(4)]

    def work(number):
        for _ in range(15):
            address = allocator.malloc(3 * MIB, streams[number])
            allocator.record_stream(address, streams[number - 1])
            allocator.free(address)
            allocator.empty_cache()

    with ThreadPoolExecutor(4) as executor:
        list(executor.map(work, range(4)))
    allocator.empty_cache()
    assert either.atlas.used() == 0


def test_a_stream_may_go_while_another_thread_waits_for_it(either):
    """Whoever waits for a stream that is handed on waits for its successor."""
    allocator = either.allocator
    own, other = either.stream(), either.stream()
    allocator.free(allocator.malloc(60 * MIB, other))
    either.busy.keep(other)
    below, gone = either.faulty.around, threading.Event()

    def leave():
        either.wait(own, other)
        allocator.forget_stream(other, own)
        either.streams.remove(other)
        either.checked.destroy_stream(other)

    def slow(name, call, args):
        if name.startswith("synchronize") and not gone.is_set():
            gone.set()
            either.busy.let_go(other)
            leaving = threading.Thread(target=leave)
            leaving.start()
            leaving.join(10)
        return below(name, call, args)

    either.faulty.around = slow
    try:
        assert allocator.malloc(100 * MIB, own)
    finally:
        del either.faulty.around
    assert gone.is_set()
