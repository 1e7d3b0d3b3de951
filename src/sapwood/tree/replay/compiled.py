"""Fast replays in C: what one is told, and where there can be one.

The interpreter takes longer to say that all is as it was than the device to begin. So
where a framework lets C look at its arrays, and the driver lets C launch, a fast replay
is put to C once, as a tuple. What does not fit there is played in Python, as ever.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol
from weakref import ref

from sapwood import _fast
from sapwood.driver.streams import Stream
from sapwood.memory.storage import STREAM_EPOCH
from sapwood.tree.call.integration import Marks
from sapwood.tree.call.output_cache import Kept
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.node.node import Node
from sapwood.tree.node.spans import Spans
from sapwood.tree.replay.last_call import LastCall

__all__ = ["MISS", "Parts", "Pattern", "Replay", "compiled"]

_REST: Final = 3
"""Arguments behind the first that C knows how to pass."""

MISS: Final = object()
"""What C gives where a call does not fit, and nothing has been done."""

_WANTS: Final = "requires_grad"


class Pattern(NamedTuple):
    """How a result is put together of ``made`` new arrays and what else there is.

    ``picks`` are numbers of new arrays, then of ``constants``, of the call's arrays,
    and of those that were read; None: the new arrays, as they are. The last ``bound``
    values are bound. ``shape`` makes a nest of the others, None where there is one.
    """

    made: int
    constants: tuple[Any, ...]
    picks: Sequence[int] | None
    bound: int
    shape: Callable[[list[Any]], Any] | None


class Owner(Protocol):
    """A fast replay, as C knows it: in another ``epoch`` it keeps something else.

    ``rivals`` are recordings for the same calls, among which those before it copy less.
    """

    epoch: int
    rivals: Sequence[Node]


class Replay(Protocol):
    """A replay in C: the result of a call with such arguments, or `MISS`."""

    def __call__(self, *args: Any) -> Any: ...
    def noted(self) -> list[int]:
        """Return when each replay since the last time began, and how long it took.

        In turn, in nanoseconds.
        """
        ...


class Parts(NamedTuple):
    """What a fast replay is made of; ``arrays`` are those of a call that fits.

    ``slots`` are which of the read arrays get which attribute, from which of the values
    that are bound; None where others are bound, too. What is ``kept`` stays the
    fast replay's alone, and ``copies`` make the other new arrays. The arrays that the
    call ``found`` are those that were read.
    """

    fast: Owner
    recordings: Recordings
    node: Node
    last_call: LastCall
    spans: Spans
    pattern: Pattern
    stream: Callable[[], Stream | None]
    kept: Kept | None
    copies: Sequence[Callable[[], Any]]
    marks: Marks | None
    slots: Sequence[tuple[int, str, int]] | None
    arrays: Sequence[Any]
    found: Sequence[Any]


def compiled(parts: Parts) -> Replay | None:
    """Return a fast replay in C, as things are now; None where there can be none."""
    native = _fast.native()
    exchange, stream = parts.recordings.integration.exchange(), parts.stream()
    if native is None or exchange is None or stream is None or not _is_plain(parts):
        return None
    lent = parts.node.exec.lend()
    if lent is None:
        return None
    aimed = parts.node.aimed
    words = [
        tuple(lent.words.get(i + 1, ())) if i in aimed else ()
        for i in range(len(parts.last_call.lows))
    ]
    if any(i in aimed and not found for i, found in enumerate(words)):
        return None
    entry = lent.native
    nodes = tuple((each.node, each.params) for each in entry.copies)
    raw = parts.recordings.device.driver.raw_stream(stream.handle)
    numbers = (
        *(exchange.table, exchange.ordinal, raw, entry.launch, entry.set_params),
        *(entry.context_of, entry.exec_, entry.context, nodes),
        *(exchange.quick, exchange.inside, lent),
    )
    conditions = _conditions(parts, words)
    last = numbers, _WANTS, exchange.flags, _which(parts), _rivals(parts)
    spec = (MISS, *conditions, *_deeds(parts), *last)
    made: Replay | None = native.compile_replay(spec, (*parts.arrays, *parts.found))
    return made


def _is_plain(parts: Parts) -> bool:
    """Return whether all that calls need is what C knows."""
    last_call, node = parts.last_call, parts.node
    return (
        last_call.flat
        and all(last_call.lows)
        and parts.marks is not None
        and parts.slots is not None
        and not node.ambient.aliasing.ids
        and (parts.kept is not None or not parts.pattern.made)
        and parts.recordings.before_call is None
        and all(i < node.argument_places for i in node.aimed)
    )


def _conditions(
    parts: Parts, words: Sequence[tuple[tuple[int, int], ...]]
) -> tuple[Any, ...]:
    """Return what must be as it was: `enum place` of C, from `STATE` on."""
    node, recordings, kept = parts.node, parts.recordings, parts.kept
    device, (addresses, wants) = recordings.device, parts.marks or ((), ())
    copied = node.copied()
    stay = [mask for k, mask in enumerate(node.output_masks) if k not in copied]
    own = functools.reduce(operator.or_, stay, 0)
    held, uses = (kept.held, kept.uses) if kept else ((), ())
    count: Callable[[int], int] = int
    numbers: tuple[int, ...] = ()
    others: tuple[int, ...] = ()
    if kept:
        count, numbers, others = kept.count, tuple(kept.numbers), tuple(kept.others)
    return (
        (ref(parts.fast), parts.fast.epoch, parts.marks),
        STREAM_EPOCH,
        node.ambient.program,
        (device.lock.acquire, device.lock.release, device.is_mine),
        (device.returns.waiting, device.returns.drain_dropped),
        recordings,
        parts.stream,
        device.pages,
        (node.clobbers & ~own if kept else node.clobbers, node.clobbers),
        tuple(_given(parts, words)),
        parts.spans.others() if node.watches_overlap else ((), ()),
        node.ambient.program.read,
        (tuple(addresses), tuple(wants)),
        # By number: one more reference to them would count.
        (tuple(map(id, held)), tuple(uses)),
        (count, numbers, others),
    )


def _given(
    parts: Parts, words: Sequence[tuple[tuple[int, int], ...]]
) -> list[tuple[Any, ...]]:
    """Return what is to be known of each argument."""
    last_call, node = parts.last_call, parts.node
    fixed = {i for i, _ in node.fixed}
    return [
        (
            last_call.references[i],
            last_call.lows[i],
            parts.spans.lengths[i],
            i in fixed,
            words[i],
        )
        for i in range(len(parts.arrays))
    ]


def _which(parts: Parts) -> tuple[Any, ...]:
    """Return the references to what is reached, and which of them each argument is."""
    which, ambient = parts.node.which, parts.node.ambient
    if not which:
        return ()
    numbers, keys = ambient.aliasing[:2]
    count, latest = len(parts.arrays), ambient.program.latest
    # Of several, the last that is noted here is the first.
    first = dict(zip(reversed(which[count:]), reversed(numbers), strict=True))
    seen = *latest, *keys
    return latest, seen, tuple(first.get(k, -1) for k in which[:count])


def _rivals(parts: Parts) -> tuple[int, ...]:
    """Return the pages that recordings overwrite which copy less out, one by one."""
    if not parts.node.ferries:
        return ()
    before = itertools.takewhile(lambda n: n is not parts.node, parts.fast.rivals)
    return tuple(rival.clobbers for rival in before)


def _deeds(parts: Parts) -> tuple[Any, ...]:
    """Return what makes the result, and what is bound."""
    pattern, kept = parts.pattern, parts.kept
    program, first = parts.node.ambient.program, _total(pattern) - pattern.bound
    makers = [_maker(each) for each in (*(kept.makers if kept else ()), *parts.copies)]
    picks: tuple[Any, ...] = ()
    if pattern.picks is not None:
        picks = pattern.constants, tuple(pattern.picks)
    slots = tuple((k, name, first + number) for k, name, number in parts.slots or ())
    expected: tuple[Any, ...] = ()
    if pattern.bound and program.latest:
        pairs = [(place, first + number) for number, place in parts.node.expects or ()]
        expected = program.latest, *pairs
    return tuple(makers), picks, (pattern.shape, pattern.bound), slots, expected


def _total(pattern: Pattern) -> int:
    return pattern.made if pattern.picks is None else len(pattern.picks)


def _maker(make: Callable[[], Any]) -> tuple[Any, ...]:
    """Return a function and its arguments, the first by number, or its own number."""
    match make:
        case functools.partial(func=function, args=(first, *rest)):
            if len(rest) == _REST and not make.keywords:
                return function, id(first), *rest
    return (id(make),)
