"""Fast replays in C: the tuple that C is given, and when there is one.

In Python, to find that nothing has changed takes longer than the launch. So where a
framework lets C look at its arrays (by `Integration.probe`) and the driver lets C
launch (`Exec.lend`), C gets all that a replay compares and does, once, as a tuple. A
call that does not fit there is decided.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import ref

from sapwood import _fast
from sapwood.memory.storage import STREAM_EPOCH
from sapwood.tree.call.integration import Layout, Made, Probe
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.nests.containers import Structure, unflatten
from sapwood.tree.node.node import Node
from sapwood.tree.node.outputs import Alias, Bytes, Carried, Constant, Fresh, Same
from sapwood.tree.replay.binding import Binding
from sapwood.units import Addr, Mask

if TYPE_CHECKING:
    from sapwood.tree.replay.fast_replay import FastReplay

MISS: Final = object()
"""What C gives where a call does not fit, and nothing has been done."""


class Program(NamedTuple):
    """How the result is put together of what a replay makes and what it was given.

    ``made`` are the arrays over new storages that stay where they are, ``flown`` those
    over storages that are copied out, by the storages as they were recorded. ``picks``
    are numbers of these, then of ``constants``, of the call's arrays, and of those that
    were read; None: the new arrays, as they are. The last ``bound`` values are bound.
    ``shape`` makes a nest of the others, None where there is one.
    """

    made: Sequence[Made]
    flown: Sequence[tuple[Bytes, Layout, Addr]]
    constants: tuple[Any, ...]
    picks: Sequence[int] | None
    bound: int
    shape: Callable[[list[Any]], Any] | None

    def copiers(
        self, node: Node, recordings: Recordings
    ) -> Sequence[Callable[[], Any]]:
        """Return what copies each output out by the framework; empty: one cannot be."""
        framework = recordings.device.framework
        room = partial(_room_beside, node, recordings)
        found: list[Callable[[], Any]] = []
        if len({each for each, *_ in self.flown}) < len(self.flown):
            return ()  # arrays that share their bytes do so in copies, too
        if len(self.flown) > framework.most_copies:
            return ()  # one copy of all of them costs less
        for whole, layout, address in self.flown:
            if address != whole.address:
                return ()
            copier = framework.copier(layout, address, whole.size, room)
            if copier is None:
                return ()
            found.append(copier)
        return found


def program_of(
    node: Node,
    number_of: Callable[[int], int],
    carried: Sequence[Bytes] = (),
    *,
    binds: bool = True,
) -> Program:
    """Return the program of a node's outputs, of those to bind if it ``binds``.

    ``number_of`` gives the number of an array, of the call's and of those that were
    read, among those that are looked at. What parts before it have made is ``carried``:
    it comes before the node's own storages.
    """
    made: list[Made] = []
    flown: list[tuple[Bytes, Layout, Addr]] = []
    count = len(node.outputs.storages)
    copied = {k for ferry in node.ferries for k in ferry.storages}
    rest = [k for k in range(count) if k not in copied]
    number = {k: len(carried) + i for i, k in enumerate(rest)}
    number |= {count + k: k for k in range(len(carried))}
    storages = (*node.outputs.storages, *carried)
    constants: list[Any] = []
    marks: list[tuple[int, int]] = []
    bound = node.outputs.bound if binds else ()
    for output in (*node.outputs.leaves, *bound):
        match output:
            case Carried(k, layout, offset):
                new = count + k, layout, Addr(carried[k].address + offset)
            case Fresh(k, layout, address):
                new = k, layout, address
            case Constant(value):
                marks.append((2, len(constants)))
                constants.append(value)
                continue
            case Alias(k):
                marks.append((3, number_of(k)))
                continue
            case Same(k):
                marks.append(marks[k])
                continue
        if new[0] in copied:
            marks.append((1, len(flown)))
            flown.append((storages[new[0]], *new[1:]))
        else:
            marks.append((0, len(made)))
            made.append((number[new[0]], *new[1:]))
    lengths = len(made), len(flown), len(constants)
    starts = [*accumulate(lengths, initial=0)]
    picks = [starts[kind] + k for kind, k in marks]
    all_made = picks == [*range(len(made) + len(flown))]
    return Program(
        made,
        flown,
        tuple(constants),
        None if all_made else picks,
        len(bound),
        _shape(node.outputs.structure),
    )


def compiled(
    fast: FastReplay, slots: Sequence[Binding], given: Probe, read: Probe
) -> Any:
    """Return a fast replay in C, as things are now; None where there can be none.

    It binds ``slots``. The probes are of the arrays of a call that fits, and of those
    that it read. What is returned is called with such arrays and gives the result, or
    `MISS`; what it has ``noted()`` is, in turn, when each replay since the last time
    began, and how long it took, in nanoseconds.
    """
    native, node, stream = _fast.native(), fast.node, fast.stream()
    device = fast.recordings.device
    if native is None or stream is None:
        return None
    if not type(given) is type(read) is native.Probe or not all(given.lows):
        return None
    if not _is_plain(fast) or (lent := node.exec.lend()) is None:
        return None
    places = len(given.lows) - len(fast.last_call.within)
    aimed = (i for i in node.aimed if i < places)
    words = {i: tuple(lent.words.get(i + 1, ())) for i in aimed}
    if not all(words.values()):
        return None
    entry = lent.native
    nodes = tuple((each.node, each.params) for each in entry.copies)
    ordinal = device.driver.abilities.ordinal
    raw = device.driver.raw_stream(stream.handle)
    numbers = (
        *(ordinal, raw, entry.launch, entry.set_params),
        *(entry.context_of, entry.exec_, entry.context, nodes, lent),
        _nothing if fast.idle else lent.launch,
    )
    conditions = _conditions(fast, words, (given, read))
    return native.compile_replay(
        (
            *(MISS, *conditions, *_deeds(fast, slots), numbers),
            *(_which(node, len(given.lows)), _rivals(fast)),
        )
    )


def _nothing() -> None:
    """Launch nothing, of a part that only gives what there is."""


def _is_plain(fast: FastReplay) -> bool:
    """Return whether C can do all that calls of this kind need."""
    node, program = fast.node, fast.program
    return (
        not node.ambient.aliasing.ids
        and (fast.kept is not None or not (program.made or program.flown))
        and fast.recordings.before_call is None
        and all(i < node.argument_places for i in node.aimed)
    )


def _conditions(
    fast: FastReplay,
    words: Mapping[int, tuple[tuple[int, int], ...]],
    probes: tuple[Probe, Probe],
) -> tuple[Any, ...]:
    """Return what must be as it was: `enum place` of C, from `STATE` on."""
    node, kept, device = fast.node, fast.kept, fast.recordings.device
    first = fast.is_first
    lock = device.lock.acquire, device.lock.release, device.is_mine
    mine = Mask(node.clobbers & ~fast.own if kept else node.clobbers)
    return (
        (ref(fast), fast.epoch),
        STREAM_EPOCH,
        node.ambient.program,
        # Who plays parts has the lock, and pages from the first one on.
        (int, int, bool) if fast.is_part else lock,
        (device.returns.waiting, device.returns.drain_dropped),
        fast.recordings,
        fast.stream,
        device.pages,
        (mine if first else 0, node.clobbers, int(node.writes)),
        _arguments(fast, words, len(probes[0].lows)),
        _besides(fast),
        fast.reads or node.ambient.program.read,
        probes,
        # By number: one more reference to them would count.
        (tuple(map(id, kept.held)), tuple(kept.uses)) if kept and first else ((), ()),
        (kept.count, tuple(kept.numbers), tuple(kept.others))
        if kept and first
        else (int, (), ()),
    )


def _arguments(
    fast: FastReplay, words: Mapping[int, tuple[tuple[int, int], ...]], count: int
) -> tuple[tuple[Any, ...], ...]:
    """Return what is to be known of each argument: see `read_argument`.

    One that lies in the place of another is to lie as far behind that as it did.
    """
    node, last_call = fast.node, fast.last_call
    fixed = {i for i, _ in node.fixed}
    behind = {i: (k, by) for i, k, by in last_call.within}
    begins = last_call.begins if behind else range(count)
    places = {k: i for i, k in enumerate(begins)}

    def known(k: int) -> tuple[Any, ...]:
        if k in behind:
            return 0, False, (), *behind[k]
        place = places[k]
        use = node.places[place]
        return use.size * use.used, place in fixed, words.get(place, ()), -1, 0

    return tuple(map(known, range(count)))


def _besides(fast: FastReplay) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return where what is used besides starts, and how far all up to one reach.

    Nothing where arguments may meet it.
    """
    node = fast.node
    uses = node.places[node.argument_places :] if node.watches_overlap else ()
    spans = sorted(
        (low, low + use.size)
        for low, use in zip(fast.ambient_lows, uses, strict=False)
        if use.used and use.size
    )
    ends = accumulate((end for _, end in spans), max)
    return tuple(low for low, _ in spans), tuple(ends)


