"""Recordings that outlive the process: as data, by name, in stores and in files."""

from __future__ import annotations

__all__: list[str] = []
