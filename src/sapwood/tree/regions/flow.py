"""Where a value goes that the host has read: what the bytecode behind the read says.

A value that is only passed on, into the result, a list, or a sum, decides nothing:
``return loss.item()``. Whatever else may look at it, or keep it, makes it decide.
"""

from __future__ import annotations

import builtins
import dis
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import count
from operator import attrgetter
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple, TypeAlias

from sapwood.tree.guards.adding import MAKING, effect
from sapwood.tree.guards.asking import Listening, Summing
from sapwood.tree.node.passed_on import (
    IS_INT,
    OPERATORS,
    Keeping,
    PassedOn,
    Place,
    Question,
    Step,
    Way,
)
from sapwood.tree.regions.crossing import frames_to, is_seam
from sapwood.tree.watch.session import ROOM, EagerRegion, Session

_AROUND: Final = ("/torch/nn/modules/module.py", "/torch/utils/_contextlib.py")
_MOST: Final = 2000
"""So many instructions are followed behind one read."""


def _as_int(value: Any) -> Any:
    """Return an int; the value itself where the function gets an error, as of NaN."""
    try:
        return int(value)
    except (OverflowError, ValueError):
        return value


_NUMBERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "complex": complex,
    "float": float,
    "int": _as_int,
}
_PLAIN: Final = {"<float>": float, "<int>": int}
"""What constants in formulas are behind, by their classes."""
_LEN: Final = "len"
_METHODS: Final = frozenset({"get", "item", "tolist"})
_SUMMED: Final = frozenset({float, int, Listening, Summing})
_PEEPERS: Final = frozenset(
    {"_getframe", "currentframe", "dir", "eval", "exec", "locals", "stack", "vars"}
)
"""Names of what looks at the variables of its caller."""


def passed_on(part: EagerRegion, session: Session, stop: CodeType) -> PassedOn | None:
    """Return how the function only passes on what a region is about to return.

    It is called there, by code that ``stop`` has called. None where that may decide.
    """
    goes = None if part.shown is None or session.decides else flow(stop)
    if part.shown is None or goes is None:
        return None
    return goes._replace(shown=partial(_in_turn, part.shown, goes.shown))


def _in_turn(
    first: Callable[[Any], Any], then: Callable[[Any], Any], value: Any
) -> Any:
    return then(first(value))


def flow(stop: CodeType) -> PassedOn | None:
    """Return what becomes of what the user's code reads just now; None if it decides.

    It is shown as a call of ``float(x)`` or ``x.item()`` shows it. Frames are looked at
    up to the one that runs ``stop``.
    """
    frames = [*frames_to(sys._getframe(1), stop)]  # noqa: SLF001 - made for this
    while frames and (_is_own(frames[0]) or is_seam(frames[0])):
        del frames[0]
    while frames and _is_own(frames[-1]):
        frames.pop()
    # What C calls a function for, as max(map(f, rows)) does, no frame tells. So it is
    # the graphed function's own frame, and what torch has around it.
    if not frames or not all(map(_hands_back, frames[1:])):
        return None
    shown = _shown(frames[0])
    if shown is None:
        return None
    try:
        asks, ways = _ways(frames)
    except (_Deciding, ArithmeticError, LookupError, RuntimeError):
        return None  # on another way than this call goes, x.shape[3] may be an error
    first = ways[0]
    asks += (Question((), IS_INT),) * (shown is _as_int)
    if all(way[1:] == first[1:] for way in ways):
        return PassedOn(first.places, first.kept, shown, asks)
    return PassedOn((), (), shown, asks, ways)


def _ways(frames: Sequence[FrameType]) -> tuple[tuple[Question, ...], tuple[Way, ...]]:
    """Return what frames ask of the value, and each way that it goes through them."""
    own, *around = frames
    found, ways = _found(own.f_code, own.f_lasti, _HERE), list[Way]()
    asks = {each: _asked(own, each) for each in found.asks}
    for end in found.ends:
        given = frozenset((asks[each], answer) for each, answer in end.given)
        places, kept = _resolved(own, end)
        for frame in around:
            ends = _found(frame.f_code, frame.f_lasti, places)
            if len(ends.ends) != 1 or ends.asks:
                raise _Deciding
            places, more = _resolved(frame, ends.ends[0])
            kept += more
        ways.append(Way(given, (*sorted(places, key=repr),), kept))
    if not ways:
        ways = [Way(frozenset(), (), ())]
    return (*sorted(asks.values(), key=repr),), (*ways,)


