"""Allocators of device and pinned memory, and plans and simulations of them."""

from __future__ import annotations

__all__: list[str] = []
