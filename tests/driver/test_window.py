"""Addresses may be given back from anywhere."""

from __future__ import annotations

from sapwood.driver.emulated import Emulated
from sapwood.driver.emulated.window import WINDOW


def test_addresses_are_given_back_while_others_are_taken():
    """A finaliser of one device that runs inside a call of another does not hang."""
    one, other = Emulated(1 << 22, 1 << 16), Emulated(1 << 22, 1 << 16)
    base = one.reserve(1 << 20)
    with WINDOW.lock:
        one.unreserve(base, 1 << 20)
        assert other.reserve(1 << 20) > 0
    one.close()
    other.close()
