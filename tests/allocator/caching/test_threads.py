"""Four threads at once: nothing overlaps, nothing is lost, nothing stands still.

They run for 5 seconds in all, or for as many as SAPWOOD_STRESS says.
"""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import pytest

from sapwood.allocator.caching.allocator import Allocator
from sapwood.allocator.caching.settings import DEFAULT
from sapwood.allocator.caching.validate import validate
from sapwood.driver.emulated import Emulated
from sapwood.errors import OutOfMemory

MIB = 1 << 20
SECONDS = float(os.environ.get("SAPWOOD_STRESS", "5"))
THREADS = 4


class Block:
    """A block that is freed when it is garbage, in a cycle with itself."""

    def __init__(self, crew, address, size, stream, value):
        self.crew, self.address, self.size = crew, address, size
        self.stream, self.value, self.itself = stream, value, self

    def __del__(self):
        self.crew.allocator.free(self.address)


class Crew:
    """What all threads share: an allocator, streams, and blocks on their way."""

    def __init__(self, rig, seconds):
        self.rig, self.allocator = rig, rig.allocator
        self.streams = [rig.stream() for _ in range(THREADS)]
        self.passed = deque(maxlen=16)
        self.end = time.monotonic() + seconds
        self.start = threading.Barrier(THREADS)
        self.steps = [0] * THREADS

    def work(self, number):
        """Allocate, use, hand on, and drop until the time is over."""
        chance, mine = random.Random(number), deque(maxlen=6)
        self.start.wait(30)
        while time.monotonic() < self.end:
            self.steps[number] += 1
            roll = chance.random()
            if roll < 0.6:
                self.allocate(number, chance, mine)
            elif roll < 0.8 and mine:
                self.passed.append(mine.pop())
            elif roll < 0.98 and self.passed:
                self.take()
            elif roll < 0.99:
                self.allocator.empty_cache()
            else:
                gc.collect(0)
        while mine:
            self.check(mine.pop())

    def allocate(self, number, chance, mine):
        stream = self.streams[number]
        size = chance.choice([600, 5_000, 70_000, MIB + 1, 3 * MIB])
        try:
            address = self.allocator.malloc(size, stream)
        except OutOfMemory:
            mine.clear()
            return
        value = 1 + (number * 60 + self.steps[number]) % 250
        block = Block(self, address, size, stream, value)
        self.rig.fill(address, size, value, stream)
        if chance.random() < 0.3:
            self.use(block, chance.choice(self.streams))
        mine.append(block)

    def use(self, block, stream):
        """Write the same again on another stream, which nobody waits for."""
        if stream != block.stream:
            self.rig.wait(stream, block.stream)
        self.allocator.record_stream(block.address, stream)
        self.rig.fill(block.address, block.size, block.value, stream)

    def take(self):
        try:
            block = self.passed.popleft()
        except IndexError:
            return
        self.check(block)

    def check(self, block):
        found = self.rig.read(block.address, block.size, block.stream)
        assert found.count(block.value) == block.size, hex(block.address)


@pytest.mark.timeout(SECONDS * 4 + 60)
@pytest.mark.parametrize("crossing", [False, True], ids=["own streams", "crossing"])
def test_four_threads(open_rig, crossing):
    """Blocks cross threads and streams, and finalisers free them at any moment."""
    settings = DEFAULT.replace(cross_stream_reuse=crossing)
    with open_rig(settings=settings, total=96 * MIB) as rig:
        crew = Crew(rig, SECONDS / 4)
        with ThreadPoolExecutor(THREADS) as executor:
            for done in [executor.submit(crew.work, n) for n in range(THREADS)]:
                done.result()
        crew.passed.clear()
        gc.collect()
        rig.checked.synchronize()
        assert min(crew.steps) > 0
        assert rig.blocks("allocated") == []
        rig.check()
        rig.allocator.empty_cache()
        assert rig.atlas.used() == 0


@pytest.mark.parametrize(
    ("history", "rounds"),
    [
        ("none", 100),
        ("events", 100),
        pytest.param("stacks", 40, marks=pytest.mark.deep),
    ],
)
def test_a_finaliser_may_free_at_any_moment(open_rig, history, rounds):
    """A block may go while its own thread is inside the allocator."""
    with open_rig(total=64 * MIB) as rig:
        crew = Crew(rig, 0)
        stream, before = crew.streams[0], gc.get_threshold()
        if history != "none":
            context = "all" if history == "stacks" else None
            rig.allocator.record_history("all", context=context)
        gc.set_threshold(3, 2, 2)
        try:
            for size in [100, 3 * MIB, 700, 40_000] * rounds:
                address = rig.allocator.malloc(size, stream)
                Block(crew, address, size, stream, 1)
                rig.allocator.free(rig.allocator.malloc(size * 2, stream))
        finally:
            gc.set_threshold(*before)
        gc.collect()
        assert rig.blocks("allocated") == []
        assert rig.allocator.counters().total.allocation.current == 0
        rig.check()


def _meanwhile(driver, works):
    """Let each of these be done once, just after the device said what is free."""
    ask = driver.memory_info

    def asked():
        found = ask()
        if works:
            works.pop()()
        return found

    driver.memory_info = asked


@pytest.mark.parametrize("times", [0, 1, 3, 40])
def test_a_picture_is_of_one_moment(times):
    """However often memory comes between asking the device and drawing."""
    driver = Emulated(256 * MIB, 2 * MIB)
    memory, stream, held = Allocator(driver), driver.create_stream(), []
    _meanwhile(driver, [lambda: held.append(memory.malloc(2 * MIB, stream))] * times)
    picture = memory.picture()
    assert validate(picture) == []
    if times <= 3:
        assert picture.free == driver.memory_info().free
        assert len(held) == times
    for address in held:
        memory.free(address)
    memory.close()


def test_a_shortage_is_of_one_moment():
    """What it says is free was so beside what it says is held."""
    driver = Emulated(256 * MIB, 2 * MIB)
    memory, stream, held = Allocator(driver), driver.create_stream(), []
    _meanwhile(driver, [lambda: held.append(memory.malloc(64 * MIB, stream))])
    with pytest.raises(OutOfMemory) as caught:
        memory.malloc(512 * MIB, stream)
    assert caught.value.free == 192 * MIB
    memory.free(held.pop())
    memory.close()
