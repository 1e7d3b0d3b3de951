"""Two stores as one: what one cannot do, the other does."""

from __future__ import annotations

import errno

import pytest

from sapwood.errors import StoreError
from sapwood.persist.api import Item
from sapwood.persist.disk import DiskStore
from sapwood.persist.entries import Entries
from sapwood.persist.memory import MemoryStore
from sapwood.persist.tiered import Tiered

LIMIT = 1 << 20


class Broken:
    """A store that can do nothing."""

    def __init__(self, error):
        self.error = error

    def _fail(self, *_):
        raise self.error

    get = put = delete = scan = _fail


@pytest.fixture(
    params=[OSError(errno.EIO, "broken"), StoreError("damaged")],
    ids=["error", "damage"],
)
def broken(request):
    return Broken(request.param)


@pytest.fixture
def whole():
    store = MemoryStore(LIMIT)
    store.put("x", b"1")
    return store


def test_what_only_the_far_one_has_is_put_into_the_near_one():
    """Once; from then on the far one is not asked."""
    near, far = MemoryStore(LIMIT), MemoryStore(LIMIT)
    tiered = Tiered(near, far)
    far.put("x", b"1")
    assert tiered.get("x") == b"1"
    assert near.get("x") == b"1"
    far.delete("x")
    assert tiered.get("x") == b"1"
    assert tiered.tally == {"filled": 1}


def test_a_put_goes_to_both():
    """And a delete."""
    near, far = MemoryStore(LIMIT), MemoryStore(LIMIT)
    tiered = Tiered(near, far)
    tiered.put("x", b"1")
    assert near.get("x") == far.get("x") == b"1"
    assert tiered.delete("x") is True
    assert near.get("x") is far.get("x") is None


def test_damage_in_the_near_one_is_healed_from_the_far_one(path):
    """A file that was cut is written anew by the get that found it."""
    near, far = DiskStore(path, LIMIT), MemoryStore(LIMIT)
    tiered = Tiered(near, far)
    tiered.put("x", b"1")
    (file,) = path.glob("v1/?/x")
    file.write_bytes(b"")
    assert tiered.get("x") == b"1"
    assert near.get("x") == b"1"
    assert tiered.tally == {"near": 1, "filled": 1}


@pytest.mark.parametrize("near_works", [True, False])
def test_one_that_works_is_enough(whole, broken, near_works):
    """To get, put and scan; each failure is counted."""
    tiered = Tiered(whole, broken) if near_works else Tiered(broken, whole)
    assert tiered.get("x") == b"1"
    tiered.put("y", b"2")
    assert whole.get("y") == b"2"
    assert {item.name for item in tiered.scan()} == {"x", "y"}
    assert tiered.tally["far" if near_works else "near"] >= 2
    assert tiered.tally["filled"] == 0


@pytest.mark.parametrize("near_works", [True, False])
def test_what_may_still_be_there_is_no_miss(whole, broken, near_works):
    """Where one finds nothing and the other fails, the failure is told."""
    tiered = Tiered(whole, broken) if near_works else Tiered(broken, whole)
    with pytest.raises(type(broken.error)):
        tiered.get("other")
    with pytest.raises(type(broken.error)):
        tiered.delete("x")
    assert whole.get("x") is None


def test_where_neither_works_the_failure_is_told(broken):
    """Nothing is lost in between."""
    tiered = Tiered(broken, broken)
    for call in (
        lambda: tiered.get("x"),
        lambda: tiered.put("x", b""),
        lambda: tiered.delete("x"),
        lambda: list(tiered.scan()),
    ):
        with pytest.raises(type(broken.error)):
            call()


def test_an_item_in_both_is_told_once():
    """As it was used last."""
    near, far = MemoryStore(LIMIT), MemoryStore(LIMIT)
    tiered = Tiered(near, far)
    tiered.put("x", b"1")
    far.get("x")
    assert list(tiered.scan()) == list(far.scan())
    near.get("x")
    (item,) = tiered.scan()
    assert item == Item("x", 1, next(near.scan()).used)


def test_a_small_near_store_holds_whole_entries(make_key):
    """It evicts what the far one keeps, and is filled again."""
    near, far = MemoryStore(5_000), MemoryStore(LIMIT)
    entries = Entries(Tiered(near, far))
    for number in range(10):
        entries.put(make_key(n=str(number)), {"ops": b"%d" % number * 1_500})
    for _ in range(3):
        for number in range(10):
            parts = entries.find(make_key(n=str(number)))
            assert parts == {"ops": b"%d" % number * 1_500}
    assert entries.tally == {"puts": 10, "hits": 30}
