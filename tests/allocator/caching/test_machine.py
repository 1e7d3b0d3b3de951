"""The state machine of the caching allocator, on the allocator as it is."""

from __future__ import annotations

from tests.support.caching import Caching

TestCaching = Caching.TestCase
