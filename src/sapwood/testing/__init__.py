"""Public tools for testing: laws for anyone's programs, drivers and runtimes."""

from __future__ import annotations

from sapwood.testing.fixtures import VARIANTS, Rig, poison_idle

__all__ = ["VARIANTS", "Rig", "poison_idle"]
