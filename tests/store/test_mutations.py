"""Files and manifests that were cut, flipped or forged: absent, never worse."""

from __future__ import annotations

import hashlib
import random
import struct

import pytest

from sapwood.errors import StoreError
from sapwood.persist.disk import DiskStore
from sapwood.persist.entries import Absent, Entries
from sapwood.persist.format import VERSION, accept, join, seal, sealed_size, split
from sapwood.persist.key import (
    Key,
    decode_key,
    decode_manifest,
    describe,
    encode_key,
    encode_manifest,
    entry_name,
)
from tests.support.shelf import Shelf

ON_DISK, IN_MEMORY = 1_500, 3_500
"""Mutations of files that are there, and of bytes that are; each of them twice: as they
come, and with all digests recomputed. 10,000 in all.
"""
KEY = Key((("device", b"emulated"), ("function", b"f" * 32), ("shape", b"(8, 16)")))
PARTS = {"ops": bytes(range(256)) * 3, "image": b"\0" * 2_000, "empty": b""}
EXTREME = (0, 1, 2**8 - 1, 2**16 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)


def _mutated(random_, data):
    """Return ``data`` with one to three changes of any kind."""
    changed = bytearray(data)
    for _ in range(random_.randint(1, 3)):
        at = random_.randrange(len(changed) + 1)
        until = min(at + random_.randint(1, 40), len(changed))
        kind = random_.randrange(6)
        if kind == 0:
            del changed[at:]
        elif kind == 1:
            del changed[at:until]
        elif kind == 2:
            changed[at:at] = random_.randbytes(random_.randint(1, 40))
        elif kind == 3:
            changed[at:until] = random_.randbytes(until - at)
        elif kind == 4:
            number = random_.choice(EXTREME).to_bytes(8, "little")
            size = random_.choice((1, 2, 4, 8))
            changed[at : at + size] = number[:size]
        elif changed:
            changed[at % len(changed)] ^= 1 << random_.randrange(8)
    return bytes(changed)


def _mutated_inside(random_, said):
    """Return a manifest of which one part is changed, with all digests recomputed."""
    sections = split(said)
    name = random_.choice(("key", "component", "component", "parts"))
    if name == "component":
        components = split(sections["key"])
        label = random_.choice(sorted(components))
        components[label] = _mutated(random_, components[label])
        return join(sections | {"key": join(components)})
    return join(sections | {name: _mutated(random_, sections[name])})


def _check_found(found):
    """Only an absence, or parts that are as their manifest says."""
    if isinstance(found, Absent):
        assert found.outcome in {"misses", "damaged", "errors"}
        return
    assert all(isinstance(name, str) and name.isprintable() for name in found)
    assert set(found.values()) <= set(PARTS.values())


@pytest.fixture
def put(path):
    """Files of one entry in a folder, and their contents."""
    Entries(DiskStore(path, 1 << 20)).put(KEY, PARTS)
    return {file: file.read_bytes() for file in path.glob("v1/?/*")}


def _restore(put):
    for file, contents in put.items():
        if not file.exists() or file.read_bytes() != contents:
            file.write_bytes(contents)


def test_mutated_files_are_absent(path, put):
    """Files as they come: moved aside, told, and nothing else."""
    random_ = random.Random(1)
    names = sorted(put)
    for turn in range(ON_DISK):
        entries = Entries(DiskStore(path, 1 << 20))
        file = names[turn % len(names)]
        data = _mutated(random_, put[file])
        file.write_bytes(data)
        found = entries.find(KEY)
        if data == put[file]:
            assert found == PARTS
        else:
            assert found.outcome == "damaged"
            assert not file.exists()
        _restore(put)
    assert len(list(path.glob("v1/damaged/*"))) == 16


def test_mutated_files_with_their_digests_recomputed(path, put):
    """Frames are right, and what they hold is not."""
    random_ = random.Random(2)
    names = sorted(put)
    for turn in range(ON_DISK):
        entries = Entries(DiskStore(path, 1 << 20))
        file = names[turn % len(names)]
        head = sealed_size(file.name, 0)
        value = put[file][head:]
        inside = file.name.startswith("entry-") and turn % 2
        value = (_mutated_inside if inside else _mutated)(random_, value)
        file.write_bytes(seal(file.name, value) + value)
        _check_found(entries.find(KEY))
        _restore(put)
    assert Entries(DiskStore(path, 1 << 20)).find(KEY) == PARTS


