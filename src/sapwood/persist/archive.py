"""A recording with all that is needed to link it anew, as data: an object file.

    call          JSON: roles of arguments, slots of what is read and bound, outputs
    ops           JSON: op by op kind, size of its parameters, image, name, grid, ...
    params        the parameters of all ops, one behind the other
    image.0 ...   the images of the modules that hold the kernels

Nothing in it is an address, a handle or an object of this process: paths and positions
describe what it was recorded on, and offsets are from the range's base. What it touches
is not written: `inspect` finds that in the parameters, before anything is linked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from sapwood.errors import StoreError
from sapwood.graphs.recording import WORD, Kind, RecordedOp, Recording, Relocation
from sapwood.memory.range import REACH
from sapwood.persist.format import expect, read, within
from sapwood.tree.call.integration import Integration, Layout
from sapwood.tree.call.roles import Role
from sapwood.tree.guards import Slot
from sapwood.tree.nests.containers import Structure
from sapwood.tree.nests.plain import Json, from_json, to_json, to_text
from sapwood.tree.nests.structures import dump_structure, flat_structure, load_structure
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

FORMAT: Final = 3
"""Changes with what is written here, and with what it means."""


@dataclass(frozen=True, slots=True)
class SlotBinding:
    """A slot, described: its path, where the way to it starts, and the way.

    It ``adds`` what it is given to what is there.
    """

    path: str
    start: str
    steps: tuple[tuple[str, Any], ...]
    adds: bool


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
    nests = [slot.path for slot in bound if slot.item]
    if nests:
        return f"it makes containers for {nests[0]}, whose form no file holds"
    if any(op.kind == Kind.KERNEL and not op.image for op in node.recording.ops):
        return "it has kernels that its framework loaded, whose code no file holds"
    if any(part.memos for part in node.parts()):
        return "it uses arrays that functools.lru_cache keeps, which no file holds"
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
    return [label(slot), slot.start, steps, slot.adds]


def _dump_outputs(outputs: Outputs, base: Addr, integration: Integration) -> Json:
    plain = integration.files.dump

    def dump(output: Output) -> Json:
        match output:
            case Fresh(k, layout, address):
                return ["fresh", k, to_json(plain(layout)), address - base]
            case Same(k):
                return ["same", k]
            case Alias(k):
                return ["alias", k]
            case View(k, layout, offset):
                return ["view", k, to_json(plain(layout)), offset]
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
    table = read(sections["call"], _CALL, "the parts of its call")
    roles = table["roles"]
    expect(_ROLES.issuperset(roles), "a role")
    arguments = within(table["arguments"], len(roles) + 1)
    outputs = _load_outputs(table["outputs"], integration, nested=nested)
    bindings = tuple(map(_load_slot, table["bindings"]))
    expect(len(bindings) == len(outputs.bound), "what it binds")
    return Archive(
        recording=decode_recording(sections, len(roles) + 1),
        outputs=outputs,
        arguments=arguments,
        roles=tuple(Role(role) for role in roles),
        ambient=tuple(map(_load_slot, table["ambient"])),
        sharing=from_json(table["sharing"]),
        bindings=bindings,
    )


_ROLES: Final = {role.value for role in Role}
_SLOT: Final = (str, str, [(str, object)], bool)
_CALL: Final = {
    "arguments": int,
    "roles": [str],
    "ambient": [_SLOT],
    "sharing": object,
    "bindings": [_SLOT],
    "outputs": {
        "structure": object,
        "leaves": [list],
        "bound": [list],
        "storages": [(int, int)],
    },
}


def _load_slot(row: list[Any]) -> SlotBinding:
    path, start, steps, adds = row
    expect(len(steps) > 0, "a slot")
    way = tuple((name, from_json(key)) for name, key in steps)
    return SlotBinding(path, start, way, adds)


def _load_outputs(found: Json, integration: Integration, *, nested: bool) -> Outputs:
    storages = tuple(
        Bytes(Addr(within(at, REACH)), Size(within(size, REACH - at)))
        for at, size in found["storages"]
    )
    number = len(found["leaves"])
    outputs: list[Output] = []

    def load(row: list[Any]) -> Output:
        match row:
            case ["fresh", k, layout, offset]:
                bytes_ = storages[within(k, len(storages))]
                loaded = load_layout(layout, integration)
                lo, hi = loaded.extent
                at = within(offset, REACH)
                end = bytes_.address + bytes_.size
                inside = bytes_.address <= at + lo and at + hi <= end
                expect(inside, "an output outside its storage")
                return Fresh(k, loaded, Addr(at))
            case ["same", k]:
                first = outputs[within(k, len(outputs))]
                expect(not isinstance(first, Constant), "an output")
                return Same(k)
            case ["alias", k]:
                return Alias(within(k, 1 << 31))
            case ["view", k, layout, offset]:
                expect(type(offset) is int, "the offset of a view")
                seen = load_layout(layout, integration)
                return View(within(k, 1 << 31), seen, offset)
            case ["constant", value]:
                return Constant(from_json(value))
            case _:
                raise StoreError("a recording is damaged: an output. Record it anew")

    for row in (*found["leaves"], *found["bound"]):
        outputs.append(load(row))  # noqa: PERF401  it looks at those before
    structure: Structure = flat_structure(number)
    if nested:
        structure, count = load_structure(found["structure"])
        expect(count == number, "the number of its outputs")
    leaves, bound = tuple(outputs[:number]), tuple(outputs[number:])
    return Outputs(structure, leaves, bound, storages)


def load_layout(found: Json, integration: Integration) -> Layout:
    """Return the layout that was dumped; `StoreError` where there is none."""
    try:
        return integration.files.load(from_json(found))
    except (ValueError, TypeError, OverflowError) as error:
        raise StoreError(f"a recording is damaged: {error}. Record it anew") from None


# The ops of a recording.

_FAR: Final = 1 << 48
"""No address, size or offset is larger: what a device can address."""

_WORDS: Final = {Kind.COPY: 3, Kind.SET: 3, Kind.EMPTY: 0}


def encode_recording(recording: Recording) -> dict[str, bytes]:
    """Return a recording as sections."""
    images = _images_of(recording.ops)
    numbers = {image: number for number, image in enumerate(images)}
    ops = [
        [op.kind, len(op.params), numbers.get(op.image), op.name, _geometry(op)]
        for op in recording.ops
    ]
    table = {
        "ops": ops,
        "edges": recording.edges,
        "relocations": [*map(_RELOCATION, recording.relocations)],
    }
    return {
        "ops": to_text(table),
        "params": b"".join(op.params for op in recording.ops),
        **{f"image.{i}": image for i, image in enumerate(images)},
    }


def decode_recording(sections: Mapping[str, bytes], symbols: int) -> Recording:
    """Return a recording, its touches left out; it uses less than ``symbols`` symbols.

    Raises `StoreError` for anything that `encode_recording` would not have written.
    """
    expect({"ops", "params"} <= sections.keys(), "a section is missing")
    table, params = read(sections["ops"], _TABLES, "its tables"), sections["params"]
    images = numbered(sections, "image.", "the names of its images")
    ops, at = [], 0
    for row in table["ops"]:
        op = _op(row, params[at:], images)
        at += len(op.params)
        ops.append(op)
    expect(at == len(params), "the length of its parameters")
    expect(images == _images_of(ops), "its images")
    edges = [(within(a, within(b, len(ops))), b) for a, b in table["edges"]]
    relocations = [_relocation(row, ops, symbols) for row in table["relocations"]]
    places = {(r.op, r.offset) for r in relocations}
    expect(len(places) == len(relocations), "an address that is relocated twice")
    return Recording(tuple(ops), tuple(edges), tuple(relocations), ())


_RELOCATION: Final = attrgetter("op", "offset", "symbol", "addend")
_TABLES: Final = {
    "ops": [(str, int, object, str, [int])],
    "edges": [(int, int)],
    "relocations": [(int, int, int, int)],
}


def numbered(sections: Mapping[str, bytes], prefix: str, what: str) -> list[bytes]:
    """Return the sections ``prefix`` 0, 1, ...; `StoreError` where one is missing."""
    count = sum(name.startswith(prefix) for name in sections)
    names = [f"{prefix}{i}" for i in range(count)]
    expect(all(name in sections for name in names), what)
    return [sections[name] for name in names]


def _images_of(ops: Iterable[RecordedOp]) -> list[bytes]:
    return list(dict.fromkeys(op.image for op in ops if op.image))


def _geometry(op: RecordedOp) -> list[int]:
    """Return what a file says of grids; of clusters that is nothing, mostly."""
    cluster = op.cluster if max(op.cluster) > 1 else ()
    return [*op.grid, *op.block, op.shared, *cluster]


def _op(row: list[Any], params: bytes, images: list[bytes]) -> RecordedOp:
    kind, size, image, name, geometry = row
    within(size, len(params) + 1)
    expect(len(geometry) in (7, 10), "the grid of an op")
    cluster = geometry[7:] or [1, 1, 1]
    numbers = [within(each, 1 << 31, 1) for each in (*geometry[:6], *cluster)]
    shared = within(geometry[6], 1 << 31)
    if kind == Kind.KERNEL:
        expect(name != "", "the name of a kernel")
        found = images[within(image, len(images))]
    else:
        expect(size == 8 * _WORDS.get(kind, -1), "the kind of an op")
        expect(image is None and name == "", "the name of an op")
        found = b""
    grid, block, cluster = (tuple(numbers[i : i + 3]) for i in (0, 3, 6))
    shape: Any = grid, block, shared, cluster
    return RecordedOp(kind, params[:size], found, name, *shape)


def _relocation(row: list[int], ops: list[RecordedOp], symbols: int) -> Relocation:
    op, offset, symbol, addend = row
    within(op, len(ops)), within(symbol, symbols), within(addend, _FAR, -_FAR)
    end = len(ops[op].params) - WORD.size + 1
    return Relocation(op, within(offset, end), symbol, addend)
