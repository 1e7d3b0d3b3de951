"""Tiers: what is asked where, and what a tier that is slow, full or dead costs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from threading import Event

import pytest

from sapwood.errors import MisuseError, StoreError
from sapwood.persist import tiers as module
from sapwood.persist.disk import DiskStore
from sapwood.persist.entries import Entries, verify
from sapwood.persist.memory import MemoryStore
from sapwood.persist.remote import RedisStore
from sapwood.persist.tiers import Tiers
from tests.support.threads import in_threads

DEADLINE = 0.3
METHODS = ("get", "put", "delete", "scan")


class Slow(MemoryStore):
    """A store that does nothing until ``go`` is set; ``asked`` tells what came."""

    def __init__(self):
        super().__init__()
        self.go, self.came, self.asked = Event(), Event(), []

    def __getattribute__(self, name):
        if name not in METHODS:
            return super().__getattribute__(name)
        return partial(self._wait, name)

    def _wait(self, method, *given):
        self.asked.append(method)
        self.came.set()
        assert self.go.wait(60)
        return getattr(super(), method)(*given)


class Dead(MemoryStore):
    """A store of which every method raises ``error``, until that is None."""

    def __init__(self, error):
        super().__init__()
        self.error, self.asked = error, 0

    def __getattribute__(self, name):
        if name not in METHODS or self.error is None:
            return super().__getattribute__(name)
        return self._fail

    def _fail(self, *_):
        self.asked += 1
        raise self.error


@pytest.fixture
def slow():
    """A store that hangs until its test is over."""
    made = Slow()
    yield made
    made.go.set()


@contextmanager
def _within(seconds):
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


def _wait_for(condition, seconds=20):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


# Where what is kept.


def test_what_is_put_is_in_each_tier():
    """At once in the first, soon in the others, and what is put last stays."""
    stores = MemoryStore(), MemoryStore(), MemoryStore()
    tiers = Tiers(*stores)
    for number in range(30):
        tiers.put("x", b"%d" % number)
        assert stores[0].get("x") == b"%d" % number
    assert tiers.close()
    assert [store.get("x") for store in stores] == [b"29"] * 3
    assert tiers.delete("x")
    assert [store.get("x") for store in stores] == [None] * 3


def test_what_a_tier_has_is_put_into_those_nearer():
    """And only those; the next get asks the first alone."""
    stores = [MemoryStore() for _ in range(4)]
    stores[2].put("x", b"1")
    tiers = Tiers(*stores)
    for _ in range(3):
        assert tiers.get("x") == b"1"
    assert tiers.close()
    assert [store.get("x") for store in stores] == [b"1", b"1", b"1", None]
    assert tiers.stats() == [{"misses": 1, "puts": 1}, {"hits": 1}, {}]


def test_entries_that_another_machine_has_made_are_found(path, make_key):
    """And are whole in the folder then, where they are found without the others."""
    far, key, parts = MemoryStore(), make_key(x="1"), {"ops": b"1", "image": b"2" * 99}
    Entries(far).put(key, parts)
    assert Entries(Tiers(path, far)).find(key) == parts
    alone = DiskStore(path, 1 << 20)
    assert Entries(alone).find(key) == parts
    assert verify(alone) == []


def test_entries_are_put_into_tiers_whole(path, make_key):
    """Blobs first, in each of them."""
    far = DiskStore(path / "far", 1 << 20), MemoryStore()
    with Tiers(path / "near", *far, deadline=20) as tiers:
        for number in range(10):
            parts = {"ops": bytes([number]), "shared": b"s"}
            Entries(tiers).put(make_key(x=str(number)), parts)
    for store in far:
        assert verify(store) == []
        assert len(list(Entries(store).keys())) == 10


def test_what_waits_is_found(slow):
    """Also where the first has no room for it; what waits to be deleted is not."""
    tiers = Tiers(MemoryStore(2), slow, deadline=DEADLINE)
    tiers.put("x", b"123")
    tiers.put("x", b"456")
    assert tiers.get("x") == b"456"
    with _within(DEADLINE + 0.2):
        tiers.delete("x")
    with _within(0.1):
        assert tiers.get("x") is None
    assert slow.asked == ["put"]


def test_scan_tells_what_any_tier_has():
    """Each name once, as the nearest has it."""
    near, far = MemoryStore(), MemoryStore()
    near.put("x", b"12")
    far.put("x", b"123")
    far.put("y", b"1")
    found = {item.name: item.size for item in Tiers(near, far).scan()}
    assert found == {"x": 2, "y": 1}


def test_what_is_damaged_nearby_is_healed(path):
    """By what another tier has; where none has it, it is told."""
    far = MemoryStore()
    far.put("x", b"1")
    near = DiskStore(path, 1 << 20)
    for name in "xy":
        near.put(name, b"1")
        (file,) = path.glob(f"v1/?/{name}")
        file.write_bytes(b"")
    tiers = Tiers(path, far)
    assert tiers.get("x") == near.get("x") == b"1"
    with pytest.raises(StoreError, match="damaged"):
        tiers.get("y")


def test_a_refusal_is_told_where_no_tier_takes_a_value():
    """Else it is no error, and what was there before is gone everywhere."""
    small, large = MemoryStore(10), MemoryStore()
    tiers = Tiers(small, large)
    tiers.put("x", b"1")
    tiers.put("x", b"1" * 11)
    assert tiers.close()
    assert tiers.get("x") == large.get("x") == b"1" * 11
    assert small.get("x") is None
    with pytest.raises(OSError, match="Give it a higher limit"):
        Tiers(small).put("x", b"1" * 11)
    # It is the value's fault, and not the tier's.
    tiers = Tiers(large, small)
    for _ in range(5):
        tiers.put("x", b"1" * 11)
    assert tiers.close()
    assert tiers.stats() == [{"refused": 5}]


@pytest.mark.parametrize(
    ("stores", "options"),
    [
        ((), {}),
        ((MemoryStore(),), {"deadline": 0}),
        ((MemoryStore(),), {"deadline": float("inf")}),
        ((MemoryStore(),), {"pending": 0}),
        ((3,), {}),
        ((MemoryStore,), {}),
    ],
)
def test_what_makes_no_tiers_is_refused(stores, options):
    """By what to pass."""
    with pytest.raises(MisuseError, match="Pass "):
        Tiers(*stores, **options)


# Slow.


def test_a_tier_that_hangs_delays_no_call(slow):
    """Beyond the deadline, and after three of those not at all."""
    tiers = Tiers(MemoryStore(), slow, deadline=DEADLINE)
    for _ in range(3):
        with _within(DEADLINE + 0.2):
            assert tiers.get("x") is None
    with _within(0.2):
        for _ in range(100):
            assert tiers.get("x") is None
            assert list(tiers.scan()) == []
    assert tiers.stats() == [{"late": 3, "skipped": 200}]
    assert slow.asked == ["get"]


@pytest.mark.parametrize("call", ["delete", "scan", "put", "close"])
def test_no_method_is_delayed(slow, call):
    """A put not at all."""
    tiers = Tiers(MemoryStore(), slow, MemoryStore(), deadline=DEADLINE)
    with _within(0.1):
        tiers.put("x", b"1")
    with _within(DEADLINE + 0.2 if call != "put" else 0.1):
        if call == "delete":
            assert tiers.delete("x") is True
        elif call == "scan":
            assert [item.name for item in tiers.scan()] == ["x"]
        elif call == "put":
            tiers.put("y", b"2")
        else:
            assert tiers.close() is False


def test_a_tier_that_hangs_starves_none_behind_it(slow):
    """It uses up the deadline, and those behind it are not late for that."""
    last = MemoryStore()
    for number in range(40):
        last.put(f"x{number}", b"1")
    tiers = Tiers(MemoryStore(), slow, last, deadline=0.1)
    found = [tiers.get(f"x{number}") for number in range(40)]
    assert found.count(b"1") > 30
    assert tiers.stats()[1].keys() <= {"hits", "skipped", "late"}
    assert tiers.stats()[1].get("late", 0) < 3


def test_a_manifest_is_kept_while_nobody_says_that_its_blobs_are_gone(make_key):
    """A server that breaks off between the two would lose it for all machines."""

    class BreaksOff(MemoryStore):
        broken = False

        def get(self, name):
            if self.broken and name.startswith("blob"):
                raise OSError("it broke off")
            return super().get(name)

    far, key, parts = BreaksOff(), make_key(x="1"), {"ops": b"1" * 99}
    Entries(far).put(key, parts)
    tiers = Tiers(MemoryStore(), far)
    far.broken = True
    assert Entries(tiers).find(key).outcome == "errors"
    assert tiers.close()
    far.broken = False
    assert Entries(far).find(key) == parts


def test_threads_are_delayed_together(slow):
    """And not one after the other."""
    tiers = Tiers(MemoryStore(), slow, deadline=DEADLINE)
    with _within(DEADLINE + 0.4):
        in_threads(*(partial(tiers.get, f"x{number}") for number in range(16)))


def test_a_late_answer_is_put_where_it_was_missed(slow):
    """Its call had a miss."""
    near = MemoryStore()
    slow._wait = partial(_allowed, slow)
    slow.put("x", b"1")
    del slow._wait
    tiers = Tiers(near, slow, deadline=DEADLINE)
    assert tiers.get("x") is None
    slow.go.set()
    _wait_for(lambda: near.get("x") == b"1")
    assert tiers.stats() == [{"late": 1}]


def _allowed(slow, method, *given):
    return getattr(MemoryStore, method)(slow, *given)


@pytest.mark.parametrize("newer", [b"2", None])
def test_a_late_answer_takes_the_place_of_nothing_newer(newer):
    """Of nothing that was put since it was asked for, or deleted."""
    go = Event()

    class Late(MemoryStore):
        def get(self, name):
            found = super().get(name)
            assert go.wait(20)
            return found

    near, far = MemoryStore(), Late()
    far.put("x", b"1")
    tiers = Tiers(near, far, deadline=DEADLINE)
    assert tiers.get("x") is None
    if newer is None:
        tiers.delete("x")
    else:
        tiers.put("x", newer)
    go.set()
    _wait_for(lambda: tiers._far[0]._asked.last() is None)
    assert tiers.close()
    assert near.get("x") == far.get("x") == newer


def test_questions_that_nobody_waits_for_are_not_asked(slow):
    """A store that hung answers one, and not all that came meanwhile."""
    tiers = Tiers(MemoryStore(), slow, deadline=0.05)
    for number in range(3):
        tiers.get(f"x{number}")
    slow.go.set()
    _wait_for(lambda: tiers._far[0]._asked.last() is None)
    assert slow.asked == ["get"]
    assert tiers.stats() == [{"late": 3}]


def test_puts_that_wait_are_bounded(slow):
    """What is more is dropped, at once, and counted."""
    tiers = Tiers(MemoryStore(), slow, deadline=20, pending=4)
    with _within(1):
        for number in range(100):
            tiers.put(f"x{number}", b"1")
    assert tiers.stats() == [{"dropped": 96}]
    slow.go.set()
    assert tiers.close()
    assert tiers.stats() == [{"dropped": 96, "puts": 4}]
    assert sorted(item.name for item in slow.scan()) == ["x0", "x1", "x2", "x3"]


# Dead.


@pytest.mark.parametrize("error", [OSError("gone"), RuntimeError("gone"), KeyError(1)])
def test_a_tier_that_fails_fails_nothing(error, caplog):
    """Whatever it raises; after three of those it is left alone, which is logged."""
    dead = Dead(error)
    tiers = Tiers(MemoryStore(), dead)
    for _ in range(10):
        assert tiers.get("x") is None
    assert dead.asked == 3
    tiers.put("x", b"1")
    assert tiers.close()
    assert tiers.get("x") == b"1"
    assert tiers.delete("x") is True
    assert [*tiers.scan()] == []
    assert tiers.stats() == [{"dropped": 2, "errors": 3, "skipped": 8}]
    (said,) = caplog.messages
    assert said.startswith("Dead is left alone for a while")


def test_pauses_double(monkeypatch):
    """From one second to sixty, one question after each, until one is answered."""
    clock = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    far = module._Far(MemoryStore(), 1)

    def asks(outcome):
        tried = far._may_try()
        if tried:
            far._count(module._Job("", list), outcome)
        return tried

    for _ in range(2):
        assert [asks("errors") for _ in range(5)] == [True] * 3 + [False] * 2
        for pause in (1, 2, 4, 8, 16, 32, 60, 60):
            clock[0] += pause - 0.1
            assert not asks("errors")
            clock[0] += 0.1
            assert asks("late")
            assert not asks("errors")
        clock[0] += 60
        assert asks("damaged")  # it answers
        assert asks("errors")
        assert asks("hits")


def test_a_tier_that_comes_back_is_used(monkeypatch):
    """After a pause, by one question first."""
    monkeypatch.setattr(module, "_FIRST_PAUSE", 0.05)
    dead = Dead(OSError("gone"))
    tiers = Tiers(MemoryStore(), dead)
    for _ in range(4):
        tiers.get("x")
    dead.error = None
    dead.put("x", b"1")
    _wait_for(lambda: tiers.get("x") == b"1")
    tiers.put("y", b"1")
    assert tiers.close()
    assert dead.get("y") == b"1"


def test_a_server_that_is_killed_fails_no_call(server, monkeypatch):
    """In the middle of calls of several threads; when it is back, it is used."""
    monkeypatch.setattr(module, "_FIRST_PAUSE", 0.05)
    monkeypatch.setattr(module, "_LONGEST_PAUSE", 0.2)
    tiers = Tiers(MemoryStore(5_000), RedisStore(server.client()), deadline=DEADLINE)
    until = time.monotonic() + 2

    def work(number):
        while time.monotonic() < until:
            name = f"x{number}-{time.monotonic_ns() % 50}"
            value = name.encode() * 20
            with _within(DEADLINE + 0.4):
                tiers.put(name, value)
            with _within(DEADLINE + 0.4):
                assert tiers.get(name) in {None, value}
            if number == 0 and time.monotonic() > until - 1:
                server.kill()

    in_threads(*(partial(work, number) for number in range(4)))
    assert server.process.poll() is not None
    tiers.get("absent")
    server.start()
    RedisStore(server.client()).put("kept", b"1")
    _wait_for(lambda: tiers.get("kept") == b"1")
    (stats,) = tiers.stats()
    assert stats["puts"]
    assert stats["errors"] >= 3


def test_a_server_that_stops_delays_no_call(server):
    """It takes what it is sent, and answers nothing."""
    tiers = Tiers(MemoryStore(), RedisStore(server.client()), deadline=DEADLINE)
    assert tiers.get("x") is None
    server.process.send_signal(19)
    try:
        for _ in range(6):
            with _within(DEADLINE + 0.2):
                assert tiers.get("x") is None
            with _within(0.1):
                tiers.put("y", b"1")
    finally:
        server.process.send_signal(18)
    assert tiers.stats()[0]["late"] == 3


PROGRAM = """
import os, sys, time
from sapwood.persist.disk import DiskStore
from sapwood.persist.memory import MemoryStore
from sapwood.persist.tiers import Tiers

