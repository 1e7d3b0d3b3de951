"""``sapwood report`` writes the page, or says what is wrong with the snapshot."""

from __future__ import annotations

import json
import re

import pytest

from sapwood.cli import main
from sapwood.cli.report import report
from sapwood.errors import MisuseError
from sapwood.view import render


@pytest.fixture
def source(snapshot, tmp_path):
    """Return a file with a snapshot."""
    path = tmp_path / "run.json"
    path.write_text(json.dumps(snapshot))
    return path


def test_the_page_is_written_beside_the_snapshot(source, snapshot, capsys):
    """With no place given, the ending changes; the place is told."""
    assert report(str(source)) == 0
    page = source.with_suffix(".html")
    assert page.read_text(encoding="utf-8") == render(snapshot)
    assert str(page) in capsys.readouterr().out


def test_the_page_is_written_where_asked(source, snapshot, tmp_path):
    """A given place is used, and no other."""
    target = tmp_path / "elsewhere.htm"
    assert report(str(source), str(target)) == 0
    assert target.read_text(encoding="utf-8") == render(snapshot)
    assert not source.with_suffix(".html").exists()


def test_a_device_is_not_replaced(source, tmp_path, capsys):
    """It is written to, and a full one is told."""
    for name, code in (("full", 1), ("null", 0)):
        link = tmp_path / name
        link.symlink_to(f"/dev/{name}")
        assert main(["report", str(source), "-o", str(link)]) == code
        assert link.is_symlink()
    assert capsys.readouterr().err.endswith("full: No space left on device\n")


def test_a_snapshot_is_not_replaced(source):
    """The page never goes over its own snapshot."""
    before = source.read_bytes()
    with pytest.raises(MisuseError, match="would replace its snapshot"):
        report(str(source), str(source))
    assert source.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"{", "is no JSON"),
        (b"\xff\xfe", "is no JSON"),
        (b"[" * 200_000, "is no JSON"),
        (b'{"schema": NaN}', "NaN is not JSON"),
        (b'{"schema": 1%s}' % (b"1" * 5_000), "is no JSON.*has 5001 digits. Write"),
        (b"[]", "run.json: the snapshot is .*, not a table"),
        (b'{"schema": 1}', "run.json: the snapshot lacks made"),
    ],
    ids=["cut", "no text", "deep", "no number", "long", "no table", "no fields"],
)
def test_what_is_no_snapshot_is_refused(source, content, told):
    """Nothing is written, and the message says why."""
    source.write_bytes(content)
    with pytest.raises(MisuseError, match=told):
        report(str(source))
    assert not source.with_suffix(".html").exists()


def test_a_missing_snapshot_is_named(tmp_path):
    """The message says which file, and how to make one."""
    with pytest.raises(MisuseError, match=r"none\.json cannot be read.*rt\.snapshot"):
        report(str(tmp_path / "none.json"))


@pytest.mark.parametrize("path", [".", "/", ""])
def test_a_folder_is_no_snapshot(path, capsys):
    """Nor is no name: it is said in a line."""
    assert main(["report", path]) == 2
    said = f"sapwood: {path or repr('')} cannot be read: Is a directory.*\n"
    assert re.fullmatch(said, capsys.readouterr().err)
