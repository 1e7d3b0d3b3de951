"""One call captured; where that fails, what it has written is put back."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import UnionType
from typing import Any

from sapwood.errors import CaptureError, MisuseError
from sapwood.memory.pages import Extent
from sapwood.tree.call.integration import Array, Integration
from sapwood.tree.call.signature import Call
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.choose.specialization import Specialization
from sapwood.tree.guards import Survey, kept_states, put_back
from sapwood.tree.guards.changes import (
    Added,
    Assigned,
    BoundArray,
    Change,
    Rebound,
    Repeated,
    undo_bound,
)
from sapwood.tree.nests.containers import (
    Structure,
    constant_key,
    kept_besides,
    refilled,
    taken_apart,
)
from sapwood.tree.node.objects import ARRAY, fresh
from sapwood.tree.node.outputs import Outputs
from sapwood.tree.record.host_data import lasting
from sapwood.tree.record.staging import SlotStandIns
from sapwood.tree.watch.session import Raised, Session, Unready
from sapwood.tree.watch.watch import Capture, Captured, Caught
from sapwood.uncollected import uncollected


@dataclass(frozen=True, slots=True)
class RecordRequest:
    """What is to be recorded, and how.

    ``names`` are those of the call's places; ``donated`` and ``pinned`` the places that
    the user declared so; ``anywhere``, ``escapes`` and ``copies`` as in `Step`;
    ``candidates`` output extents that may be shared. ``before`` is the survey of the
    call. If it is ``tolerant``, an eager region may return what no replay could take.
    """

    fn: Callable[..., Any]
    call: Call
    label: str
    number: int
    parent: str | None
    names: Sequence[str]
    donated: frozenset[int]
    pinned: frozenset[int]
    specialization: Specialization
    anywhere: bool
    escapes: bool
    copies: frozenset[int]
    candidates: Sequence[Extent]
    before: Survey
    bind: Callable[[tuple[Any, ...], Mapping[str, Any]], Mapping[str, object]]
    survey: Callable[[Mapping[str, object]], Survey]
    tolerant: bool

    def showing(self, outputs: Outputs, integration: Integration) -> RecordRequest:
        """Return what is to be recorded of a call that gives these outputs.

        What it returns is the caller's, donated or not: it is written in place.
        """
        shown = outputs.shown(self.call.given, integration)
        return replace(self, donated=self.donated - shown)

    def check_same(self, now: Survey) -> None:
        """Raise `Unready` where other arrays are one than when the order was made."""
        given, nests = self.call.given.arrays, self.call.nests
        key = self.before.key_with(given, nests)
        if now.key_with(given, nests)[1:] != key[1:]:
            raise Unready("another thread has bound a slot meanwhile", moved=True)


@dataclass(frozen=True, slots=True)
class Taken:
    """A captured call, and what the function read before and after it."""

    captured: Captured
    before: Survey
    after: Survey
    states: Sequence[Callable[[], object]]

    @contextmanager
    def or_nothing(self) -> Iterator[None]:
        """Put back what the function has written, where no recording comes of it."""
        try:
            yield
        except BaseException:
            undo(self.before, self.states)
            raise


def undo(before: Survey, states: Sequence[Callable[[], object]]) -> None:
    """Have all be as it was: what was read ``before``, and states of generators."""
    put_back(before)
    for restore in states:
        restore()


def take(
    order: RecordRequest,
    recordings: Recordings,
    capture: Capture,
    arrays: Sequence[Array],
    slots: SlotStandIns,
) -> Taken:
    """Have a call captured with other arrays in it, and with stand-ins in ``slots``.

    What the function binds is not restored yet.
    """
    args, kwargs = with_leaves(order.call, arrays)
    arguments = order.bind(args, kwargs)
    # A new survey: another thread may have bound a slot since the order was made, and
    # its value would be baked in without a guard.
    before = order.survey(arguments)
    order.check_same(before)
    states = [*kept_states(before), recordings.device.framework.chance_on_host()]
    graph = None
    try:
        session = Session(
            tolerant=False,
            holds=before.holds,
            guarded=before.guards_hosts,
            reads=before.arrays,
        )
        slots.enter(arguments)
        cached = before.cached()
        try:
            with before.listening():
                captured = uncollected(
                    capture, capture.run, order.fn, args, kwargs, session
                )
        finally:
            slots.leave(arguments)
            cached.forget()
        graph = captured.graph
        _check_asked(before)
        after = order.survey(arguments)
        warm, is_array = order.specialization.warm, recordings.integration.is_array
        # Copied now: to unbind slots may change containers that the result shares.
        shown = fresh(captured.result, is_array, warm.told if warm else ())
        return Taken(replace(captured, result=shown), before, after, states)
    except BaseException:
        undo(before, states)
        if graph is None:
            changes = order.survey(arguments).changes_since(before)
            capture.written = plain_changes(changes)
        else:
            recordings.device.driver.destroy_graph(graph)
        raise


def _check_asked(before: Survey) -> None:
    """Raise `Unready` where the function has asked a number what no guard asks yet."""
    if before.has_asked_more():
        raise Unready("it asks of a number what it had not asked before")


def is_doubtful(error: Caught, recordings: Recordings, *, asks: bool) -> bool:
    """Return whether an error may have been raised because of a capture.

    Frameworks raise such, and whoever asks whether one is on.
    """
    exact = recordings.device.driver.abilities.exact_addresses
    return error.is_ordinary and (asks or not exact)


def raised_within(error: Caught) -> Raised:
    """Return why a function is not recorded that raised where it was captured."""
    return Raised(
        f"{error.text} was raised where the function was captured",
        where=error.where,
        remedy="Have it do the same in a capture, or mark that part of it with "
        "@sw.eager",
    )


def settled(
    taken: Taken, recordings: Recordings
) -> tuple[Sequence[Repeated], CaptureError | Caught | None]:
    """Undo what the function wrote, and say what went wrong in its Python.

    The replay binds again; until then all is as before the call. Raises `Raised`, or
    another `CaptureError`.
    """
    error, session = taken.captured.error, taken.captured.session
    refused = session.unrecordable
    if error is not None and (
        refused is not None or is_doubtful(error, recordings, asks=session.asks)
    ):
        error.taken()
        if refused is None:
            raise raised_within(error)
    stays = lasting(session)
    if stays is not None:
        raise stays
    changes = taken.after.changes_since(taken.before)
    undo_bound(changes)
    bound = [change for change in changes if isinstance(change, Repeated)]
    if refused is not None:
        # The session raised there, so what the function did behind it does not count.
        raise refused.anew()
    return bound, error or plain_changes(changes, but=Repeated)


def with_leaves(
    call: Call, arrays: Sequence[Array]
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return the arguments of a call with other arrays in it."""
    leaves = list(call.leaves)
    for position, array in zip(call.positions, arrays, strict=True):
        leaves[position] = array
    args, kwargs = refilled(call.structure, leaves, call.leaves, call.containers)
    return args, kwargs


