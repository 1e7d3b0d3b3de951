"""Pictures from plain snapshots, never from live objects.

`report` writes one self-contained HTML page that loads nothing from anywhere; `render`
returns it as text. The snapshot is what `rt.snapshot()` returns, and docs/snapshot.md
describes.
"""

from sapwood.view.html import render, report

__all__ = ["render", "report"]
