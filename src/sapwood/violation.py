"""A broken law as a value: what validators of snapshots return."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    """A law that does not hold, and about what: no error until somebody raises it."""

    law: str
    about: str

    def __str__(self) -> str:
        return f"{self.law}: {self.about}"
