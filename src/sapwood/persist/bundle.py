"""All recordings of one function in one file, with the contents of their arrays.

    index       JSON: name, recordings, arrays
    0.call ...  the archive of the first recording, and so on
    bytes.0 ... the bytes of the first storage, and so on

The function itself is not in it: what it reads besides its arguments comes along as
contents, under the path by which the function reached it.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from sapwood.driver.api import Abilities
from sapwood.errors import MisuseError, StoreError
from sapwood.memory.device import Device
from sapwood.memory.storage import Storage
from sapwood.persist.archive import Archive, decode, encode, load_layout, numbered
from sapwood.persist.format import expect, read
from sapwood.tree.call.integration import Array, Integration, Layout, Look
from sapwood.tree.choose.function_cache import FunctionCache
from sapwood.tree.choose.origins import Origins
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.guards import Slot
from sapwood.tree.nests.plain import Json, to_json, to_text
from sapwood.tree.node.node import Node
from sapwood.units import Addr, Size


def device_text(abilities: Abilities) -> str:
    """Return the kind of device that a recording is for."""
    return f"{abilities.kind}, pages of {abilities.page} bytes"


@dataclass(frozen=True, slots=True)
class Saved:
    """One recording in a file.

    ``signature`` is the text of the calls that it serves; ``names`` are those of its
    array arguments, ``texts`` what they look like; ``pinned`` gives those whose
    contents are in the file by the name that they have there.
    """

    signature: bytes
    archive: Archive
    names: tuple[str, ...]
    texts: tuple[str, ...]
    pinned: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Kept:
    """An array's contents: which bytes, how they are seen, and where it starts."""

    storage: int
    layout: Layout
    offset: int


