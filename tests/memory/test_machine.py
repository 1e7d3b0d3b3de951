"""Everything that may happen to memory, in any order, on the library as it is."""

from __future__ import annotations

from hypothesis import settings

from tests.support.memory import Allocations

Allocations.TestCase.settings = settings(stateful_step_count=20)
TestAllocations = Allocations.TestCase
