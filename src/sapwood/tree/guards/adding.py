"""Which names code only adds to, as ``o.calls += 1`` and ``o.losses.append(loss)`` do.

What a slot of such a name holds decides nothing: replays add to it again, and no guard
has to compare it. Or only questions are asked of it, as by ``o.calls % 10 == 0``: see
`sapwood.tree.guards.asking`. What stays in doubt counts as a use.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any, Final, TypeAlias

_STORES: Final = {
    "LOAD_ATTR": "STORE_ATTR",
    "LOAD_DEREF": "STORE_DEREF",
    "LOAD_GLOBAL": "STORE_GLOBAL",
}
"""How a name is loaded, and how it is bound again behind a sum."""
_USES: Final = frozenset(
    {"LOAD_NAME", "LOAD_CLASSDEREF", "LOAD_SUPER_ATTR", "IMPORT_FROM"}
    | {"LOAD_FROM_DICT_OR_DEREF", "LOAD_FROM_DICT_OR_GLOBALS", "STORE_NAME"}
    | {"DELETE_ATTR", "DELETE_GLOBAL", "DELETE_DEREF", "DELETE_NAME"}
    | {*_STORES.values()}
)
_HIDDEN: Final = frozenset({"CACHE", "EXTENDED_ARG", "PRECALL"})
_LOADING: Final = (
    *("LOAD_CONST", "LOAD_FAST", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_SMALL_INT"),
    *("LOAD_CLOSURE", "KW_NAMES", "NOP", "PUSH_NULL"),
)
MAKING: Final = frozenset(
    {"BINARY_OP", "BINARY_SLICE", "BINARY_SUBSCR", "BUILD_CONST_KEY_MAP", "BUILD_LIST"}
    | {"BUILD_MAP", "BUILD_SET", "BUILD_SLICE", "BUILD_STRING", "BUILD_TUPLE", "CALL"}
    | {"CALL_KW", "COMPARE_OP", "CONTAINS_OP", "CONVERT_VALUE", "FORMAT_SIMPLE"}
    | {"FORMAT_VALUE", "FORMAT_WITH_SPEC", "IS_OP", "MAKE_FUNCTION", "TO_BOOL"}
    | {"UNARY_INVERT", "UNARY_NEGATIVE", "UNARY_NOT"}
)
"""They take all that they need, and leave one value."""
_TAKING_ONE: Final = frozenset({"LOAD_ATTR", "LOAD_METHOD", "STORE_FAST"})
_MOVING: Final = frozenset({"COPY", "SWAP"})
_EXTENDING: Final = frozenset({"DICT_UPDATE", "LIST_EXTEND", "SET_UPDATE"})
_ANY: Final = 1 << 30

_KEYS: Final = frozenset({"LOAD_CONST", "LOAD_SMALL_INT"})
_ITEM_USES: Final = frozenset({"DELETE_SUBSCR", "STORE_SUBSCR"})
_TRUTH: Final = ("POP_JUMP", "TO_BOOL", "UNARY_NOT")
_SUMS: Final = frozenset({"+=", "-="})
EQUATING: Final = "<equating>"
"""Stands for all code that may compare two objects, which reads what no code names."""
_COMPARING: Final = frozenset(
    {"__contains__", "__eq__", "__ne__", "array_equal", "contains", "count", "countOf"}
    | {"eq", "equal", "ge", "groupby", "gt", "index", "indexOf", "le", "lt", "max"}
    | {"merge", "min", "ne", "nlargest", "not_equal", "nsmallest", "remove", "sort"}
    | {"sorted"}
)
_COMPARING_TOO: Final = ("bisect", "heap", "insort")
"""How the names of functions begin that order tuples, and so compare their items."""
_OPERATORS: Final = frozenset(
    {"+", "-", "*", "/", "//", "%", "**", "<<", ">>", "&", "|", "^"}
)

Ops: TypeAlias = Sequence[dis.Instruction]

# From 3.13 on it is a property: that there is a label.
_TARGET: Final[dict[str, Any]] = (
    {"label": 0} if "label" in dis.Instruction._fields else {"is_jump_target": True}
)


def added_and_used(instructions: Ops) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names that are added to, and those that are used in another way.

    An item is named as in ``table['key']``, or ``table[]`` where the key is computed;
    there is ``table[+]``, too, where any is added to. What is not added to, but asked a
    question, is followed by ``?``. Where objects may be compared, `EQUATING` is used.
    """
    added: set[str] = set()
    used: set[str] = set()
    called: set[str] = set()
    for _, name, how in uses(instructions):
        {"added": added, "used": used, "called": called}[how].add(name)
    named = used | called
    if any(name in _COMPARING or name.startswith(_COMPARING_TOO) for name in named):
        used.add(EQUATING)
    return frozenset(added), frozenset(used)


