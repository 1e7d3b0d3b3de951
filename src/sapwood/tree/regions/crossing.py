"""What crosses between recorded parts and the eager regions that run between them.

An region gets arrays and values, and returns None or a nest of arrays. What earlier
parts and regions made is *carried*: behind the call's arguments it is one more place
for the parts to come.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from operator import is_, is_not
from reprlib import repr as abbreviated
from types import BuiltinFunctionType, CodeType, FrameType, MethodType, ModuleType
from typing import Any, Final, NamedTuple

from sapwood.errors import CaptureError, MisuseError
from sapwood.memory.device import Device
from sapwood.memory.framework import Manner
from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import Array, Integration, text_of
from sapwood.tree.call.signature import NONE, Arrays, describe, groups_of, look
from sapwood.tree.choose.admit import sharing
from sapwood.tree.guards import Ambient, Survey
from sapwood.tree.guards.aliasing import twins
from sapwood.tree.nests.containers import (
    Identity,
    constant_key,
    flatten,
    taken_apart,
    weakly_bound,
)
from sapwood.tree.nests.contents import Items, contents_of
from sapwood.tree.node.node import Shared
from sapwood.tree.node.outputs import Constant, Held, Output, Outputs
from sapwood.tree.node.passed_on import PassedOn
from sapwood.tree.record.host_data import is_of
from sapwood.tree.record.staging import moved_by
from sapwood.tree.record.taking import endless
from sapwood.tree.watch.session import (
    ROOM,
    Between,
    Broken,
    EagerRegion,
    Session,
    is_users,
)
from sapwood.tree.watch.watch import Caught
from sapwood.units import Addr

RAN: Final = "the first part has run, and is not undone"
RESULT: Final = "the result of {}"
"""What a place is called that an eager region has returned."""


class Passed:
    """The arguments of one call of an eager region.

    Those that are ``flat``, none of them a container, are quickly gone through; what
    ``stays`` as it is, which nobody changes, is not looked at again. ``containers`` are
    those among them, and what was in each.
    """

    def __init__(
        self,
        args: tuple[Any, ...],
        kwargs: Any,
        integration: Integration,
        *,
        flat: bool = False,
        stays: bool = False,
    ) -> None:
        self._nest, self._integration = (args, kwargs), integration
        self._stays = stays
        self.leaves: Sequence[Any]
        self.containers: Sequence[tuple[Any, Items]] = ()
        if flat:
            self.flat, self.leaves = True, (*args, *kwargs.values())
        else:
            self.leaves, self._structure, things = taken_apart(
                self._nest, integration.is_array
            )
            ones = [*args, *kwargs.values()]
            same = all(map(is_, ones, self.leaves))
            self.flat = same and len(ones) == len(self.leaves)
            if not self.flat:
                self.containers = [(each, contents_of(each)) for each in things]
        self._looks = [] if stays else self._look()

    def arrays(self) -> list[Array]:
        """Return the arrays among them."""
        return [leaf for leaf in self.leaves if self._integration.is_array(leaf)]

    def _look(self) -> list[Hashable]:
        return [seen(array, self._integration) for array in self.arrays()]

    def reshaped(self) -> bool:
        """Return whether an array among them was given other looks, or other memory."""
        if self._stays:
            return False
        pairs = zip(self._look(), self._looks, strict=True)
        return any(now is not None and now != then for now, then in pairs)

    def text(self) -> str:
        """Return what tells these arguments from others, storages left out."""
        texts = [
            self._integration.look(leaf).checked().layout
            if self._integration.is_array(leaf)
            else constant_key(leaf)
            for leaf in self.leaves
        ]
        return f"{self._structure!r} of {texts!r}"

    def changed(self) -> bool:
        """Return whether a container in them is not what it was.

        Arrays may be written; a list or dict would be changed for one call only.
        """
        if self.flat or self._stays:
            return False
        leaves, structure = flatten(self._nest, self._integration.is_array)
        return (
            structure != self._structure
            or len(leaves) != len(self.leaves)
            or any(map(is_not, leaves, self.leaves))
        )


class Ran(NamedTuple):
    """One eager region that ran: what it was passed, and what it returned or raised."""

    name: str
    passed: Passed
    result: Any
    raised: BaseException | None = None


def seen(array: Array, integration: Integration) -> Hashable:
    """Return what an array looks like, and where it is; None for one that has ended."""
    look = integration.look(array)
    if look.storage.stale is not None:
        return None  # whoever uses it is told so
    return look.layout, look.address


def changed_by(given: Passed, name: str) -> CaptureError | None:
    """Return an error where an eager region changed what the call itself was passed.

    What follows takes its leaves for those that the call began with, as they were.
    """
    if given.reshaped():
        return CaptureError(
            f"the region {name} gave an array that the graphed function was passed "
            f"another shape or dtype in place, or other memory; {RAN}",
            remedy="Make a view of it, or do so before or after the call",
        )
    if given.changed():
        return CaptureError(
            f"the region {name} changed a list, dict or dataclass that the graphed "
            f"function was passed, and that it may go on with; {RAN}",
            remedy="Write into the arrays in it, with x[...] = value, or change it "
            "before or after the call",
        )
    return None


def told_later(error: CaptureError) -> CaptureError:
    """Return an error for calls of which nothing has run."""
    what = error.what.removesuffix(f"; {RAN}")
    return CaptureError(what, where=error.where, remedy=error.remedy)


_STRAIGHT = frozenset(
    {
        *("BUILD_CONST_KEY_MAP", "BUILD_LIST", "BUILD_MAP", "BUILD_TUPLE", "CACHE"),
        *("COPY", "EXTENDED_ARG", "LOAD_CONST", "LOAD_FAST", "LOAD_FAST_BORROW"),
        *("LOAD_FAST_BORROW_LOAD_FAST_BORROW", "LOAD_FAST_CHECK"),
        *("LOAD_FAST_LOAD_FAST", "LOAD_SMALL_INT", "NOP", "POP_TOP", "STORE_FAST"),
        *("STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST", "SWAP"),
    }
)
"""Instructions that read and ask nothing but what the function's own names hold."""

