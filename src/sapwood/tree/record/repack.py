"""Packing the temporaries of what was just captured, where that saves pages."""

from __future__ import annotations

from collections.abc import Sequence

from sapwood.graphs.inspect import inspect
from sapwood.graphs.recording import Recording
from sapwood.memory.blocks import ALIGNMENT
from sapwood.memory.device import Device
from sapwood.memory.range import Range
from sapwood.tree.watch.placement import lay_out
from sapwood.tree.watch.watch import Captured
from sapwood.units import Addr, Size

__all__ = ["repacked"]


def repacked(
    recording: Recording,
    captured: Captured,
    addresses: Sequence[Addr],
    range_: Range,
    device: Device,
) -> Recording:
    """Return the recording, its temporaries planned anew if that saves pages.

    ``addresses`` are by symbol. Nothing of it has run. If it raises, the range must be
    closed.
    """
    driver = device.driver
    # Each op is known by its place in the order of those that were given.
    known = len(captured.session.lines) == len(recording.ops)
    if not known or not driver.abilities.exact_addresses:
        return recording
    if not range_.whole:
        return recording
    made = [each for each in captured.made if each.address < range_.base + range_.half]
    found = lay_out(recording, made, range_.kept(), range_.base, _packed)
    if found is None or not range_.loose(found[1])[1]:
        return recording
    moved, end = found
    moved = inspect(moved, addresses, driver, device.function)
    range_.cut(end)
    return moved


def _packed(lives: Sequence[tuple[int, int, int]]) -> Sequence[int]:
    from sapwood.allocator.planner import Buffer, largest_first

    buffers = [Buffer(lower, upper, Size(size)) for lower, upper, size in lives]
    return largest_first(buffers, ALIGNMENT)
