"""Stores of each kind, and keys and parts to put into them."""

from __future__ import annotations

import shutil
import subprocess
import time

import pytest

from sapwood.persist.disk import DiskStore
from sapwood.persist.entries import Entries
from sapwood.persist.key import Key
from sapwood.persist.memory import MemoryStore
from sapwood.persist.remote import FsspecStore, RedisStore
from sapwood.persist.tiers import Tiers

LIMIT = 1 << 20
BOUNDED = ("disk", "memory", "one tier")
"""Kinds that have a limit, and keep no manifest without its blobs within it."""
WHOLE = (*BOUNDED, "redis", "fsspec file", "fsspec memory")
"""Kinds that refuse a manifest without its blobs at once."""
KINDS = (*WHOLE, "memory and disk", "disk, memory and redis")


def _key(**components):
    """Return a key of components given as text."""
    return Key(tuple((label, text.encode()) for label, text in components.items()))


@pytest.fixture
def make_key():
    """``make_key(shape="8")`` is a key."""
    return _key


class Server:
    """A server of Redis, on a socket in a folder."""

    def __init__(self, folder):
        self.folder, self.socket = folder, str(folder / "redis.sock")
        self.process, self._clients = None, []

    def start(self):
        """Start it, empty, and wait until it answers."""
        where = ["--unixsocket", self.socket, "--port", "0", "--dir", str(self.folder)]
        self.process = subprocess.Popen(
            ["redis-server", *where, "--save", "", "--appendonly", "no"],
            stdout=subprocess.DEVNULL,
        )
        until = time.monotonic() + 20
        while not self._answers():
            assert time.monotonic() < until, "redis-server does not answer"
            time.sleep(0.02)

    def _answers(self):
        with self.client() as client:
            try:
                return client.ping()
            except pytest.importorskip("redis").ConnectionError:
                return False

    def client(self, **options):
        """Return a client of redis-py's that tries once."""
        redis = pytest.importorskip("redis")
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        once = Retry(NoBackoff(), 0)
        made = redis.Redis(unix_socket_path=self.socket, retry=once, **options)
        self._clients.append(made)
        return made

    def kill(self):
        """End it at once."""
        self.process.kill()
        self.process.wait(20)

    def end(self):
        """End it, and close its clients."""
        self.kill()
        for each in self._clients:
            each.close()


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory):
    """A server of Redis for many tests; they are skipped where there is none."""
    pytest.importorskip("redis", reason="redis-py is not installed")
    if shutil.which("redis-server") is None:
        pytest.skip("there is no redis-server: scripts/debian installs it")
    server = Server(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.end()


@pytest.fixture
def redis(shared_server):
    """A client of a server that holds nothing."""
    with shared_server.client() as client:
        client.flushall()
        yield client


@pytest.fixture
def server(shared_server, tmp_path):  # noqa: ARG001 - skips where none can be had
    """A server of a test's own, which it may kill."""
    own = Server(tmp_path)
    own.start()
    yield own
    own.end()


@pytest.fixture
def make_store(tmp_path, request):
    """``make_store(kind, limit)`` opens a store."""

    def make(kind, limit=LIMIT):
        if kind.startswith("fsspec"):
            pytest.importorskip("fsspec", reason="fsspec is not installed")
        if kind == "fsspec memory":
            return FsspecStore(f"memory://{tmp_path}")
        if kind == "fsspec file":
            return FsspecStore(f"file://{tmp_path / 'files'}")
        if kind == "redis":
            return RedisStore(request.getfixturevalue("redis"))
        if kind == "one tier":
            return Tiers(DiskStore(tmp_path / "disk", limit))
        if kind == "memory":
            return MemoryStore(limit)
        if kind == "disk":
            return DiskStore(tmp_path / "disk", limit)
        parts = kind.replace(" and ", ", ").split(", ")
        return Tiers(*(make(each, limit) for each in parts), deadline=20)

    return make


@pytest.fixture(params=KINDS)
def store(make_store, request):
    """A store with room, of each kind."""
    return make_store(request.param)


@pytest.fixture(params=WHOLE)
def whole_store(make_store, request):
    """A store with room that takes a manifest after its blobs only."""
    return make_store(request.param)


@pytest.fixture(params=BOUNDED)
def new_store(make_store, request):
    """``new_store(limit)`` opens a store that has a limit."""
    return lambda limit=LIMIT: make_store(request.param, limit)


@pytest.fixture
def path(tmp_path):
    """The path of a folder that is not there yet."""
    return tmp_path / "store"


@pytest.fixture
def told():
    """What was emitted."""
    return []


@pytest.fixture
def entries(path, told):
    """The entries of a folder."""
    return Entries(DiskStore(path, LIMIT), told.append)
