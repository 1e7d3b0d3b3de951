"""What goes into a file together: one order of arrays, one name for each."""

from __future__ import annotations

import json

import numpy as np
import pytest

import sapwood as sw
from sapwood.driver.emulated import Emulated
from sapwood.errors import StoreError
from sapwood.persist.bundle import Packer, unpack
from sapwood.persist.format import split
from sapwood.tree.choose.origins import Origins
from tests.support.spoil import places, replaced


@pytest.fixture
def rt():
    """Return a runtime."""
    with sw.Runtime(Emulated(1 << 24, 1 << 16)) as rt:
        yield rt


@pytest.fixture
def integration(rt):
    """Return the adapter of its arrays."""
    return rt._recordings.integration


@pytest.fixture
def packer(rt, integration):
    """Return a packer of them."""
    return Packer(rt._device, integration)


def _add(packer, names, arrays):
    packer.add(
        b"[]", {}, Origins(None, (), (), None), {name: arrays[name] for name in names}
    )


def _written(table):
    return json.dumps(table, separators=(",", ":"), sort_keys=True).encode()


def test_all_recordings_read_in_one_order(rt, packer):
    """Each may read a part of it; whatever comes first."""
    arrays = {name: rt.array(np.zeros(2)) for name in "abcd"}
    for names in ("bd", "bcd", "ab", "abcd", ""):
        _add(packer, names, arrays)
    index = json.loads(packer.seal("f")["index"])
    assert [path for path, _ in index["ambient"]] == list("abcd")
    assert len(index["recordings"]) == 5


def test_orders_that_cannot_be_one_are_refused(rt, packer):
    """No file can hold both, and the message says what to do."""
    arrays = {name: rt.array(np.zeros(2)) for name in "ab"}
    _add(packer, "ab", arrays)
    with pytest.raises(
        StoreError, match=r"in different orders.*Graph the function twi"
    ):
        _add(packer, "ba", arrays)


def test_arrays_keep_what_they_share(rt, packer, integration):
    """One storage is one storage again; an array with two names is one array."""
    x, y = rt.array(np.arange(6.0)), rt.array(np.empty((0, 3)))
    arrays = {"x": x, "part": x[2:], "turned": x[::-1], "same": x, "empty": y}
    _add(packer, arrays, arrays)
    sections = packer.seal("f")
    index = json.loads(sections["index"])
    assert index["storages"] == 2
    index["recordings"] = []
    bundle = unpack(sections | {"index": _written(index)}, integration)
    _, found = bundle.arrays(rt._device, integration)
    for name, array in arrays.items():
        assert np.array_equal(np.asarray(found[name]), np.asarray(array))
        assert found[name].strides == array.strides
    assert found["x"] is found["same"]
    assert found["x"].storage is found["part"].storage is found["turned"].storage
    found["part"][0] = 9.0
    assert np.asarray(found["turned"])[3] == 9.0
    assert np.asarray(x)[2] == 2.0


@pytest.fixture
def sections(rt, tmp_path):
    """Return the sections of a file with state and a saved argument."""
    state = rt.array(np.zeros(3))

    def f(w, x, flag):
        state[...] += x
        return state * w if flag else w

    f, w = rt.graph(f), rt.array(np.ones(3))
    for _ in range(3):
        f(w, rt.array(np.ones(3)), True)
    sw.save(f, tmp_path / "f")
    return split((tmp_path / "f").read_bytes())


JUNK = [
    None,
    True,
    -1,
    0,
    1,
    9,
    1 << 47,
    1 << 70,
    "",
    "x",
    "\ud800",
    "[]",
    [],
    {},
    [[]],
]


def test_a_changed_index_is_another_or_refused(sections, integration):
    """Whatever stands at any place of it, there is no other exception."""
    table, signature = json.loads(sections["index"]), ("recordings", 0, "signature")
    inner = json.loads(table["recordings"][0]["signature"])
    wrong = [replaced(table, path, junk) for path in places(table) for junk in JUNK]
    wrong += [
        replaced(table, signature, _written(replaced(inner, path, junk)).decode())
        for path in places(inner)
        for junk in JUNK
    ]
    refused = 0
    for index in wrong:
        try:
            unpack(sections | {"index": _written(index)}, integration)
        except StoreError:
            refused += 1
    assert len(wrong) > 800
    assert refused > len(wrong) / 2


def test_contents_are_all_there(sections, integration):
    """A storage that is missing, or shorter than its arrays, is refused."""
    unpack(sections, integration)
    for name in ("bytes.0", "bytes.1"):
        for body in (None, b"", sections[name][:-1]):
            wrong = {key: value for key, value in sections.items() if key != name}
            wrong |= {} if body is None else {name: body}
            with pytest.raises(StoreError):
                unpack(wrong, integration)
    with pytest.raises(StoreError, match="it has no index"):
        unpack({}, integration)
