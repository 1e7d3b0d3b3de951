"""Every driver call of a scenario fails once; what was there stays as it was.

A call that gives nothing back fails before it does anything: then the picture is the
one from before, and the same request succeeds afterwards. A free has done its work.
"""

from __future__ import annotations

import pytest

from sapwood.allocator.caching.settings import DEFAULT
from sapwood.driver.facade import gives_back
from sapwood.errors import DriverError

# Every call of every scenario fails in turn: on a GPU the waits would take an hour.
pytestmark = pytest.mark.parametrize("open_rig", ["latest"], indirect=True)

MIB = 1 << 20

SETTINGS = {
    "expandable": DEFAULT,
    "classic": DEFAULT.replace(expandable_segments=False),
    "crossing": DEFAULT.replace(cross_stream_reuse=True),
}


class Scene:
    """An allocator in the middle of its life, whose next steps may fail."""

    def __init__(self, rig):
        self.rig, self.allocator = rig, rig.allocator
        self.own, self.other = rig.stream(), rig.stream()
        self.held = {}

    def have(self, size, stream=None):
        """Hold a block of a size, by its size."""
        address = self.allocator.malloc(size, stream or self.own)
        self.held[address] = size
        return address

    def drop(self, address, user=None):
        """Free a block, perhaps while another stream still uses it."""
        if user is not None:
            self.allocator.record_stream(address, user)
            self.rig.busy.keep(user, seconds=0.3)
        self.allocator.free(address)
        del self.held[address]

    def attempt(self, request):
        """Make a request with its planned fault; return the error, if one came out."""
        faulty = self.rig.faulty
        try:
            request()
        except DriverError as error:
            return error
        else:
            return None
        finally:
            faulty.plan = ()


# Each: what came before, and the request whose calls fail one by one.


def _from_nothing(scene):
    return lambda: scene.have(3 * MIB)


def _small(scene):
    scene.have(5 * MIB)
    return lambda: scene.have(1000)


def _growing(scene):
    scene.have(17 * MIB)
    return lambda: scene.have(30 * MIB)


def _between_holes(scene):
    blocks = [scene.have(12 * MIB) for _ in range(3)]
    scene.drop(blocks[1])
    scene.allocator.empty_cache()
    return lambda: scene.have(22 * MIB)


def _after_other_streams_caches(scene):
    scene.drop(scene.have(40 * MIB, scene.other))
    return lambda: scene.have(44 * MIB)


def _with_a_pending_block(scene):
    scene.drop(scene.have(30 * MIB), scene.other)
    return lambda: scene.have(50 * MIB)


def _stitched(scene):
    blocks = [scene.have(10 * MIB) for _ in range(6)]
    for block in blocks[::2]:
        scene.drop(block)
    return lambda: scene.have(30 * MIB)


def _in_a_pool(scene):
    pool = scene.allocator.create_pool()

    def request():
        with scene.allocator.using(pool):
            return scene.have(13 * MIB)

    return request


def _from_another_stream(scene):
    scene.drop(scene.have(30 * MIB, scene.other))
    return lambda: scene.have(30 * MIB)


REQUESTS = {
    each.__name__.strip("_"): each
    for each in (
        _from_nothing,
        _small,
        _growing,
        _between_holes,
        _after_other_streams_caches,
        _with_a_pending_block,
        _stitched,
        _in_a_pool,
        _from_another_stream,
    )
}


def _fail_each(open_rig, settings, prepare, check, positions):
    """Fail the calls of a request in turn; return the names of those that failed."""
    fired = []
    for position in positions:
        with open_rig(settings=settings, total=64 * MIB) as rig:
            scene = Scene(rig)
            request = prepare(scene)
            scene.before = rig.check()
            rig.faulty.position, rig.faulty.plan = 0, {position}
            check(scene, request)
            if rig.faulty.fired is None:
                return fired
            fired.append(rig.faulty.fired)
    raise AssertionError


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("name", REQUESTS)
def test_a_failed_request_changes_nothing(open_rig, kind, name, positions):
    """Whichever call fails, a request that raises leaves the books as they were."""

    def check(scene, request):
        before, held = scene.before, dict(scene.held)
        if scene.attempt(request) is not None:
            assert scene.held == held
            _compare(before, scene.rig.check(), scene.rig.faulty.fired)
            request()
        scene.rig.check()

    fired = _fail_each(open_rig, SETTINGS[kind], REQUESTS[name], check, positions)
    assert fired or name == "from_another_stream", "no call was seen to fail"