_RETURNS = frozenset({"RETURN_CONST", "RETURN_VALUE"})


def only_returns(stop: CodeType) -> bool:
    """Return whether every frame of the user's that called this returns from there on.

    Frames are looked at up to the one that runs ``stop``. What a framework's own do
    behind a call hangs on nothing that an eager region changes.
    """
    return all(
        _returns_after(frame.f_code, frame.f_lasti)
        for frame in frames_to(sys._getframe(1), stop)  # noqa: SLF001 - made for this
        if _may_decide(frame.f_code.co_filename)
    )


def drops_result(stop: CodeType) -> bool:
    """Return whether the user's code that called this has no use for what it gets.

    Frames are looked at up to the one that runs ``stop``.
    """
    frames = frames_to(sys._getframe(1), stop)  # noqa: SLF001 - made for this
    users = (each for each in frames if _may_decide(each.f_code.co_filename))
    frame = next(users, None)
    return frame is not None and _drops_at(frame.f_code, frame.f_lasti)


@lru_cache(maxsize=512)
def _drops_at(code: CodeType, at: int) -> bool:
    """Return whether what the call at ``at`` gives is dropped at once."""
    return next(_names_after(code, at), None) == "POP_TOP"


def frames_to(frame: FrameType | None, stop: CodeType) -> Iterator[FrameType]:
    """Yield a frame and those that called it, up to the one that runs ``stop``."""
    while frame is not None and frame.f_code is not stop:
        yield frame
        frame = frame.f_back


def is_seam(frame: FrameType) -> bool:
    """Return whether a frame is torch's, where it calls what is told of operations."""
    return any(each in frame.f_code.co_filename for each in _SEAMS)


