"""Which instructions ask what is one object, as ``a is b`` does, and as sets do.

What stays in doubt counts: then calls in which other arrays are one are told apart.
Dicts that a function makes do not count, for most have names for keys.
"""

from __future__ import annotations

import dis
import operator
from collections import Counter
from collections.abc import Sequence
from types import BuiltinMethodType, ModuleType
from typing import Any, Final

COMPARING: Final = frozenset(
    {"Counter", "WeakKeyDictionary", "WeakSet", "WeakValueDictionary"}
    | {"__contains__", "__hash__", "__repr__", "contains", "count", "countOf"}
    | {"eval", "exec", "fromkeys", "hash", "id", "index", "indexOf", "is_", "is_not"}
    | {"remove"}
)
"""Names of what asks, wherever it is found."""

HASHING: Final = frozenset({Counter, frozenset, set})
"""Classes whose instances are made by asking."""

_ASKING: Final = (
    *(id, hash, operator.is_, operator.is_not),
    *(operator.contains, operator.countOf, operator.indexOf),
)
_BUILDERS: Final = frozenset({"frozenset", "set"})
_OF_CLASSES: Final = frozenset({"isinstance", "issubclass"})
_CONSTANTS: Final = frozenset({"LOAD_CONST", "LOAD_SMALL_INT"})
_PLAIN: Final = _CONSTANTS | {
    "BUILD_STRING",
    "FORMAT_SIMPLE",
    "FORMAT_VALUE",
    "FORMAT_WITH_SPEC",
}
Instructions = Sequence[dis.Instruction]


def is_comparing(function: Any) -> bool:
    """Return whether a built-in function asks, whatever it is called here."""
    if any(function is each for each in _ASKING):
        return True
    owner = function.__self__
    return (
        type(function) is BuiltinMethodType
        and not isinstance(owner, ModuleType | None)
        and function.__name__ in COMPARING
    )


def compares(instructions: Instructions, at: int) -> bool:
    """Return whether an instruction asks what is one object, as by ``a is b``."""
    op, before = instructions[at], instructions[at - 1]
    match op.opname:
        case "IS_OP":
            # Every dataclass asks so whether another one is of its class.
            constant = _is_any(_CONSTANTS, instructions, at)
            of_class = before.argval == "__class__" or _asks_for_type(instructions, at)
            return not (constant or of_class)
        case "CONTAINS_OP":
            # Sets and keys that are reached say so by themselves.
            return before.opname in {"BUILD_LIST", "BUILD_TUPLE"}
        case "BUILD_SET":
            return _has_members(instructions, at)
        case "SET_ADD" | "SET_UPDATE":
            return not _is_any(_PLAIN, instructions, at)
        case "LOAD_GLOBAL" | "LOAD_NAME":
            return op.argval in _BUILDERS and not _is_told(instructions, at)
    return False


def _is_any(names: frozenset[str], instructions: Instructions, end: int) -> bool:
    """Return whether what is there before ``end`` comes of one of these, whatever ran.

    What code jumps to may come of what another branch has left there.
    """
    return (
        end > 0
        and instructions[end - 1].opname in names
        and not instructions[end].is_jump_target
    )


def _asks_for_type(instructions: Instructions, at: int) -> bool:
    """Return whether it is a class, as by ``type(x) is C``, that is compared."""
    end = _start(instructions, at)
    if end < 1 or not instructions[end - 1].opname.startswith("CALL"):
        return False
    return any(op.argval == "type" for op in instructions[max(end - 6, 0) : end])


def _has_members(instructions: Instructions, at: int) -> bool:
    """Return whether a set is made of members that are not plain."""
    end = at
    for _ in range(instructions[at].arg or 0):
        if not _is_any(_PLAIN, instructions, end):
            return True
        end = _start(instructions, end)
    return False


def _is_told(instructions: Instructions, at: int) -> bool:
    """Return whether a class is only what something may be an instance of."""
    for before in reversed(instructions[max(at - 8, 0) : at]):
        if before.opname.startswith("CALL"):
            return False
        if before.argval in _OF_CLASSES:
            return True
    return False


def _start(instructions: Instructions, end: int) -> int:
    """Return where the value that is there before ``end`` begins to be made.

    -1 where the code is not straight enough to say.
    """
    depth = 0
    for at in range(end - 1, -1, -1):
        op = instructions[at]
        if "JUMP" in op.opname or op.opname.startswith(("RETURN", "FOR_ITER", "SEND")):
            return -1
        depth += dis.stack_effect(op.opcode, op.arg)
        if depth > 0:
            return at if depth == 1 else -1
    return -1
