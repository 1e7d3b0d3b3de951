"""Running out of memory says what is missing, where it is, and what really helps."""

from __future__ import annotations

import pickle
from dataclasses import fields, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sapwood.allocator.caching.picture import (
    DEFAULT_POOL,
    BlockPicture,
    Frame,
    Picture,
    PoolId,
    PoolPicture,
    SegmentPicture,
)
from sapwood.allocator.caching.settings import Settings
from sapwood.allocator.caching.shortage import (
    AfterRelease,
    AfterWork,
    HigherLimit,
    Request,
    Shortage,
    Stranded,
    WithSetting,
    completed,
    fits,
    holders,
    out_of_memory,
    released,
    remedies,
    repaged,
    reserved,
    room,
    shortage,
    stranded,
)
from sapwood.allocator.caching.validate import validate
from sapwood.units import Size
from tests.support.pictures import pictures

SLOW = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])

MIB = 1 << 20
PAGE = Size(2 * MIB)
CLASSIC = Settings(expandable_segments=False)


@st.composite
def requests(draw):
    """Draw a request that any picture might not serve."""
    rounded = 512 * draw(st.integers(1, 32 * MIB // 512))
    return Request(
        size=Size(draw(st.integers(1, rounded))),
        rounded=Size(rounded),
        growth=Size(-(-rounded // PAGE) * PAGE),
        page=PAGE,
        stream=draw(st.integers(0, 3)),
        pool=draw(st.sampled_from([DEFAULT_POOL, PoolId(1, 0), PoolId(0, 2)])),
        size_class="small" if rounded <= MIB else "large",
        capturing=draw(st.booleans()),
    )


def _blocks(picture):
    return [block for segment in picture.segments for block in segment.blocks]


def _bytes(picture, *states):
    return sum(block.size for block in _blocks(picture) if block.state in states)


# What could be.


@SLOW
@given(pictures(), st.data())
def test_giving_back_keeps_what_is_used(picture, data):
    """After a release the same blocks are in use, and memory moved to the device."""
    chosen = data.draw(st.sets(st.integers(0, 3)))
    after = released(picture, lambda segment: segment.stream in chosen)
    used = ("allocated", "pending")
    assert [b for b in _blocks(after) if b.state in used] == [
        b for b in _blocks(picture) if b.state in used
    ]
    assert after.free - picture.free == reserved(picture) - reserved(after)
    assert after.free - picture.free == _bytes(picture, "free") - _bytes(after, "free")
    assert validate(after) == []
    assert released(released(picture)) == released(picture)


@SLOW
@given(pictures())
def test_a_release_leaves_no_whole_free_piece(picture):
    """What stays of free memory shares its piece, or classic segment, with others."""
    after = released(picture)
    for segment in after.segments:
        used = [b for b in segment.blocks if b.state in {"allocated", "pending"}]
        assert used
        for address, size in segment.extents if segment.expandable else ():
            assert any(
                block.address < address + size and address < block.address + block.size
                for block in used
            )


@SLOW
@given(pictures(), st.sets(st.integers(0, 3)))
def test_completed_work_frees_what_only_it_used(picture, streams):
    """Pending blocks of finished streams are free; no byte is lost or doubled."""
    after = completed(picture, frozenset(streams))
    waiting = [block for block in _blocks(after) if block.state == "pending"]
    assert not any(streams.issuperset(block.users) for block in waiting)
    assert _bytes(after, "pending", "free") == _bytes(picture, "pending", "free")
    assert _bytes(after, "allocated") == _bytes(picture, "allocated")
    assert validate(after) == []


@SLOW
@given(pictures(), requests())
def test_another_layout_has_the_same_blocks(picture, request_):
    """Segments laid out anew hold the same blocks in the same order, and no gap."""
    after = repaged(picture, request_)
    assert _bytes(after, "allocated") == _bytes(picture, "allocated")
    assert _bytes(after, "pending") == _bytes(picture, "pending")
    for segment in after.segments:
        assert sum(block.size for block in segment.blocks) == segment.size
        assert sum(size for _, size in segment.extents) == segment.size
    assert after.free + reserved(after) == picture.free + reserved(picture)


# Where it is.


@SLOW
@given(pictures(), requests())
def test_every_free_byte_is_stranded_for_one_reason(picture, request_):
    """The causes of free bytes add up to all of them; the others are as drawn."""
    why = stranded(picture, request_)
    free = why.other_pools + why.other_streams + why.other_class + why.remainders
    assert free == _bytes(picture, "free")
    assert why.pending == _bytes(picture, "pending")
    live = [block for block in _blocks(picture) if block.state == "allocated"]
    assert why.rounding == sum(block.size - block.requested for block in live)
    enough = room(picture) >= request_.growth
    assert why.unplaced == (room(picture) if enough else 0)


def test_causes_are_said_largest_first():
    """The text names each cause that has bytes, and no other."""
    text = str(Stranded(other_streams=Size(MIB), rounding=Size(3 * MIB)))
    assert text == "3 MiB lost to rounding, 1 MiB free on other streams"
    assert str(Stranded()) == ""
    for cause in fields(Stranded):
        assert str(Stranded(**{cause.name: Size(5)})).startswith("5 B ")


@SLOW
@given(pictures())
def test_holders_hold_all_that_is_live(picture):
    """Every live block has one holder; the one with the most bytes comes first."""
    found = holders(picture)
    live = [block for block in _blocks(picture) if block.state == "allocated"]
    assert sum(holder.size for holder in found) == sum(block.size for block in live)
    assert sum(holder.blocks for holder in found) == len(live)
    assert [h.size for h in found] == sorted((h.size for h in found), reverse=True)
    assert len({holder.frame for holder in found}) == len(found)


# What would help, on pictures.


@SLOW
@given(pictures(), requests())
def test_nothing_helps_what_fits(picture, request_):
    """Remedies are for requests that do not fit; each changes something."""
    found = remedies(picture, request_)
    if fits(picture, request_):
        assert found == ()
    assert all(
        remedy.size > 0
        for remedy in found
        if isinstance(remedy, AfterWork | AfterRelease)
    )


@SLOW
@given(pictures(), requests())
def test_nothing_that_helps_is_left_out(picture, request_):
    """Where all caches together would do, or a higher limit, something is named."""
    done = completed(picture, frozenset(range(4)), captures=True)
    after = released(done, lambda segment: segment.pool == DEFAULT_POOL)
    unlimited = replace(picture, limit=picture.total)
    if not fits(picture, request_) and (
        fits(after, request_) or fits(unlimited, request_)
    ):
        assert remedies(picture, request_)


@SLOW
@given(pictures(), requests())
def test_a_higher_limit_is_named_where_it_is_all_that_lacks(picture, request_):
    """The limit that a remedy names serves, and the device has what it allows."""
    for remedy in remedies(picture, request_):
        if isinstance(remedy, HigherLimit):
            assert fits(replace(picture, limit=remedy.limit), request_)
            assert picture.limit < remedy.limit <= picture.total
            assert int(remedy.fraction * picture.total) >= remedy.limit
            assert picture.free >= request_.growth


@SLOW
@given(pictures(settings=CLASSIC), requests())
def test_another_layout_is_named_where_it_fits_the_limit(picture, request_):
    """Expandable segments are named only where they would have been allowed, too."""
    asked = replace(request_, settings=CLASSIC)
    for remedy in remedies(picture, asked):
        if isinstance(remedy, WithSetting) and "expandable" in remedy.setting:
            laid = repaged(picture, asked)
            assert laid.free >= 0
            assert reserved(laid) <= picture.limit


@SLOW
@given(pictures(), requests())
def test_the_text_says_the_figures(picture, request_):
    """An error names request, device, and every remedy; it travels with its fields."""
    error = out_of_memory(picture, request_)
    missing = error.shortage
    text = str(error)
    assert isinstance(missing, Shortage)
    assert f"on stream {request_.stream} of pool" in text
    assert all(str(remedy) in text for remedy in missing.remedies)
    assert (error.asked, error.free) == (request_.size, picture.free)
    assert missing.live == _bytes(picture, "allocated")
    assert missing.cached == _bytes(picture, "free")
    assert error.largest == max((size for _, size in missing.largest), default=0)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.shortage) == (text, missing)


def _full(**changes):
    """Return a picture of 4 MiB: 3 MiB live, of two lines, and one free elsewhere."""
    lines = [Frame("train.py", line, "step") for line in (3, 7)]
    blocks = (
        BlockPicture(0, Size(MIB), Size(MIB), "allocated", frames=(lines[0],)),
        BlockPicture(MIB, Size(MIB), Size(MIB), "allocated", frames=(lines[0],)),
    )
    third = BlockPicture(PAGE, Size(MIB), Size(MIB - 9), "allocated", (), (lines[1],))
    free = BlockPicture(3 * MIB, Size(MIB), Size(0), "free")
    where = ("small", DEFAULT_POOL, False)
    picture = Picture(
        device=1,
        total=Size(4 * MIB),
        free=Size(0),
        limit=Size(4 * MIB),
        segments=(
            SegmentPicture(0, PAGE, 0, *where, blocks, ((0, PAGE),)),
            SegmentPicture(PAGE, PAGE, 5, *where, (third, free), ((PAGE, PAGE),)),
        ),
        pools=(PoolPicture(DEFAULT_POOL, 1),),
    )
    return replace(picture, **changes)


def test_the_text_reads_well():
    """One case in full: what was asked, what is there, who has it, what helps."""
    asked = Request(Size(MIB), Size(MIB), PAGE, PAGE, 0, DEFAULT_POOL, "small")
    assert str(out_of_memory(_full(), asked)) == (
        "malloc failed with OUT_OF_MEMORY (2): asked for 1 MiB on stream 0 of pool "
        "(0, 0): a free block of 1 MiB, or 2 MiB from the driver. Device 1 has 0 B "
        "free of 4 MiB; 4 MiB are held here of 4 MiB allowed: 3 MiB live, 1 MiB "
        "cached. Largest free: 1 MiB (small, stream 5, pool (0, 0)). Not usable: "
        "1 MiB free on other streams, 9 B lost to rounding. Held by train.py:3 (step) "
        "2 MiB in 2 blocks, train.py:7 (step) 1 MiB in 1 block. It fits with "
        "cross_stream_reuse:True: a free block of another stream is large enough."
    )


def test_a_block_that_may_not_be_split_is_named():
    """Where only the rule against splitting is in the way, the text says so."""
    free = BlockPicture(0, Size(40 * MIB), Size(0), "free")
    segment = SegmentPicture(
        *(0, Size(40 * MIB), 0, "large", DEFAULT_POOL, False),
        *((free,), ((0, Size(40 * MIB)),)),
    )
    picture = _full(total=Size(40 * MIB), limit=Size(40 * MIB), segments=(segment,))
    whole = Settings(expandable_segments=False, max_split_size=Size(24 * MIB))
    size = Size(8 * MIB)
    asked = Request(size, size, size, PAGE, 0, DEFAULT_POOL, "large", whole)
    assert "max_split_size:None" in str(out_of_memory(picture, asked))
    assert fits(picture, replace(asked, settings=Settings()))


def test_a_block_of_the_other_class_does_not_serve():
    """A free block among large ones is not for small requests, and named so."""
    picture = _full()
    first, second = picture.segments
    large = replace(second, size_class="large", stream=0)
    asked = Request(Size(9), Size(512), PAGE, PAGE, 0, DEFAULT_POOL, "small")
    missing = shortage(replace(picture, segments=(first, large)), asked)
    assert missing.stranded.other_class == MIB
    assert missing.remedies == ()


def test_what_cannot_fit_says_so():
    """Where only live memory could make room, that is what the text says."""
    asked = Request(Size(9), Size(512), PAGE, PAGE, 3, PoolId(0, 2), "small")
    text = str(out_of_memory(_full(), asked))
    assert "Does not fit: 3 MiB are live, the limit is 4 MiB" in text


def test_more_than_there_ever_is_is_not_blamed_on_what_is_live():
    """What exceeds the limit is told so: freeing all that is live would not help."""
    size = Size(8 * MIB)
    asked = Request(size, size, size, PAGE, 0, DEFAULT_POOL, "large")
    text = str(out_of_memory(_full(), asked))
    assert "Does not fit: no more than 4 MiB may be held. Ask for less" in text
    assert "Free live memory" not in text


def test_without_history_the_text_says_how_to_know_more():
    """Blocks without stacks have no known holder; recording would show them."""
    picture = _full()
    bare = replace(
        picture,
        segments=tuple(
            replace(s, blocks=tuple(replace(b, frames=()) for b in s.blocks))
            for s in picture.segments
        ),
    )
    asked = Request(Size(9), Size(512), PAGE, PAGE, 3, PoolId(0, 2), "small")
    missing = shortage(bare, asked)
    assert [holder.frame for holder in missing.holders] == [None]
    assert "record_history shows who holds it" in str(missing)


def test_room_without_addresses_is_named():
    """Where there was room and the driver refused, nothing else is blamed."""
    asked = Request(Size(9), Size(512), PAGE, PAGE, 3, PoolId(0, 2), "small")
    missing = shortage(
        _full(total=Size(8 * MIB), free=PAGE, limit=Size(8 * MIB)), asked
    )
    assert missing.stranded.unplaced == PAGE
    assert "There was room, but no addresses for it" in str(missing)
    assert missing.remedies == ()


@pytest.mark.parametrize(
    ("remedy", "said"),
    [
        (
            AfterWork((5,), Size(MIB)),
            "fits when pending frees of stream 5 complete (1 MiB): synchronize",
        ),
        (
            AfterWork((1, 5), Size(MIB), captures=True),
            "pending frees of stream 1, 5 complete and the captures under way end",
        ),
        (
            AfterWork((), Size(MIB), captures=True, release=True),
            "captures under way end (1 MiB): synchronize, then call empty_cache()",
        ),
        (
            AfterRelease(Size(212 * MIB), stream=3),
            "fits after 212 MiB cached on stream 3 are released: empty_cache()",
        ),
        (
            AfterRelease(Size(MIB), pool=PoolId(0, 2)),
            "fits after 1 MiB cached in pool (0, 2) are released: release_pool",
        ),
        (
            HigherLimit(Size(1 << 30), 0.25),
            "1 GiB: set per_process_memory_fraction to 0.2500 or more",
        ),
    ],
)
def test_remedies_say_what_to_call(remedy, said):
    """Each remedy names the bytes, the place, and the call."""
    assert said in str(remedy)
