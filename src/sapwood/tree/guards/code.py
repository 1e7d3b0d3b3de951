"""What a code object can read and write by name, nested functions included.

An attribute can be read only by naming it, so the names in the bytecode bound what a
function reaches; where names are computed, `Names.dynamic` says that nothing does.

And which instructions ask what is one object, as ``a is b`` does, and as sets do. What
stays in doubt counts: then calls in which other arrays are one are told apart. Dicts
that a function makes do not count, for most have names for keys.
"""

from __future__ import annotations

import dis
import operator
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from string import Formatter
from types import BuiltinMethodType, CodeType, FunctionType, ModuleType
from typing import Any, Final

from sapwood.tree.guards.adding import Ops, added_and_used, uses

_COMPARING: Final = frozenset(
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
_QUIET: Final = frozenset({"CACHE", "PRECALL"})
_BUILDERS: Final = frozenset({"frozenset", "set"})
_OF_CLASSES: Final = frozenset({"isinstance", "issubclass"})
_CONSTANTS: Final = frozenset({"LOAD_CONST", "LOAD_SMALL_INT"})


@dataclass(frozen=True, slots=True)
class Names:
    """The names in one code object.

    ``dynamic``: attributes are named by computed text somewhere; ``every_global``:
    so are globals. ``modules`` are imported inside the function, with a dot before
    the name for each level. ``advances``: it moves iterators by other means than a
    loop. ``compares``: it may ask whether two values, neither of them written in the
    code, are one object. ``added``: names by which it adds to what is there, ``used``:
    those that it uses in any other way.
    """

    globals: frozenset[str]
    attributes: frozenset[str]
    modules: frozenset[str]
    dynamic: bool
    every_global: bool
    advances: bool
    compares: bool
    added: frozenset[str]
    used: frozenset[str]


_BY_TEXT = frozenset({"getattr", "hasattr", "setattr", "delattr"})
_ANY_ATTRIBUTE = frozenset(
    {"asdict", "astuple", "attrgetter", "dir", "eval", "exec", "fields", "getmembers"}
    | {"methodcaller", "vars", "__dict__", "__getattribute__"}
)
_ADVANCING = frozenset({"next", "anext", "__next__", "send", "throw"})
ANY_GLOBAL = frozenset({"eval", "exec", "globals", "locals", "__globals__"})
"""What finds globals and variables that no code names."""
_GLOBAL_OPS = frozenset(
    {"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"}
    | {"LOAD_FROM_DICT_OR_GLOBALS"}
)
_ATTRIBUTE_OPS = frozenset(
    {"LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR", "LOAD_SUPER_ATTR"}
    | {"IMPORT_FROM"}
)
_COMPARED = frozenset({"COMPARE_OP", "IS_OP", "LOAD_ATTR", "LOAD_METHOD"})
_FORMATTING_OPS = frozenset(
    {"CONVERT_VALUE", "FORMAT_SIMPLE", "FORMAT_VALUE", "FORMAT_WITH_SPEC"}
)
_PLAIN: Final = _CONSTANTS | _FORMATTING_OPS - {"CONVERT_VALUE"} | {"BUILD_STRING"}
FORMATTING: Final = frozenset({"format", "format_map", "get_field", "vformat"})
"""Methods of texts whose fields may read attributes and items."""
_FORMATTING = FORMATTING | {"ascii", "repr", "str"}
_SIMPLE_LOADS = ("LOAD_CONST", "LOAD_FAST", "LOAD_DEREF", "LOAD_SMALL_INT")


@lru_cache(maxsize=2048)
def names_of(code: CodeType) -> Names:
    """Return the names that ``code`` and the functions made in it use."""
    globals_: set[str] = set()
    attributes: set[str] = set()
    modules: set[str] = set()
    methods: set[str] = set()
    told: set[str] = set()
    added = used = frozenset[str]()
    dynamic = compares = formats = False
    for each in nested(code):
        instructions = list(dis.get_instructions(each))
        more, others = added_and_used(instructions)
        added, used = added | more, used | others
        compares |= any(_compares(instructions, i) for i in range(len(instructions)))
        for index, op in enumerate(instructions):
            if op.opname in _GLOBAL_OPS:
                globals_.add(op.argval)
                if op.argval == "type" and _gives_class(instructions, index):
                    attributes.add("__class__")
                if op.argval in _BY_TEXT:
                    name = _constant_name(instructions, index)
                    dynamic |= name is None
                    told.update(() if name is None else (name,))
            elif _evaluates_nothing(instructions, index):
                methods.add(op.argval)
            elif op.opname in _ATTRIBUTE_OPS:
                only_compared = _is_only_compared(instructions, index)
                attributes.update(() if only_compared else (op.argval,))
            elif op.opname == "IMPORT_NAME":
                modules.add("." * _level(instructions, index) + op.argval)
            elif op.opname == "MATCH_CLASS":
                dynamic = True
        formats |= _formats(each, instructions)
    told |= _fields_in(code) if FORMATTING & (attributes | methods) else set()
    attributes |= told
    named = globals_ | attributes
    return Names(
        frozenset(globals_),
        frozenset(attributes | methods | ({"__repr__"} if formats else set())),
        frozenset(modules),
        dynamic or bool(named & _ANY_ATTRIBUTE) or bool(attributes & _BY_TEXT),
        bool(named & ANY_GLOBAL),
        bool(named & _ADVANCING),
        compares or bool(named & _COMPARING),
        added,
        used | told,
    )


def _evaluates_nothing(instructions: Ops, at: int) -> bool:
    """Return whether code calls a method as ``model.eval()``: there is no text."""
    behind = [op for op in instructions[at + 1 : at + 8] if op.opname not in _QUIET]
    return (
        instructions[at].opname in _ATTRIBUTE_OPS
        and instructions[at].argval == "eval"
        and bool(behind)
        and behind[0].opname == "CALL"
        and behind[0].arg == 0
    )


def _gives_class(instructions: Ops, at: int) -> bool:
    """Return whether the class that ``type(x)`` gives is more than compared or named.

    ``at`` is where `type` is loaded.
    """
    rest = instructions[at + 1 : at + 12]
    ends = [k for k, op in enumerate(rest) if op.opname == "CALL"]
    after = [op.opname for op in rest[ends[0] + 1 :]] if ends else []
    told = _COMPARED | _FORMATTING_OPS
    if after and after[0].startswith("LOAD_") and after[0] not in _COMPARED:
        # What it is compared with, and where that is.
        after = [
            name
            for name in after
            if not name.startswith("LOAD_") and name != "BUILD_TUPLE"
        ]
        told = frozenset({"COMPARE_OP", "CONTAINS_OP", "IS_OP"})
    return not after or after[0] not in told


def _is_only_compared(instructions: Ops, at: int) -> bool:
    """Return whether a class is read just to compare it, or for its attributes.

    As what `dataclasses` writes does, which is no reason to look at how it is made.
    """
    if instructions[at].argval != "__class__":
        return False
    after = instructions[at + 1 : at + 4]
    names = [op.opname for op in after]
    return names[0] in _COMPARED or (
        names[0].startswith("LOAD_FAST")
        and after[1].argval == "__class__"
        and names[2] in _COMPARED
    )


def _formats(code: CodeType, instructions: Ops) -> bool:
    """Return whether code may ask an object for all that it holds, as text."""
    return any(
        op.opname in _FORMATTING_OPS or op.argval in _FORMATTING for op in instructions
    ) or any("%" in each for each in _texts(code.co_consts))


def _texts(constants: Iterable[object]) -> Iterator[str]:
    """Yield the texts among constants, those of tuples and sets included.

    Where all defaults of a function are constants, only their tuple is one.
    """
    for each in constants:
        if isinstance(each, str):
            yield each
        elif isinstance(each, tuple | frozenset):
            yield from _texts(each)


def _level(instructions: Ops, at: int) -> int:
    """Return of how many packages above an import names a module; 0: of none."""
    before = [
        op for op in instructions[max(at - 6, 0) : at] if op.opname != "EXTENDED_ARG"
    ]
    level = before[-2].argval if len(before) > 1 else 0
    return level if isinstance(level, int) else 0


def nested(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and those of all functions made in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested(constant)


def loads(code: CodeType) -> Iterator[tuple[Any, bool]]:
    """Yield each constant or name that code loads, and whether to look into that.

    To look is ``x in ...``: nothing else is done with what was loaded.
    """
    for op, then in pairwise(dis.get_instructions(code)):
        if op.opname.startswith("LOAD"):
            yield op.argval, then.opname == "CONTAINS_OP"


def only_looked_into(loaded: Iterable[tuple[Any, bool]]) -> frozenset[Any]:
    """Return those of what was loaded that are looked into wherever they are."""
    looked_into, others = set[Any](), set[Any]()
    for value, looks in loaded:
        (looked_into if looks else others).add(value)
    return frozenset(looked_into - others)


def _constant_name(instructions: Ops, at: int) -> str | None:
    """Return the ``"name"`` of a ``getattr(value, "name")``, if it is as plain as that.

    ``at`` is where getattr is loaded. Only straight code counts in which the name
    stands alone as the second of two or three arguments.
    """
    rest = [
        op
        for op in instructions[at + 1 : at + 40]
        if op.opname not in {"PUSH_NULL", "CACHE", "EXTENDED_ARG"}
    ]
    depth = 0
    for index, op in enumerate(rest):
        if depth == 1 and op.opname == "LOAD_CONST":
            return _name_in_call([op for op in rest[index:] if op.opname != "PRECALL"])
        if "JUMP" in op.opname or op.opname.startswith(("RETURN", "FOR_ITER")):
            return None
        depth += dis.stack_effect(op.opcode, op.arg)
        if depth < 1 or op.opname == "CALL_KW":
            return None
    return None


def _name_in_call(ops: Ops) -> str | None:
    name = ops[0].argval
    calls = [op.opname == "CALL" and op.argval for op in ops[:3]]
    plain = calls[1:2] == [2] or (
        calls[2:3] == [3]
        and ops[1].opname.startswith(_SIMPLE_LOADS)
        and dis.stack_effect(ops[1].opcode, ops[1].arg) == 1
    )
    return name if plain and isinstance(name, str) else None


def functions_of(member: object) -> Iterator[FunctionType]:
    """Yield the functions that a member of a class runs, be it called or read.

    Those are the method as it was written, and what decorators have put around it.
    """
    left, seen = [member], set[FunctionType]()
    while left:
        each = _plain(left.pop())
        if not isinstance(each, FunctionType) or each in seen:
            continue
        seen.add(each)
        yield each
        left.append(vars(each).get("__wrapped__"))
        for cell in each.__closure__ or ():
            with suppress(ValueError):  # it is empty
                left.append(cell.cell_contents)


def _plain(member: Any) -> object:
    if isinstance(member, staticmethod | classmethod):
        return member.__func__
    if isinstance(member, property):
        return member.fget
    return member.func if isinstance(member, cached_property) else member


def is_comparing(function: Any) -> bool:
    """Return whether a built-in function asks, whatever it is called here."""
    if any(function is each for each in _ASKING):
        return True
    owner = function.__self__
    return (
        type(function) is BuiltinMethodType
        and not isinstance(owner, ModuleType | None)
        and function.__name__ in _COMPARING
    )


def _compares(instructions: Ops, at: int) -> bool:
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


def _is_any(names: frozenset[str], instructions: Ops, end: int) -> bool:
    """Return whether what is there before ``end`` comes of one of these, whatever ran.

    What code jumps to may come of what another branch has left there.
    """
    return (
        end > 0
        and instructions[end - 1].opname in names
        and not instructions[end].is_jump_target
    )


def _asks_for_type(instructions: Ops, at: int) -> bool:
    """Return whether it is a class, as by ``type(x) is C``, that is compared."""
    end = _start(instructions, at)
    if end < 1 or not instructions[end - 1].opname.startswith("CALL"):
        return False
    return any(op.argval == "type" for op in instructions[max(end - 6, 0) : end])


def _has_members(instructions: Ops, at: int) -> bool:
    """Return whether a set is made of members that are not plain."""
    end = at
    for _ in range(instructions[at].arg or 0):
        if not _is_any(_PLAIN, instructions, end):
            return True
        end = _start(instructions, end)
    return False


def _is_told(instructions: Ops, at: int) -> bool:
    """Return whether a class is only what something may be an instance of."""
    for before in reversed(instructions[max(at - 8, 0) : at]):
        if before.opname.startswith("CALL"):
            return False
        if before.argval in _OF_CLASSES:
            return True
    return False


def _start(instructions: Ops, end: int) -> int:
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


def _fields_in(code: CodeType) -> frozenset[str]:
    fields = (fields_of(each) for one in nested(code) for each in _texts(one.co_consts))
    return frozenset().union(*fields)


def fields_of(text: str) -> frozenset[str]:
    """Return the attributes that a format reads of what it is given: ``{0.rate}``."""
    try:
        fields = [*Formatter().parse(text)]
    except ValueError:
        return frozenset()
    found = frozenset[str]()
    for _, name, spec, _ in fields:
        found |= {*re.findall(r"\.(\w+)", name or "")} | fields_of(spec or "")
    return found


_BY_COPY: Final = frozenset(
    {"asdict", "copy", "deepcopy", "dump", "dumps", "pformat", "pprint", "replace"}
)


def read_besides(code: CodeType, name: str) -> str | None:
    """Return where, and how, code may read a name that it adds to; for a message."""
    asked: str | None = None
    for each in nested(code):
        instructions = list(dis.get_instructions(each))
        for op, found, how in uses(instructions):
            line = op.positions.lineno if op.positions else None
            where = f"{each.co_filename}:{line or each.co_firstlineno}"
            if how == "used" and found == name:
                return f"{where} reads it, too"
            if found == f"{name}?":
                asked = f"what {where} computes of it is always new"
            if found in _BY_TEXT and _is_computed(instructions, op):
                return f"{found} at {where} may read it, by a name that it computes"
            if how != "added" and found in _ANY_ATTRIBUTE | ANY_GLOBAL | _BY_COPY:
                return f"{found} at {where} may read it"
    return asked


def _is_computed(instructions: Ops, op: dis.Instruction) -> bool:
    at = next(k for k, each in enumerate(instructions) if each.offset == op.offset)
    return _constant_name(instructions, at) is None
