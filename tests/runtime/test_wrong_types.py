"""What a runtime is given and cannot use is refused where it is given."""

from __future__ import annotations

import numpy as np
import pytest

import sapwood as sw
from sapwood.driver.emulated import Emulated
from tests.support.shelf import Shelf


@pytest.mark.parametrize("store", [5, 1.5, b"folder", dict, object()], ids=type)
def test_what_is_no_store_is_refused(store):
    """When the runtime is made, not when the first function is called."""
    with pytest.raises(sw.MisuseError, match=r"store=.*neither the path .* a Store"):
        sw.Runtime("emulated", store=store)


@pytest.mark.parametrize("store", ["~nobody-of-this-name/x", "a\0b"])
def test_what_is_no_path_is_refused(store):
    """A user that is not there, and what no path may hold."""
    with pytest.raises(sw.MisuseError, match="store="):
        sw.Runtime("emulated", store=store)


@pytest.mark.parametrize("kind", ["path", "text", "store", "none", "empty"])
def test_stores_and_paths_are_taken(tmp_path, kind):
    """Whatever a store may be named by."""
    given = {
        "path": tmp_path,
        "text": str(tmp_path),
        "store": Shelf(),
        "none": None,
        "empty": "",
    }
    with sw.Runtime("emulated", store=given[kind]) as rt:
        f, x = rt.graph(lambda x: x + 1), rt.array(np.ones(3))
        assert [np.asarray(f(x)).tolist() for _ in range(3)] == [[2.0] * 3] * 3


@pytest.mark.parametrize("keep", [5, "state", object(), np.ones(3)], ids=type)
def test_what_holds_no_array_is_not_kept(keep):
    """A step says so, and ends nothing."""
    with sw.Runtime("emulated") as rt:
        f, x = rt.graph(lambda x: x + 1), rt.array(np.ones(3))
        y = [f(x) for _ in range(3)]
        with pytest.raises(sw.MisuseError, match=r"keep=.*neither an array nor a nest"):
            rt.step(keep=keep).__enter__()
        assert [np.asarray(each).tolist() for each in y] == [[2.0] * 3] * 3


@pytest.mark.parametrize("keep", [None, (), [], {"count": 3}, [None]], ids=repr)
def test_nests_without_arrays_keep_nothing(keep):
    """State that has no arrays yet may be named all the same."""
    with sw.Runtime("emulated") as rt, rt.step(keep=keep):
        assert rt.closed is False


@pytest.mark.parametrize("limit", [1, 10, "8 KiB", (2 << 20) - 1], ids=str)
def test_a_limit_below_a_page_is_refused(limit):
    """Nothing could be had under it: the text names the least that can."""
    with pytest.raises(sw.MisuseError, match=r"memory_limit=.*less than a page.*2 MiB"):
        sw.Runtime("emulated", memory_limit=limit)


@pytest.mark.parametrize("page", [1 << 16, 2 << 20])
def test_the_least_limit_gives_something(page):
    """One page of the device that there is, whatever its size."""
    driver = Emulated(total=8 << 20, page=page)
    with pytest.raises(sw.MisuseError, match="less than a page"):
        sw.Runtime(driver, memory_limit=page - 1)
    with sw.Runtime(driver, memory_limit=page) as rt:
        assert np.asarray(rt.array(np.ones(1))).tolist() == [1]
    driver.close()


@pytest.mark.parametrize(
    "limit", ["1GB", "512 MB", "1 page", 1.5, -1, 0, True], ids=str
)
def test_what_is_no_limit_is_answered_with_the_units(limit):
    """Those that are known, and what there may be at least."""
    with pytest.raises(sw.MisuseError, match=r"KiB, MiB, GiB or TiB.*from one page"):
        sw.Runtime("emulated", memory_limit=limit)


def test_a_device_that_was_opened_in_vain_is_closed(monkeypatch):
    """A runtime that is refused leaves none; one that was given stays open."""
    closed = []
    monkeypatch.setattr(Emulated, "close", lambda self: closed.append(self))
    for wrong in ({"memory_limit": 1}, {"arrays": "cupy"}):
        with pytest.raises(sw.MisuseError):
            sw.Runtime("emulated", **wrong)
    assert len(closed) == 2
    given = Emulated()
    with pytest.raises(sw.MisuseError):
        sw.Runtime(given, memory_limit=1)
    assert given not in closed
