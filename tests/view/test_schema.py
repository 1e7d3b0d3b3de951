"""A snapshot is what docs/snapshot.md says, or refused by the path of what is not."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import pytest

from sapwood.errors import MisuseError
from sapwood.view.schema import KINDS, SNAPSHOT, USES, Later, Maybe, check, validate
from sapwood.view.schema import NUMBER as A_NUMBER
from sapwood.view.schema import WHOLE as A_WHOLE


def fields(shape, path=""):
    """Yield the path and shape of every field: ``recordings[].arguments[].name``."""
    match shape:
        case list():
            yield from fields(shape[0], f"{path}[]")
        case Maybe(inner) | Later(inner):
            yield from fields(inner, path)
        case dict() if str not in shape:
            for name, inner in shape.items():
                here = f"{path}.{name}" if path else name
                yield here, inner
                yield from fields(inner, here)


SHAPES = dict(fields(SNAPSHOT))
PATHS = sorted(SHAPES)
WHOLE = [p for p, shape in SHAPES.items() if shape in (A_WHOLE, Maybe(A_WHOLE))]
NUMBERS = [p for p, shape in SHAPES.items() if shape == A_NUMBER]
WRONG = (True, -1, float("nan"), float("inf"), "1")
DOCUMENT = Path(__file__).parents[2] / "docs" / "snapshot.md"


@pytest.fixture
def snapshot(make_snapshot):
    """Return a small snapshot, to be changed at will."""
    return make_snapshot(30)


def holder(snapshot, path):
    """Return what holds the first value at ``path``, the key, and the path to it."""
    here, told = snapshot, ""
    *steps, last = path.split(".")
    for step in steps:
        name = step.removesuffix("[]")
        here, told = here[name], f"{told}{name}"
        if step.endswith("[]"):
            here, told = here[0], f"{told}[0]"
        told += "."
    return here, last, told + last


def refused(snapshot):
    with pytest.raises(MisuseError) as error:
        validate(snapshot)
    return str(error.value)


def test_the_document_names_every_field():
    """The document's tables have exactly the fields of the schema, nested ones too."""
    told = re.findall(r"^\| `([\w.\[\]]+)` \|", DOCUMENT.read_text(), re.MULTILINE)
    assert sorted(told) == PATHS


@pytest.mark.parametrize("word", [*KINDS, *USES])
def test_the_document_explains_every_word(word):
    """Each kind of call and each use of a page is named there."""
    assert f"`{word}`" in DOCUMENT.read_text()


@pytest.mark.parametrize("size", [0, 1, 40])
def test_whole_snapshots_pass(make_snapshot, size):
    """What fits is returned as it was, also after a trip through JSON."""
    snapshot = make_snapshot(size, seed=size)
    assert validate(snapshot) == snapshot
    assert validate(json.loads(json.dumps(snapshot))) == snapshot


@pytest.mark.parametrize("path", PATHS)
def test_a_missing_field_is_named(snapshot, path):
    """Whatever is left out, the message says which, if older versions had it."""
    inside, last, told = holder(snapshot, path)
    del inside[last]
    if isinstance(SHAPES[path], Later):
        assert validate(snapshot) == snapshot
        return
    assert refused(snapshot).startswith(f"the snapshot lacks {told}. ")


@pytest.mark.parametrize("path", PATHS)
def test_a_wrong_value_is_named(snapshot, path):
    """A value of a type that fits nowhere is refused by its path."""
    inside, last, told = holder(snapshot, path)
    inside[last] = b"bytes are not JSON"
    message = refused(snapshot)
    assert message.startswith(f"{told} is b'bytes are not JSON', not ")
    assert "rt.snapshot()" in message


@pytest.mark.parametrize("path", WHOLE + NUMBERS)
def test_numbers_are_what_a_browser_can_hold(snapshot, path):
    """Where a number belongs, no bool is let in, nothing below zero, no infinity."""
    inside, last, told = holder(snapshot, path)
    for value in (*WRONG, *((1.5, 2**53 + 1) if path in WHOLE else ())):
        inside[last] = value
        assert refused(snapshot).startswith(f"{told} is {value!r}, not a ")
    check(SHAPES[path], 0, told)


def test_further_fields_are_left_alone(snapshot):
    """A runtime may say more than the page draws."""
    snapshot["extra"] = snapshot["recordings"][0]["extra"] = {"any": ["thing"]}
    assert validate(snapshot) == snapshot


@pytest.mark.parametrize("value", [None, [], 7, "text"])
def test_what_is_no_table_is_no_snapshot(value):
    """The message says what was given."""
    assert refused(value).startswith(f"the snapshot is {value!r}, not a table")


def test_another_version_is_refused(snapshot):
    """A later schema is not guessed at."""
    snapshot["schema"] = 2
    assert refused(snapshot).startswith("schema is 2, not one of 1")


@pytest.mark.parametrize("where", ["recordings", "pages"])
def test_doubles_are_refused(snapshot, where):
    """Two recordings or pages with one number cannot be told apart."""
    snapshot[where].append(copy.deepcopy(snapshot[where][0]))
    assert refused(snapshot).startswith(f"{where}[{len(snapshot[where]) - 1}].")


@pytest.mark.parametrize("length", [1, 2, 30])
def test_circles_of_parents_are_refused(snapshot, length):
    """A tree has roots."""
    for index in range(length):
        snapshot["recordings"][index]["parent"] = (index + 1) % length
    message = refused(snapshot)
    assert "leads in a circle" in message
    index, parent = map(int, re.findall(r"\[(\d+)\].* (\d+)\. A parent", message)[0])
    assert parent == snapshot["recordings"][index]["parent"]


def test_unknown_calls_and_misses_are_refused(snapshot):
    """What a call or a miss points at exists; a recording may have been evicted."""
    snapshot["calls"][3]["recording"] = snapshot["recordings"][0]["parent"] = 99_999
    assert validate(snapshot) == snapshot
    snapshot["calls"][3]["miss"] = len(snapshot["misses"])
    assert refused(snapshot).startswith("calls[3].miss is ")
    snapshot["calls"][3]["miss"] = None
    snapshot["misses"][2]["call"] = len(snapshot["calls"])
    assert refused(snapshot).startswith("misses[2].call is ")
