"""Where recordings come from that were not made here, and go that were.

All that the core knows of files and stores. A `Source` is asked once for every
specialization; whatever goes wrong with it is a reason, and the call is then run as
if there were no source.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from sapwood.tree.call.signature import Call
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.guards import Survey
from sapwood.tree.record.recorder import Recorded
from sapwood.tree.record.taking import RecordRequest

Link: TypeAlias = Callable[[RecordRequest, Survey, Recordings], Recorded | str]
"""Builds a node for a call from a recording of another process, or says why it cannot.

Raises `DriverError` or `OutOfMemory`, and then nothing is left of it.
"""


class Source(Protocol):
    """Recordings by what they were made for."""

    def find(self, function: str, call: Call, survey: Survey) -> Link | str:
        """Return what builds a recording for a call, or why there is none.

        It may be slow: it is asked without the device's lock.
        """

    def keep(
        self, function: str, call: Call, survey: Survey, made: Recorded, sharing: Any
    ) -> Callable[[], None] | None:
        """Return what keeps a recording for calls like this one; None: none can.

        This is asked under the device's lock, and reads the recording; what it returns
        may be slow, and is called without the lock.
        """