def test_mutated_frames_are_refused():
    """Any bytes are refused with `StoreError`, or are the value that was put."""
    random_ = random.Random(3)
    name = entry_name(KEY.digest)
    sealed = seal(name, PARTS["ops"])
    for _ in range(IN_MEMORY):
        data = _mutated(random_, sealed + PARTS["ops"])
        try:
            value = accept(name, data[: len(sealed)], data[len(sealed) :])
        except StoreError:
            continue
        assert value == PARTS["ops"]


def test_mutated_manifests_with_their_digests_recomputed():
    """What decodes encodes to the same bytes, and all else is a `StoreError`."""
    random_ = random.Random(4)
    said = encode_manifest(describe(KEY, PARTS))
    decoded = 0
    for _ in range(IN_MEMORY):
        data = _mutated_inside(random_, said)
        try:
            manifest = decode_manifest(data)
        except StoreError:
            continue
        decoded += 1
        assert encode_manifest(manifest) == data
        assert decode_key(encode_key(manifest.key)) == manifest.key
    assert decoded > 50


def test_a_manifest_of_another_version_is_refused():
    """Although its digest is right."""
    said = encode_manifest(describe(KEY, PARTS))
    other = said[:8] + struct.pack("<I", VERSION + 1) + said[12:]
    with pytest.raises(StoreError, match=f"of version {VERSION + 1}"):
        decode_manifest(other)


@pytest.mark.parametrize("bit", range(8 * len(seal("x", b"value"))))
def test_a_frame_of_which_a_bit_is_wrong_is_refused(bit):
    """Each bit of what stands before a value counts."""
    head = bytearray(seal("x", b"value"))
    head[bit // 8] ^= 1 << bit % 8
    with pytest.raises(StoreError):
        accept("x", bytes(head), b"value")


def test_a_store_of_another_version_is_a_miss(path):
    """Its values are no error; they are evicted as others, and what is put is found."""
    head = struct.Struct("<8sHHQ")
    shard = path / "v1" / "0"
    path.mkdir(mode=0o700)
    shard.mkdir(parents=True)
    old = [entry_name("0" * 64), "blob-" + "1" * 64]
    for name in old:
        said = head.pack(b"sapwood\n", 1, len(name), 1 << 17) + bytes(32)
        data = said + name.encode() + bytes(1 << 17)
        shard = path / "v1" / hashlib.sha256(name.encode()).hexdigest()[0]
        shard.mkdir(exist_ok=True)
        (shard / name).write_bytes(data)
    told = []
    store = DiskStore(path, 1 << 18)
    entries = Entries(store, told.append)
    assert entries.find(KEY).outcome == "misses"
    entries.put(KEY, PARTS)
    assert entries.find(KEY) == PARTS
    assert entries.tally == {"misses": 1, "puts": 1, "hits": 1}
    assert told == []
    assert sum(file.stat().st_size for file in path.glob("v1/?/*")) <= 1 << 18


def test_lengths_are_not_believed():
    """A manifest that claims 2^64 parts or bytes is refused at once."""
    store = Shelf()
    Entries(store).put(KEY, PARTS)
    name = entry_name(KEY.digest)
    said = encode_manifest(describe(KEY, PARTS))
    sections = split(said)
    forged = [said[:at] + b"\xff" * 8 + said[at + 8 :] for at in range(len(said) - 8)]
    for part, body in sections.items():
        for at in range(len(body) - 8):
            wrong = body[:at] + b"\xff" * 8 + body[at + 8 :]
            forged.append(join(sections | {part: wrong}))
    sizes = [b"9" * 19, b"9" * 5_000, b"-1"]
    forged += [
        join(sections | {"parts": sections["parts"].replace(b"768", size)})
        for size in sizes
    ]
    for data in forged:
        store.values[name] = data
        _check_found(Entries(store).find(KEY))


def test_hostile_contents_are_only_bytes(path):
    """Nothing that is stored is run, followed or unpacked."""
    victim = path.parent / "touched"
    evil = f"import os; open({str(victim)!r}, 'w')".encode()
    pickled = b"cos\nsystem\n(S'touch " + str(victim).encode() + b"'\ntR."
    entries = Entries(DiskStore(path, 1 << 20))
    parts = {"../../up": evil, "/abs": pickled, "x.py": evil}
    entries.put(KEY, parts)
    assert entries.find(KEY) == parts
    for file in path.glob("v1/?/*"):
        file.write_bytes(pickled)
    assert entries.find(KEY).outcome == "damaged"
    assert not victim.exists()
    assert {p.parent.parent for p in path.glob("v1/?/*")} <= {path / "v1"}
    assert [file.name for file in path.iterdir()] == ["v1"]
