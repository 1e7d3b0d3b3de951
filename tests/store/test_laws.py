"""Laws of a store, whatever it is made of."""

from __future__ import annotations

import errno
import time
from functools import partial
from pathlib import Path

import pytest

from sapwood.errors import MisuseError, StoreError
from sapwood.persist.api import Item
from sapwood.persist.entries import Absent, Entries, verify
from sapwood.persist.format import seal
from sapwood.persist.key import (
    BLOB,
    ENTRY,
    blob_name,
    describe,
    encode_manifest,
    entry_name,
)
from sapwood.persist.remote import FsspecStore, RedisStore
from tests.support.threads import in_threads

NAMES = ("blob-0a", "entry-0a", "x", "0.1-rc", "a" * 127)
VALUES = (b"", b"\0", b"value", bytes(range(256)) * 300)


def test_what_is_put_is_what_is_got(store):
    """Under every name, every value, as often as it is asked for."""
    for name in NAMES:
        for value in VALUES:
            store.put(name, value)
            assert store.get(name) == store.get(name) == value


def test_nothing_is_got_where_nothing_was_put(store):
    """A miss is None, before and after anything was stored."""
    assert store.get("x") is None
    store.put("x", b"1")
    assert store.get("y") is None


def test_names_do_not_meet(store):
    """Values under several names stay apart."""
    for number, name in enumerate(NAMES):
        store.put(name, bytes([number]))
    assert [store.get(name) for name in NAMES] == [bytes([n]) for n in range(5)]


def test_what_is_deleted_is_gone(store):
    """Delete tells whether there was anything."""
    store.put("x", b"1")
    assert store.delete("x") is True
    assert store.get("x") is None
    assert store.delete("x") is False


def test_scan_tells_what_is_here(store):
    """Names and sizes of values, each once."""
    assert list(store.scan()) == []
    for name in NAMES:
        store.put(name, b"12345")
    found = sorted(store.scan(), key=lambda item: item.name)
    assert [(item.name, item.size) for item in found] == [(n, 5) for n in sorted(NAMES)]
    assert all(isinstance(item, Item) for item in found)


def test_get_and_put_are_uses(new_store):
    """The time of last use grows with both."""
    store = new_store()
    store.put("x", b"1")
    times = [next(store.scan()).used]
    store.get("x")
    times.append(next(store.scan()).used)
    store.put("x", b"2")
    times.append(next(store.scan()).used)
    assert times == sorted(set(times))


def test_the_time_of_last_use_is_about_now(store):
    """Where a place tells seconds only, or when a value was written, too."""
    store.put("x", b"1")
    assert abs(next(store.scan()).used - time.time_ns()) < 30e9


@pytest.mark.parametrize(
    "name", ["", "A", "a b", "../x", "a/b", ".x", "-x", "é", "x" * 128, "x\n", "x\0"]
)
def test_a_name_that_is_none_is_refused(store, name):
    """By every method, with what names are."""
    for call in (store.get, store.delete, lambda name: store.put(name, b"")):
        with pytest.raises(MisuseError, match="Use 1 to 127 of"):
            call(name)


def test_the_longest_unused_goes_first(new_store):
    """Past the limit, what was neither put nor got for the longest time is gone."""
    store = new_store(2_000)
    for number in range(4):
        store.put(f"x{number}", b"x" * 500)
        store.get("x0")
    store.put("x4", b"x" * 500)
    left = {item.name for item in store.scan()}
    assert {"x0", "x4"} <= left
    assert "x1" not in left


def test_the_limit_holds(new_store):
    """However much is put, what is here is within the limit."""
    store = new_store(10_000)
    for number in range(60):
        store.put(f"x{number}", b"x" * (37 * number))
        assert sum(item.size for item in store.scan()) <= 10_000
        assert store.get(f"x{number}") is not None


def test_a_value_that_is_too_large_is_refused(new_store):
    """By name, and nothing else has to go for it."""
    store = new_store(1_000)
    store.put("x", b"x")
    with pytest.raises(
        OSError, match=r"big takes .* Give it a higher limit"
    ) as refused:
        store.put("big", b"x" * 1_001)
    assert refused.value.errno == errno.EFBIG
    assert store.get("x") == b"x"


def test_an_entry_goes_as_a_whole(new_store, make_key):
    """What is left of many entries is whole: no manifest without its blobs."""
    store = new_store(20_000)
    entries = Entries(store)
    for number in range(40):
        parts = {"own": bytes([number]) * 900, "shared": b"s" * 2_000}
        entries.put(make_key(number=str(number)), parts)
        assert entries.find(make_key(number=str(number))) == parts
        assert verify(store) == []
    assert entries.tally == {"puts": 40, "hits": 40}
    assert 3 < len(list(entries.keys())) < 40


