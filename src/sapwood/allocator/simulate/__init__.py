"""Allocation traces, replayed on any policy without a device.

`simulate` gives a policy's `Outcome` on a `Trace` that `read_trace` read or `Trace.of`
made. Outcomes are exact and repeatable.
"""

from sapwood.allocator.simulate.reading import read_trace
from sapwood.allocator.simulate.run import (
    POLICIES,
    Failure,
    Outcome,
    Policy,
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
    "read_trace",
    "simulate",
]
