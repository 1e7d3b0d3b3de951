"""All recordings of one function in one file, with the contents of their arrays.

    index       JSON: name, recordings, arrays
    0.call ...  the archive of the first recording, and so on
    bytes.0 ... the bytes of the first storage, and so on

The function itself is not in it: what it reads besides its arguments comes along as
contents, under the path by which the function reached it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sapwood.driver.api import Abilities
from sapwood.errors import StoreError
from sapwood.memory.device import Device
from sapwood.memory.storage import Storage
from sapwood.persist.archive import Archive, decode, load_template
from sapwood.persist.recordings import expect
from sapwood.tree.call.integration import Array, Integration, Template
from sapwood.tree.choose.origins import Origin
from sapwood.tree.nests.plain import Json, from_text, to_json, to_text
from sapwood.units import Addr, Size

__all__ = [
    "Bundle",
    "Kept",
    "Packer",
    "Saved",
    "device_text",
    "unpack",
]


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
    template: Template
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
        known: dict[tuple[int, int, Any], Array] = {}

        def array(kept: Kept) -> Array:
            storage = made[kept.storage]
            key = (kept.storage, kept.offset, integration.dump(kept.template))
            if key not in known:
                address = Addr(storage.address + kept.offset)
                known[key] = integration.make(kept.template, storage, address)
            return known[key]

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
    _numbers: dict[int, int] = field(default_factory=dict)
    _storages: list[Storage] = field(default_factory=list)

    def add(
        self,
        signature: bytes,
        archive: Mapping[str, bytes],
        origins: Sequence[Origin],
        fixed: Iterable[int],
        ambient: Mapping[str, Array],
    ) -> None:
        """Add a recording; ``fixed`` are the array arguments at a fixed address.

        Raises `StoreError` where it reads ``ambient`` in another order than others.
        """
        number = len(self._recordings)
        for name, body in archive.items():
            self.sections[f"{number}.{name}"] = body
        pinned: dict[str, str] = {}
        for i in fixed:
            name, _, template, address, reference = origins[i]
            storage = reference()
            if storage is not None and storage.stale is None:
                kept = self._kept(storage, template, address)
                pinned[name] = self._named(name, kept)
        self._line_up(ambient)
        for path, array in ambient.items():
            self._ambient[path] = self._kept(
                self.integration.storage(array),
                self.integration.template(array),
                self.integration.address(array),
            )
        self._recordings.append(
            {
                "signature": signature.decode(),
                "names": [origin.name for origin in origins],
                "texts": [origin.text for origin in origins],
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
        free = (name if i == 1 else f"{name} ({i})" for i in itertools.count(1))
        known = self._arguments
        found = next(each for each in free if known.get(each, kept) == kept)
        known[found] = kept
        return found

    def _kept(self, storage: Storage, template: Template, address: Addr) -> Json:
        number = self._numbers.setdefault(id(storage), len(self._storages))
        if number == len(self._storages):
            self._storages.append(storage)
        plain = to_json(self.integration.dump(template))
        return [number, plain, address - storage.address]

    def seal(self, function: str) -> dict[str, bytes]:
        """Return all sections; waits for the arrays' contents."""
        stream = self.device.stream()
        for number, storage in enumerate(self._storages):
            storage.order_read(stream)
            data = b""
            if storage.size:
                data = bytes(
                    self.device.driver.download(
                        storage.address, storage.size, stream.handle
                    )
                )
            self.sections[f"bytes.{number}"] = data
        index = {
            "name": function,
            "device": device_text(self.device.driver.abilities),
            "recordings": self._recordings,
            "arguments": self._arguments,
            "ambient": [[path, self._ambient[path]] for path in self._order],
            "storages": len(self._storages),
        }
        return {"index": to_text(index), **self.sections}