class Slow(DiskStore):
    def put(self, *given):
        time.sleep(0.2)
        super().put(*given)

tiers = Tiers(MemoryStore(), Slow(sys.argv[1], 1 << 20), deadline=20)
for number in range(4):
    tiers.put(f"x{number}", b"1")
if sys.argv[2] == "fork":
    time.sleep(0.1)  # a put is under way, and holds no lock
    if os.fork():
        assert os.wait()[1] == 0
    else:
        tiers.put("child", b"1")
        assert tiers.get("absent") is None
        assert tiers.close()
        os._exit(0)
"""


FORKED = """
import os, threading
from sapwood.persist.memory import MemoryStore
from sapwood.persist.tiers import Tiers

class Near(MemoryStore):
    def put(self, name, value):
        began.set()
        ends.wait(60)

began, ends = threading.Event(), threading.Event()
tiers = Tiers(Near(), MemoryStore())
threading.Thread(target=tiers.put, args=("x", b"1"), daemon=True).start()
began.wait(60)
if os.fork():
    status = os.wait()[1]
    ends.set()
    assert status == 0
else:
    assert tiers.get("absent") is None
    os._exit(0)
"""


def test_a_child_that_is_forked_within_a_put_goes_on():
    """Whoever had the lock has not come with it."""
    ran = [sys.executable, "-W", "ignore", "-c", FORKED]
    subprocess.run(ran, check=True, env={**os.environ}, timeout=30)


@pytest.mark.parametrize("way", ["end", "fork"])
def test_a_process_that_ends_puts_what_waits(path, way):
    """Within the deadline; one that was forked has threads of its own."""
    ran = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(path), way]
    subprocess.run(ran, check=True, env={**os.environ}, timeout=60)
    names = {item.name for item in DiskStore(path, 1 << 20).scan()}
    assert names >= {"x0", "x1", "x2", "x3"}
    assert ("child" in names) == (way == "fork")
