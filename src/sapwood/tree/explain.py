"""Why a function's calls were or were not replayed, as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sapwood.tree.diary import Missing
from sapwood.tree.node import Node
from sapwood.tree.stats import Stats
from sapwood.units import size_text

__all__ = ["explain_function"]


def explain_function(
    name: str,
    stats: Stats,
    nodes: Iterable[Node],
    misses: Sequence[Missing],
    refusals: Iterable[str],
) -> str:
    """Return a page about one function: its recordings and its recent misses."""
    lines = [
        (
            f"{name}: {stats.replays} replays of {stats.recordings} recordings, "
            f"{stats.restored} restored, {stats.warmups} warm-ups, "
            f"{stats.passed_through} passed through, {stats.evicted} evicted"
        )
    ]
    for node in nodes:
        lines += _node(node)
    for refusal in refusals:
        lines.append(f"  runs eagerly: {refusal}")
    if misses:
        lines.append(f"  the last {len(misses)} calls without a recording:")
    for _, signature, reasons in misses:
        lines.append(f"    ({signature})")
        told = dict.fromkeys(str(miss) for _, miss in reasons)
        lines += [f"      {reason}" for reason in told]
    return "\n".join(lines)


def _node(node: Node) -> list[str]:
    after = f" after {node.parent}" if node.parent else ""
    ops = sum(len(part.recording.ops) for part in node.parts())
    lines = [
        f"  {node.label}{after}: {ops} ops, "
        f"{node.clobbers.bit_count()} pages, replayed {node.hits} times"
        + (", copies its outputs out" if node.escapes else "")
    ]
    for link in node.chain:
        lines.append(f"    {link.part.label}: {len(link.part.recording.ops)} ops")
        lines += [f"  {line}" for line in _places(link.part)]
        if link.live is not None:
            lines.append(f"    then {link.live.name}, live, gives {link.live.text}")
    return lines if node.chain else [*lines, *_places(node)]


def _places(node: Node) -> list[str]:
    lines: list[str] = []
    for place in node.places:
        if place.used:
            written = ", written" if place.written else ""
            donated = ", donated" if place.donated else ""
            lines.append(
                f"    {place.name}: {place.role.value}{written}{donated}, "
                f"{size_text(place.size)}"
            )
    return lines
