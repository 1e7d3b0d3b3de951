"""What is wrong is found, by name, and nothing else."""

from __future__ import annotations

import pytest

from sapwood.persist.disk import DiskStore
from sapwood.persist.entries import Entries, Finding, verify
from sapwood.persist.key import blob_name, describe, encode_manifest, entry_name
from tests.support.shelf import Shelf


@pytest.fixture
def key(make_key):
    return make_key(shape="8")


@pytest.fixture
def whole(key):
    """A store with one entry."""
    store = Shelf()
    Entries(store).put(key, {"ops": b"1", "image": b"2"})
    return store


def test_nothing_is_wrong_with_what_is_whole(whole):
    """Also where there are other values, and blobs that nothing names."""
    whole.put("note", b"anything")
    whole.put(blob_name(b"3"), b"3")
    assert verify(whole) == []


def test_a_blob_of_other_contents(whole):
    """Is not what its name says."""
    whole.put(blob_name(b"1"), b"4")
    assert verify(whole) == [Finding(blob_name(b"1"), "holds other contents")]


def test_a_blob_that_is_not_there(whole, key):
    """Is missed by the manifest that names it."""
    whole.delete(blob_name(b"1"))
    missed = f"names {blob_name(b'1')}, which is not there"
    assert verify(whole) == [Finding(entry_name(key.digest), missed)]


def test_a_manifest_under_another_name(whole, key, make_key):
    """Is the manifest of another key."""
    other = make_key(shape="9")
    whole.put(entry_name(key.digest), encode_manifest(describe(other, {})))
    found = [Finding(entry_name(key.digest), "is the manifest of another key")]
    assert verify(whole) == found


def test_a_manifest_that_cannot_be_read(whole, key):
    """Is told with how."""
    whole.put(entry_name(key.digest), b"")
    (finding,) = verify(whole)
    assert finding.name == entry_name(key.digest)
    assert "a manifest is damaged: it ends early" in finding.what


def test_files_that_are_damaged(path, key):
    """Are found as the store finds them."""
    store = DiskStore(path, 1 << 20)
    Entries(store).put(key, {"ops": b"1", "image": b"2"})
    for file in path.glob("v1/?/blob-*"):
        file.write_bytes(b"")
    findings = verify(DiskStore(path, 0, read_only=True))
    assert sum("is damaged" in finding.what for finding in findings) == 4
    assert sum("which is damaged" in finding.what for finding in findings) == 2


def test_what_goes_meanwhile_is_not_missed(whole, key, monkeypatch):
    """A value that is evicted between the scan and the get is no finding."""
    items = list(whole.scan())
    whole.delete(entry_name(key.digest))
    monkeypatch.setattr(whole, "scan", lambda: iter(items))
    assert verify(whole) == []