def _which(node: Node, count: int) -> tuple[Any, ...]:
    """Return the references to what is reached, and which of them each argument is."""
    which, ambient = node.which, node.ambient
    if not which:
        return ()
    numbers, keys = ambient.aliasing[:2]
    latest = ambient.program.latest
    # Reversed, so that of several references to one array the first one stays.
    first = dict(zip(reversed(which[count:]), reversed(numbers), strict=True))
    seen = *latest, *keys
    return latest, seen, tuple(first.get(k, -1) for k in which[:count])


def _rivals(fast: FastReplay) -> tuple[int, ...]:
    """Return the pages that recordings overwrite which copy less out, one by one."""
    if not fast.node.ferries:
        return ()
    before = itertools.takewhile(lambda n: n is not fast.node, fast.rivals)
    return tuple(rival.clobbers for rival in before)


def _deeds(fast: FastReplay, slots: Sequence[Binding]) -> tuple[Any, ...]:
    """Return what makes the result, and what is bound."""
    node, program, kept = fast.node, fast.program, fast.kept
    latest, first = node.ambient.program.latest, len(node.outputs.leaves)
    stays = kept.makers[fast.makers] if kept else ()
    makers = map(_maker, (*stays, *fast.copies()))
    picks: tuple[Any, ...] = ()
    if program.picks is not None:
        picks = program.constants, tuple(program.picks)
    bound = tuple((where, name, first + number) for where, name, number in slots)
    expected: tuple[Any, ...] = ()
    if program.bound and latest:
        pairs = [(place, first + number) for number, place in node.expects or ()]
        expected = latest, *pairs
    return tuple(makers), picks, (program.shape, program.bound), bound, expected


def _maker(make: Callable[[], Any]) -> tuple[Any, ...]:
    """Return a function and its one argument, by number, or its own number."""
    match make:
        case functools.partial(func=function, args=(one,)):
            if not make.keywords:
                return function, id(one)
    return (id(make),)


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