def test_an_entry_that_was_found_goes_as_a_whole(new_store, make_key):
    """What is read of it last is its manifest: no blob is left that nothing names."""
    store = new_store(20_000)
    entries = Entries(store)
    for number in range(40):
        parts = {"own": bytes([number]) * 900, "more": bytes([number]) * 1_100}
        entries.put(make_key(number=str(number)), parts)
        assert entries.find(make_key(number=str(number))) == parts
        names = [each.name for each in store.scan()]  # to read them would be a use
        blobs, manifests = (
            sum(name.startswith(kind) for name in names) for kind in (BLOB, ENTRY)
        )
        assert blobs == 2 * manifests
    assert 3 < manifests < 40


def test_an_entry_larger_than_the_store_is_refused(new_store, make_key):
    """Its manifest is never there without its blobs."""
    store = new_store(4_000)
    entries = Entries(store)
    entries.put(make_key(x="1"), {str(n): bytes([n]) * 1_000 for n in range(6)})
    assert entries.tally == {"refused": 1}
    assert entries.stopped == ""
    assert verify(store) == []
    assert isinstance(entries.find(make_key(x="1")), Absent)


def _shared(store, turns):
    """Have eight threads put and get; return what they got that was never put."""
    wrong = []

    def work(number):
        for turn in range(turns):
            name = f"x{(number + turn) % 11}"
            store.put(name, name.encode() * 300)
            for other in range(11):
                value = store.get(f"x{other}")
                if value not in {None, f"x{other}".encode() * 300}:
                    wrong.append(other)

    in_threads(*(partial(work, n) for n in range(8)))
    return wrong


def test_threads_may_share_a_store(store):
    """Eight threads put and get; whatever is got is what was put."""
    assert _shared(store, turns=4) == []
    assert verify(store) == []


def test_threads_may_share_a_store_that_is_full(new_store):
    """They evict what others put, too."""
    store = new_store(20_000)
    assert _shared(store, turns=30) == []
    assert verify(store) == []


def _spoil(store, name, data):
    """Write what lies under a name in a place that others can write."""
    if isinstance(store, RedisStore):
        store.client.set(store.prefix + name, data)
    elif isinstance(store, FsspecStore):
        store.fs.pipe_file(f"{store.folder}/{name}", data)
    else:
        (file,) = Path(store.path).glob(f"v1/?/{name}")
        file.write_bytes(data)


DAMAGES = {
    "empty": lambda _: b"",
    "torn": lambda whole: whole[:-1],
    "longer": lambda whole: whole + b"!",
    "a bit": lambda whole: whole[:-1] + bytes([whole[-1] ^ 1]),
    "its name": lambda whole: whole.replace(b"x", b"y", 1),
    "another's": lambda _: seal("y", b"value") + b"value",
    "no magic": lambda whole: whole[1:],
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", ["disk", "fsspec file", "fsspec memory", "redis"])
def test_what_is_damaged_is_told_and_healed(make_store, kind, damage):
    """It is never a value; the next put is."""
    store = make_store(kind)
    store.put("x", b"value")
    _spoil(store, "x", DAMAGES[damage](seal("x", b"value") + b"value"))
    with pytest.raises(StoreError, match="the next put writes it anew"):
        store.get("x")
    store.put("x", b"value")
    assert store.get("x") == b"value"


def test_an_entry_is_found_as_it_was_put(store, make_key):
    """Its manifest and blobs, again and again, also by who opens the store anew."""
    parts = {"own": b"1" * 5_000, "empty": b"", "more": b"2"}
    for _ in range(2):
        assert Entries(store).put(make_key(x="1"), parts)
        for _ in range(2):
            assert Entries(store).find(make_key(x="1")) == parts
    assert isinstance(Entries(store).find(make_key(x="2")), Absent)
    assert list(Entries(store).keys()) == [make_key(x="1")]


def test_a_manifest_is_put_after_its_blobs(whole_store, make_key):
    """Without one of them it is refused, and what it would have replaced is gone."""
    store = whole_store
    key, parts = make_key(x="1"), {"ops": b"1", "image": b"2"}
    Entries(store).put(key, parts)
    said = encode_manifest(describe(key, parts))
    store.delete(blob_name(b"2"))
    with pytest.raises(BlockingIOError, match="Put all of it again"):
        store.put(entry_name(key.digest), said)
    assert store.get(entry_name(key.digest)) is None
    Entries(store).put(key, parts)
    assert Entries(store).find(key) == parts


@pytest.mark.parametrize(("most", "outcome"), [(1, "puts"), (4, "errors")])
def test_an_entry_is_put_again_where_others_took_its_room(
    whole_store, make_key, most, outcome
):
    """Once: others may always be faster."""
    store, key = whole_store, make_key(x="1")
    parts = {"ops": b"1", "image": b"2"}
    put, lost = store.put, []

    def losing(name, value):
        if name == entry_name(key.digest) and len(lost) < most:
            lost.append(store.delete(blob_name(b"1")))
        put(name, value)

    store.put = losing
    entries = Entries(store)
    entries.put(key, parts)
    assert entries.tally == {outcome: 1}
    assert verify(store) == []
