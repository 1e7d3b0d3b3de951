"""Control-C in a hit: the books are true behind it, wherever it comes."""

from __future__ import annotations

import itertools

import pytest

from tests.support.interrupts import interrupted

SIZES = 512, 4096, 1024, 512, 9000, 1536
"""What is allocated and partly freed before, so that blocks are cut and merged."""


@pytest.mark.parametrize("kept", [0, 1, 2], ids=["none", "odd", "even"])
def test_hits(rig, kept):
    """After a malloc or a free that is interrupted, and with those that are not."""
    allocator, stream = rig.allocator, rig.stream()
    held = [allocator.malloc(size, stream) for size in SIZES * 4]
    for address in held[1:-1] if kept == 0 else held[kept::2]:
        allocator.free(address)
    for size in (512, 700, 8000):
        for at in itertools.count(1):
            address = allocator.malloc(600, stream)
            over = interrupted(lambda: allocator.malloc(size, stream), at)  # noqa: B023
            rig.check()
            over = interrupted(lambda: allocator.free(address), at) or over  # noqa: B023
            rig.check()
            if over is None:
                break
        assert at > 3
