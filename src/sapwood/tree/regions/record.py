"""A call that is recorded in parts, around the eager regions in it."""

from __future__ import annotations

from sapwood.errors import CaptureError, DriverError
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.choose.skips import skip_of
from sapwood.tree.record.adopted import TRIES, is_spoilt
from sapwood.tree.record.recorder import RecordedParts
from sapwood.tree.record.taking import RecordRequest
from sapwood.tree.regions.crossing import RAN
from sapwood.tree.regions.parts import Parts
from sapwood.tree.regions.rerun import Begun
from sapwood.tree.regions.staged import AdoptedParts, StagedParts
from sapwood.tree.watch.session import Midway, Unready


def record_parts(
    order: RecordRequest, recordings: Recordings, begun: Begun
) -> RecordedParts:
    """Run a call, part by part, and return a node that is a chain of them.

    Called with the device's lock held, which eager regions run without. ``begun`` is
    told of what runs. If others spoil the capture of the first part, that is captured
    again. Raises `Unready`, or another `CaptureError`, where nothing has run; where
    parts have, `Midway`, `DriverError` or `OutOfMemory`.
    """
    left = TRIES
    while True:
        left -= 1
        parts = _parts_of(order, recordings, begun)
        try:
            return _recorded(parts)
        except DriverError as error:
            recordings.renew_capture_stream()
            if left and is_spoilt(error) and not (parts.links or parts.written):
                continue
            if parts.links or not order.tolerant:
                raise
            skip = skip_of(error)
        raise Unready(skip.what, where=skip.where)


def _parts_of(order: RecordRequest, recordings: Recordings, begun: Begun) -> Parts:
    if recordings.device.driver.abilities.exact_addresses:
        return Parts(order, recordings, begun)
    if recordings.capturer is None:
        return StagedParts(order, recordings, begun)
    return AdoptedParts(order, recordings, begun, recordings.capturer)


def _recorded(parts: Parts) -> RecordedParts:
    try:
        return parts.record()
    except CaptureError as error:
        parts.close()
        if not parts.links:
            raise
        what = f"{error.what}; {RAN}" if isinstance(error, Unready) else error.what
        raise Midway(what, where=error.where, remedy=error.remedy) from None
    except BaseException:
        parts.close()
        raise
    finally:
        parts.let_go()