_SEAMS: Final = ("/torch/_compile.py", "/torch/_dynamo/")


def _may_decide(file: str) -> bool:
    # What is typed in, or made of text, has no file.
    return file.startswith("<") or is_users(file)


@lru_cache(maxsize=512)
def _returns_after(code: CodeType, at: int) -> bool:
    """Return whether nothing is decided behind the instruction at ``at``."""
    others = (name for name in _names_after(code, at) if name not in _STRAIGHT)
    return next(others, None) in _RETURNS


def _names_after(code: CodeType, at: int) -> Iterator[str]:
    return (op.opname for op in dis.get_instructions(code) if op.offset > at)


def caught_at(stop: CodeType, *, users: bool = False) -> tuple[str | None, bool]:
    """Return ``file:line`` of the innermost `try` around the caller's caller, or None.

    And whether a `with` is around it, the ``users``' own maybe, which matters where
    there is no `try`. Frames are looked at up to the one that runs ``stop``.
    """
    caller = sys._getframe(1)  # noqa: SLF001 - made for this
    within, told = False, True
    for frame in frames_to(caller, stop):
        code = frame.f_code
        told &= is_seam(frame) or code.co_filename.startswith(ROOM)
        if told or code.co_filename == caller.f_code.co_filename:
            continue
        around = _around(code, frame.f_lasti)
        if "try" in around:
            return f"{code.co_filename}:{frame.f_lineno}", within
        counts = not users or _may_decide(code.co_filename)
        within |= counts and "with" in around
    return None, within


def _around(code: CodeType, at: int) -> set[str]:
    """Return which of ``try`` and ``with`` are around the instruction at ``at``."""
    entries, kinds = _handlers(code)
    seen: set[int] = set()
    found: set[str] = set()
    while at not in seen:
        seen.add(at)
        target = next((to for lo, hi, to in entries if lo <= at < hi), None)
        if target is None:
            break
        found.add(kinds[target])
        # That of a `with` or a comprehension raises on from there.
        at = target
    return found


@lru_cache(maxsize=512)
def _handlers(
    code: CodeType,
) -> tuple[tuple[tuple[int, int, int], ...], Mapping[int, str]]:
    """Return ``(start, end, target)`` of all handlers, and what each target is of.

    Of a ``try``, of a ``with``, or of neither: then it is empty.
    """
    ops = [op for op in dis.get_instructions(code) if op.opname != "CACHE"]
    after = dict(zip((op.offset for op in ops), ops[1:], strict=False))
    entries = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
    names = {op.offset: op.opname for op in ops}
    kinds = {
        entry.target: ""
        if names[entry.target] != "PUSH_EXC_INFO"
        else ("with" if after[entry.target].opname == "WITH_EXCEPT_START" else "try")
        for entry in entries
    }
    return tuple((e.start, e.end, e.target) for e in entries), kinds


REMEDY: Final = (
    "Return None, plain values, or arrays of always the same shapes and dtypes; tuples "
    "of these, or other containers of arrays alone"
)
FEWER: Final = (
    "Have it return few values, as a bool that it makes of them does, or an array"
)
_VALUES: Final = frozenset({bool, int, float, complex, str, bytes, type(None)})
"""Of these, nobody can change what a region has returned."""


class Returned(NamedTuple):
    """What an eager region returned: its arrays, and what kind of result it is.

    ``shared`` says which of the places are part of what was carried already, and
    ``passed`` of what was passed; ``refused`` why no replay could take it, or nothing.
    One with plain values in it ``branches``: what follows is recorded for each.
    """

    arrays: Arrays = NONE
    key: Hashable = None
    shared: Shared = ()
    passed: Shared = ()
    text: str = "None"
    refused: str = ""
    branches: bool = False

    @property
    def kind(self) -> str:
        """What tells this result from others, storages left out."""
        return f"{self.key!r} sharing {self.passed!r}"