def unpack(
    sections: Mapping[str, bytes], integration: Integration, *, nested: bool = True
) -> Bundle:
    """Return what is in a file; raises `StoreError` where it is not as written."""
    expect("index" in sections, "it has no index")
    index = from_text(sections["index"])
    expect(type(index) is dict and index.keys() == _INDEX, "its index")
    _typed(index["name"], str), _typed(index["device"], str)
    count = _typed(index["storages"], int)
    names = [f"bytes.{i}" for i in range(min(count, len(sections)))]
    expect(len(names) == count and all(n in sections for n in names), "its contents")
    storages = tuple(sections[name] for name in names)

    def kept(pairs: Iterable[tuple[str, Json]]) -> dict[str, Kept]:
        return {name: _load_kept(row, storages, integration) for name, row in pairs}

    arguments = kept(_typed(index["arguments"], dict).items())
    pairs = [_typed(pair, list) for pair in _typed(index["ambient"], list)]
    expect(
        all(len(p) == 2 and type(p[0]) is str for p in pairs), "the path of an array"
    )
    ambient = kept((path, row) for path, row in pairs)
    expect(len(ambient) == len(pairs), "the path of an array")
    recordings = tuple(
        _load_saved(number, row, sections, integration, nested=nested)
        for number, row in enumerate(_typed(index["recordings"], list))
    )
    for saved in recordings:
        paths = {binding.path for binding in saved.archive.ambient}
        expect(arguments.keys() >= set(saved.pinned.values()), "a name")
        expect(ambient.keys() >= paths, "the path of an array")
    return Bundle(
        index["name"],
        index["device"],
        recordings,
        arguments,
        ambient,
        storages,
    )


_INDEX: Final = {"name", "device", "recordings", "arguments", "ambient", "storages"}
_SAVED: Final = {"signature", "names", "texts", "pinned"}


def _typed(found: Json, kind: type) -> Any:
    expect(type(found) is kind, f"a {kind.__name__}")
    return found


def _load_kept(row: Json, storages: Sequence[bytes], integration: Integration) -> Kept:
    expect(type(row) is list and len(row) == 3, "the contents of an array")
    number, plain, offset = row
    expect(type(number) is type(offset) is int, "the contents of an array")
    expect(0 <= number < len(storages), "the contents of an array")
    template = load_template(plain, integration)
    lo, hi = integration.extent(template)
    inside = offset + lo >= 0 and offset + hi <= len(storages[number])
    expect(inside, "an array outside its bytes")
    return Kept(number, template, offset)


def _load_saved(
    number: int,
    row: Json,
    sections: Mapping[str, bytes],
    integration: Integration,
    *,
    nested: bool,
) -> Saved:
    expect(type(row) is dict and row.keys() == _SAVED, "a recording")
    names, texts = _typed(row["names"], list), _typed(row["texts"], list)
    pinned = _typed(row["pinned"], dict)
    texts_all = (*names, *texts, *pinned.values())
    expect(all(type(text) is str for text in texts_all), "a name")
    expect(len(names) == len(texts) and set(names) >= pinned.keys(), "a name")
    prefix = f"{number}."
    own = {
        name.removeprefix(prefix): body
        for name, body in sections.items()
        if name.startswith(prefix)
    }
    return Saved(
        _signature(row["signature"], len(names)),
        decode(own, integration, nested=nested),
        tuple(names),
        tuple(texts),
        pinned,
    )


def _signature(found: Json, arrays: int) -> bytes:
    """Return the text of a signature of so many arrays."""
    expect(type(found) is str and found.isascii(), "a signature")
    text: bytes = found.encode()
    parts = from_text(text)
    expect(type(parts) is list and len(parts) == 3, "a signature")
    leaves = _typed(parts[1], list)
    for leaf in leaves:
        expect(type(leaf) is list and len(leaf) in {2, 6}, "a signature")
        expect(all(type(part) is str for part in leaf[:1]), "a signature")
    expect(sum(len(leaf) == 6 for leaf in leaves) == arrays, "a signature")
    return text
