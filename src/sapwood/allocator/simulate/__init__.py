"""Allocation traces, replayed on any policy without a device.

`simulate` gives one policy's `Outcome`, `compare` those of several, on a `Trace` that
`read_trace` read or `Trace.of` made. Outcomes are exact and repeatable.
"""

from sapwood.allocator.simulate.reading import read_trace
from sapwood.allocator.simulate.run import (
    POLICIES,
    Failure,
    Outcome,
    Policy,
    compare,
    simulate,
)
from sapwood.allocator.simulate.trace import Buffer, Trace

__all__ = [
    "POLICIES",
    "Buffer",
    "Failure",
    "Outcome",
    "Policy",
    "Trace",
    "compare",
    "read_trace",
    "simulate",
]
