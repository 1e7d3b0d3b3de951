"""A recording with all that is needed to link it anew, as data: an object file.

What it was recorded on is described by paths and positions; nothing in it is an
address, a handle or an object of this process. Offsets are from the range's base.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from sapwood.errors import StoreError
from sapwood.graphs.recording import Kind, Recording
from sapwood.memory.range import REACH
from sapwood.persist.recordings import decode_recording, encode_recording, expect
from sapwood.tree.call.integration import Integration, Template
from sapwood.tree.call.roles import Role
from sapwood.tree.guards import Slot
from sapwood.tree.nests.containers import Structure
from sapwood.tree.nests.plain import Json, from_json, from_text, to_json, to_text
from sapwood.tree.nests.structures import (
    dump_structure,
    flat_structure,
    load_structure,
)
from sapwood.tree.node.node import Node
from sapwood.tree.node.outputs import (
    Alias,
    Bytes,
    Constant,
    Fresh,
    Output,
    Outputs,
    Same,
    View,
)
from sapwood.units import Addr, Size

__all__ = ["FORMAT", "Archive", "SlotBinding", "decode", "encode", "load_template"]

FORMAT: Final = 2
"""Changes with what is written here, and with what it means."""


@dataclass(frozen=True, slots=True)
class SlotBinding:
    """A slot, described: its path, where the way to it starts, and the way."""

    path: str
    start: str
    steps: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Archive:
    """A recording that may be linked in any process.

    ``roles`` are those that the places had, the first ``arguments`` of them the
    call's; ``ambient`` the slots of the arrays that it reads besides, ``bindings``
    those that replays bind; ``sharing`` which of all arrays share a storage, as in
    `Arrays`.
    """

    recording: Recording
    outputs: Outputs
    arguments: int
    roles: tuple[Role, ...]
    ambient: tuple[SlotBinding, ...]
    sharing: Any
    bindings: tuple[SlotBinding, ...]


def encode(
    node: Node,
    bound: Sequence[Slot],
    sharing: Any,
    integration: Integration,
    label: Callable[[Slot], str] = attrgetter("path"),
) -> dict[str, bytes] | str:
    """Return a node as sections, or why it cannot be kept; ``label`` names slots."""
    if node.chain:
        return "it has eager regions, whose Python no file holds"
    if any(op.kind == Kind.KERNEL and not op.image for op in node.recording.ops):
        return "it has kernels that its framework loaded, whose code no file holds"
    if not node.range.whole:
        return "it allocates more than its warm-up did"
    try:
        table = {
            "arguments": node.argument_places,
            "roles": [place.role.value for place in node.places],
            "ambient": [_dump_slot(slot, label) for slot in node.ambient.arrays],
            "sharing": to_json(sharing),
            "bindings": [_dump_slot(slot, label) for slot in bound],
            "outputs": _dump_outputs(node.outputs, node.range.base, integration),
        }
    except ValueError as error:
        return str(error)
    return {"call": to_text(table), **encode_recording(node.recording)}


def _dump_slot(slot: Slot, label: Callable[[Slot], str]) -> Json:
    steps = [[view.name, to_json(key)] for view, key in slot.steps]
    return [label(slot), slot.start, steps]


def _dump_outputs(outputs: Outputs, base: Addr, integration: Integration) -> Json:
    def dump(output: Output) -> Json:
        match output:
            case Fresh(k, template, address):
                return ["fresh", k, to_json(integration.dump(template)), address - base]
            case Same(k):
                return ["same", k]
            case Alias(k):
                return ["alias", k]
            case View(k, template, offset):
                return ["view", k, to_json(integration.dump(template)), offset]
            case Constant(value):
                return ["constant", to_json(value)]

    return {
        "structure": dump_structure(outputs.structure),
        "leaves": [dump(output) for output in outputs.leaves],
        "bound": [dump(output) for output in outputs.bound],
        "storages": [[each.address - base, each.size] for each in outputs.storages],
    }


def decode(
    sections: Mapping[str, bytes], integration: Integration, *, nested: bool = True
) -> Archive:
    """Return what `encode` wrote; without ``nested``, results are plain lists.

    Raises `StoreError` for anything else.
    """
    expect("call" in sections, "it has no call")
    table = from_text(sections["call"])
    expect(type(table) is dict and table.keys() == _PARTS, "the parts of its call")
    roles = _list(table["roles"])
    expect(all(type(role) is str and role in _ROLES for role in roles), "a role")
    arguments = _count(table["arguments"], len(roles) + 1)
    outputs = _load_outputs(table["outputs"], integration, nested=nested)
    bindings = tuple(_load_slot(row) for row in _list(table["bindings"]))
    expect(len(bindings) == len(outputs.bound), "what it binds")
    return Archive(
        recording=decode_recording(sections, len(roles) + 1),
        outputs=outputs,
        arguments=arguments,
        roles=tuple(Role(role) for role in roles),
        ambient=tuple(_load_slot(row) for row in _list(table["ambient"])),
        sharing=from_json(table["sharing"]),
        bindings=bindings,
    )


_PARTS: Final = {"arguments", "roles", "ambient", "sharing", "bindings", "outputs"}
_ROLES: Final = {role.value for role in Role}
_OUTPUTS: Final = {"structure", "leaves", "bound", "storages"}


def _list(found: Json) -> list[Any]:
    expect(type(found) is list, "a list")
    items: list[Any] = found
    return items


def _count(found: Json, end: int) -> int:
    expect(type(found) is int and 0 <= found < end, "a count")
    number: int = found
    return number


def _load_slot(found: Json) -> SlotBinding:
    row = _list(found)
    expect(len(row) == 3 and type(row[0]) is type(row[1]) is str, "a slot")
    steps = [_list(step) for step in _list(row[2])]
    named = all(len(step) == 2 and type(step[0]) is str for step in steps)
    expect(named and len(steps) > 0, "a slot")
    return SlotBinding(
        row[0], row[1], tuple((name, from_json(key)) for name, key in steps)
    )


def _load_outputs(found: Json, integration: Integration, *, nested: bool) -> Outputs:
    expect(type(found) is dict and found.keys() == _OUTPUTS, "its outputs")
    storages = tuple(_storage(_list(row)) for row in _list(found["storages"]))
    leaves, bound = _list(found["leaves"]), _list(found["bound"])
    outputs: list[Output] = []
    for row in (*leaves, *bound):
        outputs.append(_output(_list(row), outputs, storages, integration))
    structure: Structure = flat_structure(len(leaves))
    if nested:
        structure, count = load_structure(found["structure"])
        expect(count == len(leaves), "the number of its outputs")
    return Outputs(
        structure,
        tuple(outputs[: len(leaves)]),
        tuple(outputs[len(leaves) :]),
        storages,
    )


def _storage(row: list[Any]) -> Bytes:
    expect(len(row) == 2, "a storage")
    offset = _count(row[0], REACH)
    return Bytes(Addr(offset), Size(_count(row[1], REACH - offset)))


def _output(
    row: list[Any],
    before: Sequence[Output],
    storages: Sequence[Bytes],
    integration: Integration,
) -> Output:
    match row:
        case ["fresh", k, template, offset]:
            bytes_ = storages[_count(k, len(storages))]
            loaded = load_template(template, integration)
            lo, hi = integration.extent(loaded)
            at = _count(offset, REACH)
            inside = (
                bytes_.address <= at + lo and at + hi <= bytes_.address + bytes_.size
            )
            expect(inside, "an output outside its storage")
            return Fresh(k, loaded, Addr(at))
        case ["same", k]:
            expect(
                not isinstance(before[_count(k, len(before))], Constant), "an output"
            )
            return Same(k)
        case ["alias", k]:
            return Alias(_count(k, 1 << 31))
        case ["view", k, template, offset]:
            expect(type(offset) is int, "the offset of a view")
            return View(
                _count(k, 1 << 31), load_template(template, integration), offset
            )
        case ["constant", value]:
            return Constant(from_json(value))
        case _:
            raise StoreError("a recording is damaged: an output. Record it anew")


def load_template(found: Json, integration: Integration) -> Template:
    """Return the template that was dumped; `StoreError` where there is none."""
    try:
        return integration.load(from_json(found))
    except (ValueError, TypeError, OverflowError) as error:
        raise StoreError(f"a recording is damaged: {error}. Record it anew") from None
