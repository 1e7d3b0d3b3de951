"""Entries: where a store's troubles end, as counts and reasons."""

from __future__ import annotations

import errno
import hashlib

import pytest

from sapwood.errors import MisuseError, StoreError
from sapwood.persist.entries import Absent, Entries, verify
from sapwood.persist.key import (
    Difference,
    Key,
    Manifest,
    blob_name,
    decode_manifest,
    describe,
    diff,
    encode_manifest,
    entry_name,
    nearest,
    needs,
)
from tests.support.shelf import Shelf

PARTS = {"ops": b"launch", "image": b"\0" * 2_000, "twin": b"launch", "empty": b""}
METHODS = ("get", "put", "delete", "scan")


class Failing:
    """A store whose methods, but for those that work, raise what they are told to."""

    def __init__(self, error, works=()):
        self.error, self.calls = error, 0
        self.inner = Shelf()
        for method in METHODS:
            good = getattr(self.inner, method)
            setattr(self, method, good if method in works else self._fail)

    def _fail(self, *_):
        self.calls += 1
        raise self.error


def test_parts_come_back(entries, make_key, told):
    """All of them, in their order, and nothing is said about it."""
    entries.put(make_key(shape="8"), PARTS)
    assert list(entries.find(make_key(shape="8")).items()) == list(PARTS.items())
    assert entries.tally == {"puts": 1, "hits": 1}
    assert told == []


def test_an_entry_may_be_empty(entries):
    """No parts are parts, too, and no components a key."""
    entries.put(Key(()), {})
    assert entries.find(Key(())) == {}


def test_a_put_takes_the_place_of_another(entries, make_key):
    """The last one counts."""
    entries.put(make_key(shape="8"), PARTS)
    entries.put(make_key(shape="8"), {"ops": b"other"})
    assert entries.find(make_key(shape="8")) == {"ops": b"other"}


def test_equal_contents_are_stored_once(entries, make_key):
    """Parts share blobs, within an entry and between entries."""
    for shape in ("8", "16", "64"):
        entries.put(make_key(shape=shape), PARTS)
    blobs = [item for item in entries.store.scan() if item.name.startswith("blob-")]
    assert len(blobs) == len(set(PARTS.values()))


def test_a_miss_says_so(entries, make_key, told):
    """It is a value with a reason, counted and not told."""
    found = entries.find(make_key(shape="8"))
    assert found == Absent("misses", "nothing is stored under this key")
    assert entries.tally == {"misses": 1}
    assert told == []


@pytest.mark.parametrize("name", ["", "a\nb", "\x1b[0m"])
def test_the_name_of_a_part_must_print(entries, make_key, name):
    """It is refused before anything is put."""
    with pytest.raises(MisuseError, match="cannot name a part"):
        entries.put(make_key(x="1"), {name: b""})
    assert list(entries.store.scan()) == []


# Damage, in a store that itself checks nothing.


def _tampered(make_key, tamper):
    """Return entries over a memory store whose values were tampered with."""
    store, told = Shelf(), []
    entries = Entries(store, told.append)
    key = make_key(shape="8")
    entries.put(key, PARTS)
    tamper(store, entry_name(key.digest))
    return entries, key, told


def _other_blob(store, _):
    store.put(blob_name(b"launch"), b"lunch!")


def _no_blob(store, _):
    store.delete(blob_name(b"launch"))


def _torn_manifest(store, name):
    store.put(name, store.get(name)[:-1])


def _manifest_of_another(store, name):
    other = Key((("shape", b"9"),))
    store.put(name, encode_manifest(describe(other, PARTS)))


def _manifest_of_another_version(store, name):
    said = store.get(name).replace(b"sapwood entry 1", b"sapwood entry 2")[:-32]
    store.put(name, said + hashlib.sha256(said).digest())


@pytest.mark.parametrize(
    "tamper",
    [
        _other_blob,
        _no_blob,
        _torn_manifest,
        _manifest_of_another,
        _manifest_of_another_version,
    ],
)
def test_what_is_damaged_is_absent_and_heals(make_key, tamper):
    """It is told once and gone; the next put writes it anew."""
    entries, key, told = _tampered(make_key, tamper)
    found = entries.find(key)
    assert isinstance(found, Absent)
    assert found.outcome == "damaged"
    assert told == [found.reason]
    assert entries.find(key) == Absent("misses", "nothing is stored under this key")
    entries.put(key, PARTS)
    assert entries.find(key) == PARTS
    assert entries.tally == {"puts": 2, "damaged": 1, "misses": 1, "hits": 1}
    assert verify(entries.store) == []


def test_contents_that_are_not_their_name_s_go(make_key):
    """They are no use to any entry, and take room."""
    store = Shelf()
    entries = Entries(store)
    entries.put(make_key(shape="8"), PARTS)
    name = blob_name(PARTS["image"])
    store.put(name, b"others")
    assert isinstance(entries.find(make_key(shape="8")), Absent)
    assert name not in {item.name for item in store.scan()}


def test_damage_in_a_store_that_only_reads_stays_absent(make_key):
    """Where nothing can be deleted, it is found damaged each time, and told once."""
    store = Failing(OSError(errno.EROFS, "read only"), works=("get", "put"))
    told = []
    entries = Entries(store, told.append)
    entries.put(make_key(x="1"), PARTS)
    store.put(blob_name(b"launch"), b"lunch!")
    for _ in range(3):
        assert entries.find(make_key(x="1")).outcome == "damaged"
    assert entries.tally["damaged"] == 3
    assert len(told) == 1


