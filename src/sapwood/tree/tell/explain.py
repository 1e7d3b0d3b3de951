"""Why a function's calls were or were not replayed, as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

from sapwood.tree.call.stats import Stats
from sapwood.tree.node.node import Node
from sapwood.tree.tell.call_log import Missing
from sapwood.units import count_text, size_text

_APART: Final = (
    "  what it calls asks whether a capture is on, and does other work in one: results "
    "are those of that work, and may differ in bits from those of plain calls"
)


def explain_function(
    name: str, stats: Stats, nodes: Iterable[Node], misses: Sequence[Missing]
) -> str:
    """Return a page about one function: its recordings and its recent misses."""
    replays = count_text(stats.replays, "replay")
    recordings = count_text(stats.recordings, "recording")
    warmups = count_text(stats.warmups, "warm-up")
    done = f"{stats.restored} restored, {stats.passed_through} passed through"
    lines = [
        f"{name}: {replays} of {recordings}, {warmups}, {done}, {stats.evicted} evicted"
    ]
    nodes = [*nodes]
    for node in nodes:
        lines += _node(node)
    if any(node.apart for node in nodes):
        lines.append(_APART)
    for reason, count in stats.skipped:
        lines.append(f"  {count_text(count, 'call')} ran eagerly: {reason}")
    if misses:
        last = "call" if len(misses) == 1 else f"{len(misses)} calls"
        lines.append(f"  the last {last} without a recording:")
    told = (
        (each, (*dict.fromkeys(str(m) for _, m in why),)) for _, each, why in misses
    )
    for (signature, reasons), alike in groupby(told):
        count = len([*alike])
        lines.append(f"    ({signature})" + (f", {count} times" if count > 1 else ""))
        lines += [f"      {reason}" for reason in reasons]
    return "\n".join(lines)


def _copies(node: Node) -> str:
    if node.escapes or not node.ferries:
        return ", copies its outputs out" if node.escapes else ""
    return f", copies {len(node.copied())} of {len(node.output_masks)} outputs out"


def _node(node: Node) -> list[str]:
    after = f" after {node.parent}" if node.parent else ""
    ops = sum(len(part.recording.ops) for part in node.parts())
    pages = count_text(node.clobbers.bit_count(), "page")
    # hits counts the launch of the recording call, too, which is no replay.
    launches = "launched once" if node.hits == 1 else f"launched {node.hits} times"
    lines = [
        f"  {node.label}{after}: {count_text(ops, 'op')}, {pages}, {launches}"
        + _copies(node)
    ]
    for link in node.chain:
        ops = len(link.part.recording.ops)
        lines.append(f"    {link.part.label}: {count_text(ops, 'op')}")
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
