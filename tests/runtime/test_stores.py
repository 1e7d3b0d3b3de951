"""A store that a runtime cannot use is told of, once, where the runtime is made."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path

import numpy as np
import pytest

import sapwood as sw
from sapwood.driver.emulated import Emulated
from sapwood.events import StoreTrouble
from tests.support.inexact import Inexact
from tests.support.shelf import Shelf


def _warned(make):
    """Return a runtime, used, and the warnings of all that."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        rt = make()
        f, x = rt.graph(lambda x: x + 1), rt.array(np.ones(2))
        for _ in range(4):
            assert np.asarray(f(x)).tolist() == [2, 2]
    return rt, [each for each in told if each.category is sw.StoreWarning]


@pytest.mark.parametrize("kind", ["folder", "memory"])
def test_a_device_whose_recordings_cannot_be_kept_says_so(tmp_path, kind):
    """As CUDA, which does not know every address; the calls do not mind."""
    store = tmp_path / "store" if kind == "folder" else Shelf()
    rt, (told,) = _warned(lambda: sw.Runtime(Inexact(Emulated()), store=store))
    assert "recordings of emulated cannot be kept" in str(told.message)
    assert told.filename == __file__
    assert sum(type(each) is StoreTrouble for each in rt.events()) == 1
    rt.close()


def _a_file(path):
    path.write_text("")
    return path


def _below_a_file(path):
    path.write_text("")
    return path / "store"


def _for_all(path):
    path.mkdir()
    path.chmod(0o777)
    return path


def _no_disk(path):
    return Path("/proc") / path.parent.name


PLACES = {"a file": _a_file, "below a file": _below_a_file, "for all": _for_all}
PLACES |= {"no disk": _no_disk}


@pytest.mark.parametrize("place", PLACES)
def test_a_place_that_is_no_store_is_told_of(tmp_path, place, caplog):
    """Once, with its path, whatever a call finds out later."""
    path = PLACES[place](tmp_path / "store")
    rt, (told,) = _warned(lambda: sw.Runtime("emulated", store=path))
    assert str(tmp_path) in str(told.message) or "in /proc: No" in str(told.message)
    assert "Errno" not in str(told.message)
    double, x = rt.graph(lambda x: x * 2), rt.array(np.ones(2))
    for _ in range(3):
        double(x)
    assert not caplog.messages
    assert any(type(each) is StoreTrouble for each in rt.events())
    rt.close()


def test_a_folder_that_cannot_be_written_is_told_of(tmp_path, monkeypatch):
    """Nothing is made there to find that out."""
    monkeypatch.setattr("os.access", lambda path, _: path != tmp_path)
    with pytest.warns(sw.StoreWarning, match="cannot be written"):
        rt = sw.Runtime("emulated", store=tmp_path / "store")
    rt.close()
    assert not [*Path(tmp_path).iterdir()]


def test_what_can_be_used_is_not_warned_of(tmp_path):
    """A folder that is not there yet, the one that is made of it, and none."""
    for store in (tmp_path / "a" / "b", tmp_path / "a" / "b", None, Shelf()):
        rt, told = _warned(lambda store=store: sw.Runtime("emulated", store=store))
        assert told == []
        rt.close()


def test_a_warning_that_is_an_error_leaves_nothing_open(tmp_path):
    """It is raised before anything has run, and the device is given back."""
    device = Emulated()
    driver = Inexact(device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(sw.StoreWarning):
            sw.Runtime(driver, store=tmp_path / "store")
    gc.collect()
    assert not any(device.live_handles().values())
    device.close()


class _Kept:
    def __init__(self, calls):
        self.calls, self.log = calls, []


def _counts(o, x):
    o.calls += 2
    o.log.append(x * 2)
    return x + 1


def _asks(o, x):
    o.calls += 1
    return x * 2 if o.calls % 3 == 0 else x + 1


def _appends_nests(o, x):
    o.calls += 1
    o.log.append({"x": x * 3, "kind": "a"})
    return x + 1


@pytest.mark.parametrize("fn", [_counts, _asks, _appends_nests])
def test_what_is_added_to_is_added_to_by_restored_recordings(fn):
    """With other numbers in other runtimes; what no store can hold is recorded anew."""
    store, restored = Shelf(), []
    for calls in (0, 5, 100):
        own, plain = _Kept(calls), _Kept(calls)
        with sw.Runtime("emulated", store=store) as rt:
            f = rt.graph(lambda x, own=own: fn(own, x))
            for i in range(14):
                x = rt.array(np.full(3, i))
                assert np.asarray(f(x)).tolist() == np.asarray(fn(plain, x)).tolist()
                assert (own.calls, len(own.log)) == (plain.calls, len(plain.log))
                assert repr(own.log[-1:]) == repr(plain.log[-1:])
            restored.append(f.stats().restored)
    assert restored[0] == 0
    assert all(restored[1:]) == (fn is not _appends_nests)
