"""Which names code only adds to, as ``o.calls += 1`` and ``o.losses.append(loss)`` do.

What a slot of such a name holds decides nothing: replays add to it again, and no guard
has to compare it. What stays in doubt counts as a use.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

_STORES: Final = {
    "LOAD_ATTR": "STORE_ATTR",
    "LOAD_DEREF": "STORE_DEREF",
    "LOAD_GLOBAL": "STORE_GLOBAL",
}
"""How a name is loaded, and how it is bound again behind a sum."""
_USES: Final = frozenset(
    {"LOAD_METHOD", "LOAD_NAME", "LOAD_CLASSDEREF", "LOAD_SUPER_ATTR", "IMPORT_FROM"}
    | {"LOAD_FROM_DICT_OR_DEREF", "LOAD_FROM_DICT_OR_GLOBALS", "STORE_NAME"}
    | {"DELETE_ATTR", "DELETE_GLOBAL", "DELETE_DEREF", "DELETE_NAME"}
    | {*_STORES.values()}
)
_HIDDEN: Final = frozenset({"CACHE", "EXTENDED_ARG", "PRECALL"})
_LEAVING: Final = ("FOR_ITER", "RAISE", "RETURN", "SEND", "YIELD")

Ops: TypeAlias = Sequence[dis.Instruction]


def added_and_used(instructions: Ops) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names that are added to, and those that are used in another way.

    Where it is an item that is added to, ``[]`` follows the name.
    """
    ops = [op for op in instructions if op.opname not in _HIDDEN]
    ends: set[int] = set()
    added: set[str] = set()
    used: set[str] = set()
    for at, op in enumerate(ops):
        if op.opname in _STORES:
            item = _item(ops, at)
            end = _sum(ops, at, item) or _appended(ops, item or at)
            if end is None:
                used.add(op.argval)
            else:
                added.add(op.argval if item is None else f"{op.argval}[]")
                ends.add(end)
        elif op.opname in _USES and at not in ends:
            used.add(op.argval)
    return frozenset(added), frozenset(used)


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
    if at is None or not copied or ops[at].argrepr not in ("+=", "-="):
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
        op, arg = ops[number], ops[number].arg or 0
        yield number, above
        moved = op.opname in ("COPY", "SWAP") and arg > above
        if moved or op.is_jump_target or "JUMP" in op.opname:
            return
        if op.opname.startswith(_LEAVING):
            return
        call = op.opname == "CALL"
        above += -arg - 1 if call else dis.stack_effect(op.opcode, op.arg)
        if above < 0:
            return
