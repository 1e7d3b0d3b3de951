"""A node as sections comes back with all that linking needs, or is refused."""

from __future__ import annotations

import copy
import json
from types import SimpleNamespace

import numpy as np
import pytest

import sapwood as sw
from sapwood.driver.emulated import Emulated
from sapwood.errors import StoreError
from sapwood.persist.archive import decode, encode
from sapwood.tree.node.outputs import Alias, Constant, Fresh, Same, View
from tests.support.spoil import places, replaced

STATE = SimpleNamespace(h=None)


def _everything(x, y, flag):
    z = x * 2.0
    y += 1.0
    STATE.h = STATE.h + z
    return {"z": z, "part": z[1:], "same": [z, x, y[1:]], "plain": (1.5, flag, None)}


@pytest.fixture(scope="module")
def rt():
    """Return a runtime that has recorded a function."""
    with sw.Runtime(Emulated(1 << 24, 1 << 16)) as rt:
        yield rt
        STATE.h = None


@pytest.fixture(scope="module")
def runner(rt):
    """Return the runner of a recorded function."""
    STATE.h = rt.array(np.zeros(4))
    f = rt.graph(_everything)
    for _ in range(3):
        f(rt.array(np.ones(4)), rt.array(np.ones(4)), True)
    return f.runner()


@pytest.fixture(scope="module")
def node(runner):
    """Return its first recording."""
    node, *_ = runner.cache.nodes
    return node


@pytest.fixture(scope="module")
def sections(runner, node, rt):
    """Return the recording as sections."""
    bound, origins = runner.cache.bound[node], runner.cache.origins[node]
    return encode(node, bound, origins.sharing, rt._recordings.integration)


@pytest.fixture(scope="module")
def integration(rt):
    """Return the adapter of arrays."""
    return rt._recordings.integration


def test_a_node_comes_back(sections, node, integration):
    """Its ops, roles, slots and outputs; addresses are offsets from its range."""
    archive = decode(sections, integration)
    assert archive.recording.ops == node.recording.ops
    assert archive.recording.relocations == node.recording.relocations
    assert archive.arguments == node.argument_places == 2
    assert archive.roles == tuple(place.role for place in node.places)
    assert [binding.path for binding in archive.ambient] == ["STATE.h"]
    assert archive.bindings == archive.ambient
    assert archive.outputs.structure == node.outputs.structure
    base = node.range.base
    mine, theirs = archive.outputs.storages, node.outputs.storages
    assert [(s.address + base, s.size) for s in mine] == [
        (s.address, s.size) for s in theirs
    ]
    kinds = [type(output) for output in archive.outputs.leaves]
    assert kinds == [Fresh, Fresh, Same, Alias, View, Constant, Constant, Constant]
    assert [type(output) for output in archive.outputs.bound] == [Fresh]
    assert [leaf.value for leaf in archive.outputs.leaves[5:]] == [1.5, True, None]


def test_addresses_are_nowhere_in_it(sections, node):
    """What is written holds for any process: no number in it is an address here."""
    base = node.range.base
    numbers = []

    def walk(found):
        if isinstance(found, dict):
            found = list(found.values())
        if isinstance(found, list):
            for each in found:
                walk(each)
        elif type(found) is int:
            numbers.append(found)

    for name in ("call", "ops"):
        walk(json.loads(sections[name]))
    assert numbers
    assert max(numbers) < 1 << 38 < base


def test_results_may_be_left_unnested(sections, integration):
    """As a list of leaves: then the classes of the result need not be there."""
    archive = decode(sections, integration, nested=False)
    assert archive.outputs.structure == (list, None, (None,) * 8)
    assert archive.outputs.leaves == decode(sections, integration).outputs.leaves


def test_eager_regions_are_not_written(sections, node, integration):
    """No file holds their Python: the reason is returned."""
    assert isinstance(sections, dict)
    cut = copy.copy(node)
    cut.chain = (None,)
    reason = encode(cut, (), None, integration)
    assert reason == "it has eager regions, whose Python no file holds"


