"""Asking torch for the segments of a pool leaves the pool's number as it was."""

import ctypes
from sys import getrefcount

import pytest

torch = pytest.importorskip("torch")

from sapwood.integrations.torch.history import unharmed  # noqa: E402


def fresh(number):
    """The number, as an object that nobody else has."""
    return int(str(number))


def mends(pool, include_traces):
    """A snapshot as it should be; its numbers are made anew, as C makes them."""
    assert not include_traces
    return [{"pool": fresh(number)} for number in pool]


def robs(pool, include_traces):
    """A snapshot as torch 2.11 takes it: what it is told is given up."""
    for part in (*pool, include_traces):
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(part))
    return mends(pool, include_traces)


def asked(pool, snapshot):
    with unharmed(pool) as number:
        return snapshot(number, include_traces=False)


@pytest.mark.parametrize("snapshot", [mends, robs])
@pytest.mark.parametrize(("first", "second"), [(300, 70_000), (0, 257), (1 << 40, 1)])
def test_numbers_are_owned_as_before(snapshot, first, second):
    pool = fresh(first), fresh(second)
    counts = [getrefcount(pool[at]) for at in range(2)]
    for _ in range(50):
        found = asked(pool, snapshot)
        assert [each["pool"] for each in found] == [first, second]
        del found
    after = [getrefcount(pool[at]) for at in range(2)]
    own = [at for at in range(2) if pool[at] > 256]
    assert [after[at] for at in own] == [counts[at] for at in own]
    assert pool == (first, second)


@pytest.mark.parametrize("snapshot", [mends, robs])
def test_shared_numbers_are_never_given_up(snapshot):
    """A thousand of them would be missed: versions before 3.12 count theirs."""
    pool = (fresh(0), fresh(1))
    counts = [getrefcount(pool[at]) for at in range(2)]
    for _ in range(1000):
        asked(pool, snapshot)
    assert all(getrefcount(pool[at]) > counts[at] - 100 for at in range(2))


def test_what_goes_wrong_gives_nothing_up():
    pool = fresh(300), fresh(301)
    counts = [getrefcount(pool[at]) for at in range(2)]
    for _ in range(10):
        with pytest.raises(ZeroDivisionError), unharmed(pool) as number:
            number[0] / 0
    assert [getrefcount(pool[at]) for at in range(2)] == counts


# On a GPU.


@pytest.mark.gpu
def test_pools_of_torch_past_the_shared_numbers_are_left_whole():
    pools = [torch.cuda.MemPool() for _ in range(300)]
    numbers = pools[-1].id
    assert max(numbers) > 256
    counts = [getrefcount(numbers[at]) for at in range(2)]
    for _ in range(10):
        assert asked(numbers, torch.cuda.memory_snapshot) == []
    after = [getrefcount(numbers[at]) for at in range(2)]
    assert [n for n, part in zip(after, numbers, strict=True) if part > 256] == [
        n for n, part in zip(counts, numbers, strict=True) if part > 256
    ]


@pytest.mark.gpu
def test_functions_are_recorded_past_the_shared_numbers(rt, same):
    """What comes after 256 pools is as what came before."""
    pools = [torch.cuda.MemPool() for _ in range(300)]
    for width in range(8, 48):
        f, x = rt.graph(lambda x: x @ x + 1), torch.randn(width, width, device="cuda")
        for _ in range(4):
            same(f(x), x @ x + 1)
    assert max(pools[-1].id) > 256
