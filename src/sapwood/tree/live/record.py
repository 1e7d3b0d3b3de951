"""A call that is recorded in parts, around the live parts in it."""

from __future__ import annotations

from sapwood.driver.results import Result
from sapwood.errors import CaptureError, DriverError
from sapwood.tree.adopted import is_spoilt
from sapwood.tree.attempts import TRIES
from sapwood.tree.group import NO_ROOM
from sapwood.tree.live.adopted import AdoptedParts
from sapwood.tree.live.parts import Asked, Parts
from sapwood.tree.live.passed import RAN
from sapwood.tree.live.staged import StagedParts
from sapwood.tree.recorder import RecordedParts
from sapwood.tree.session import Unready

__all__ = ["record_parts"]


def record_parts(asked: Asked) -> RecordedParts:
    """Run a call, part by part, and return a node that is a chain of them.

    Called with the device's lock held, which live parts run without. If others spoil
    the capture of the first part, that is captured again. Raises `Unready` where
    nothing has run, else `CaptureError`, `DriverError` or `OutOfMemory`; the parts
    before have run then.
    """
    forest = asked.forest
    left = TRIES
    while True:
        left -= 1
        parts = _parts_of(asked)
        try:
            return _recorded(parts)
        except DriverError as error:
            forest.renew_capture_stream()
            if parts.links or parts.written:
                raise
            if error.name == Result.OUT_OF_MEMORY.name:
                raise Unready(f"{NO_ROOM}: {error}", moved=True) from None
            if not left or not is_spoilt(error):
                raise


def _parts_of(asked: Asked) -> Parts:
    forest = asked.forest
    if forest.device.driver.abilities.exact_addresses:
        return Parts(asked)
    if forest.captor is None:
        return StagedParts(asked)
    return AdoptedParts(asked, forest.captor)


def _recorded(parts: Parts) -> RecordedParts:
    try:
        return parts.record()
    except Unready as error:
        parts.close()
        if not parts.links:
            raise
        raise CaptureError(
            f"{error.what}; {RAN}", where=error.where, remedy="Call it again"
        ) from None
    except BaseException:
        parts.close()
        raise
    finally:
        parts.let_go()
