"""What a device call may answer: CUDA's result names and numbers.

Drivers and layers without CUDA speak them too, so that one handler serves all.
"""

from __future__ import annotations

import enum

from sapwood.errors import DriverError, NoDevice


class Result(enum.IntEnum):
    """The results that are not success, by CUDA's names and numbers."""

    INVALID_VALUE = 1
    OUT_OF_MEMORY = 2
    DEINITIALIZED = 4
    INVALID_IMAGE = 200
    INVALID_HANDLE = 400
    ILLEGAL_STATE = 401
    NOT_FOUND = 500
    NOT_READY = 600
    ILLEGAL_ADDRESS = 700
    HOST_MEMORY_ALREADY_REGISTERED = 712
    HOST_MEMORY_NOT_REGISTERED = 713
    LAUNCH_FAILED = 719
    NOT_PERMITTED = 800
    STREAM_CAPTURE_UNSUPPORTED = 900
    STREAM_CAPTURE_INVALIDATED = 901
    STREAM_CAPTURE_MERGE = 902
    STREAM_CAPTURE_UNMATCHED = 903
    STREAM_CAPTURE_UNJOINED = 904
    STREAM_CAPTURE_ISOLATION = 905
    STREAM_CAPTURE_IMPLICIT = 906
    CAPTURED_EVENT = 907
    STREAM_CAPTURE_WRONG_THREAD = 908
    UNKNOWN = 999

    def refusal(self, explanation: str) -> Refusal:
        """Return why a call cannot be done, with this for its result."""
        return Refusal(self, explanation)


class Refusal(Exception):
    """Why a call cannot be done, raised where the call's name is not known."""

    def __init__(self, result: Result, explanation: str) -> None:
        super().__init__(result, explanation)
        self.result, self.explanation = result, explanation

    def error(self, call: str) -> DriverError:
        """Return what the caller of ``call`` is told."""
        return DriverError(call, int(self.result), self.result.name, self.explanation)


def invalid_value(explanation: str) -> Refusal:
    """Return the refusal of arguments that cannot be."""
    return Result.INVALID_VALUE.refusal(explanation)


def no_device(call: str, explanation: str) -> NoDevice:
    """Return the error of ``call`` where there is no such device."""
    return NoDevice(call, 100, "NO_DEVICE", explanation)