def _compare(before, after, fired):
    """What is held is the same, and nothing is new; cache may have been given back.

    Giving back fails when all is done: pages may have moved, but there are no more.
    """
    assert _live(after) == _live(before)
    if gives_back(fired):
        assert _reserved(after) <= _reserved(before)
        return
    assert _extents(after) <= _extents(before), fired
    assert _addresses(after) <= _addresses(before), fired
    if _extents(after) == _extents(before) and not _pending(before):
        assert after.segments == before.segments, fired


def _live(picture):
    return {
        (block.address, block.size, block.requested)
        for segment in picture.segments
        for block in segment.blocks
        if block.state == "allocated"
    }


def _pending(picture):
    return any(b.state == "pending" for s in picture.segments for b in s.blocks)


def _reserved(picture):
    return sum(size for _, size in _extents(picture))


def _extents(picture):
    return {each for segment in picture.segments for each in segment.extents}


def _addresses(picture):
    return {segment.address for segment in picture.segments}


@pytest.mark.parametrize("kind", ["expandable", "classic"])
def test_a_failed_free_has_done_its_work(open_rig, kind, positions):
    """A block whose free raises is freed, or as it was: never lost, never twice."""

    def prepare(scene):
        block = scene.have(9 * MIB)
        scene.allocator.record_stream(block, scene.other)
        scene.rig.busy.keep(scene.other, seconds=0.3)
        return lambda: scene.allocator.free(block)

    def check(scene, request):
        (block,) = scene.held
        scene.attempt(request)
        scene.held.clear()
        scene.rig.check()
        assert scene.rig.blocks("allocated") == []
        again = scene.have(9 * MIB)
        assert again != block, "the other stream still uses it"
        scene.rig.busy.let_go(scene.other)
        scene.rig.check()

    assert _fail_each(open_rig, SETTINGS[kind], prepare, check, positions)


@pytest.mark.parametrize("kind", SETTINGS)
def test_emptying_goes_on_where_giving_back_fails(open_rig, kind, positions):
    """Giving back is done even where it reports an error, and nothing is forgotten."""

    def prepare(scene):
        blocks = [scene.have(size) for size in (1000, 9 * MIB, 30 * MIB)]
        scene.drop(blocks[2], scene.other)
        scene.drop(blocks[1])
        return scene.allocator.empty_cache

    def check(scene, request):
        scene.attempt(request)
        scene.rig.check()
        scene.rig.busy.end()
        scene.allocator.empty_cache()
        scene.rig.check()
        assert scene.rig.atlas.used() <= 20 * MIB

    assert _fail_each(open_rig, SETTINGS[kind], prepare, check, positions)


@pytest.mark.parametrize("kind", SETTINGS)
def test_closing_gives_all_back_where_a_call_fails(open_rig, kind, positions):
    """Whichever call of close fails, nothing is left behind."""

    def prepare(scene):
        blocks = [scene.have(size) for size in (1000, 9 * MIB, 30 * MIB)]
        scene.drop(blocks[2], scene.other)
        for block in blocks[:2]:
            scene.drop(block)
        return scene.allocator.close

    def check(scene, request):
        if scene.attempt(request) is not None:
            scene.allocator.close()
        assert scene.rig.atlas.used() == 0
        scene.rig.finished = True
        scene.rig.busy.end()
        for stream in scene.rig.streams:
            scene.rig.checked.destroy_stream(stream)
        assert scene.rig.checked.leaks() == {}
        scene.rig.driver.close()

    assert _fail_each(open_rig, SETTINGS[kind], prepare, check, positions)


def test_every_making_call_is_seen_to_fail(open_rig):
    """The scenarios reach each call that a request makes: each fails somewhere."""
    fired = set()
    for settings in SETTINGS.values():
        for prepare in REQUESTS.values():
            with open_rig(settings=settings, total=64 * MIB) as rig:
                request = prepare(Scene(rig))
                rig.recorded.reset()
                request()
                fired |= rig.recorded.counts().keys()
    assert {"reserve", "create", "map", "set_access"} <= fired
    assert {"query_event"} <= fired


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.deep
def test_a_shortage_of_a_moment_is_no_shortage(open_rig, kind, name, positions):
    """Where one creation fails, giving back and asking again makes it good."""

    def check(scene, request):
        error = scene.attempt(request)
        if scene.rig.faulty.fired == "create":
            assert error is None
        scene.rig.check()

    _fail_each(open_rig, SETTINGS[kind], REQUESTS[name], check, positions)
