"""What is somebody else's store, or none, is no reason for a call to fail."""

from __future__ import annotations

import numpy as np
import pytest

import sapwood as sw


class _Odd:
    """A store whose every method does the same."""

    def __init__(self, act):
        self._act = act

    def get(self, _):
        return self._act()

    def put(self, *_):
        return self._act()

    def delete(self, _):
        return self._act()

    def scan(self):
        return self._act()


def _raises():
    raise RuntimeError("the cable is out")


ODD = {
    "raises": _raises,
    "text": str,
    "a number": lambda: 3,
    "a list": lambda: [1, None],
}


@pytest.mark.parametrize("act", ODD.values(), ids=ODD)
def test_whatever_a_store_does_no_call_fails(act):
    """It is counted; the function is recorded, and replayed, all the same."""
    with sw.Runtime("emulated", store=_Odd(act)) as rt:
        f, x = rt.graph(lambda x: x + 1), rt.array(np.ones(3))
        for _ in range(5):
            assert np.asarray(f(x)).tolist() == [2.0] * 3
        assert f.stats().replays >= 2
        told = rt.snapshot()["store"]
        assert (told["path"], told["hits"], told["entries"]) == ("_Odd", 0, 0)
        assert told["errors"] >= 1


LIMITS = {"64MiB": 64 << 20, "1.5 KiB": 1536, 4096: 4096, None: 256 << 20}


@pytest.mark.parametrize("limit", LIMITS)
def test_a_limit_may_be_text(limit):
    assert sw.MemoryStore(limit).limit == LIMITS[limit]


WRONG = {
    "no size": lambda: sw.MemoryStore("x"),
    "a part of a byte": lambda: sw.MemoryStore("1.5"),
    "less than nothing": lambda: sw.MemoryStore(-1),
    "a client that is none": lambda: sw.RedisStore(3),
    "no URL": lambda: sw.RedisStore("nowhere"),
    "no file system": lambda: sw.FsspecStore(3),
    "no place": lambda: sw.FsspecStore(""),
    "no path": lambda: sw.Tiers("", "there"),
    "no seconds": lambda: sw.Tiers("here", "there", deadline="soon"),
}


@pytest.mark.parametrize("make", WRONG.values(), ids=WRONG)
def test_what_is_no_store_is_said_at_once(make, tmp_path, monkeypatch):
    """And nothing is made for it."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(sw.MisuseError):
        make()
    assert not [*tmp_path.iterdir()]
