"""What is told about the calls of one function: counts, misses, events."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from threading import get_ident
from time import perf_counter_ns
from typing import Final, NamedTuple

from sapwood import events
from sapwood.tree.call.integration import text_of
from sapwood.tree.call.miss import Miss, Why
from sapwood.tree.call.parameters import Parameters
from sapwood.tree.call.signature import Call
from sapwood.tree.call.stats import Stats, Tally, stats_of
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.choose.skips import Skips
from sapwood.tree.choose.timeline import Ran
from sapwood.tree.guards.views import value_text
from sapwood.tree.node.node import Node
from sapwood.units import Size

_SHOWN: Final = 8
"""How many plain values of a call are written out."""


class Missing(NamedTuple):
    """A call that no recording fitted: why, by the recording's number, or 0."""

    number: int
    signature: str
    reasons: tuple[tuple[int, Miss], ...]


class CallLog:
    """The counts and the recent misses of one function.

    ``number`` tells functions apart that have one name.
    """

    def __init__(
        self,
        function: str,
        parameters: Parameters,
        recordings: Recordings,
        skips: Skips,
    ) -> None:
        self.function, self.parameters = function, parameters
        self.recordings, self.skips = recordings, skips
        self.number = recordings.number("function")
        self.tally = Tally()
        self.misses: deque[Missing] = deque(maxlen=32)
        self._now: dict[int, tuple[Ran, Node | None, int]] = {}

    def text(self, call: Call) -> str:
        """Return what a call's arguments look like: ``x: float64[4]; n=2``."""
        names = self.parameters.leaf_names(call.structure)
        arrays = {
            position: f"{names[position]}: {text_of(array)}"
            for position, array in zip(call.positions, call.given.arrays, strict=True)
        }
        plain = [
            f"{name}={value_text(leaf)}"
            for i, (name, leaf) in enumerate(zip(names, call.leaves, strict=True))
            if i not in arrays
        ]
        if len(plain) > _SHOWN:
            plain[_SHOWN:] = [f"{len(plain) - _SHOWN} more values"]
        given = ", ".join(arrays.values()), ", ".join(plain)
        return "; ".join(each for each in given if each)

    def replayed(self, began: int, node: Node) -> None:
        """Note a replay that has ended now."""
        self.played((began,), (perf_counter_ns() - began,), node)

    def played(self, began: Sequence[int], took: Sequence[int], node: Node) -> None:
        """Note replays: C has made many, and each is to cost little."""
        self.tally["replays"] += len(began)
        node.spent += sum(took)
        node.timed += len(began)
        of = self.number, node.number
        self.recordings.timeline.extend(began, took, Ran.REPLAY, of)

    def missed(
        self, call: Call, found: Mapping[Node, Miss], others: Sequence[Miss]
    ) -> None:
        """Note why no recording fitted a call; ``others`` are of no recording."""
        reasons = (
            *((node.number, miss) for node, miss in found.items()),
            *((0, miss) for miss in others),
        )
        signature = self.text(call)
        self.misses.append(Missing(self.recordings.number("miss"), signature, reasons))
        self._now[get_ident()] = (Ran.PASS_THROUGH, None, self.misses[-1].number)
        told = "; ".join(dict.fromkeys(str(miss) for _, miss in reasons))
        self.recordings.emit(events.Missed(self.function, signature, len(found), told))

    def unfit(self, call: Call, reason: str) -> None:
        """Note why a recording from the store could not be linked."""
        reasons = ((0, Miss(Why.ABSENT, reason)),)
        missing = Missing(self.recordings.number("miss"), self.text(call), reasons)
        self.misses.append(missing)

    def ended(self, began: int) -> None:
        """Put a call of this thread that was no replay on the timeline."""
        ran, node, miss = self._now.pop(get_ident(), (Ran.PASS_THROUGH, None, 0))
        now, number, recordings = perf_counter_ns(), 0, self.recordings
        if node is not None:
            node.took, number = now - began, node.number
        recordings.timeline.add(began, now - began, ran, self.number, number, miss)
        recordings.timeline.measured(now, recordings.device.pages.shares())

    def _ran(self, ran: Ran, node: Node | None) -> None:
        _, _, miss = self._now.get(get_ident(), (ran, None, 0))
        self._now[get_ident()] = (ran, node, miss)

    def warmed_up(self, call: Call) -> None:
        """Count a warm-up."""
        self._ran(Ran.WARM_UP, None)
        self.tally["warmups"] += 1
        self.recordings.emit(events.WarmedUp(self.function, self.text(call)))

    def recorded(self, call: Call, node: Node) -> None:
        """Count a recording that was made here."""
        self._ran(Ran.RECORD, node)
        self.tally["recordings"] += 1
        self.recordings.emit(events.Recorded(*self._made(call, node)))

    def restored(self, call: Call, node: Node) -> None:
        """Count a recording of another process."""
        self._ran(Ran.RESTORE, node)
        node.restored = True
        self.tally["restored"] += 1
        self.recordings.emit(events.Restored(*self._made(call, node)))

    def _made(self, call: Call, node: Node) -> tuple[str, str, int, int]:
        node.signature, pages = self.text(call), node.clobbers.bit_count()
        return self.function, node.signature, len(node.recording.ops), pages

    def passed_through(self, call: Call | None, reason: str) -> None:
        """Count a call that ran eagerly and made no recording; None: of what is none.

        Those that look like one before are counted alone.
        """
        self.skips.count(reason)
        text = "" if call is None else self.text(call)
        self.recordings.emit(events.PassedThrough(self.function, text, reason))

    def copied(self, node: Node) -> None:
        """Count what a replay copies in, and the outputs that its parts copy out."""
        self.tally["copied_bytes"] += node.copied_bytes
        for part in node.parts() if node.escapes or not node.chain else ():
            if part.ferries:
                sizes = [part.outputs.storages[k].size for k in part.copied()]
                self.tally["escaped"] += len(sizes)
                told = self.function, part.label, len(sizes), Size(sum(sizes))
                self.recordings.emit(events.Escaped(*told))

    def evicted(self, node: Node, reason: str) -> None:
        """Count a recording that gave way."""
        self.tally["evicted"] += 1
        told = self.function, node.label, node.hits, reason
        self.recordings.emit(events.Evicted(*told))

    def stats(self) -> Stats:
        """Return the counts."""
        return stats_of(self.tally, self.skips.counts)
