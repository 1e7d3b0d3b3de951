"""Everything that may happen to pinned memory, on the library as it is."""

from __future__ import annotations

from hypothesis import settings

from tests.support.pinned import PinnedBlocks

PinnedBlocks.TestCase.settings = settings(stateful_step_count=30)
TestPinnedBlocks = PinnedBlocks.TestCase