def test_what_is_evicted_while_it_is_read_is_a_miss(make_key):
    """A blob that went with its manifest is no damage."""
    entries = Entries(Shelf())
    key = make_key(x="1")
    entries.put(key, PARTS)
    get = entries.store.get

    def evicting(name):
        value = get(name)
        for item in list(entries.store.scan()):
            entries.store.delete(item.name)
        return value

    entries.store.get = evicting
    assert entries.find(key).outcome == "misses"


# Troubles of the store.


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (OSError(errno.EIO, "input/output error"), "errors"),
        (OSError(errno.ESTALE, "stale file handle"), "errors"),
        (OSError("no number"), "errors"),
        (PermissionError(errno.EPERM, "not yours"), "refused"),
        (OSError(errno.EROFS, "read only", "/there"), "refused"),
        (StoreError("damaged"), "damaged"),
    ],
)
def test_no_trouble_of_a_store_is_raised(error, outcome, make_key):
    """Finding is an absence with its reason, and so are the rest."""
    entries = Entries(Failing(error))
    found = entries.find(make_key(x="1"))
    assert (found.outcome, entries.tally) == (outcome, {outcome: 1})
    assert str(error.args[-1]) in found.reason or error.filename in found.reason
    assert list(entries.keys()) == []
    entries.put(make_key(x="1"), PARTS)
    assert entries.tally == {outcome: 3}


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EPERM, errno.EDQUOT]
)
def test_a_lasting_trouble_ends_putting(number, make_key, caplog):
    """Full, read-only, forbidden: it is told once and not tried again."""
    store, told = Failing(OSError(number, "no"), works=("get",)), []
    entries = Entries(store, told.append)
    for shape in ("8", "16", "64"):
        entries.put(make_key(shape=shape), PARTS)
    assert store.calls == 1
    assert entries.tally == {"refused": 3}
    assert told == [entries.stopped] == ["nothing more is put into Failing: no"]
    assert caplog.messages == told


@pytest.mark.parametrize("number", [errno.EIO, errno.EFBIG, errno.ENOMEM])
def test_a_passing_trouble_does_not(number, make_key):
    """The next put is tried."""
    store = Failing(OSError(number, "not now"))
    entries = Entries(store)
    for shape in ("8", "16", "64"):
        entries.put(make_key(shape=shape), PARTS)
    assert store.calls == 3
    assert entries.stopped == ""


def test_troubles_while_keys_are_read_are_counted(make_key):
    """One manifest that cannot be read does not hide the others."""
    entries = Entries(Shelf())
    for shape in ("8", "16", "64"):
        entries.put(make_key(shape=shape), PARTS)
    entries.store.put(entry_name(make_key(shape="16").digest), b"torn")
    assert list(entries.keys()) == [make_key(shape="8"), make_key(shape="64")]
    assert entries.tally == {"puts": 3, "damaged": 1}


# Why.


def test_the_nearest_key_is_told_with_what_differs(entries, make_key):
    """Most equal components win; of equals, the one used last."""
    entries.put(make_key(code="a", shape="8", mode="grad"), PARTS)
    entries.put(make_key(code="a", shape="16", mode="grad"), PARTS)
    entries.put(make_key(code="b", shape="64", mode="none"), PARTS)
    asked = make_key(code="a", shape="64", mode="grad")
    found = nearest(asked, entries.keys())
    assert found == make_key(code="a", shape="16", mode="grad")
    assert diff(asked, found) == [Difference("shape", b"64", b"16")]
    entries.find(make_key(code="a", shape="8", mode="grad"))
    found = nearest(asked, entries.keys())
    assert dict(found.components)["shape"] == b"8"


def test_why_leaves_the_order_of_uses(entries, make_key):
    """Asking reads all manifests, and makes none of them younger than another."""
    for shape in ("8", "16", "64", "32"):
        entries.put(make_key(shape=shape), PARTS)
    entries.find(make_key(shape="16"))
    before = list(entries.keys())
    assert nearest(make_key(shape="99"), entries.keys()) in before
    assert list(entries.keys()) == before
    assert before[-1] == make_key(shape="16")


def test_nothing_is_near_where_nothing_is(entries, make_key):
    """An empty store has no nearest key."""
    assert nearest(make_key(x="1"), entries.keys()) is None


# Manifests.


def test_a_manifest_comes_back(make_key):
    """Key, names, sizes and digests."""
    manifest = describe(make_key(a="1", b="2"), PARTS)
    assert decode_manifest(encode_manifest(manifest)) == manifest
    assert needs(entry_name("0"), encode_manifest(manifest)) == {
        blob_name(value): len(value) for value in PARTS.values()
    }


def test_only_manifests_need_blobs(make_key):
    """Neither other names nor what cannot be read needs anything."""
    said = encode_manifest(describe(make_key(a="1"), PARTS))
    assert needs("x", said) == needs(entry_name("0"), said[:-1]) == {}


def test_a_part_named_twice_is_refused(make_key):
    """Such a manifest is none."""
    manifest = describe(make_key(a="1"), {"ops": b"1"})
    doubled = Manifest(manifest.key, manifest.parts * 2)
    with pytest.raises(StoreError, match="names a part twice"):
        decode_manifest(encode_manifest(doubled))
