"""A call that is recorded in parts, around the live parts in it."""

from __future__ import annotations

from sapwood.errors import CaptureError, DriverError
from sapwood.tree.adopted import is_spoilt
from sapwood.tree.attempts import TRIES
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
    exact = forest.device.driver.abilities.exact_addresses
    kind = Parts if exact else StagedParts
    left = TRIES
    while True:
        left -= 1
        parts = kind(asked)
        try:
            return _recorded(parts)
        except DriverError as error:
            forest.renew_capture_stream()
            if not left or not is_spoilt(error) or parts.links or parts.written:
                raise


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
