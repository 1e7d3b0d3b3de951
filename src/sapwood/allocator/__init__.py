"""Allocators of device and pinned memory, and plans and simulations of them."""
