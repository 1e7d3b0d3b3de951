"""``sapwood store`` says what is stored, if it is whole, and why it is not used."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from sapwood.cli import main
from sapwood.cli.store import gc, ls, trim, value_text, verify, why
from sapwood.errors import MisuseError
from sapwood.persist.disk import DiskStore
from sapwood.persist.entries import Entries
from sapwood.persist.key import entry_name

LIMIT = 1 << 20


@pytest.fixture
def keys(path, make_key):
    """The keys of three entries in a folder, the last used last."""
    made = [
        make_key(function="step [b]", shape=shape, device="emulated")
        for shape in ("8", "16", "64")
    ]
    for number, key in enumerate(made):
        parts = {"ops": b"%d" % number * 3_000, "image": b"shared"}
        Entries(DiskStore(path, LIMIT)).put(key, parts)
    return made


def _damage(path, name):
    (file,) = path.glob(f"v1/?/{name}*")
    file.write_bytes(file.read_bytes()[:-1])


def _times(path):
    return {file: file.stat().st_mtime_ns for file in path.rglob("*")}


def test_ls_lists_entries_for_machines(path, keys, capsys):
    """Digest, parts, key and time, the last used first; sizes of all values."""
    before = _times(path)
    assert ls(str(path), as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert [entry["digest"] for entry in told["entries"]] == [
        key.digest for key in reversed(keys)
    ]
    first = told["entries"][0]
    assert first["parts"] == {"ops": 3_000, "image": 6}
    assert first["key"] == {"device": "emulated", "function": "step [b]", "shape": "64"}
    assert first["used"].endswith("+00:00")
    assert told["values"] == 7
    assert told["size"] == sum(item.size for item in DiskStore(path, 0, True).scan())
    assert _times(path) == before


def test_ls_lists_entries_for_people(path, keys, capsys):
    """Short digests, sizes and what was put, as it was put."""
    assert ls(str(path)) == 0
    told = capsys.readouterr().out
    for text in ("3 entries, 7 values", "2.9 KiB", *(key.digest[:12] for key in keys)):
        assert text in told
    assert "[b]" in told


def test_ls_tells_of_damage(path, keys, capsys):
    """What cannot be read is told, and is not listed."""
    _damage(path, entry_name(keys[1].digest))
    assert ls(str(path), as_json=True) == 1
    told = capsys.readouterr()
    assert len(json.loads(told.out)["entries"]) == 2
    assert f"entry-{keys[1].digest} is damaged" in told.err


def test_verify_finds_what_is_wrong(path, keys, capsys):
    """Each thing by name; nothing is changed."""
    assert verify(str(path)) == 0
    assert "7 values, nothing wrong" in capsys.readouterr().out
    _damage(path, entry_name(keys[0].digest))
    next(path.glob("v1/?/blob-*")).unlink()
    before = _times(path)
    assert verify(str(path)) == 1
    told = capsys.readouterr().out
    assert f"entry-{keys[0].digest}: is damaged: " in told
    assert told.count(keys[0].digest) == 1
    assert "which is not there" in told
    assert _times(path) == before


def test_gc_makes_room(path, keys, capsys):
    """Down to the limit, whole entries, and what dead processes left."""
    (path / "v1/new/dead").write_bytes(b"torn")
    assert trim(str(path), 8_000) == 0
    assert "removed 2 files of entries and 1 that were never" in capsys.readouterr().out
    assert list(Entries(DiskStore(path, LIMIT)).keys()) == keys[1:]
    assert verify(str(path)) == 0
    assert trim(str(path), 0) == 0
    assert list(path.glob("v1/?/*")) == []


def test_why_is_a_diff_with_the_nearest(path, keys, capsys):
    """By the first digits of a digest; only what differs is shown."""
    assert why(str(path), keys[0].digest[:8]) == 0
    told = capsys.readouterr().out
    assert "components that differ: 1, equal: 2" in told
    assert keys[2].digest[:12] in told
    assert "emulated" not in told


def test_why_is_a_diff_with_any_other(path, keys, make_key, capsys):
    """Components that only one of them has show as missing."""
    other = make_key(mode="[red]x")
    Entries(DiskStore(path, LIMIT)).put(other, {})
    assert why(str(path), keys[0].digest, other.digest[:10].upper()) == 0
    told = capsys.readouterr().out
    assert "components that differ: 4, equal: 0" in told
    assert "[red]x" in told


def test_why_tells_of_damage_in_a_line(path, keys, capsys):
    """However much there is."""
    for key in keys[1:]:
        _damage(path, entry_name(key.digest))
    assert main(["store", "why", keys[0].digest, "--path", str(path)]) == 1
    told = capsys.readouterr().err
    assert "sapwood: 2 entries cannot be read: see store verify\n" in told
    assert told.count("\n") == 2
    assert keys[1].digest not in told


def test_one_of_a_kind(path, make_key, capsys):
    """Is counted as such."""
    Entries(DiskStore(path, LIMIT)).put(make_key(shape="8"), {})
    assert ls(str(path)) == 0
    assert "1 entry, 1 value, " in capsys.readouterr().out
    assert verify(str(path)) == 0
    assert "1 value, nothing wrong" in capsys.readouterr().out
    assert trim(str(path), 0) == 0
    assert "removed 1 file of" in capsys.readouterr().out


def test_why_needs_two_entries(path, make_key, capsys):
    """An entry that is not there, or alone, is told."""
    key = make_key(shape="8")
    Entries(DiskStore(path, LIMIT)).put(key, {})
    for argv, told in (
        (["0000"], "there is no entry 0000 in"),
        ([key.digest], "has only this entry: put another"),
        ([key.digest, "0000"], "there is no entry 0000 in"),
    ):
        assert main(["store", "why", *argv, "--path", str(path)]) == 1
        assert told in capsys.readouterr().err


def test_digits_must_fit_one(path, keys):
    """Else those that they fit are named."""
    with pytest.raises(MisuseError, match=r"'' fits 3 entries: .* Give more digits"):
        why(str(path), "")
    assert keys


@pytest.mark.parametrize(
    "call",
    [ls, verify, lambda path: trim(path, 1), lambda path: why(path, "0")],
    ids=["ls", "verify", "gc", "why"],
)
def test_no_folder_is_wrong_usage(path, call):
    """And makes none; one that may not be used is told, with what to do."""
    with pytest.raises(MisuseError, match="Name the folder of one"):
        call(str(path))
    assert not path.exists()
    with pytest.raises(MisuseError, match="--limit='-1' is not allowed"):
        gc(str(path.parent), "-1")


def test_a_folder_that_is_no_store(tmp_path, capsys):
    """Is told, and not listed as one without entries."""
    assert main(["store", "ls", "--path", str(tmp_path)]) == 2
    assert "holds no store. Name the folder of one" in capsys.readouterr().err


@pytest.mark.usefixtures("keys")
def test_the_folder_is_named_before_or_behind_the_command(path, capsys):
    """The one behind goes before."""
    assert main(["store", "--path", "nowhere", "ls", "--path", str(path)]) == 0
    behind = capsys.readouterr().out
    for argv in (
        ["store", "--path", str(path), "ls"],
        ["--path", str(path), "store", "ls"],
        ["--path", "gc", "--path", str(path), "store", "ls"],
    ):
        assert main(argv) == 0
        assert capsys.readouterr().out == behind


def test_people_see_calls_and_what_has_changed(path, tmp_path, capsys):
    """A function with its arguments, and what differs in words, without a digest."""
    for text, n in (("x * 2", 4), ("x - 1", 4), ("x - 1", 5.0)):
        program = tmp_path / "program.py"
        program.write_text(PROGRAM.format(path=str(path), text=text, n=n))
        subprocess.run([sys.executable, program], check=True)
    assert main(["store", "ls", "--path", str(path)]) == 0
    assert capsys.readouterr().out.count("step(float64[2, 3], 4)") == 2
    assert ls(str(path), as_json=True) == 0
    entries = json.loads(capsys.readouterr().out)["entries"]
    digests = [entry["digest"] for entry in entries]
    for ours, theirs, row in (
        (0, 1, ["signature", "(float64[2, 3], 5.0)", "(float64[2, 3], 4)"]),
        (1, 2, ["the code of step", "one", "another: edited"]),
    ):
        argv = ["store", "why", digests[ours], digests[theirs]]
        assert main([*argv, "--path", str(path)]) == 0
        told = capsys.readouterr().out
        assert row in [re.split(" *│ *", line)[1:-1] for line in told.splitlines()]
        assert "components that differ: 1" in told


PROGRAM = """
import numpy as np
import sapwood as sw

