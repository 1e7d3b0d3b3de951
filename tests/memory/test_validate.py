"""The validator: silent about what can be, and loud about each thing that cannot."""

from __future__ import annotations

import copy
import inspect
import re

import pytest

from sapwood.memory import validate as module
from sapwood.memory.validate import validate
from sapwood.violation import Violation

PAGE = 4096
BASE, OTHER, HEAP = 0x6000_0000_0000, 0x6100_0000_0000, 0x6200_0000_0000

SOUND = {
    "version": 2,
    "page": PAGE,
    "limit": 10 * PAGE,
    "extents": [
        {"first": 0, "pages": 4, "ranges": 1, "scratch": True},
        {"first": 4, "pages": 1, "ranges": 2, "scratch": False},
        {"first": 5, "pages": 2, "ranges": 1, "scratch": False},
    ],
    "live": [4, 6],
    "ranges": [
        {
            "name": "f",
            "closed": False,
            "base": BASE,
            "folded": False,
            "mappings": [
                {"address": BASE, "first": 0, "pages": 4},
                {"address": BASE + 4 * PAGE, "first": 4, "pages": 1},
            ],
        },
        {
            "name": "closed",
            "closed": True,
            "base": OTHER,
            "folded": False,
            "mappings": [
                {"address": OTHER, "first": 5, "pages": 2},
                {"address": OTHER + 7 * PAGE, "first": 4, "pages": 1},
            ],
        },
    ],
    "heap": {
        "spans": [[HEAP, HEAP + 2 * PAGE]],
        "pages": 2,
        "taken": [[HEAP, 512], [HEAP + 1024, 512]],
        "free": [[HEAP + 512, HEAP + 1024], [HEAP + 1536, HEAP + 2 * PAGE]],
    },
}

CORRUPTIONS = (
    ("the version is known", "version", 1),
    ("blocks tile the heap", "heap.taken.1.0", HEAP),
    ("blocks tile the heap", "heap.taken.1.1", 1024),
    ("blocks tile the heap", "heap.free.0.1", HEAP + 513),
    ("blocks tile the heap", "heap.free.1.1", HEAP + PAGE),
    ("blocks tile the heap", "heap.spans.0.0", HEAP + 512),
    ("blocks tile the heap", "heap.spans.0.1", HEAP + PAGE),
    ("blocks tile the heap", "heap.spans", []),
    ("a block has a size", "heap.taken.0.1", 0),
    ("blocks are aligned", "heap.taken.0.1", 500),
    (
        "free neighbours are one block",
        "heap.free",
        [[HEAP, HEAP + 512], [HEAP + 512, HEAP + PAGE]],
    ),
    ("the heap's pages are its size", "heap.pages", 3),
    ("a page is in one extent", "extents.1.first", 3),
    ("an extent is a power of two pages", "extents.0.pages", 3),
    ("an extent is a power of two pages", "extents.0.pages", 0),
    ("no scratch extent is unused", "extents.0.ranges", 0),
    ("no output extent is unused", "extents.2.ranges", 0),
    ("what is mapped is an extent", "ranges.0.mappings.0.first", 8),
    ("what is mapped is an extent", "ranges.0.mappings.0.pages", 2),
    (
        "a range maps an extent once",
        "ranges.1.mappings.0",
        {
            "address": OTHER,
            "first": 4,
            "pages": 1,
        },
    ),
    ("an extent counts its ranges", "extents.1.ranges", 1),
    ("an extent counts its ranges", "ranges.1.mappings.1.first", 9),
    ("a live page is in an extent", "live.0", 7),
    ("a live page is no scratch", "extents.1.scratch", True),
    ("a live page is awake", "extents.1.asleep", True),
    ("a closed range waits for a lease", "ranges.1.mappings", []),
    ("a closed range maps what is live", "live", [4]),
    ("a mapping lies on pages of its range", "ranges.0.mappings.0.address", BASE + 8),
    ("a mapping lies on pages of its range", "ranges.0.base", BASE + PAGE),
    ("mappings do not overlap", "ranges.0.mappings.1.address", BASE + 3 * PAGE),
    ("mappings do not overlap", "ranges.1.mappings.0.address", HEAP + PAGE),
    ("the limit holds", "limit", 8 * PAGE),
)


def _corrupted(path, value):
    picture = copy.deepcopy(SOUND)
    *parents, last = [int(word) if word.isdigit() else word for word in path.split(".")]
    place = picture
    for word in parents:
        place = place[word]
    place[last] = value
    return picture


def test_what_can_be_is_let_be():
    """A sound picture breaks no law; nor does one without a limit or a heap."""
    assert validate(SOUND) == []
    assert validate(_corrupted("limit", None)) == []
    empty = {"spans": [], "pages": 0, "taken": [], "free": []}
    assert validate(_corrupted("heap", empty)) == []


@pytest.mark.parametrize(("law", "path", "value"), CORRUPTIONS)
def test_each_corruption_is_found(law, path, value):
    """By the law that it breaks, whatever else it breaks too."""
    found = validate(_corrupted(path, value))
    assert law in {violation.law for violation in found}
    assert all(violation.about for violation in found)


def test_a_folded_range_maps_an_extent_again():
    """Then it is in several places, and counts as one range of the extent's."""
    again = {"address": BASE + 5 * PAGE, "first": 0, "pages": 4}
    picture = _corrupted("ranges.0.folded", True)
    picture["ranges"][0]["mappings"].append(again)
    assert validate(picture) == []
    picture["ranges"][0]["folded"] = False
    assert [each.law for each in validate(picture)] == ["a range maps an extent once"]


def test_every_law_has_a_corruption():
    """No law is there that no corruption above breaks."""
    written = re.findall(r'Violation\(\s*f?"([^"]+)"', inspect.getsource(module))
    patterns = [re.escape(law).replace(r"\{kind\}", r"\w+") for law in written]
    broken = {law for law, _, _ in CORRUPTIONS}
    assert len(patterns) > 15
    for pattern in patterns:
        assert any(re.fullmatch(pattern, law) for law in broken), pattern


def test_a_violation_reads_as_a_sentence():
    """The law, and what breaks it, with addresses as people read them."""
    (first,) = validate(_corrupted("limit", 8 * PAGE))
    assert str(first) == f"the limit holds: {9 * PAGE} bytes of {8 * PAGE}"
    found = validate(_corrupted("ranges.0.mappings.1.address", BASE + 3 * PAGE))
    assert any("0x6000_0000_3000" in str(violation) for violation in found)
    assert str(Violation("a law", "a thing")) == "a law: a thing"