def _resolved(
    frame: FrameType, end: _End
) -> tuple[frozenset[Place], tuple[Keeping, ...]]:
    """Return where the value ends, with the numbers that the frame has for formulas."""
    if not all(_is_plain(frame, each) for each in end.kept):
        raise _Deciding
    kept = tuple(
        Keeping(_tail(each.chain), _known(frame, each.place), each.adds)
        for each in end.kept
    )
    return frozenset(_known(frame, each) for each in end.places), kept


def _hands_back(frame: FrameType) -> bool:
    """Return whether a frame is torch's, and returns what a function gives it."""
    return frame.f_code.co_filename.endswith(_AROUND)


def _is_own(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(ROOM)


def _is_plain(frame: FrameType, kept: _Kept) -> bool:
    """Return whether that is a list to append to, or a number to add to.

    What else has an ``append``, or sums, may do more with the value.
    """
    first, *rest = kept.chain
    held = _held(frame, first)
    for part in rest:
        if type(part) is str:
            held = getattr(held, "__dict__", {}).get(part)
        elif isinstance(held, dict):
            held = held.get(*part)
    if not rest and first in frame.f_code.co_varnames:
        return False  # it is the function's own, or another name of something
    return type(held) in (_SUMMED if kept.adds else {list})


def _known(frame: FrameType, place: Place) -> Place:
    """Return a place with the numbers of its formula; raise where one is not known."""
    return place._replace(steps=_steps(frame, place.steps))


def _asked(frame: FrameType, question: Question) -> Question:
    """Return a question with the number it asks by, and those of its formula."""
    number = _number(frame, question.number) if question.sign else None
    return question._replace(number=number, steps=_steps(frame, question.steps))


def _steps(frame: FrameType, steps: Sequence[Step]) -> tuple[Step, ...]:
    made = (step._replace(number=_number(frame, step.number)) for step in steps)
    return tuple(made)


def _number(frame: FrameType, operand: Any) -> int | float:
    """Return what a formula takes beside the value, which is the same in each call.

    That is a constant, an argument, a length of an array, what else guards compare and
    nothing has changed by then, or a formula of these.
    """
    if not isinstance(operand, tuple):
        return operand  # type: ignore[no-any-return]
    first, *rest = operand
    if first in OPERATORS:
        one, other = (_number(frame, each) for each in rest)
        if first == "/" and not other:
            raise _Deciding
        return OPERATORS[first](one, other)  # type: ignore[no-any-return]
    if first == _LEN:
        if _held(frame, _LEN) is not None:
            raise _Deciding
        first, rest = rest[0], ["shape", (0,)]
    found: Any = rest.pop() if first in _PLAIN else _held(frame, first)
    for part in rest:
        if isinstance(part, tuple):
            found = found[part[0]] if type(found) is _Shape and found else None
        elif part == "shape" and hasattr(type(found), "ndim"):
            found = _Shape(found.shape)
        else:
            found = getattr(found, "__dict__", {}).get(part)
    if type(found) not in _PLAIN.values():
        raise _Deciding
    return found  # type: ignore[no-any-return]


class _Shape(tuple[int, ...]):
    """The shape of an array, of which a length may be taken."""

    __slots__ = ()


def _held(frame: FrameType, name: str) -> Any:
    """Return what a frame has by a name, if it has anything."""
    places = frame.f_locals, frame.f_globals
    return next((each[name] for each in places if name in each), None)


def _tail(chain: Sequence[Any]) -> str:
    """Return how the paths of a thing end that code calls so."""
    first, *rest = chain
    if not rest:
        return str(first)
    return "".join(f".{x}" if type(x) is str else f"[{x[0]!r}]" for x in rest)


# How it is read.


def _shown(frame: FrameType) -> Callable[[Any], Any] | None:
    """Return what the call that a frame is in makes of what is read, if known."""
    name, is_method = _called(frame.f_code, frame.f_lasti)
    if is_method:
        return partial(_by_method, name) if name in _METHODS else None
    number = _NUMBERS.get(name)
    there = frame.f_globals.get(name, frame.f_builtins.get(name))
    return number if there is getattr(builtins, name, None) else None


def _by_method(name: str, value: Any) -> Any:
    """Return what a method gives; a plain number is what ``x.item()`` gives already."""
    method = getattr(value, name, None)
    return value if method is None else method()


@lru_cache(maxsize=512)
def _called(code: CodeType, at: int) -> tuple[str, bool]:
    """Return the name of what is called at an instruction, and if that is a method.

    With no argument, or a function with one; else there is no name.
    """
    before = [op for op in _instructions(code) if op.offset <= at]
    call = before.pop() if before else None
    if call is None or call.opname not in {"CALL", "PRECALL"}:
        return "", False
    while before and before[-1].opname in _NOTHING:
        before.pop()
    if call.arg == 0 and before[-1].opname in {"LOAD_ATTR", "LOAD_METHOD"}:
        return str(before[-1].argval), True
    wanted = 3 if call.arg == 1 else 0
    for op in reversed(before):
        wanted -= effect(op)
        if op.opname == "LOAD_GLOBAL" and wanted == 0:
            return str(op.argval), False
        if wanted <= 0 or "JUMP" in op.opname:
            break
    return "", False


# Where it goes.


Chain: TypeAlias = tuple[Any, ...]
"""A variable, and behind it names of attributes, and keys alone in tuples."""


class _Entry(NamedTuple):
    """What is on the stack: the places where the value is, a constant, if it is one.

    Else it is called so, if that is known, and it may be the method that ``appends`` to
    what is called so; or it is a formula of what is ``known``; or true where a question
    has that ``answer``.
    """

    places: frozenset[Place] = frozenset()
    constant: object = None
    chain: Chain = ()
    appends: bool = False
    known: tuple[Any, ...] = ()
    answer: tuple[Question, bool] | None = None

    def is_value(self) -> bool:
        """Return whether it is the value itself, or what a formula makes of it."""
        return bool(self.places) and not any(each.route for each in self.places)

    def is_sum(self) -> bool:
        """Return whether it is what the value was added to, which is to be bound."""
        return any(each.route == _SUM for each in self.places)


class _Kept(NamedTuple):
    """A list that gets what has it at a ``place``, or a number that it is added to."""

    chain: Chain
    place: Place = Place()
    adds: bool = False


_Given: TypeAlias = frozenset[tuple[Question, bool]]


class _End(NamedTuple):
    """Where in what is returned a value is, and where it is kept, with such answers.

    The code may come there by an error that it ``handled``.
    """

    places: frozenset[Place]
    kept: tuple[_Kept, ...]
    given: _Given
    handled: bool = False

    def has_all_of(self, other: _End) -> bool:
        """Return whether a value is here wherever it is there, with such answers."""
        more = Counter(other.kept) - Counter(self.kept)
        return not other.given <= self.given or (
            other.places <= self.places and not more
        )


class _Ends(NamedTuple):
    """All that may become of a value, and what is asked of it."""

    ends: tuple[_End, ...]
    asks: frozenset[Question]


_HERE: Final = frozenset({Place()})
_SUM: Final = ("<sum>",)
"""The route of what the value was added to, until that is bound again."""


_OTHER: Final = _Entry()
_NOTHING: Final = frozenset(
    {"CACHE", "EXTENDED_ARG", "KW_NAMES", "NOP", "NOT_TAKEN", "PRECALL", "RESUME"}
)
_NEVER_RAISING: Final = _NOTHING | {"LOAD_CONST", "LOAD_FAST", "POP_TOP", "STORE_FAST"}
_LOADS: Final = frozenset(
    {"LOAD_BUILD_CLASS", "LOAD_CLASSDEREF", "LOAD_CLOSURE", "LOAD_COMMON_CONSTANT"}
    | {"LOAD_DEREF", "LOAD_FROM_DICT_OR_DEREF", "LOAD_GLOBAL", "LOAD_NAME", "PUSH_NULL"}
)
"""They push others, and take nothing."""
_USES: Final = MAKING.union(
    ("CALL_FUNCTION_EX", "CALL_INTRINSIC_1", "GET_ITER", "UNARY_POSITIVE")
)
"""They take others, and push one."""
_TAKES: Final = frozenset(
    {"DELETE_ATTR", "DELETE_SUBSCR", "DICT_MERGE", "DICT_UPDATE", "END_FOR"}
    | {"LIST_APPEND", "LIST_EXTEND", "MAP_ADD", "SET_ADD", "SET_UPDATE"}
    | {"STORE_ATTR", "STORE_DEREF", "STORE_GLOBAL", "STORE_SUBSCR"}
)
"""They take others, and push nothing."""
_TURNS: Final = frozenset(
    {*dis.hasjrel, *dis.hasjabs}
    | {dis.opmap.get(name, -1) for name in ("RERAISE", "RETURN_GENERATOR")}
    | {dis.opmap.get(name, -1) for name in ("GET_AWAITABLE", "SEND", "YIELD_VALUE")}
)
"""Instructions behind which other code goes on."""
_BINDS: Final = ("STORE_FAST", "DELETE_FAST", "STORE_DEREF")
_ASKS: Final = "POP_JUMP_"
_TRUTH: Final = frozenset({"TO_BOOL", "UNARY_NOT"}) | {
    f"POP_JUMP_{way}IF_{what}"
    for way in ("", "FORWARD_", "BACKWARD_")
    for what in ("TRUE", "FALSE")
}
_QUIET: Final = (
    *("LOAD_", "STORE_FAST", "COPY", "SWAP", "POP_", "PUSH_NULL", "JUMP_", "CACHE"),
    *("BINARY_OP", "BUILD_", "COMPARE_OP", "EXTENDED_ARG", "KW_NAMES", "NOP"),
    *("NOT_TAKEN", "PRECALL", "RESUME", "TO_BOOL", "UNARY_"),
)
"""How instructions begin that let things be as they are, of numbers."""
_GOES: Final = frozenset(
    {"JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_FORWARD"}
)


_CALLS: Final = frozenset({"CALL", "CALL_FUNCTION_EX", "CALL_KW"})


class _Deciding(Exception):
    """What is done with the value may hang on it, or is not understood."""


def _found(code: CodeType, at: int, places: frozenset[Place]) -> _Ends:
    """Return where in what a frame returns that is, which its call gives at ``at``.

    ``places`` are those where it is in what the call gives. Raises `_Deciding` if it
    may be looked at, or be kept elsewhere.
    """
    found = _followed(code, at, places)
    if found is None:
        raise _Deciding
    return found


@lru_cache(maxsize=512)
def _followed(code: CodeType, at: int, places: frozenset[Place]) -> _Ends | None:
    if not _PEEPERS.isdisjoint(code.co_names):
        return None
    try:
        return _Following(code).returned(at, places)
    except _Deciding:
        return None


class _Following:
    """Follows a value from an instruction to where the code returns."""

    def __init__(self, code: CodeType) -> None:
        self._ops = _instructions(code)
        self._numbers = {op.offset: i for i, op in enumerate(self._ops)}
        table: Any = dis.Bytecode(code)
        self._handlers, self._at = table.exception_entries, 0
        self._seen: set[object] = set()
        self._asks: set[Question] = set()
        ops = (op for op in self._ops if op.opname.startswith(_BINDS))
        bound = {x for op in ops for x in _names(op)} | {*code.co_cellvars}
        given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        self._lasting = frozenset(given) - bound
        self._own = bound.union(code.co_varnames) - self._lasting

    def returned(self, at: int, places: frozenset[Place]) -> _Ends:
        # Behind a call of Python's own the frame is at the cache of the instruction.
        number = bisect_right(self._ops, at, key=attrgetter("offset")) - 1
        if self._ops[number].opname == "PRECALL":
            number = next(i for i in count(number) if self._ops[i].opname == "CALL")
        if self._ops[number].opname not in _CALLS:
            raise _Deciding
        self._at = self._ops[number].offset
        stack = [*self._stack_behind(number)[:-1], _Entry(places)]
        found = {*self._ends(number + 1, stack, {}, (), frozenset())}
        # A handled error may end with less of the value. Such an end is left out: where
        # a call takes it, the places of the others do not fit, and nothing is recorded.
        usual = [each for each in found if not each.handled]
        ends = {
            each._replace(handled=False)
            for each in found
            if not (each.handled and usual and all(x.has_all_of(each) for x in usual))
        }
        return _Ends((*sorted(ends, key=repr),), frozenset(self._asks))

    def _is_new(self, state: object) -> bool:
        known = len(self._seen)
        self._seen.add(state)
        if known > _MOST:
            raise _Deciding
        return len(self._seen) > known

    def _stack_behind(self, number: int) -> list[_Entry]:
        """Return what is known of the stack behind an instruction: keys, for example.

        It is followed from where the code has come to last by a jump, or behind one.
        """
        first, stack = number, list[_Entry]()
        while first and not self._ops[first].is_jump_target:
            first -= 1
            if "JUMP" in self._ops[first].opname:
                break
        for op in self._ops[first : number + 1]:
            try:
                if not _shuffle(op, stack):
                    _step(op, stack, {})
            except _Deciding:  # whatever it has done to the stack
                stack.clear()
        return stack

    def _ends(
        self,
        number: int,
        stack: list[_Entry],
        names: dict[str, _Entry],
        kept: tuple[_Kept, ...],
        given: _Given,
        *,
        fresh: bool = True,
        handled: bool = False,
    ) -> Iterator[_End]:
        """Yield where in what is returned the value is, each way the code may go.

        That is by the answers ``given``, and by an error that was ``handled``. While it
        is ``fresh``, nothing has run but what takes the value.
        """
        while True:
            op = self._ops[number]
            known = number, (*stack,), frozenset(names.items())
            state = *known, kept, given, fresh, handled
            if not self._is_new(state):
                return  # as before: around a loop
            yield from self._ends_of_errors(op, stack, names, kept, given)
            name, number = op.opname, number + 1
            if name == "RETURN_VALUE":
                yield _End(_others_but_it(stack), kept, given, handled)
                return
            if name == "RETURN_CONST":
                yield _End(frozenset(), kept, given, handled)
                return
            if name == "RERAISE" or (
                name == "RAISE_VARARGS"
                and not any(each.places for each in _taken(stack, op.arg or 0))
            ):
                return  # nobody gets it
            if self._asks_now(op, stack, fresh=fresh):
                continue
            was_fresh, fresh = fresh, fresh and name.startswith(_QUIET)
            if name.startswith(_ASKS) or name == "FOR_ITER":
                there, told = [*stack], _told(op, stack, given)
                _jump(op, there, jump=True)
                _jump(op, stack, jump=False)
                to, (turned, given) = self._numbers[op.argval], told
                if turned is not None:
                    goes_on = partial(self._ends, fresh=fresh, handled=handled)
                    yield from goes_on(to, there, {**names}, kept, turned)
            elif name in _GOES:
                number = self._numbers[op.argval]
            else:
                more = self._done(op, stack, names, fresh=was_fresh)
                kept, fresh = kept + more, fresh or (was_fresh and bool(more))

    def _ends_of_errors(
        self,
        op: dis.Instruction,
        stack: list[_Entry],
        names: dict[str, _Entry],
        kept: tuple[_Kept, ...],
        given: _Given,
    ) -> Iterator[_End]:
        """Yield the ends where an instruction raises, and the code goes on by that."""
        for start, end, target, depth, lasti in self._handlers:
            if start <= op.offset < end and op.opname not in _NEVER_RAISING:
                # A handler keeps the bottom of the stack, and only the top is known. If
                # the block began before the value was read, the value is not in there.
                began_before = start <= self._at < end
                if depth and not began_before and any(x.places for x in stack):
                    raise _Deciding
                left = [_OTHER] * (1 + lasti)
                there = self._numbers[target]
                ways = dict(names), kept, given
                yield from self._ends(there, left, *ways, fresh=False, handled=True)

    def _done(
        self,
        op: dis.Instruction,
        stack: list[_Entry],
        names: dict[str, _Entry],
        *,
        fresh: bool,
    ) -> tuple[_Kept, ...]:
        """Do an instruction that does not jump; return where it keeps the value."""
        kept = _keeps(op, stack)
        if kept is not None:
            return kept
        if not (self._computes(op, stack, fresh=fresh) or _shuffle(op, stack)):
            _step(op, stack, names)
        return ()

    def _computes(
        self, op: dis.Instruction, stack: list[_Entry], *, fresh: bool
    ) -> bool:
        """Do a step of a formula, or ask for a length; return whether it is one."""
        if op.opname == "CALL" and op.arg == 1:
            return _is_length(stack)
        sign = op.argrepr.removesuffix("=")
        if op.opname != "BINARY_OP" or sign not in OPERATORS or len(stack) < 2:
            return False
        left, right = stack[-2:]
        value, other = (left, right) if left.is_value() else (right, left)
        number = self._operand(other, fresh=fresh)
        if number is None or other.places:
            return False
        if value.is_value() and not (sign == "/" and value is right):
            step = Step(sign, number, left=value is right)
            places = (each._replace(steps=(*each.steps, step)) for each in value.places)
            stack[-2:] = [_Entry(frozenset(places))]
            return True
        one = self._operand(value, fresh=fresh)
        if one is None or value.places:
            return False
        stack[-2:] = [_Entry(known=(sign, number, one))]
        return True

    def _asks_now(
        self, op: dis.Instruction, stack: list[_Entry], *, fresh: bool
    ) -> bool:
        """Do a comparison of the value, or note that code asks if it is true.

        In its place is the answer from then on. Return whether the instruction is done.
        """
        last = stack[-1] if stack else _OTHER
        if op.opname in _TRUTH and last.is_value():
            stack[-1] = self._answer([Question(x.steps, "") for x in last.places])
        if op.opname in {"TO_BOOL", "UNARY_NOT"} and stack and stack[-1].answer:
            question, answer = stack[-1].answer
            answer ^= op.opname == "UNARY_NOT"
            stack[-1] = _Entry(answer=(question, answer))
            return True
        if op.opname != "COMPARE_OP" or len(stack) < 2:
            return False
        left, right = stack[-2:]
        value, other = (left, right) if left.is_value() else (right, left)
        number = self._operand(other, fresh=fresh)
        if not value.is_value() or other.places or number is None:
            return False
        sign = op.argrepr.removeprefix("bool(").removesuffix(")")
        asked = partial(Question, sign=sign, number=number, left=value is right)
        stack[-2:] = [self._answer([asked(each.steps) for each in value.places])]
        return True

    def _answer(self, questions: Sequence[Question]) -> _Entry:
        self._asks.update(questions)
        return _Entry(answer=(questions[0], True)) if len(questions) == 1 else _OTHER

    def _operand(self, entry: _Entry, *, fresh: bool) -> tuple[Any, ...] | None:
        """Return how a number is known beside the value: see `_number`.

        What anybody may change is not, but while nothing else has run.
        """
        if entry.known:
            return entry.known
        for name, cls in _PLAIN.items():
            if type(entry.constant) is cls:
                return name, entry.constant
        first, *rest = entry.chain or ("",)
        keys = [each for each in rest if isinstance(each, tuple)]
        if keys and (rest[-2:] != ["shape", keys[0]] or type(keys[0][0]) is not int):
            return None
        lasts = keys and len(rest) == 2
        free = fresh and bool(first) and first not in self._own
        known = lasts or (not rest and first in self._lasting) or free
        return entry.chain if known else None


def _told(
    op: dis.Instruction, stack: list[_Entry], given: _Given
) -> tuple[_Given | None, _Given]:
    """Return what answers are given where a jump is taken, and where it is not.

    None: with those that are given already, it is not.
    """
    answer = stack[-1].answer if stack else None
    if answer is None or op.opname not in _TRUTH:
        return given, given
    question, positive = answer
    taken = positive if op.opname.endswith("TRUE") else not positive
    if (question, not taken) in given:
        return None, given
    return given | {(question, taken)}, given | {(question, not taken)}


def _jump(op: dis.Instruction, stack: list[_Entry], *, jump: bool) -> None:
    """Do what a jump does to the stack where it is taken, or where it is not."""
    effect = dis.stack_effect(op.opcode, op.arg, jump=jump)
    _others(stack, max(1, -effect))
    stack += [_OTHER] * (max(1, -effect) + effect)


def _taken(stack: list[_Entry], size: int) -> list[_Entry]:
    """Take so many entries off the stack; below what is known there are others."""
    taken = stack[max(0, len(stack) - size) :]
    del stack[len(stack) - len(taken) :]
    return [*[_OTHER] * (size - len(taken)), *taken]


def _others(stack: list[_Entry], size: int) -> list[_Entry]:
    """Take entries without the value off the stack."""
    taken = _taken(stack, size)
    if any(each.places for each in taken):
        raise _Deciding
    return taken


def _step(op: dis.Instruction, stack: list[_Entry], names: dict[str, _Entry]) -> None:
    """Do to the stack and the variables what an instruction does."""
    name, size = op.opname, op.arg or 0
    if name in _NOTHING:
        return
    if name in _LOADS:
        named = (op.argval,) if isinstance(op.argval, str) else ()
        stack += [_Entry(chain=named)] * effect(op)
    elif name in _PUSHES_AGAIN:
        (of,) = _others(stack, 1)
        found = _Entry(chain=of.chain and (*of.chain, op.argval))
        if op.argval == "append":
            found = _Entry(chain=of.chain, appends=True)
        stack += [found] * (1 + effect(op))
    elif name in {"BINARY_SUBSCR", "BINARY_OP"} and "[" in _text(op):
        of, key = _others(stack, 2)
        known = of.chain and key.constant is not None
        stack.append(_Entry(chain=(*of.chain, (key.constant,)) if known else ()))
    elif name in _MAKES:
        stack.append(_MAKES[name](size, stack))
    elif name in _USES:
        _others(stack, 1 - effect(op))
        stack.append(_OTHER)
    elif name in _TAKES:
        _others(stack, -effect(op))
    else:
        _step_by_name(op, stack, names)


def _text(op: dis.Instruction) -> str:
    """Return what tells subscripts, which are one of the operators in 3.14."""
    return "[" if op.opname == "BINARY_SUBSCR" else op.argrepr


def _others_but_it(stack: list[_Entry]) -> frozenset[Place]:
    """Take what is returned; return where the value is in it, but in no sum."""
    (found,) = _taken(stack, 1)
    if any(_SUM[0] in each.route for each in found.places):
        raise _Deciding
    return found.places


def _keeps(op: dis.Instruction, stack: list[_Entry]) -> tuple[_Kept, ...] | None:
    """Do what appends the value, or binds a sum of it; return where: see `PassedOn`.

    None: it is no such instruction, and nothing is done.
    """
    if op.opname == "CALL" and op.arg == 1:
        return _appended(stack)
    if op.opname == "BINARY_OP" and op.argrepr == "+=":
        chain, value = stack[-2].chain if len(stack) > 1 else (), stack[-1]
        if not (chain and value.is_value()):
            return None
        sums = frozenset(each._replace(route=_SUM) for each in value.places)
        stack[-2:] = [_Entry(sums, chain=chain)]
        return ()
    below = _BOUND.get(op.opname)
    if below is None or len(stack) <= below:
        return None
    of, *where = stack[-1 - below :]
    if not of.is_sum() or of.chain != _bound(op, where):
        return None
    del stack[-1 - below :]
    places = (each._replace(route=()) for each in of.places)
    return tuple(_Kept(of.chain, each, adds=True) for each in places)


_BOUND: Final = {
    "STORE_ATTR": 1,
    "STORE_DEREF": 0,
    "STORE_GLOBAL": 0,
    "STORE_SUBSCR": 2,
}
"""How many entries are above what is bound: where it is bound."""


def _bound(op: dis.Instruction, where: Sequence[_Entry]) -> Chain:
    """Return what is bound there, as code calls it."""
    if not where:
        return (op.argval,)
    of, *key = where
    last = (key[0].constant,) if key else op.argval
    return of.chain and (*of.chain, last)


def _appended(stack: list[_Entry]) -> tuple[_Kept, ...] | None:
    """Do a call that appends the value, or what it is in; return to what."""
    *called, item = _taken(stack, 3)
    appends = [each.chain for each in called if each.appends and each.chain]
    if item.places and not item.is_sum() and appends:
        stack.append(_OTHER)
        return tuple(_Kept(appends[0], each) for each in sorted(item.places, key=repr))
    stack += [*called, item]
    return None


def _is_length(stack: list[_Entry]) -> bool:
    """Do ``x.size(0)``, as ``x.shape[0]``, or ``len(x)``; return whether it is such."""
    *called, item = _taken(stack, 3)
    sized = [each.chain for each in called if each.chain[1:] == ("size",)]
    if sized and type(item.constant) is int:
        stack.append(_Entry(chain=(sized[0][0], "shape", (item.constant,))))
        return True
    if len(item.chain) == 1 and any(each.chain == (_LEN,) for each in called):
        stack.append(_Entry(known=(_LEN, *item.chain)))
        return True
    stack += [*called, item]
    return False


def _list(size: int, stack: list[_Entry]) -> _Entry:
    return _container(range(size), _taken(stack, size))


def _map(size: int, stack: list[_Entry]) -> _Entry:
    pairs = _taken(stack, 2 * size)
    return _container(_keys(pairs[::2], pairs[1::2]), pairs[1::2])


def _map_of_constants(size: int, stack: list[_Entry]) -> _Entry:
    keys: Any = _others(stack, 1)[0].constant
    return _container(keys, _taken(stack, size))


_PUSHES_AGAIN: Final = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_MAKES: Final[Mapping[str, Callable[[int, list[_Entry]], _Entry]]] = {
    "BUILD_CONST_KEY_MAP": _map_of_constants,
    "BUILD_LIST": _list,
    "BUILD_MAP": _map,
    "BUILD_TUPLE": _list,
}


def _shuffle(op: dis.Instruction, stack: list[_Entry]) -> bool:
    """Do what an instruction does that moves entries; return whether it is one."""
    name, size = op.opname, op.arg or 0
    if name in {"LOAD_CONST", "LOAD_SMALL_INT"}:
        stack.append(_Entry(constant=op.argval))
    elif name == "POP_TOP":
        _taken(stack, 1)
    elif name == "SWAP":
        taken = _taken(stack, size)
        stack += [taken[-1], *taken[1:-1], taken[0]]
    elif name == "COPY":
        taken = _taken(stack, size)
        stack += [*taken, taken[0]]
    else:
        return False
    return True


def _names(op: dis.Instruction) -> tuple[str, ...]:
    """Return the variables that an instruction names."""
    return op.argval if isinstance(op.argval, tuple) else (op.argval,)


def _step_by_name(
    op: dis.Instruction, stack: list[_Entry], names: dict[str, _Entry]
) -> None:
    """Do to the stack and the variables what an instruction does that names some."""
    these = _names(op)
    if op.opname == "STORE_FAST_LOAD_FAST":
        names[these[0]] = _taken(stack, 1)[0]
        stack.append(names.get(these[1], _Entry(chain=(these[1],))))
    elif op.opname.startswith("LOAD_FAST"):
        stack += [names.get(each, _Entry(chain=(each,))) for each in these]
        if op.opname == "LOAD_FAST_AND_CLEAR":
            names[these[0]] = _OTHER
    elif op.opname.startswith("STORE_FAST"):
        names.update(zip(these, reversed(_taken(stack, len(these))), strict=True))
    elif op.opname == "DELETE_FAST":
        names[these[0]] = _OTHER
    elif op.opcode in _TURNS or any(each.places for each in stack):
        raise _Deciding
    else:  # whatever it is, it has not to do with the value
        effect = dis.stack_effect(op.opcode, op.arg, jump=False)
        stack[:] = [_OTHER] * max(0, len(stack) + effect)


def _keys(keys: Sequence[_Entry], values: Sequence[_Entry]) -> list[object]:
    if any(key.places for key in keys) or any(
        value.places and key.constant is None
        for key, value in zip(keys, values, strict=True)
    ):
        raise _Deciding
    return [key.constant for key in keys]


def _container(keys: Sequence[object], values: Sequence[_Entry]) -> _Entry:
    """Return a container: where the value is in it, if it is in one of its values."""
    found = zip(keys, values, strict=True)
    return _Entry(
        frozenset(
            each._replace(route=(key, *each.route))
            for key, value in found
            for each in value.places
        )
    )


@lru_cache(maxsize=512)
def _instructions(code: CodeType) -> list[dis.Instruction]:
    return [*dis.get_instructions(code)]