with sw.Runtime("emulated", store={path!r}) as rt:
    @rt.graph
    def step(x, n):
        return {text}

    for _ in range(3):
        step(rt.array(np.ones((2, 3))), {n})
"""


@pytest.mark.parametrize("deed", ["ls", "verify", "gc"])
def test_a_folder_that_may_not_be_trusted(path, deed, capsys):
    """Is told, with what to do."""
    (path / "v1").mkdir(parents=True)
    path.chmod(0o777)
    assert main(["store", "--path", str(path), deed]) == 1
    assert "chmod go-w" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "most", "text"),
    [
        (b"plain", None, "plain"),
        (b"plain", 4, "pla…"),
        (b"plain", 5, "plain"),
        (b"", 5, ""),
        (b"a\n", None, "0x610a"),
        (b"\xff\x00", None, "0xff00"),
        (b"\xff" * 40, 6, "0xfff…"),
        (b"\x1b[31m", None, "0x1b5b33316d"),
        (b"null", None, "None"),
        (b"true", None, "True"),
        (b"1", None, "1"),
        (b'"\\u00e9\\n"', None, "'é\\n'"),
        (b'"broken', None, '"broken'),
    ],
)
def test_values_are_shown_as_text_or_hex(value, most, text):
    """Nothing that does not print reaches a terminal."""
    assert value_text(value, most) == text
