"""Made-up lifetimes and traces, to test planners and allocators with."""

from sapwood.testing.lifetimes import KINDS, PERFECT, make_lifetimes
from sapwood.testing.traces import FAMILIES, make_trace

__all__ = ["FAMILIES", "KINDS", "PERFECT", "make_lifetimes", "make_trace"]