def test_what_is_no_plain_value_is_not_written(node, integration):
    """Nor a recording whose result holds any object: the reason is returned."""
    cut = copy.copy(node)
    outputs = node.outputs
    object.__setattr__(cut, "outputs", copy.copy(outputs))
    object.__setattr__(cut.outputs, "leaves", (Constant(object()), *outputs.leaves[1:]))
    assert "a object is no plain value" in encode(cut, (), None, integration)


JUNK = [None, True, -1, 0, 1, 9, 1 << 47, 1 << 70, "", "x", "pinned", [], {}, [[]]]


def _written(table):
    return json.dumps(table, separators=(",", ":"), sort_keys=True).encode()


@pytest.mark.parametrize("nested", [True, False])
def test_a_changed_table_is_another_archive_or_refused(sections, integration, nested):
    """Whatever stands at any place of it; no other exception, and no repair."""
    table = json.loads(sections["call"])
    refused = accepted = 0
    for path in places(table):
        for junk in JUNK:
            wrong = sections | {"call": _written(replaced(table, path, junk))}
            try:
                decode(wrong, integration, nested=nested)
            except StoreError:
                refused += 1
            else:
                accepted += 1
    assert refused > 1000
    assert accepted > 20


def test_tables_are_all_there_and_no_other(sections, integration):
    """None may be missing, and none more be there."""
    table = json.loads(sections["call"])
    for key in table:
        less = {k: v for k, v in table.items() if k != key}
        with pytest.raises(StoreError, match="the parts of its call"):
            decode(sections | {"call": _written(less)}, integration)
    more = sections | {"call": _written(table | {"more": 1})}
    with pytest.raises(StoreError, match="the parts of its call"):
        decode(more, integration)
    with pytest.raises(StoreError, match="it has no call"):
        decode({k: v for k, v in sections.items() if k != "call"}, integration)


def _template(shape=("tuple", 4), strides=("tuple", 8), kind="<f8", aligned=True):
    return ["tuple", list(shape), list(strides), kind, aligned, True]


@pytest.mark.parametrize(
    "template",
    [
        _template(shape=("list", 4)),
        _template(strides=("list", 8)),
        _template(shape=("tuple", 4, 4)),
        _template(shape=("tuple", -4)),
        _template(shape=("tuple", True)),
        _template(shape=("tuple", 1 << 62), strides=("tuple", 0)),
        _template(shape=("tuple", ["int", "ffffffffffffffffff"]), strides=("tuple", 0)),
        _template(shape=("tuple", 0, 1 << 62, 1 << 62), strides=("tuple", 8, 8, 8)),
        _template(shape=("tuple", *[1] * 65), strides=("tuple", *[8] * 65)),
        _template(strides=("tuple", ["int", "ffffffffffffffffff"])),
        _template(kind="|O"),
        _template(kind="f8,f8"),
        _template(kind="float64"),
        _template(kind="(2,)f8"),
        _template(kind=7),
        _template(aligned=1),
        ["tuple"],
        7,
    ],
    ids=lambda template: json.dumps(template)[:70],
)
def test_arrays_that_cannot_be_are_refused(sections, integration, template):
    """Shapes, strides and dtypes are held against what arrays can have."""
    table = json.loads(sections["call"])
    table["outputs"]["leaves"][0][2] = template
    with pytest.raises(StoreError):
        decode(sections | {"call": _written(table)}, integration)


def test_outputs_lie_in_their_storages(sections, integration):
    """Not a byte before, and not one behind."""
    table = json.loads(sections["call"])
    for change in (-8, 8):
        wrong = copy.deepcopy(table)
        wrong["outputs"]["leaves"][0][3] += change
        with pytest.raises(StoreError, match=r"an output outside its storage|a count"):
            decode(sections | {"call": _written(wrong)}, integration)


def test_every_bound_slot_has_its_output(sections, integration):
    """As many slots as there are outputs for them."""
    table = json.loads(sections["call"])
    table["bindings"] *= 2
    with pytest.raises(StoreError, match="what it binds"):
        decode(sections | {"call": _written(table)}, integration)
