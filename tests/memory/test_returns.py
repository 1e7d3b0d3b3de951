"""What finalisers give back: in order, by whoever holds the lock, and once."""

from __future__ import annotations

import threading

import pytest

from sapwood.errors import DriverError
from sapwood.memory.returns import Returns


@pytest.fixture
def lock():
    """Return the lock under which returns are drained."""
    return threading.RLock()


@pytest.fixture
def returns(lock):
    """Return a queue that nobody has put anything in."""
    return Returns(lock)


def _fail(name):
    raise DriverError(name, 1, "INVALID_VALUE", "it was made to fail")


def test_everything_comes_back_in_order(returns):
    """Draining gives back what was put in, and then there is nothing left."""
    seen = []
    assert not returns
    for number in range(3):
        returns.append((seen.append, number))
    assert returns
    assert seen == []
    returns.drain()
    assert seen == [0, 1, 2]
    assert not returns


def test_what_a_return_gives_back_is_next(returns):
    """A finaliser that runs while draining puts its own behind, and drains nothing."""
    seen = []

    def first(name):
        returns.append((seen.append, "inner"))
        returns.drain()
        seen.append(name)

    returns.append((first, "outer"))
    returns.append((seen.append, "second"))
    returns.drain()
    assert seen == ["outer", "second", "inner"]


def test_an_error_is_raised_when_all_is_done(returns):
    """The first error comes out, and nothing stays behind because of it."""
    seen = []
    for item in ((_fail, "one"), (seen.append, 1), (_fail, "two"), (seen.append, 2)):
        returns.append(item)
    with pytest.raises(DriverError, match="one failed"):
        returns.drain()
    assert seen == [1, 2]
    returns.append((seen.append, 3))
    returns.drain()
    assert seen == [1, 2, 3]


def test_what_is_interrupted_is_not_given_back_twice(returns):
    """And what comes behind it stays, for who drains next."""
    seen = []

    def interrupted(name):
        seen.append(name)
        raise KeyboardInterrupt

    returns.append((interrupted, "one"))
    returns.append((seen.append, "two"))
    with pytest.raises(KeyboardInterrupt):
        returns.drain()
    assert seen == ["one"]
    returns.drain()
    assert seen == ["one", "two"]


def test_after_closing_who_appends_also_drains(returns):
    """And what was to be done afterwards is done each time, even after an error."""
    seen = []
    returns.append((seen.append, "before"))
    returns.close(lambda: seen.append("after"))
    assert seen == []
    returns.append((seen.append, 1))
    assert seen == ["before", 1, "after"]
    with pytest.raises(DriverError, match="late"):
        returns.append((_fail, "late"))
    assert seen == ["before", 1, "after", "after"]


def test_appending_inside_a_return_after_closing_does_not_nest(returns):
    """What comes back meanwhile is given back by whoever drains already."""
    seen = []
    returns.close(lambda: seen.append("after"))

    def outer(name):
        returns.append((seen.append, "inner"))
        seen.append(name)

    returns.append((outer, "outer"))
    assert seen == ["outer", "inner", "after"]


def test_a_finaliser_never_waits_for_the_lock(returns, lock):
    """Where another thread has it, the item stays for who appends next."""
    seen = []
    returns.close(lambda: None)
    with lock:
        thread = threading.Thread(target=returns.append, args=((seen.append, 1),))
        thread.start()
        thread.join()
        assert seen == []
    returns.append((seen.append, 2))
    assert seen == [1, 2]


def test_after_the_end_nothing_is_given_back(returns):
    """The device is gone, and has taken everything along."""
    seen = []
    returns.end()
    returns.append((seen.append, 1))
    returns.drain()
    assert seen == []
