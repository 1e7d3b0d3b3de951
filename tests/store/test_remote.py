"""Stores that machines share: what is particular to Redis, and to fsspec."""

from __future__ import annotations

import sys

import pytest

from sapwood.errors import MisuseError
from sapwood.persist.remote import FsspecStore, RedisStore


def test_prefixes_keep_stores_apart(redis):
    """Whatever signs they have; what is no value of a store's is not told."""
    stores = [RedisStore(redis, prefix) for prefix in ("a*:", "ab:", "a[b]:", "a\\:")]
    for number, store in enumerate(stores):
        store.put("x", b"%d" % number)
        redis.set(f"{store.prefix}no name", b"")
        redis.rpush(f"{store.prefix}list", b"1")
    for number, store in enumerate(stores):
        assert store.get("x") == b"%d" % number
        assert [(item.name, item.size) for item in store.scan()] == [("x", 1)]


def test_many_values_are_told(redis):
    """More than a server tells at once."""
    store = RedisStore(redis)
    for number in range(2_500):
        redis.set(f"{store.prefix}x{number}", b"1")
    assert len({item.name for item in store.scan()}) == len([*store.scan()]) == 2_500


def test_a_server_is_named_by_its_url(shared_server):
    """The text says nothing of it where it may hold a password."""
    store = RedisStore(f"unix://user:secret@{shared_server.socket}")
    assert "secret" not in store.path


def test_a_client_that_decodes_is_refused(shared_server):
    """It would read text where bytes were put."""
    with pytest.raises(MisuseError, match="Make it without decode_responses"):
        RedisStore(shared_server.client(decode_responses=True))


@pytest.mark.parametrize("method", ["get", "put", "delete", "scan"])
def test_a_server_that_is_not_there_is_an_error_of_the_system(server, method):
    """Named, for each method."""
    store = RedisStore(server.client())
    store.put("x", b"1")
    server.kill()
    calls = {
        "get": lambda: store.get("x"),
        "put": lambda: store.put("x", b"1"),
        "delete": lambda: store.delete("x"),
        "scan": lambda: list(store.scan()),
    }
    with pytest.raises(OSError, match="Redis, sapwood: fails: ConnectionError"):
        calls[method]()


def test_a_key_of_another_kind_is_an_error(redis):
    """It is nothing that was put."""
    redis.rpush("sapwood:x", b"1")
    with pytest.raises(OSError, match="WRONGTYPE"):
        RedisStore(redis).get("x")


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("redis", lambda: RedisStore("redis://localhost")),
        ("fsspec", lambda: FsspecStore("memory://x")),
    ],
)
def test_a_package_that_is_not_there_is_named(name, make, monkeypatch):
    """With how it is installed."""
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, f"{name}.core", None)
    with pytest.raises(MisuseError, match=f"pip install {name}"):
        make()


def test_a_place_that_fsspec_does_not_know_is_refused():
    """With what to check."""
    pytest.importorskip("fsspec")
    with pytest.raises(MisuseError, match="Check the URL"):
        FsspecStore("nowhere://x")


def test_a_file_system_and_a_folder_are_a_place(tmp_path):
    """As their URL is."""
    fsspec = pytest.importorskip("fsspec")
    store = FsspecStore(fsspec.filesystem("file"), str(tmp_path / "a" / "b/"))
    store.put("x", b"1")
    assert FsspecStore(f"file://{tmp_path}/a", "b").get("x") == b"1"
    assert store.path == f"file://{tmp_path}/a/b"


def test_a_put_that_fails_leaves_nothing(tmp_path, monkeypatch):
    """What was there before is there, and no half of a file."""
    pytest.importorskip("fsspec")
    store = FsspecStore(f"file://{tmp_path}/a")
    store.put("x", b"1")

    def fails(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(type(store.fs), "mv", fails)
    with pytest.raises(OSError, match="full"):
        store.put("x", b"2")
    assert store.get("x") == b"1"
    assert [file.name for file in (tmp_path / "a").iterdir()] == ["x"]


def test_what_a_file_system_raises_is_an_error_of_the_system(tmp_path, monkeypatch):
    """Clients have errors of their own."""
    pytest.importorskip("fsspec")
    store = FsspecStore(f"memory://{tmp_path}")

    def fails(*_):
        raise RuntimeError("the token has expired")

    monkeypatch.setattr(type(store.fs), "cat_file", fails)
    with pytest.raises(OSError, match="RuntimeError: the token has expired"):
        store.get("x")
