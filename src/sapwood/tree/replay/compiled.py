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
from functools import partial
from itertools import accumulate
from typing import Any, Final, NamedTuple, Protocol
from weakref import ref

from sapwood import _fast
from sapwood.driver.streams import Stream
from sapwood.memory.storage import STREAM_EPOCH
from sapwood.tree.call.integration import Kept, Made, Marks
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.nests.containers import Structure, unflatten
from sapwood.tree.node.node import Node
from sapwood.tree.node.outputs import Alias, Constant, Fresh, Same
from sapwood.tree.node.spans import Spans
from sapwood.tree.replay.last_call import LastCall

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


class Program:
    """How the result is put together of what a replay makes and what it was given.

    ``made`` are the arrays over new storages that stay where they are, ``flown`` those
    over storages that are copied out. Result and values to bind are picked from
    these, the plain values, and the arrays of the call and of the slots.
    """

    __slots__ = ("flown", "made", "pattern")

    def __init__(
        self, made: tuple[Made, ...], flown: tuple[Made, ...], pattern: Pattern
    ) -> None:
        self.made, self.flown, self.pattern = made, flown, pattern

    @classmethod
    def of(cls, node: Node) -> Program:
        """Return the program of a node's outputs."""
        made: list[Made] = []
        flown: list[Made] = []
        copied = node.copied()
        rest = [k for k in range(len(node.outputs.storages)) if k not in copied]
        number = {k: i for i, k in enumerate(rest)}
        constants: list[Any] = []
        marks: list[tuple[int, int]] = []
        for output in (*node.outputs.leaves, *node.outputs.bound):
            match output:
                case Fresh(k, template, address) if k in copied:
                    marks.append((1, len(flown)))
                    flown.append((k, template, address))
                case Fresh(k, template, address):
                    marks.append((0, len(made)))
                    made.append((number[k], template, address))
                case Constant(value):
                    marks.append((2, len(constants)))
                    constants.append(value)
                case Alias(k):
                    marks.append((3, k))
                case Same(k):
                    marks.append(marks[k])
        starts = [*accumulate(map(len, (made, flown, constants)), initial=0)]
        picks = [starts[kind] + k for kind, k in marks]
        all_made = picks == [*range(len(made) + len(flown))]
        pattern = Pattern(
            len(made) + len(flown),
            tuple(constants),
            None if all_made else picks,
            len(node.outputs.bound),
            _shape(node.outputs.structure),
        )
        return cls(tuple(made), tuple(flown), pattern)

    def copiers(
        self, node: Node, recordings: Recordings
    ) -> Sequence[Callable[[], Any]]:
        """Return what copies each output out by the framework; empty: one cannot be."""
        integration, room = (
            recordings.integration,
            partial(_room_beside, node, recordings),
        )
        numbers = [k for k, *_ in self.flown]
        if len({*numbers}) < len(numbers):
            return ()  # arrays that share their bytes do so in copies, too
        storages, found = node.outputs.storages, []
        for k, template, address in self.flown:
            if address != storages[k].address:
                return ()
            copier = integration.copier(template, address, storages[k].size, room)
            if copier is None:
                return ()
            found.append(copier)
        return found

    def run(
        self,
        makers: Sequence[Callable[[], Any]],
        arrays: Sequence[Any],
        found: Sequence[Any],
    ) -> tuple[Any, Sequence[Any]]:
        """Return a fresh result, and the values to bind."""
        pattern, values = self.pattern, [make() for make in makers]
        if pattern.picks is not None:
            pool = [*values, *pattern.constants, *arrays, *found]
            values = [pool[k] for k in pattern.picks]
        bound: Sequence[Any] = ()
        if pattern.bound:
            values, bound = values[: -pattern.bound], values[-pattern.bound :]
        return values[0] if pattern.shape is None else pattern.shape(values), bound


def _room_beside(node: Node, recordings: Recordings) -> bool:
    """Have idle memory go, or another recording; return whether any did."""
    recordings.busy.add(node)
    try:
        return bool(recordings.device.heap.trim()) or recordings.device.pages.evict()
    finally:
        recordings.busy.discard(node)


def _shape(structure: Structure) -> Callable[[list[Any]], Any] | None:
    """Return what puts leaves together to a fresh nest; None for one leaf alone."""
    if structure is None:
        return None
    parts: Any = structure
    cls, _, folded = parts
    if cls in (list, tuple) and not any(folded):
        return cls  # type: ignore[no-any-return]
    return partial(unflatten, structure)
