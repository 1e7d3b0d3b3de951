"""What a runtime is given and cannot use is refused where it is given."""

from __future__ import annotations

import numpy as np
import pytest

import sapwood as sw
from sapwood.store import MemoryStore


@pytest.mark.parametrize("store", [5, 1.5, b"folder", dict, object()], ids=repr)
def test_what_is_no_store_is_refused(store):
    """When the runtime is made, not when the first function is called."""
    with pytest.raises(sw.MisuseError, match=r"store=.*neither the path .* a Store"):
        sw.Runtime("emulated", store=store)


@pytest.mark.parametrize("kind", ["path", "text", "store", "none"])
def test_stores_and_paths_are_taken(tmp_path, kind):
    """Whatever a store may be named by."""
    given = {
        "path": tmp_path,
        "text": str(tmp_path),
        "store": MemoryStore(1 << 20),
        "none": None,
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
