"""The times of an instance, cut where buffers begin or end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sapwood.allocator.planner.instance import Instance, Wholes

__all__ = ["Sections"]


@dataclass(frozen=True, slots=True, eq=False)
class Sections:
    """Which buffers are in use in which section, and beside which others.

    ``members`` are those of all sections one after the other, ``starts`` where each
    section's begin, ``loads`` what is in use in each, in grains. Buffer *n* is in use
    in the sections from ``first[n]`` until before ``last[n]``; ``beside[n]`` are the
    others that are in use in any of them.
    """

    sizes: Wholes
    members: npt.NDArray[np.intp]
    starts: npt.NDArray[np.intp]
    first: npt.NDArray[np.intp]
    last: npt.NDArray[np.intp]
    beside: tuple[npt.NDArray[np.intp], ...]
    loads: Wholes

    @classmethod
    def of(cls, instance: Instance) -> Sections:
        """Return the sections of an instance that has buffers."""
        lower, upper, sizes = instance.lower, instance.upper, instance.size
        times = np.arange(int(upper.max()))
        used = (lower <= times[:, None]) & (upper > times[:, None])
        used = used[used.any(axis=1)]
        counts = used.sum(axis=1)
        loads = used @ sizes
        first = used.argmax(axis=0)
        last = len(used) - used[::-1].argmax(axis=0)
        meeting = (lower < upper[:, None]) & (upper > lower[:, None])
        np.fill_diagonal(meeting, val=False)
        return cls(
            sizes=sizes,
            members=np.nonzero(used)[1],
            starts=np.concatenate(([0], np.cumsum(counts)[:-1])).astype(np.intp),
            first=first,
            last=last,
            beside=tuple(np.flatnonzero(row) for row in meeting),
            loads=loads,
        )
