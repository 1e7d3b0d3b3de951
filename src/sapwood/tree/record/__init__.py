"""Recording a call: the capture, what must hold of it, and the node that it becomes."""

from __future__ import annotations

__all__: list[str] = []
