"""A drawing of who imports whom among a few modules, as SVG in a page."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from typing import Final

_WIDE, _HIGH, _GAP, _ROW, _PER_ROW = 150, 26, 14, 62, 6
_STYLE: Final = (
    "font:12px sans-serif;max-width:100%;"
    "color:var(--color-foreground-primary,currentColor)"
)


def layers(nodes: Iterable[str], imports: Mapping[str, set[str]]) -> list[list[str]]:
    """Return nodes on floors: each stands above all that it imports.

    Those of a circle stand on one floor.
    """
    nodes = sorted(nodes)
    reached = {node: _reached(node, imports) for node in nodes}
    floors: dict[str, int] = {}

    def floor(node: str) -> int:
        if node not in floors:
            below = {n for n in reached[node] if node not in reached.get(n, ())}
            floors[node] = 1 + max((floor(each) for each in below), default=-1)
        return floors[node]

    rows: list[list[str]] = [[] for _ in range(max(map(floor, nodes), default=-1) + 1)]
    for node in nodes:
        rows[floor(node)].append(node)
    return rows


def _reached(node: str, imports: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [node]
    while waiting:
        for each in imports.get(waiting.pop(), set()) - found - {node}:
            found.add(each)
            waiting.append(each)
    return found


def svg(
    nodes: Iterable[str], imports: Mapping[str, set[str]], links: Mapping[str, str]
) -> str:
    """Return a drawing; what imports stands above what it imports.

    ``links`` gives the address of each node's page.
    """
    rows = [
        floor[first : first + _PER_ROW]
        for floor in reversed(layers(nodes, imports))
        for first in range(0, len(floor), _PER_ROW)
    ]
    widest = max(map(len, rows), default=1)
    width, height = widest * (_WIDE + _GAP) + _GAP, len(rows) * _ROW + _GAP
    at: dict[str, tuple[int, int]] = {}
    for y, row in enumerate(rows):
        left = (width - len(row) * (_WIDE + _GAP) + _GAP) // 2
        for x, node in enumerate(row):
            at[node] = left + x * (_WIDE + _GAP), _GAP + y * _ROW
    lines = [
        f'<line x1="{at[one][0] + _WIDE // 2}" y1="{at[one][1] + _HIGH}" '
        f'x2="{at[other][0] + _WIDE // 2}" y2="{at[other][1]}" '
        'stroke="currentColor" stroke-opacity=".3"/>'
        for one in sorted(at)
        for other in sorted(imports.get(one, ()))
        if other in at
    ]
    boxes = [_box(node, x, y, links[node]) for node, (x, y) in at.items()]
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" '
        f'aria-label="Imports between the modules of this package" style="{_STYLE}">'
        f"{''.join(lines)}{''.join(boxes)}</svg>"
    )


def _box(node: str, x: int, y: int, link: str) -> str:
    name = html.escape(node.rpartition(".")[2])
    return (
        f'<a href="{html.escape(link)}"><rect x="{x}" y="{y}" width="{_WIDE}" '
        f'height="{_HIGH}" rx="5" fill="var(--color-background-secondary,#eee)" '
        'stroke="currentColor" stroke-opacity=".4"/>'
        f'<text x="{x + _WIDE // 2}" y="{y + 17}" text-anchor="middle" '
        f'fill="currentColor">{name}</text></a>'
    )
