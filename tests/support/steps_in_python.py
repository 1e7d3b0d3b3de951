"""Steps of guards as a function of Python, written out as code: what C has to equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sapwood.tree.guards.steps import Op, Step, Steps

__all__ = ["in_python"]

LINES: Final = 40_000
"""More than these are not worth compiling."""

_PLAIN: Final = frozenset({dict, list, tuple})
_NAMES: Final[dict[str, Any]] = {
    "getattr": getattr,
    "id": id,
    "len": len,
    "plain": _PLAIN,
    "type": type,
}

_LINES: Final = {
    Op.ROOT: "{at} = {value}()\nif {at} is None: return None",
    Op.OPEN: "{at} = {value}({of})",
    Op.WHOLE: "{at} = {of} if type({of}) in plain else {value}({of})",
    Op.ATTRIBUTE: "{at} = {of}.{name}",
    Op.ITEM: "{at} = {of}[{value}]",
    Op.CLASS: "if type({at}) is not {value}: return None",
    Op.LENGTH: "if len({at}) != {number}: return None",
    Op.KEYS: "if not {ask}({at}): return None",
    Op.LACKS: "if not {ask}({at}): return None",
    Op.IS: "if {at} is not {value}: return None",
    Op.SAME: "if {at} is not {of}: return None",
    Op.REFERS: "if {at} is None or {value}() is not {at}: return None",
    Op.LATEST: "if {at} is None or latest[{number}]() is not {at}: return None",
    Op.APART: "if len({{{numbers}}}) < {count}: return None",
}


def in_python(program: Steps) -> Callable[[], list[Any] | None] | None:
    """Return the steps as a function; None where that would be too long.

    It gives what the used arrays' slots hold, or None: it cannot be told so.
    """
    names: dict[str, Any] = {**_NAMES, "latest": program.latest}
    lines = [
        line for step in program.steps for line in _written(step, names).splitlines()
    ]
    if len(lines) > LINES:
        return None
    found = ", ".join(f"r{register}" for register in program.found)
    body = "\n  ".join([*lines, f"return [{found}]"])
    code = (
        f"def look():\n try:\n  {body}\n"
        " except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):\n"
        "  return None\n"
    )
    exec(compile(code, "<guards>", "exec"), names)
    look: Callable[[], list[Any] | None] = names["look"]
    return look


def _written(step: Step, names: dict[str, Any]) -> str:
    # Whatever the code is about has a name, and none of it is text.
    value, ask = f"n{len(names)}", f"n{len(names) + 1}"
    names |= {value: step.value, ask: step.ask}
    several = step.value if step.op is Op.APART else ()
    return _LINES[step.op].format(
        at=f"r{step.at}",
        of=f"r{step.of}",
        number=f"{step.of:d}",
        numbers=", ".join(f"id(r{register})" for register in several),
        count=len(several),
        name=step.value,
        value=value,
        ask=ask,
    )
