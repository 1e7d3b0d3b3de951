"""A remedy is a promise: what an error names is done on a real allocator, and fits."""

from __future__ import annotations

from contextlib import contextmanager

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sapwood.allocator.caching.allocator import Allocator
from sapwood.allocator.caching.settings import Settings
from sapwood.allocator.caching.shortage import (
    AfterRelease,
    AfterWork,
    HigherLimit,
    WithSetting,
    fits,
)
from sapwood.allocator.simulate.ours import Ground
from sapwood.driver.emulated import Emulated
from sapwood.driver.layers import Checked
from sapwood.errors import OutOfMemory
from sapwood.units import Size

MIB = 1 << 20
PAGE = Size(2 * MIB)
TOTAL = Size(96 * MIB)

SETTINGS = (
    Settings(),
    Settings(expandable_segments=False),
    Settings(expandable_segments=False, max_split_size=Size(24 * MIB)),
    Settings(throw_on_cudamalloc_oom=True),
    Settings(throw_on_cudamalloc_oom=True, expandable_segments=False),
    Settings(per_process_memory_fraction=0.5),
    Settings(cross_stream_reuse=True),
)
CLASSIC = tuple(each for each in SETTINGS if not each.expandable_segments)

sizes = st.one_of(
    st.integers(1, MIB), st.integers(MIB, 12 * MIB), st.integers(12 * MIB, 40 * MIB)
)
steps = st.one_of(
    st.tuples(st.just("malloc"), sizes, st.integers(0, 2)),
    st.tuples(st.just("malloc"), sizes, st.integers(0, 2)),
    st.tuples(st.just("free"), st.integers(0, 99)),
    st.tuples(st.just("record"), st.integers(0, 99), st.integers(0, 2)),
    st.tuples(st.just("pool"), st.booleans()),
)
programs = st.lists(steps, min_size=3, max_size=25).map(
    lambda program: [*program, *[("malloc", 30 * MIB, 0)] * 4]
)


def _ground():
    """Return a device of addresses alone: fast, and its work is done at once."""
    return Ground(TOTAL, PAGE)


def _emulated():
    """Return a device with bytes, whose work is done when somebody waits for it."""
    return Checked(Emulated(TOTAL, PAGE, "latest"))


def _examples(number):
    slow = [HealthCheck.too_slow]
    return settings(max_examples=number, deadline=None, suppress_health_check=slow)


class World:
    """An allocator, three streams, and what a program of steps has made there."""

    def __init__(self, driver, chosen):
        self.driver = driver
        self.allocator = Allocator(driver, chosen)
        self.streams = [driver.create_stream() for _ in range(3)]
        self.held, self.pools, self.routed = [], [], None

    def malloc(self, size, stream):
        self.held.append(self.allocator.malloc(size, self.streams[stream]))

    def free(self, which):
        if self.held:
            self.allocator.free(self.held.pop(which % len(self.held)))

    def record(self, which, stream):
        if self.held:
            address = self.held[which % len(self.held)]
            self.allocator.record_stream(address, self.streams[stream])

    def pool(self, capture):
        """Begin allocating from a new private pool, or end that."""
        if self.routed is None:
            self.enter(self.allocator.create_pool(capture=capture))
            self.pools.append(self.routed)
        else:
            self.leave()

    def enter(self, pool):
        self.routed = pool
        self.allocator.begin(pool)

    def leave(self):
        if self.routed is not None:
            self.allocator.end(self.routed)
            self.routed = None

    def run(self, program):
        """Run steps until one is not served; return their number, and the error."""
        for at, (name, *arguments) in enumerate(program):
            try:
                getattr(self, name)(*arguments)
            except OutOfMemory as error:
                return at, error
        return len(program), None

    def close(self):
        self.leave()
        for address in self.held:
            self.allocator.free(address)
        self.allocator.close()
        for stream in self.streams:
            self.driver.destroy_stream(stream)
        assert self.driver.memory_info().free == TOTAL
        self.driver.close()


@contextmanager
def opened(make, chosen):
    world = World(make(), chosen)
    yield world
    world.close()


