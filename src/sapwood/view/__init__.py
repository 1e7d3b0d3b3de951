"""Pictures from plain snapshots, never from live objects.

`report` writes one self-contained HTML page that loads nothing from anywhere, and
`render` returns it as text; `difference` says what two snapshots differ in. A snapshot
is what `rt.snapshot()` returns, and docs/snapshot.md describes.
"""

from sapwood.view.difference import difference
from sapwood.view.html import render, report

__all__ = ["difference", "render", "report"]
