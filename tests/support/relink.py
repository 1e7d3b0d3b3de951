"""Have every recording go through a file before it is first replayed.

What the laws say of recordings, they then say of restored ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from sapwood.driver.release import Release
from sapwood.errors import InternalError
from sapwood.persist.archive import decode, encode
from sapwood.persist.format import join, split
from sapwood.persist.restore import restore
from sapwood.runtime.core import Runtime
from sapwood.tree.call.roles import Role
from sapwood.tree.call.signature import look
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.nests.containers import unflatten
from sapwood.tree.node.node import Node
from sapwood.tree.record.recorder import Recorded, record
from sapwood.tree.record.taking import (
    RecordRequest,
)

__all__ = ["relink"]


def relink(runtime: Runtime) -> Counter[str]:
    """Make a runtime restore each of its recordings; return a count by outcome.

    ``"restored"`` are those that went through bytes, ``"kept"`` those that no file
    could hold, by their reason.
    """
    recordings = runtime._recordings
    outcomes: Counter[str] = Counter()

    def recorder(order: RecordRequest, recordings: Recordings) -> Recorded:
        made = record(order, recordings)
        sections = _sections(made, order, recordings)
        if isinstance(sections, str):
            outcomes[sections] += 1
            return made
        # A file needs no memory, and there may be none for both.
        with Release() as release:
            release(made.node.exec.close)
            release(made.node.range.close)
        again = _again(sections, _roles(made.node), order, recordings)
        outcomes["restored"] += 1
        return again

    recordings.recorder = recorder
    return outcomes


def _roles(node: Node) -> list[Role]:
    return [place.role for place in node.places]


def _sections(
    made: Recorded, order: RecordRequest, recordings: Recordings
) -> Mapping[str, bytes] | str:
    if made.error is not None:
        return "it ended with an error"
    given, integration = order.call.given, recordings.integration
    sharing = look([*given.arrays, *made.ambient.arrays], integration).sharing
    return encode(made.node, made.bound, sharing, integration)


def _again(
    sections: Mapping[str, bytes],
    roles: Sequence[Role],
    order: RecordRequest,
    recordings: Recordings,
) -> Recorded:
    archive = decode(split(join(sections)), recordings.integration)
    call = order.call
    args, kwargs = unflatten(call.structure, call.leaves)
    looked = order.survey(order.bind(args, kwargs))
    again = restore(archive, order, looked, recordings)
    if isinstance(again, str):
        raise InternalError(f"what was recorded can be restored, but: {again}")
    if _roles(again.node) != roles:
        raise InternalError("a restored recording has the roles that it had")
    return again