def _is_value(value: Any, integration: Integration) -> bool:
    """Return whether replays may go by a value: it says all, and stays what it is."""
    if type(value) is tuple:
        return all(_is_value(each, integration) for each in value)
    return integration.is_array(value) or _is_plain(value)


def _is_plain(value: object) -> bool:
    return type(value) in _VALUES or is_of(value, "generic")


def returned(
    name: str,
    result: Any,
    passed: Passed,
    carried: Arrays,
    integration: Integration,
    *,
    is_last: bool = False,
    strict: bool = False,
    passed_on: PassedOn | None = None,
) -> Returned:
    """Describe the result of an eager region; ``carried`` is what it may be part of.

    Behind a region that ``is_last`` the function only returns: what that has changed
    in place nobody goes on with. Where calls may not run eagerly, which is ``strict``,
    no plain value is taken: another one could come. Of one that is only ``passed_on``
    nothing is told but the answers to what the function asks.

    Raises `StaleOutput` for an array that was revoked.
    """
    if passed_on is not None:
        if not (passed_on.asks and passed_on.can_show(result)):
            return Returned(key=passed_on.key(result), text="a value")
        answers = ", ".join(map(str, passed_on.answers(result)))
        text = f"a value of which what the function asks is {answers}"
        return Returned(key=passed_on.key(result), text=text, branches=True)
    changed, reshaped = passed.changed(), passed.reshaped()
    if not changed and (is_last or not reshaped):
        if result is None:
            return Returned()
        if not strict and _is_plain(result):
            key: Hashable = (constant_key(result),)
            return Returned(key=key, text=abbreviated(result), branches=True)
    without_end = endless(result, integration.is_array)
    leaves = [result] if without_end else flatten(result, integration.is_array)[0]
    arrays = [leaf for leaf in leaves if integration.is_array(leaf)]
    plain = [x for x in leaves if x is not None and not integration.is_array(x)]
    branches = bool(plain) and not strict and _is_value(result, integration)
    refused = ""
    if plain and not branches:
        which = next((x for x in plain if not _is_value(x, integration)), result)
        refused = (
            f"the region {name} returned a {type(which).__name__}, which would "
            f"be the same in every replay; {RAN}"
        )
    elif changed:
        refused = (
            f"the eager region {name} changed a list, dict or dataclass that it was "
            f"passed, of which every replay makes a new one; {RAN}"
        )
    elif reshaped:
        refused = (
            f"the region {name} gave an array that it was passed another shape or "
            "dtype in place, or other memory, where what follows goes on with what "
            f"there was; {RAN}"
        )
    found = look(arrays, integration)
    key = len(plain)
    if branches or not plain:
        key = describe((result,), {}, integration).key
    shown = leaves if branches else arrays
    texts = (text_of(x) if integration.is_array(x) else abbreviated(x) for x in shown)
    return Returned(
        found,
        key,
        sharing(found, carried),
        sharing(found, look(passed.arrays(), integration)),
        ", ".join(texts) or "None",
        refused,
        branches,
    )


def move(
    carried: Arrays, there: Mapping[Storage, Storage], integration: Integration
) -> Arrays:
    """Return what is carried on, where what is in some storages is in others now."""

    def moved(array: Array) -> Array:
        old = integration.look(array).storage
        new = there.get(old, old)
        by = new.address - old.address
        return array if new is old else moved_by(by, array, new, integration)

    storages = [there.get(each, each) for each in carried.storages]
    pairs = zip(carried.lows, carried.storages, storages, strict=True)
    lows = [Addr(low + new.address - old.address) for low, old, new in pairs]
    arrays = [*map(moved, carried.arrays)]
    return carried._replace(arrays=arrays, storages=storages, lows=lows)


def which_are_one(ambient: Ambient, arrays: Arrays, carried: Arrays) -> tuple[int, ...]:
    """Return which of what is carried, and of what a part reads, are one object.

    Nothing where the function does not ask.
    """
    if not ambient.aliasing.asks:
        return ()
    return twins((*carried.arrays, *arrays.arrays))


