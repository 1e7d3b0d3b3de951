"""A picture as JSON: read back it is the same, and nothing else is read."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sapwood.allocator.caching.export.snapshot import dumps, loads
from sapwood.allocator.caching.picture import (
    DEFAULT_POOL,
    BlockPicture,
    Entry,
    Frame,
    Picture,
    PoolId,
    PoolPicture,
    SegmentPicture,
)
from sapwood.allocator.caching.settings import Settings
from sapwood.allocator.caching.validate import validate
from sapwood.driver.api import StreamHandle
from sapwood.errors import MisuseError
from sapwood.units import Addr, Size
from tests.support.pictures import pictures

SLOW = settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])

ODD = (None, -1, 1.5, "odd", True, [], {}, [[]], 1 << 65)


@SLOW
@given(pictures())
def test_drawn_pictures_keep_the_laws(picture):
    """The laws below are about pictures that an allocator could be in."""
    assert validate(picture) == []


@SLOW
@given(pictures(settings=Settings(roundup_power2_divisions={256: 4})))
def test_what_is_written_is_read(picture):
    """Every value of a picture comes back, stacks and settings included."""
    assert loads(dumps(picture)) == picture
    assert Settings(**loads(dumps(picture, indent=1)).settings) == Settings(
        roundup_power2_divisions={256: 4}
    )


def _places(value, path=()):
    """Yield the path of every part of parsed JSON."""
    yield path
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for name, part in parts:
            yield from _places(part, (*path, name))


def _changed(data, path, value):
    if not path:
        return value
    data = copy.deepcopy(data)
    target = data
    for name in path[:-1]:
        target = target[name]
    target[path[-1]] = value
    return data


@SLOW
@given(pictures(), st.data())
def test_any_odd_value_is_refused_or_kept(picture, data):
    """A changed value is refused with `MisuseError`, or one that could be written."""
    written = json.loads(dumps(picture))
    path = data.draw(st.sampled_from(list(_places(written))))
    odd = _changed(written, path, data.draw(st.sampled_from(ODD)))
    try:
        read = loads(json.dumps(odd))
    except MisuseError as error:
        said = str(error)
    else:
        assert loads(dumps(read)) == read
        return
    assert "snapshot" in said


@SLOW
@given(pictures(), st.data())
def test_every_part_is_needed_and_no_other_is_read(picture, data):
    """A mapping with a name less, or one more, is refused by that name's place."""
    written = json.loads(dumps(picture))
    mappings = [
        path
        for path in _places(written)
        if "settings" not in path and isinstance(_at(written, path), dict)
    ]
    path = data.draw(st.sampled_from(mappings))
    more, less = copy.deepcopy(written), copy.deepcopy(written)
    _at(more, path)["surplus"] = 0
    gone = data.draw(st.sampled_from(sorted(_at(less, path))))
    del _at(less, path)[gone]
    with pytest.raises(MisuseError, match="surplus"):
        loads(json.dumps(more))
    with pytest.raises(MisuseError, match=gone):
        loads(json.dumps(less))


def _at(data, path):
    for name in path:
        data = data[name]
    return data


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "not a mapping"),
        ("{}", "not format"),
        ('{"functions": [], "recordings": []}', "a runtime's snapshot"),
        ('{"format": "sapwood.allocator", "version": 2}', "version 1"),
    ],
)
def test_what_is_no_snapshot_says_so(text, said):
    """Text of another kind, format or version is refused with the reason."""
    with pytest.raises(MisuseError, match=said):
        loads(text)


def test_version_1_has_the_documented_fields():
    """What is written are the fields in docs/allocator.md: others are a new version."""
    frames = (Frame("f.py", 3, "f"),)
    block = BlockPicture(Addr(0), Size(4), Size(3), "pending", (StreamHandle(7),))
    rest = (PoolId(0, 1), True, (block,), ((Addr(0), Size(4)),), frames)
    segment = SegmentPicture(Addr(0), Size(4), StreamHandle(5), "small", *rest)
    entry = Entry("oom", Addr(1), Size(2), StreamHandle(3), 4, annotation="a")
    pool = PoolPicture(PoolId(0, 1), 1, use_on_oom=True)
    sizes = (Size(9), Size(8), Size(7))
    picture = Picture(6, *sizes, (segment,), (pool,), {"s": True}, (entry,))
    assert json.loads(dumps(picture)) == {
        "format": "sapwood.allocator",
        "version": 1,
        "device": 6,
        "total": 9,
        "free": 8,
        "limit": 7,
        "settings": {"s": True},
        "stacks": [[], [["f.py", 3, "f"]]],
        "pools": [
            {"id": [0, 1], "use_count": 1, "no_split": False, "use_on_oom": True}
        ],
        "segments": [
            {
                "address": 0,
                "size": 4,
                "stream": 5,
                "size_class": "small",
                "pool": [0, 1],
                "expandable": True,
                "blocks": [
                    {
                        "address": 0,
                        "size": 4,
                        "requested": 3,
                        "state": "pending",
                        "users": [7],
                        "stack": 0,
                    }
                ],
                "extents": [[0, 4]],
                "stack": 1,
            }
        ],
        "history": [
            {
                "action": "oom",
                "address": 1,
                "size": 2,
                "stream": 3,
                "time_us": 4,
                "pool": [0, 0],
                "stack": 0,
                "annotation": "a",
            }
        ],
    }


def test_an_error_names_the_place():
    """Whoever mends a file by hand is told where to look."""
    pool = PoolPicture(DEFAULT_POOL, 1)
    picture = Picture(0, Size(1), Size(1), Size(1), (), (pool,))
    written = json.loads(dumps(picture))
    written["pools"][0]["use_count"] = "one"
    with pytest.raises(MisuseError, match=r"snapshot\.pools\[0\]\.use_count is 'one'"):
        loads(json.dumps(written))