def added(
    changes: Sequence[Change], is_array: Callable[[Any], bool]
) -> tuple[Hashable, ...]:
    """Return what tells what was assigned, and put or added to nests and numbers."""
    return tuple(
        (
            change.item and change.item.structure,
            ARRAY if is_array(change.new) else constant_key(change.new),
        )
        for change in changes
        if isinstance(change, Added | Assigned | Rebound)
    )


def endless(result: Any, is_array: Callable[[Any], bool]) -> CaptureError | None:
    """Return an error of a result that nobody can take apart: it has no end."""
    try:
        taken_apart(result, is_array)
    except MisuseError as error:
        what, _, _ = str(error).partition(". ")
        return CaptureError(
            f"in the result {what}",
            remedy="Return arrays and values in a nest that ends",
        )
    return None


def also_returned(
    changes: Sequence[Change], result: Any, is_array: Callable[[Any], bool]
) -> CaptureError | None:
    """Return an error of a container that is bound, or appended, and returned."""
    items = {
        number: change.path
        for change in changes
        if isinstance(change, Added | Rebound) and change.item is not None
        for number in change.item.numbers
    }
    containers = taken_apart(result, is_array)[2] if items else ()
    for each in containers:
        if id(each) in items:
            return CaptureError(
                f"the function returns what it keeps, {items[id(each)]}, and a "
                "replay would make two of it",
                remedy="Return a copy of it",
            )
    return None


def keyed(
    nests: Iterable[Structure],
    is_array: Callable[[Any], bool],
    reads: Callable[[], Sequence[Array]],
) -> CaptureError | None:
    """Return an error of a dict whose key is an array, or a tuple with one in it.

    An array that the function ``reads`` by a name is the same in each call: it may be.
    """
    keys = [x for nest in nests for x in _items_in(kept_besides(nest)) if is_array(x)]
    if not keys or {*map(id, keys)} <= {*map(id, reads())}:
        return None
    return CaptureError(
        "an array is a key of a dict that the function gives, and a replay would give "
        "the key of the call that was recorded",
        remedy="Return pairs of keys and values, or have plain values for keys",
    )


def _items_in(value: Any) -> Iterator[Any]:
    """Yield what is in tuples and lists, however deep, and in nothing else."""
    if isinstance(value, list | tuple):
        for each in value:
            yield from _items_in(each)
    else:
        yield value


def plain_changes(
    changes: Sequence[Change],
    *,
    but: type[Repeated] | UnionType = BoundArray,
    looked: Survey | None = None,
) -> CaptureError | None:
    """Return an error that names the first write ``but`` of these, if there is any.

    A survey that ``looked`` says what else is done with what is only added to.
    """
    for change in changes:
        if not isinstance(change, but):
            besides = looked and looked.read_besides(change)
            why = f". A replay could add to it, but {besides}" if besides else ""
            return CaptureError(
                f"{change}: the function writes {change.path}, which no replay "
                f"would repeat{why}",
                remedy=change.remedy,
            )
    return None