def receive(carried: Arrays, result: Returned) -> Arrays:
    """Return what is carried on: what was, and what an eager region returned."""
    if not result.arrays.arrays:
        return carried
    first = len(carried.arrays)
    storages, lows = [*carried.storages], [*carried.lows]
    groups = [*groups_of(carried)]
    arrays = result.arrays
    new = zip(
        arrays.storages, arrays.lows, groups_of(arrays), result.shared, strict=True
    )
    for storage, low, (specialization, steps), known in new:
        if known is None:
            storages.append(storage)
            lows.append(low)
            groups.append((tuple(first + k for k in specialization), steps))
    return Arrays([*carried.arrays, *arrays.arrays], storages, lows, tuple(groups))


def refuse_manner(name: str, manner: Manner, outer: Manner, session: Session) -> None:
    """Refuse an eager region under modes that no replay sets; ``outer``: the call's."""
    strange = manner.strange(outer)
    if strange is not None:
        session.refuse(
            f"the eager region {name} is called where the function has changed "
            f"{strange}, which no replay does",
            "Change that inside the eager region, or around the function",
        )


def check_open(device: Device, name: str) -> None:
    """Raise `MisuseError` where an eager region closed the runtime."""
    if device.closed:
        raise MisuseError(
            f"the runtime was closed while the region {name} ran. Close it when the "
            "function has returned"
        )


def hold_weakly(outputs: Outputs) -> Outputs:
    """Return what a region is passed, with objects that are not plain held weakly.

    A recording must not keep them alive: its function may be theirs.
    """
    return replace(outputs, leaves=tuple(map(_weak, outputs.leaves)))


def _weak(output: Output) -> Output:
    if not isinstance(output, Constant):
        return output
    if isinstance(output.value, MethodType):
        return Held(weakly_bound(output.value))
    if isinstance(output.value, type | ModuleType | BuiltinFunctionType):
        return output
    key = constant_key(output.value)
    return Held(key.target) if isinstance(key, Identity) else output


def made_inside(
    name: str, outputs: Outputs, given: Sequence[Any], survey: Survey
) -> CaptureError | None:
    """Return an error about an object that the function makes itself for a region.

    ``given`` are the leaves of the call, ``survey`` shows what else the function has.
    """
    known = {id(leaf) for leaf in given}
    for leaf in outputs.leaves:
        value = leaf.target() if isinstance(leaf, Held) else None
        value = value.__self__ if isinstance(value, MethodType) else value
        if value is not None and id(value) not in known and not survey.holds(value):
            return CaptureError(
                f"the eager region {name} is passed a {type(value).__name__} that the "
                "function makes itself, and no replay makes it anew",
                remedy="Pass arrays, plain values and containers of them, or give the "
                "object a name outside the function",
            )
    return None


def unlike(
    name: str, got: Returned, ran: Sequence[Broken], then: Sequence[Broken]
) -> str:
    """Say how the result of the last region differs from that in the call before."""
    if len(then) < len(ran):
        return ""
    before, now = then[len(ran) - 1], ran[-1]
    if before[1:3] != now[1:3] or before[3] == now[3]:
        return ""
    another = "value" if got.branches else "kind of result"
    return (
        f"the eager region {name} returned {got.text}, which is another {another} "
        f"than in the call before; {RAN}"
    )


def unlocked(
    device: Device,
    run: Between,
    part: EagerRegion,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[Any, Caught | None]:
    """Run an eager region, without the lock; return its result or its exception.

    Raises `MisuseError` where it closed the runtime.
    """
    result, raised = None, None
    device.lock.release()
    try:
        result = run(part, args, kwargs)
    except BaseException as error:  # noqa: BLE001 - raised again in the function
        raised = Caught(error)
    finally:
        device.lock.acquire()
    check_open(device, part.name)
    return result, raised
