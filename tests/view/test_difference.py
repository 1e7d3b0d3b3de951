"""What two snapshots differ in: nothing where they are one, else all that changed."""

from __future__ import annotations

import copy
import json
from itertools import product
from pathlib import Path

import pytest

from sapwood.cli import main
from sapwood.errors import MisuseError
from sapwood.view import difference

SIZES = (0, 1, 12, 40)


@pytest.mark.parametrize("size", SIZES)
def test_a_snapshot_differs_in_nothing_from_itself(make_snapshot, size):
    """Nor from a copy of itself."""
    snapshot = make_snapshot(size)
    found = difference(snapshot, copy.deepcopy(snapshot))
    assert not any(found.values())


@pytest.mark.parametrize(("old", "new"), product(SIZES, SIZES))
def test_what_differs_leads_from_the_one_to_the_other(make_snapshot, old, new):
    """Counts, memory and recordings of the first, changed so, are the second's."""
    one, other = make_snapshot(old, seed=1), make_snapshot(new, seed=2)
    found = difference(one, other)
    for name in {each["name"] for each in (*one["functions"], *other["functions"])}:
        for field in ("replays", "recordings", "warmups"):
            before, now = (
                sum(each[field] for each in x["functions"] if each["name"] == name)
                for x in (one, other)
            )
            assert before + found["functions"].get(name, {}).get(field, 0) == now
    changed = {name: now for name, (_, now) in found["memory"].items()}
    assert {**one["memory"], **changed} == other["memory"]
    names = [{each["name"] for each in x["recordings"]} for x in (one, other)]
    assert names[0] - {*found["gone"]} | {*found["made"]} == names[1]
    assert not names[0] & {*found["made"]}


def test_misses_are_counted_beyond_those_before(make_snapshot):
    """By function and reason; what is there less often is left out."""
    old = make_snapshot()
    new = copy.deepcopy(old)
    more = copy.deepcopy(old["misses"][0]) | {"call": None}
    new["misses"] += [more, more]
    new["misses"].pop(1)
    told = {
        (x["function"], x["reason"]): x["calls"] for x in difference(old, new)["misses"]
    }
    reasons = {each["text"] for each in more["reasons"]}
    lost = {
        (old["misses"][1]["function"], x["text"]) for x in old["misses"][1]["reasons"]
    }
    expected = {(more["function"], text): 2 for text in reasons}
    for each in lost & {*expected}:
        expected[each] -= 1
    assert told == expected


def test_a_snapshot_that_is_none_is_refused(snapshot):
    """Whichever of the two it is."""
    for pair in (({}, snapshot), (snapshot, {})):
        with pytest.raises(MisuseError, match="the snapshot lacks"):
            difference(*pair)


@pytest.fixture
def files(make_snapshot, tmp_path):
    """Return the paths of two snapshots."""
    paths = []
    for size in (4, 30):
        paths.append(tmp_path / f"{size}.json")
        paths[-1].write_text(json.dumps(make_snapshot(size)))
    return [*map(str, paths)]


def test_the_verb_says_what_differs(files, capsys):
    """In tables of 80 columns, or as data."""
    assert main(["diff", *files]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    for word in ("Calls", "Memory", "recordings made: ", "replays +"):
        assert word in printed
    assert main(["diff", "--json", *files]) == 0
    one, other = (json.loads(Path(path).read_text()) for path in files)
    told = json.loads(capsys.readouterr().out)
    assert told == json.loads(json.dumps(difference(one, other)))
    assert main(["diff", *files[::-1]]) == 0
    later = one["made"] < other["made"]
    assert ("the wrong way round" in capsys.readouterr().out) == later
    assert main(["diff", files[0], files[0]]) == 0
    assert capsys.readouterr().out == (
        "Nothing differs: no call, no recording, no memory.\n"
    )


def test_the_verb_names_what_it_cannot_read(files, tmp_path, capsys):
    """One line, and the exit code of wrong usage."""
    broken = tmp_path / "broken.json"
    broken.write_text('{"schema": 1}')
    for paths in ([files[0], str(broken)], [str(tmp_path / "none"), files[0]]):
        assert main(["diff", *paths]) == 2
        said = capsys.readouterr().err
        assert said.startswith("sapwood: ")
        assert said.count("\n") == 1
        assert str(tmp_path) in said