@dataclass(frozen=True, slots=True)
class Bundle:
    """What is in a file. ``arguments`` and ``ambient`` are arrays by their names."""

    name: str
    device: str
    recordings: tuple[Saved, ...]
    arguments: Mapping[str, Kept]
    ambient: Mapping[str, Kept]
    storages: tuple[bytes, ...]

    def arrays(
        self, device: Device, integration: Integration
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return new arrays with the contents of arguments and of ambient arrays."""
        made = [_storage(data, device) for data in self.storages]
        known: dict[Kept, Array] = {}

        def array(kept: Kept) -> Array:
            storage = made[kept.storage]
            if kept not in known:
                address = Addr(storage.address + kept.offset)
                known[kept] = integration.make(kept.layout, storage, address)
            return known[kept]

        return (
            {name: array(kept) for name, kept in self.arguments.items()},
            {path: array(kept) for path, kept in self.ambient.items()},
        )


def _storage(data: bytes, device: Device) -> Storage:
    stream = device.stream()
    storage = device.allocate_on_heap(Size(len(data)), stream)
    storage.order_write(stream)
    if data:
        device.driver.upload(storage.address, memoryview(data), stream.handle)
    return storage


@dataclass(slots=True)
class Packer:
    """Collects what goes into a file; to be used under the device's lock."""

    device: Device
    integration: Integration
    sections: dict[str, bytes] = field(default_factory=dict)
    _recordings: list[Json] = field(default_factory=list)
    _arguments: dict[str, Json] = field(default_factory=dict)
    _ambient: dict[str, Json] = field(default_factory=dict)
    _order: list[str] = field(default_factory=list)
    _labels: dict[Hashable, str] = field(default_factory=dict)
    _numbers: dict[int, int] = field(default_factory=dict)
    _storages: list[Storage] = field(default_factory=list)

    def add(
        self,
        signature: bytes,
        archive: Mapping[str, bytes],
        origins: Origins,
        ambient: Mapping[str, Array],
    ) -> None:
        """Add a recording, its arguments at fixed addresses, and what it reads.

        Raises `StoreError` where it reads ``ambient`` in another order than others.
        """
        number = len(self._recordings)
        for name, body in archive.items():
            self.sections[f"{number}.{name}"] = body
        pinned: dict[str, str] = {}
        for i in origins.fixed:
            name, _, layout, address, reference = origins.arrays[i]
            storage = reference()
            if storage is not None and storage.stale is None:
                kept = self._kept(Look(layout, storage, address))
                pinned[name] = self._named(name, kept)
        self._line_up(ambient)
        for path, array in ambient.items():
            self._ambient[path] = self._kept(self.integration.look(array))
        self._recordings.append(
            {
                "signature": signature.decode(),
                "names": [origin.name for origin in origins.arrays],
                "texts": [origin.text for origin in origins.arrays],
                "pinned": pinned,
            }
        )

    def _line_up(self, paths: Iterable[str]) -> None:
        """Put paths into the one order in which all recordings read them."""
        at = 0
        for path in paths:
            found = self._order.index(path) if path in self._ambient else at
            if found < at:
                raise StoreError(
                    f"two recordings read {path} and others in different orders, so "
                    "that one file cannot hold both. Graph the function twice, and "
                    "save each"
                )
            if path not in self._ambient:
                self._order.insert(at, path)
            at = found + 1

    def _named(self, name: str, kept: Json) -> str:
        """Return what an argument is called in the file, where others have its name."""
        known = self._arguments
        found = next(each for each in _names(name) if known.get(each, kept) == kept)
        known[found] = kept
        return found

    def label(self, slot: Slot) -> str:
        """Return the name of a slot: its path, told apart where two look alike."""
        root = slot.root if isinstance(slot.root, str) else id(slot.root())
        key, taken = (root, slot.steps), self._labels.values()
        if key not in self._labels:
            self._labels[key] = next(n for n in _names(slot.path) if n not in taken)
        return self._labels[key]

    def _kept(self, look: Look) -> Json:
        layout, storage, address = look
        number = self._numbers.setdefault(id(storage), len(self._storages))
        if number == len(self._storages):
            self._storages.append(storage)
        plain = to_json(self.integration.files.dump(layout))
        return [number, plain, address - storage.address]

    def seal(self, function: str) -> dict[str, bytes]:
        """Return all sections; waits for the arrays' contents."""
        driver, stream = self.device.driver, self.device.stream()
        for number, storage in enumerate(self._storages):
            storage.order_read(stream)
            at, size = storage.address, storage.size
            data = driver.download(at, size, stream.handle) if size else b""
            self.sections[f"bytes.{number}"] = bytes(data)
        index = {
            "name": function,
            "device": device_text(driver.abilities),
            "recordings": self._recordings,
            "arguments": self._arguments,
            "ambient": [[path, self._ambient[path]] for path in self._order],
            "storages": len(self._storages),
        }
        return {"index": to_text(index), **self.sections}


def pack(
    function: str, cache: FunctionCache, recordings: Recordings
) -> dict[str, bytes]:
    """Return all recordings of a function, and their arrays, as sections.

    Raises `StoreError` where there are none, or one cannot be kept.
    """
    packer = Packer(recordings.device, recordings.integration)
    for groups in cache.groups.values():
        for specialization in groups:
            # The others differ in roles and pages only.
            nodes = [node for node in specialization.nodes if not node.escapes]
            if nodes:
                _pack(nodes[0], cache, packer)
    if not packer.sections:
        raise StoreError(
            f"{function} has no recording that could be saved. Call it at least twice, "
            "or use warm(), and save it then"
        )
    return packer.seal(function)


def _names(name: str) -> Iterator[str]:
    """Yield names that tell apart what has one name."""
    return (name if i == 1 else f"{name} ({i})" for i in itertools.count(1))


def _pack(node: Node, cache: FunctionCache, packer: Packer) -> None:
    ambient = node.ambient.match()
    if ambient is None:
        return  # it was recorded for values that are no more
    origins, bound = cache.origins[node], cache.bound[node]
    for slot in bound:
        if isinstance(slot.root, str):
            raise StoreError(
                f"{node.label} cannot be saved: it binds {slot.path}, which is in an "
                "argument. Return the array instead"
            )
    archive = encode(node, bound, origins.sharing, packer.integration, packer.label)
    if isinstance(archive, str):
        raise StoreError(f"{node.label} cannot be saved: {archive}")
    if origins.signature is None:
        raise StoreError(
            f"{node.label} cannot be saved: an argument is no array and no plain "
            "value. Pass what the function needs of it"
        )
    arrays = dict(zip(map(packer.label, node.ambient.arrays), ambient, strict=True))
    for slot in bound:
        # What is bound and not read is there as well, so that nothing is new then.
        with suppress(MisuseError):
            held = slot.read()
            if packer.integration.is_array(held):
                arrays.setdefault(packer.label(slot), held)
    packer.add(origins.signature, archive, origins, arrays)


def unpack(
    sections: Mapping[str, bytes], integration: Integration, *, nested: bool = True
) -> Bundle:
    """Return what is in a file; raises `StoreError` where it is not as written."""
    expect("index" in sections, "it has no index")
    index = read(sections["index"], _INDEX, "its index")
    storages = tuple(numbered(sections, "bytes.", "its contents"))
    expect(len(storages) == index["storages"], "its contents")

    def kept(pairs: Iterable[tuple[str, Json]]) -> dict[str, Kept]:
        return {name: _load_kept(row, storages, integration) for name, row in pairs}

    def load(number: int, row: Json) -> Saved:
        names, texts, pinned = row["names"], row["texts"], row["pinned"]
        expect(len(names) == len(texts) and set(names) >= pinned.keys(), "a name")
        prefix = f"{number}."
        own = {
            name.removeprefix(prefix): body
            for name, body in sections.items()
            if name.startswith(prefix)
        }
        signature = _signature(row["signature"], len(names))
        archive = decode(own, integration, nested=nested)
        return Saved(signature, archive, tuple(names), tuple(texts), pinned)

    arguments, ambient = kept(index["arguments"].items()), kept(index["ambient"])
    expect(len(ambient) == len(index["ambient"]), "the path of an array")
    recordings = tuple(load(*each) for each in enumerate(index["recordings"]))
    for saved in recordings:
        paths = {binding.path for binding in saved.archive.ambient}
        expect(arguments.keys() >= set(saved.pinned.values()), "a name")
        expect(ambient.keys() >= paths, "the path of an array")
    name, device = index["name"], index["device"]
    return Bundle(name, device, recordings, arguments, ambient, storages)


_KEPT: Final = (int, object, int)
_SAVED: Final = {"signature": str, "names": [str], "texts": [str], "pinned": {str: str}}
_INDEX: Final = {
    "name": str,
    "device": str,
    "recordings": [_SAVED],
    "arguments": {str: _KEPT},
    "ambient": [(str, _KEPT)],
    "storages": int,
}


def _load_kept(row: Json, storages: Sequence[bytes], integration: Integration) -> Kept:
    number, plain, offset = row
    expect(0 <= number < len(storages), "the contents of an array")
    layout = load_layout(plain, integration)
    lo, hi = layout.extent
    inside = offset + lo >= 0 and offset + hi <= len(storages[number])
    expect(inside, "an array outside its bytes")
    return Kept(number, layout, offset)


def _signature(found: str, arrays: int) -> bytes:
    """Return the text of a signature of so many arrays."""
    expect(found.isascii(), "a signature")
    text = found.encode()
    _, leaves, _ = read(text, (object, [list], object), "a signature")
    for leaf in leaves:
        expect(len(leaf) in {2, 6} and type(leaf[0]) is str, "a signature")
    expect(sum(len(leaf) == 6 for leaf in leaves) == arrays, "a signature")
    return text
