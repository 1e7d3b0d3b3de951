"""`validate` finds every law that a picture breaks, and none in one that is true."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sapwood.allocator.caching.picture import (
    DEFAULT_POOL,
    BlockPicture,
    Picture,
    PoolId,
    PoolPicture,
    SegmentPicture,
)
from sapwood.allocator.caching.validate import Mapped, validate

MIB = 1 << 20
MINE, CAPTURE = PoolId(0, 1), PoolId(3, 0)

SMALL = SegmentPicture(
    address=0x10_0000_0000,
    size=2 * MIB,
    stream=1,
    size_class="small",
    pool=DEFAULT_POOL,
    expandable=False,
    blocks=(
        BlockPicture(0x10_0000_0000, 512, 1, "allocated"),
        BlockPicture(0x10_0000_0200, MIB, 700_000, "pending", users=(2, 3)),
        BlockPicture(0x10_0010_0200, MIB - 512, 0, "free"),
    ),
    extents=((0x10_0000_0000, 2 * MIB),),
)
GROWING = SegmentPicture(
    address=0x20_0000_0000,
    size=10 * MIB,
    stream=2,
    size_class="large",
    pool=MINE,
    expandable=True,
    blocks=(
        BlockPicture(0x20_0000_0000, 2 * MIB, 2 * MIB, "allocated"),
        BlockPicture(0x20_0020_0000, 2 * MIB, 0, "unmapped"),
        BlockPicture(0x20_0040_0000, 3 * MIB, 0, "free"),
        BlockPicture(0x20_0070_0000, MIB + 512, MIB + 1, "allocated", users=(1,)),
        BlockPicture(0x20_0080_0200, 2 * MIB - 512, 0, "free"),
    ),
    extents=(
        (0x20_0000_0000, 2 * MIB),
        (0x20_0040_0000, 2 * MIB),
        (0x20_0060_0000, 4 * MIB),
    ),
)
TRUE = Picture(
    device=0,
    total=64 * MIB,
    free=54 * MIB,
    limit=64 * MIB,
    segments=(SMALL, GROWING),
    pools=(
        PoolPicture(DEFAULT_POOL, 1),
        PoolPicture(MINE, 0),
        PoolPicture(CAPTURE, 1),
    ),
)
PHYSICAL = [
    Mapped(address, size, number)
    for number, (address, size) in enumerate((*SMALL.extents, *GROWING.extents))
]


def _small(**changes):
    return replace(TRUE, segments=(replace(SMALL, **changes), GROWING))


def _growing(**changes):
    return replace(TRUE, segments=(SMALL, replace(GROWING, **changes)))


def _first(**changes):
    first, *others = SMALL.blocks
    return _small(blocks=(replace(first, **changes), *others))


def _pool(number, **changes):
    pools = list(TRUE.pools)
    pools[number] = replace(pools[number], **changes)
    return replace(TRUE, pools=tuple(pools))


BROKEN = {
    "segments do not overlap": replace(
        TRUE, segments=(SMALL, SMALL, GROWING), free=50 * MIB
    ),
    "blocks tile their segment": _small(blocks=SMALL.blocks[1:]),
    "free neighbours are one block": _small(
        blocks=(
            *SMALL.blocks[:1],
            replace(SMALL.blocks[1], state="free", users=()),
            *SMALL.blocks[2:],
        )
    ),
    "unmapped neighbours are one block": _growing(
        blocks=(
            *GROWING.blocks[:1],
            replace(GROWING.blocks[1], size=MIB),
            replace(GROWING.blocks[1], address=0x20_0030_0000, size=MIB),
            *GROWING.blocks[2:],
        )
    ),
    "extents do not overlap": _growing(
        extents=(*GROWING.extents, (0x20_0000_0000, 2 * MIB))
    ),
    "blocks that are not unmapped have memory": _growing(extents=GROWING.extents[:-1]),
    "a block has a size": _small(
        blocks=(
            replace(SMALL.blocks[0], size=0, requested=0, state="free"),
            *SMALL.blocks,
        )
    ),
    "blocks are aligned": _first(address=0x10_0000_0010),
    "a classic segment is mapped": _growing(expandable=False),
    "users are other streams, each once": _first(users=(1,)),
    "a pending block waits for a stream": _first(state="pending"),
    "nothing uses what is free": _first(state="free", users=(7,)),
    "a block holds what was asked for": _first(requested=513),
    "a request lies in the segments of its class": _small(size_class="large"),
    "a pool's id is its own": replace(TRUE, pools=(*TRUE.pools, TRUE.pools[1])),
    "a segment's pool is known": _small(pool=PoolId(0, 9)),
    "a pool is a capture's or a user's": _pool(2, id=PoolId(1, 1)),
    "a pool is released as often as used": _pool(1, use_count=-1),
    "a pool that is over holds memory still": _pool(2, use_count=0),
    "a pool without splits has whole segments": _pool(1, no_split=True),
    "a device has its memory": replace(TRUE, free=65 * MIB),
    "what is reserved is used on the device": replace(TRUE, free=55 * MIB),
}
DISAGREEING = {
    "an extent of a picture is mapped": PHYSICAL[:-1],
    "what is mapped is in the picture": [
        *PHYSICAL,
        Mapped(GROWING.address + 2 * MIB, 2 * MIB, 9),
    ],
    "live blocks share no physical memory": [
        PHYSICAL[0],
        PHYSICAL[1]._replace(extent=0),
        *PHYSICAL[2:],
    ],
}


def test_a_true_picture_breaks_no_law():
    """Nothing is found where nothing is wrong, with and without the device's word."""
    assert validate(TRUE) == []
    assert validate(TRUE, PHYSICAL) == []


@pytest.mark.parametrize("law", BROKEN)
def test_every_broken_law_is_found(law):
    """A picture that breaks one law is found out by its name."""
    assert law in {violation.law for violation in validate(BROKEN[law])}


@pytest.mark.parametrize("law", DISAGREEING)
def test_the_device_has_the_last_word(law):
    """What the device has mapped is compared with the picture, extent by extent."""
    found = validate(TRUE, DISAGREEING[law])
    assert {violation.law for violation in found} == {law}


def test_mappings_elsewhere_are_nobody_s_business():
    """What others map outside of all segments is no fault of the picture."""
    elsewhere = Mapped(0x50_0000_0000, 2 * MIB, 0)
    assert validate(TRUE, [*PHYSICAL, elsewhere]) == []
