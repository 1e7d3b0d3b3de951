"""What no device can run, whatever it is."""

from __future__ import annotations

from sapwood.driver.api import CopyOp, Op, SetOp
from sapwood.driver.results import Refusal, Result
from sapwood.units import hex_address

__all__ = ["check_op"]


def check_op(op: Op) -> None:
    """Refuse an op that can never run."""
    match op:
        case CopyOp(dst, src, size) if size < 0 or abs(dst - src) < size:
            raise Refusal(
                Result.INVALID_VALUE,
                f"cannot copy {size} bytes from {hex_address(src)} to "
                f"{hex_address(dst)}: copied intervals may not overlap",
            )
        case SetOp(_, value, size) if size < 0 or not 0 <= value <= 255:
            raise Refusal(
                Result.INVALID_VALUE,
                f"cannot set {size} bytes to {value}: a byte is 0 to 255",
            )
