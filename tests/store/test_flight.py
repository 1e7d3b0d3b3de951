"""Single flight: one makes, the others wait a while, and who dies is replaced."""

from __future__ import annotations

import subprocess
import sys
import time
from threading import Event
from types import SimpleNamespace

import pytest

from sapwood.persist import flight as module
from sapwood.persist import remote
from sapwood.persist.disk import DiskStore
from sapwood.persist.flight import flight
from sapwood.persist.memory import MemoryStore
from sapwood.persist.remote import RedisStore
from sapwood.persist.tiers import Tiers
from tests.support.threads import in_threads

KINDS = ("disk", "redis", "one tier", "memory and disk", "disk, memory and redis")


@pytest.fixture(params=KINDS)
def granting(make_store, request):
    """A store that grants leases, of each kind."""
    return make_store(request.param)


@pytest.fixture
def quick(monkeypatch):
    """Leases are renewed twenty times a second, and last a quarter of one."""
    monkeypatch.setattr(module, "RENEWED", 0.05)
    monkeypatch.setattr(remote, "_LASTS", 250)


def test_one_has_a_lease(granting):
    """Of each name, until it is released; it is no value."""
    lease, other = granting.lease("x"), granting.lease("y")
    assert granting.lease("x") is None
    assert list(granting.scan()) == []
    lease.release()
    again = granting.lease("x")
    assert again is not None
    assert granting.lease("y") is None
    again.release()
    other.release()


def test_a_lease_that_comes_too_late_ends():
    """Nobody waits for it any more: it would keep all others waiting."""
    asked, released = Event(), Event()

    class Late(MemoryStore):
        def lease(self, _):
            assert asked.wait(20)
            return SimpleNamespace(renew=bool, release=released.set)

    tiers = Tiers(MemoryStore(), Late(), deadline=0.05)
    with pytest.raises(OSError, match="grants leases"):
        tiers.lease("x")
    asked.set()
    assert released.wait(20)


def test_one_makes_what_many_want(granting):
    """And the others find it."""
    made = []

    def work():
        is_there, landed = flight(granting, "x", 30)
        if not is_there:
            made.append(1)
            time.sleep(0.2)
            granting.put("x", b"1")
            landed()
        assert granting.get("x") == b"1"

    in_threads(*[work] * 6)
    assert made == [1]


def test_who_has_waited_goes_on_alone(granting):
    """As whoever has the lease lives, and does not come to an end."""
    _, landed = flight(granting, "x", 30)
    began = time.monotonic()
    assert flight(granting, "x", 0.3)[0] is False
    assert 0.3 <= time.monotonic() - began < 1.2
    landed()


@pytest.mark.usefixtures("quick")
def test_a_lease_ends_with_its_time(granting):
    """And is kept so long: nobody waits for longer."""
    flight(granting, "x", 0.8)
    time.sleep(0.5)
    assert granting.lease("x") is None
    until = time.monotonic() + 20
    while (lease := granting.lease("x")) is None:
        assert time.monotonic() < until
        time.sleep(0.02)
    lease.release()


def test_what_is_put_meanwhile_is_found(granting):
    """By who got the lease after who made it gave it back."""
    granting.put("x", b"1")
    is_there, _ = flight(granting, "x", 30)
    assert is_there
    until = time.monotonic() + 20
    while (lease := granting.lease("x")) is None:
        assert time.monotonic() < until
    lease.release()


def test_a_lease_is_over_once_it_is_put_for_others(tmp_path):
    """And not while a put still waits: who asks next would make it again."""
    go, far = Event(), DiskStore(tmp_path, 1 << 20)

    class Slow(DiskStore):
        def put(self, name, value):
            go.wait(20)
            super().put(name, value)

    mine = Tiers(MemoryStore(), Slow(tmp_path, 1 << 20))
    _, landed = flight(mine, "x", 30)
    mine.put("x", b"1")
    landed()
    time.sleep(0.2)
    assert far.lease("x") is None
    go.set()
    assert flight(far, "x", 30)[0] is True


@pytest.mark.usefixtures("quick")
def test_a_lease_that_was_lost_is_not_taken_back(redis):
    """It lasted too short: another has it, and keeps it."""
    store = RedisStore(redis)
    lost = store.lease("x")
    time.sleep(0.3)
    other = store.lease("x")
    lost.renew()
    lost.release()
    assert store.lease("x") is None
    other.release()


PROGRAM = """
import sys, time
from sapwood.persist import flight, remote
from sapwood.persist.disk import DiskStore

flight.RENEWED, remote._LASTS = 0.05, 250
if sys.argv[1] == "disk":
    store = DiskStore(sys.argv[2], 1 << 20)
else:
    import redis
    store = remote.RedisStore(redis.Redis(unix_socket_path=sys.argv[2]))
is_there, landed = flight.flight(store, "x", 60)
if is_there:
    print("found")
else:
    print("makes", flush=True)
    time.sleep(float(sys.argv[3]))
    store.put("x", b"1")
    landed()
    time.sleep(0.2)
"""


@pytest.fixture(params=["disk", "redis"])
def place(request, tmp_path):
    """The place of a store, and the store."""
    if request.param == "disk":
        return "disk", str(tmp_path / "s"), DiskStore(tmp_path / "s", 1 << 20)
    redis = request.getfixturevalue("redis")
    socket = request.getfixturevalue("shared_server").socket
    return "redis", socket, RedisStore(redis)


def _started(place, seconds):
    ran = [sys.executable, "-c", PROGRAM, *place[:2], str(seconds)]
    return subprocess.Popen(ran, stdout=subprocess.PIPE, text=True)


def test_one_of_several_processes_makes(place):
    """The others find it."""
    running = [_started(place, 1) for _ in range(4)]
    said = sorted(each.communicate(timeout=60)[0].strip() for each in running)
    assert said == ["found", "found", "found", "makes"]
    assert place[2].get("x") == b"1"


def test_a_process_that_dies_is_replaced(place):
    """By one of those who wait, at once or when its lease ends."""
    first = _started(place, 60)
    assert first.stdout.readline() == "makes\n"
    second = _started(place, 0)
    time.sleep(0.5)
    assert second.poll() is None
    first.kill()
    assert second.communicate(timeout=20)[0] == "makes\n"
    first.communicate(timeout=20)


def test_what_the_dead_leave_is_swept(tmp_path):
    """And what is held is not."""
    store = DiskStore(tmp_path, 1 << 20)
    lease = store.lease("x")
    (tmp_path / "v1/new/y.lease").touch()
    assert store.trim().swept == 1
    assert store.lease("x") is None
    lease.release()
    assert list((tmp_path / "v1/new").iterdir()) == []


def test_a_store_without_leases_is_no_error(server):
    """Nor one that is dead: everybody goes on alone, at once."""
    dead = RedisStore(server.client())
    server.kill()
    refusing = SimpleNamespace(lease=DiskStore("/proc/none", 1).lease)
    for store in (MemoryStore(), dead, Tiers(MemoryStore(), dead), refusing):
        began = time.monotonic()
        assert flight(store, "x", 30)[0] is False
        assert time.monotonic() - began < 1.5


def test_a_folder_has_the_lease_where_the_server_is_dead(server, tmp_path):
    """So that the processes of one machine still make it once."""
    dead = RedisStore(server.client())
    server.kill()
    lease = Tiers(tmp_path, dead).lease("x")
    assert DiskStore(tmp_path, 1 << 20).lease("x") is None
    lease.release()