def _follow(world, remedy, twin, asked):
    """Do what a remedy says, and nothing else; ``twin`` is the world that said it."""
    match remedy:
        case AfterWork(captures=captures, release=release):
            for stream in world.streams:
                world.driver.synchronize_stream(stream)
            if captures:
                world.leave()
            if release:
                world.allocator.empty_cache()
        case AfterRelease(pool=None):
            pool = world.routed
            world.leave()
            world.allocator.empty_cache()
            if pool is not None:
                world.enter(pool)
        case AfterRelease(pool=pool):
            world.allocator.release_pool(world.pools[twin.pools.index(pool)])
        case HigherLimit(fraction=fraction):
            world.allocator.memory_fraction = fraction
        case WithSetting(setting=setting):
            world.allocator.configure(asked.settings.revised(setting))


def _keep_a_promise(make, chosen, program, which):
    with opened(make, chosen) as first:
        served, error = first.run(program)
    found = [
        remedy
        for remedy in (error.shortage.remedies if error else ())
        if "expandable_segments" not in str(remedy)
    ]
    if not found:
        return
    remedy = found[which % len(found)]
    with opened(make, chosen) as again:
        assert again.run(program[:served]) == (served, None)
        _follow(again, remedy, first, error.shortage.request)
        assert again.run([program[served]]) == (1, None), remedy


@_examples(200)
@given(st.sampled_from(SETTINGS), programs, st.integers(0, 9))
def test_what_a_remedy_says_fits(chosen, program, which):
    """After exactly what one remedy of an error says, the same request is served."""
    _keep_a_promise(_ground, chosen, program, which)


@_examples(12)
@given(st.sampled_from(SETTINGS), programs, st.integers(0, 9))
def test_what_a_remedy_says_fits_where_work_takes_time(chosen, program, which):
    """So it is on a device whose streams are behind until somebody waits for them."""
    _keep_a_promise(_emulated, chosen, program, which)


@_examples(150)
@given(st.sampled_from(SETTINGS), programs)
def test_memory_runs_out_only_where_nothing_fits(chosen, program):
    """When an allocator gives up, no free block and no room would have served."""
    with opened(_ground, chosen) as world:
        _, error = world.run(program)
        picture = world.allocator.picture()
        assert error is None or not fits(picture, error.shortage.request)


def _parts(block, size_class):
    """Return the sizes of requests that fill a block and nothing else."""
    most = MIB if size_class == "small" else block.size
    whole, rest = divmod(block.size, most)
    return [most] * whole + ([rest] if rest else [])


def _lay_out(world, picture):
    """Allocate the blocks of a picture in their order; free what is free there.

    Returns the pools, by those of the picture.
    """
    pools, gaps = {}, []
    for segment in sorted(picture.segments, key=lambda s: (s.pool, s.address)):
        if segment.pool != (0, 0):
            if segment.pool not in pools:
                pools[segment.pool] = world.allocator.create_pool()
            world.enter(pools[segment.pool])
        for block in (b for b in segment.blocks if b.state != "unmapped"):
            for size in _parts(block, segment.size_class):
                address = world.allocator.malloc(size, segment.stream)
                (gaps if block.state == "free" else world.held).append(address)
        world.leave()
    for address in gaps:
        world.allocator.free(address)
    return pools


@_examples(100)
@given(st.sampled_from(CLASSIC), programs)
def test_expandable_segments_would_have_fitted(chosen, program):
    """The same blocks in expandable segments leave room, where an error says so."""
    program = [step for step in program if step[0] != "record"]
    with opened(_ground, chosen) as first:
        _, error = first.run(program)
        picture = first.allocator.picture()
    found = error.shortage.remedies if error else ()
    if not any("expandable_segments" in str(remedy) for remedy in found):
        return
    asked = error.shortage.request
    with opened(_ground, chosen.revised("expandable_segments:True")) as again:
        pools = _lay_out(again, picture)
        if asked.pool in pools:
            again.enter(pools[asked.pool])
        again.held.append(again.allocator.malloc(asked.size, asked.stream))
