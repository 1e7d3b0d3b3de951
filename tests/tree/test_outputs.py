"""What a call returns: described once, and made again from other storages."""

from __future__ import annotations

import pytest

from sapwood.tree.call.signature import describe
from sapwood.tree.node.outputs import (
    Alias,
    Bytes,
    Constant,
    Fresh,
    Outputs,
    Same,
    View,
    analyse,
)


@pytest.fixture
def storage(make_storage):
    """Return the storage that a function allocated."""
    return make_storage(0x4000, 64)


def test_new_storages_are_told_once(make_array, make_storage, integration, storage):
    """Views of one new storage are fresh arrays over it; other storages are others."""
    whole = make_array(0x4000, 64, storage=storage)
    part = make_array(0x4010, 16, storage=storage)
    other = make_array(0x5000, 8, storage=make_storage(0x5000, 8))
    outputs = analyse([whole, (part, other)], (), (), integration)
    assert outputs.storages == (Bytes(0x4000, 64), Bytes(0x5000, 8))
    assert outputs.leaves == (
        Fresh(0, whole.layout, 0x4000),
        Fresh(0, part.layout, 0x4010),
        Fresh(1, other.layout, 0x5000),
    )


def test_what_was_given_is_no_new_storage(make_array, integration):
    """An argument is the very object, and a view of one is a view of it."""
    x, y = make_array(0x1000), make_array(0x2000)
    view = make_array(0x2008, 4, storage=y.storage)
    outputs = analyse((y, view, x), (), (x, y), integration)
    assert outputs.leaves == (Alias(1), View(1, view.layout, 8), Alias(0))
    assert outputs.storages == ()


def test_one_object_stays_one_object(make_array, integration, storage):
    """Also where it is bound to a slot."""
    y = make_array(0x4000, storage=storage)
    outputs = analyse({"a": y, "b": [y]}, [y], (), integration)
    assert outputs.leaves == (Fresh(0, y.layout, 0x4000), Same(0))
    assert outputs.bound == (Same(0),)


def test_plain_values_are_constants(integration):
    """They are returned as they are, and make a key by type and bits."""
    keys = set()
    for value in (1, True, 1.0, 0.0, -0.0, "1", None):
        outputs = analyse(value, (), (), integration)
        assert outputs.leaves == (Constant(value),)
        keys.add(outputs.told())
    assert len(keys) == 7


def test_arrays_are_not_in_the_key_of_constants(make_array, integration):
    """Nor are arrays bound to slots."""
    outputs = analyse((make_array(0x1000), 3), [make_array(0x2000)], (), integration)
    assert outputs.told() == analyse(3, (), (), integration).told()


@pytest.mark.parametrize("moved", [0, 0x3000])
def test_outputs_are_made_anew(make_array, make_storage, integration, storage, moved):
    """From new storages, this call's arguments, and what it reads: same relations.

    Storages that were copied out lie elsewhere, and so do the arrays over them.
    """
    x, table = make_array(0x1000), make_array(0x2000)
    whole = make_array(0x4000, 64, storage=storage)
    part = make_array(0x4010, storage=storage)
    row = make_array(0x2004, 4, storage=table.storage)
    result = {"y": whole, "part": [part, part], "x": x, "row": row, "n": 7}
    outputs = analyse(result, [table, part], (x, table), integration)

    new = make_storage(0x4000 + moved, 64)
    x2, table2 = make_array(0x8000), make_array(0x9000)
    made, bound = outputs.make(integration, [new], [x2], [table2])

    assert list(made) == list(result)
    assert made["y"].storage is made["part"][0].storage is new
    assert (made["y"].address, made["y"].layout) == (0x4000 + moved, whole.layout)
    assert made["part"][0].address == 0x4010 + moved
    assert made["part"][0] is made["part"][1] is bound[1]
    assert made["x"] is x2
    assert bound[0] is table2
    assert (made["row"].storage, made["row"].address) == (table2.storage, 0x9004)
    assert made["row"].layout == row.layout
    assert made["n"] == 7


def test_a_single_leaf_needs_no_nest(make_array, make_storage, integration, storage):
    """A function that returns one array returns just that, beside what it binds."""
    y = make_array(0x4000, storage=storage)
    outputs = analyse(y, [y], (), integration)
    new = make_storage(0x4000)
    made, bound = outputs.make(integration, [new], (), ())
    assert made.storage is new
    assert bound == [made]


def test_places_that_the_result_shows_are_found(make_array, integration):
    """Through aliases and views, in the result and in slots; others are not."""
    arrays = [make_array(0x1000 * (i + 1)) for i in range(4)]
    call = describe((arrays,), {}, integration)
    view = make_array(0x1004, 4, storage=arrays[0].storage)
    outputs = analyse((view, 1, make_array(0x9000)), [arrays[2]], arrays, integration)
    assert outputs.shown(call.given, integration) == {0, 2}
    assert Outputs(None, (), (), ()).shown(call.given, integration) == frozenset()
