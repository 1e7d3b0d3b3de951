"""Public tools for testing: laws for anyone's programs, drivers and runtimes."""

from __future__ import annotations

from sapwood.testing.fixtures import CUDA, IN_C, INEXACT, VARIANTS, Rig, poison_idle

__all__ = ["CUDA", "INEXACT", "IN_C", "VARIANTS", "Rig", "poison_idle"]