def uses(instructions: Ops) -> Iterator[tuple[dis.Instruction, str, str]]:
    """Yield what uses a name, and whether it is added to, used otherwise, or called."""
    ops = _shown(instructions)
    ends: set[int] = set()
    for at, op in enumerate(ops):
        if op.opname in _STORES:
            item = _item(ops, at)
            end = _sum(ops, at, item) or _appended(ops, item or at)
            key = _key(ops, at, item)
            name = op.argval if item is None else op.argval + (key or "[]")
            if end is not None:
                yield op, name, "added"
                if item is not None:
                    yield op, f"{op.argval}[+]", "added"
                ends.add(end)
            elif _asked(ops, item or at):
                yield op, f"{name}?", "added"
            elif _is_method(op):
                yield op, op.argval, "called"
            else:
                yield op, op.argval + key, "used"
        elif op.opname in _USES and at not in ends:
            yield op, op.argval, "used"
        elif op.opname == "LOAD_METHOD":
            yield op, op.argval, "called"
        elif _equates(ops, at):
            yield op, EQUATING, "used"


def _is_method(op: dis.Instruction) -> bool:
    """Return whether what is loaded is called at once: it is no number, and no list."""
    return (
        op.opname == "LOAD_ATTR"
        and sys.version_info >= (3, 12)
        and (op.arg or 0) % 2 == 1
    )


def _equates(ops: Ops, at: int) -> bool:
    """Return whether an instruction may call the ``__eq__`` of objects."""
    name = ops[at].opname
    return name == "CONTAINS_OP" or (
        name == "COMPARE_OP" and ops[at - 1].opname not in _KEYS
    )


def _key(ops: Ops, at: int, item: int | None) -> str:
    """Return by which key an item of what is loaded here is used, if that is known."""
    if item is None:
        known = at + 2 < len(ops) and ops[at + 2].opname in _ITEM_USES
    else:
        copied = _read(ops[at + 2 : at + 4]) == ["COPY 2", "COPY 2"]
        known = item == at + (4 if copied else 2)
    key = ops[at + 1]
    known = known and key.opname in _KEYS and _is_one(key.argval)
    return f"[{key.argval!r}]" if known else ""


def _is_one(key: object) -> bool:
    """Return whether no other key leads to the same item of a dict or list."""
    return type(key) is str or (type(key) is int and key >= 0)


@lru_cache(maxsize=2048)
def offsets_of_questions(code: CodeType) -> frozenset[int]:
    """Return which operators give what is asked on, or is bound as a sum."""
    ops = _shown([*dis.get_instructions(code)])
    return frozenset(
        op.offset
        for at, op in enumerate(ops)
        if op.argrepr in _SUMS or (op.opname == "BINARY_OP" and _asked(ops, at))
    )


def _shown(instructions: Ops) -> Ops:
    """Return instructions without those that say nothing by themselves.

    A jump to a prefix is one to what it is a prefix of.
    """
    found: list[dis.Instruction] = []
    target = False
    for op in instructions:
        target |= op.is_jump_target
        if op.opname not in _HIDDEN:
            found.append(op._replace(**_TARGET) if target != op.is_jump_target else op)
            target = False
    return found


def _asked(ops: Ops, at: int) -> bool:
    """Return whether an operator takes what is loaded here, as the value to its left.

    Or whether code asks if it is true, and goes on without it.
    """
    for number, above in _straight(ops, at):
        op = ops[number]
        if above == 0 and op.opname.startswith(_TRUTH):
            return "NONE" not in op.opname
        binary = op.opname == "BINARY_OP" and op.argrepr in _OPERATORS
        if above == 1 and (binary or op.opname == "COMPARE_OP"):
            return True
    return False


def _item(ops: Ops, at: int) -> int | None:
    """Return where an item of what is loaded here is loaded, if that comes of it."""
    for number, above in _straight(ops, at):
        copied = _read(ops[number : number + 2]) == ["COPY 2", "COPY 2"]
        end = number + 2 * copied
        loads = ops[end].opname == "BINARY_SUBSCR" or ops[end].argrepr == "[]"
        if above == 1 and loads:
            return end
    return None


def _sum(ops: Ops, name: int, item: int | None) -> int | None:
    """Return where a sum is bound to a name, or to an item of it; None: it is not."""
    op, before, behind = ops[name], ops[max(name - 1, 0)], [_STORES[ops[name].opname]]
    if item is not None:
        before, behind = ops[item - 1], ["SWAP 3", "SWAP 2", "STORE_SUBSCR"]
    elif op.opname == "LOAD_ATTR":
        behind = ["SWAP 2", *behind]
    at = _taker(ops, name if item is None else item, "BINARY_OP")
    copied = len(behind) == 1 or _read([before]) == [f"COPY {len(behind) - 1}"]
    if at is None or not copied or ops[at].argrepr not in _SUMS:
        return None
    end = at + len(behind)
    bound = _read(ops[at + 1 : end + 1]) == behind
    return end if bound and (item is not None or ops[end].argval == op.argval) else None


def _appended(ops: Ops, at: int) -> int | None:
    """Return where something has been appended to what is loaded here, if it is."""
    method = ops[at + 1]
    if method.argval not in ("append", "extend"):
        return None
    end = _taker(ops, at + 1, "CALL")
    dropped = end is not None and ops[end + 1].opname == "POP_TOP"
    return end if dropped and method.opname in ("LOAD_ATTR", "LOAD_METHOD") else None


def _read(ops: Ops) -> list[str]:
    """Return instructions as text, with the numbers that move values about."""
    moves = ("COPY", "SWAP")
    return [f"{op.opname} {op.arg}" if op.opname in moves else op.opname for op in ops]


def _taker(ops: Ops, at: int, name: str) -> int | None:
    """Return which instruction takes what is loaded here, and one value above it.

    None where that is another one than one of this name, or code may go another way.
    """
    for number, above in _straight(ops, at):
        op = ops[number]
        if above == 1 and op.opname == name and (name != "CALL" or op.arg == 1):
            return number
    return None


def _straight(ops: Ops, at: int) -> Iterator[tuple[int, int]]:
    """Yield the instructions behind one that loads a value, up to what may take it.

    And how many values lie above that one before each.
    """
    above = 0
    for number in range(at + 1, len(ops)):
        op = ops[number]
        yield number, above
        if op.is_jump_target or _reaches(op) > above:
            return
        above += effect(op)


def effect(op: dis.Instruction) -> int:
    """Return how many values more there are behind an instruction that does not jump.

    What a call takes counts where it is called: CPython 3.11 counts it before.
    """
    if op.opname == "CALL":
        return -1 - (op.arg or 0)
    if op.opname == "PRECALL":
        return 0
    return dis.stack_effect(op.opcode, op.arg, jump=False)


def _reaches(op: dis.Instruction) -> int:
    """Return how many values an instruction takes or moves; of one unknown, any."""
    name, arg = op.opname, op.arg or 0
    if name.startswith(_LOADING):
        return 0
    if name in MAKING:
        return 1 - effect(op)
    if name in _MOVING:
        return arg
    if name in _EXTENDING:
        return 1 + arg
    return 1 if name in _TAKING_ONE else _ANY
