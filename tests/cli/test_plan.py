"""``sapwood plan`` writes sound offsets, and says what is wrong with a table."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood import errors
from sapwood.allocator import planner
from sapwood.allocator.lifetimes import parse_lifetimes
from sapwood.cli import main
from sapwood.errors import MisuseError

ROWS = "id,lower,upper,size\na,0,4,30\nb,1,3,30\nc,3,6,100\n"


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "step.csv"
    path.write_text(ROWS)
    return path


def _planned(capsys, trace, *argv):
    code = main(["plan", str(trace), *argv, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_machines_get_one_object(trace, capsys):
    """Height, bound, ratio, seconds, and whether it is solved."""
    code, told = _planned(capsys, trace)
    assert code == 0
    assert told.pop("seconds") >= 0.0
    assert told == {
        "trace": "step",
        "buffers": 3,
        "height": 130,
        "lower_bound": 130,
        "ratio": 1.0,
        "solved": True,
        "capacity": None,
        "alignment": 1,
    }


def test_people_get_a_line(trace, capsys):
    """Buffers, height and bound, in words."""
    assert main(["plan", str(trace)]) == 0
    told = capsys.readouterr().out
    assert "step: 3 buffers in 130 bytes (130 B), 1.0000 of the lower bound" in told


def test_offsets_are_one_more_column(tmp_path, capsys):
    """All columns and rows stay as they were, in their order, with their line ends."""
    path, out = tmp_path / "in.csv", tmp_path / "out.csv"
    text = (
        "\ufeffnote, size ,id,upper,lower\r\n\r\n"
        '"x, y",5,"line\r\nbreak",2,-1\r\n,7,é,0,-1\r\nz,0,,1,0\r\n'
    )
    path.write_bytes(text.encode())
    assert main(["plan", str(path), "-o", str(out)]) == 0
    capsys.readouterr()
    written = out.read_bytes().decode()
    assert written.count("\r\n") == 5
    before, after = (
        [row for row in csv.reader(io.StringIO(each, newline="")) if row]
        for each in (text.removeprefix("\ufeff"), written)
    )
    assert [row[:-1] for row in after] == before
    assert [row[-1] for row in after] == ["offset", "7", "0", "0"]


def test_tabs_will_do(tmp_path):
    """A table with tabs is read, and written with tabs."""
    path, out = tmp_path / "in.tsv", tmp_path / "out.tsv"
    path.write_text(ROWS.replace(",", "\t"))
    assert main(["plan", str(path), "-o", str(out)]) == 0
    assert out.read_text().splitlines()[0] == "id\tlower\tupper\tsize\toffset"


def test_huge_numbers_are_exact(tmp_path, capsys):
    """Times and sizes beyond 64 bits are no less exact."""
    unit = 10**30 + 1
    path, out = tmp_path / "in.csv", tmp_path / "out.csv"
    path.write_text(f"id,lower,upper,size\na,0,{unit},{unit}\nb,0,1,{2 * unit}\n")
    code, told = _planned(capsys, path, "-o", str(out))
    assert (code, told["height"]) == (0, 3 * unit)
    assert out.read_text().splitlines()[1].endswith(f",{2 * unit}")


def test_alignment_is_kept(trace, tmp_path, capsys):
    """Offsets are multiples of ``--alignment``; the height counts real ends."""
    out = tmp_path / "out.csv"
    code, told = _planned(capsys, trace, "--alignment", "512", "-o", str(out))
    offsets = [
        int(row["offset"]) for row in csv.DictReader(out.read_text().splitlines())
    ]
    assert (code, sorted(offsets)) == (0, [0, 0, 512])
    assert told["height"] == told["lower_bound"] == 542


def test_a_table_without_buffers_has_a_plan(tmp_path, capsys):
    """No rows take no bytes."""
    path, out = tmp_path / "in.csv", tmp_path / "out.csv"
    path.write_text("id,lower,upper,size\n")
    code, told = _planned(capsys, path, "-o", str(out))
    assert (code, told["height"], told["solved"]) == (0, 0, True)
    assert out.read_text() == "id,lower,upper,size,offset\n"


def test_a_capacity_that_is_kept_is_solved(trace, capsys):
    """Within the capacity is solved; sizes may have units."""
    for capacity in ("130", "1KiB"):
        code, told = _planned(capsys, trace, "--capacity", capacity)
        assert (code, told["solved"]) == (0, True)


def test_a_capacity_that_is_not_kept_says_by_how_much(trace, tmp_path, capsys):
    """Exit code 1: by how much, and what would do; the plan is written all the same."""
    out = tmp_path / "out.csv"
    assert main(["plan", str(trace), "--capacity", "100", "-o", str(out)]) == 1
    told = capsys.readouterr().err
    assert "30 bytes (30 B) above --capacity 100" in told
    assert "No plan can do with less than 130" in told
    assert "offset" in out.read_text()
    assert not _planned(capsys, trace, "--capacity", "129", "--seconds", "0")[1][
        "solved"
    ]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "is empty. Its first line must name id, lower, upper, size"),
        ("\n \n", "is empty"),
        ("id,lower,size\n", "has no column 'upper'"),
        ("id,lower,upper,size,size\n", "has 2 columns 'size'"),
        ("{ROWS}d,1,2\n", "line 5 of {path} has 3 cells. Give 4"),
        ("{ROWS}d,1,2,3,4\n", "line 5 of {path} has 5 cells. Give 4"),
        ("{ROWS}\nb,1,2,3\n", "line 6 of {path} has the id 'b' of line 3"),
        ("{ROWS}d,2,2,3\n", "line 5 of {path} has a lower of 2 and an upper of 2"),
        ("{ROWS}d,1,2,-3\n", "line 5 of {path} has a size of -3"),
        ("{ROWS}d,1.5,2,3\n", "line 5 of {path} has '1.5' in its column lower"),
        ("{ROWS}d,1,,3\n", "line 5 of {path} has '' in its column upper"),
        ("{ROWS}d,1,2,1_0\n", "line 5 of {path} has '1_0' in its column size"),
        ("{ROWS}d,1,2,٣\n", "line 5 of {path} has '٣' in its column size"),
        ("{ROWS}d,1,2,1e9\n", "Give a whole number of at most 40 digits"),
        ("{ROWS}d,1,2," + 41 * "9", "Give a whole number of at most 40 digits"),
        ('{ROWS}"d,1,2,3\n', "line 5 of {path} is no CSV"),
        ('{ROWS}"d"x,1,2,3\n', "line 5 of {path} is no CSV"),
        ("{ROWS}\udcff,1,2,3\n", "line 5 of {path} is no text in UTF-8"),
    ],
)
def test_bad_tables_are_named_by_line_and_column(text, what, tmp_path, capsys):
    """Exit code 2, where it is, and what to do; nothing is written."""
    path, out = tmp_path / "bad.csv", tmp_path / "out.csv"
    path.write_bytes(text.replace("{ROWS}", ROWS).encode(errors="surrogateescape"))
    assert main(["plan", str(path), "-o", str(out)]) == 2
    assert what.replace("{path}", str(path)) in capsys.readouterr().err
    assert not out.exists()


def test_files_that_cannot_be_are_refused_before_planning(
    trace, tmp_path, capsys, monkeypatch
):
    """Missing traces, folders, what never ends, and a plan over its own trace."""
    monkeypatch.setattr(errors, "_MOST", 1 << 20)
    link = tmp_path / "link.csv"
    link.symlink_to(trace)
    for argv, what in (
        ([str(tmp_path / "none.csv")], "cannot be read: No such file"),
        ([str(tmp_path)], "cannot be read: Is a directory"),
        (["/dev/zero"], "cannot be read: it holds more than 1 MiB"),
        ([str(trace), "-o", str(tmp_path)], "there is a folder there"),
        ([str(trace), "-o", str(tmp_path / "no" / "out.csv")], "no folder there"),
        ([str(trace), "-o", str(link)], "would replace its trace"),
        ([str(trace), "-o", "a" * 300], "cannot be written: File name too long"),
        ([str(trace), "--capacity", "many"], "or TiB such as 512MiB, from 1 B\n"),
    ):
        assert main(["plan", *argv]) == 2
        assert what in capsys.readouterr().err
    assert trace.read_text() == ROWS


def test_an_offset_column_is_not_hidden(trace, tmp_path, capsys):
    """A table with offsets can be planned; only writing would be ambiguous."""
    out, more = tmp_path / "out.csv", tmp_path / "more.csv"
    assert main(["plan", str(trace), "-o", str(out)]) == 0
    assert main(["plan", str(out)]) == 0
    assert main(["plan", str(out), "-o", str(more)]) == 2
    assert "has a column 'offset' already" in capsys.readouterr().err


def test_a_failed_write_leaves_what_was_there(trace, tmp_path, capsys, monkeypatch):
    """The old file stays whole, and nothing else stays."""
    out = tmp_path / "out.csv"
    out.write_text("old")

    def fail(_fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    assert main(["plan", str(trace), "-o", str(out)]) == 1
    assert "cannot be written: No space left on device" in capsys.readouterr().err
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "step.csv"]


def test_pipes_and_devices_are_written_to(trace):
    """What is no file is not replaced by one."""
    assert main(["plan", str(trace), "-o", os.devnull]) == 0
    assert not os.path.isfile(os.devnull)  # noqa: PTH113
    ours, theirs = os.pipe()
    with open(ours, encoding="utf-8") as read:  # noqa: PTH123
        assert main(["plan", str(trace), "-o", f"/dev/fd/{theirs}"]) == 0
        os.close(theirs)
        assert read.readline() == ROWS.partition("\n")[0] + ",offset\n"


def test_a_link_stays_one(trace, tmp_path):
    """What it leads to is written, be it there or not."""
    out, link = tmp_path / "out.csv", tmp_path / "link.csv"
    link.symlink_to(out)
    for _ in range(2):
        assert main(["plan", str(trace), "-o", str(link)]) == 0
        assert link.is_symlink()
        assert out.is_file()


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "soon"])
def test_seconds_are_a_number(value, trace, capsys):
    """Other words for a time are refused by the parser."""
    with pytest.raises(SystemExit, match="2"):
        main(["plan", str(trace), "--seconds", value])
    assert "no number of seconds from 0" in capsys.readouterr().err


@given(st.text(max_size=60) | st.text('id,lowerupsz\n\r\t 019-"', max_size=80))
def test_any_text_is_read_or_refused(text):
    """No table ends in an error that is not ours."""
    for head in ("", "id,lower,upper,size\n"):
        try:
            table = parse_lifetimes("t.csv", (head + text).encode(errors="replace"))
        except MisuseError:
            continue
        assert len(table.rows) == len(table.buffers)
        assert all(buffer.lower < buffer.upper for buffer in table.buffers)


def test_control_c_keeps_the_best_plan(trace, tmp_path, capsys, monkeypatch):
    """It is told and written; and whoever had the signal has it again."""
    out, before = tmp_path / "out.csv", signal.getsignal(signal.SIGINT)
    real, shown = planner.plan, []

    def searching(buffers, *, goes_on, **options):
        assert goes_on(150)
        while "step: 150 bytes so far, 1 s" not in "".join(shown):
            time.sleep(0.02)
            shown.append(capsys.readouterr().err)
        signal.raise_signal(signal.SIGINT)
        assert not goes_on(130)
        return real(buffers, goes_on=goes_on, **options)

    monkeypatch.setattr(planner, "plan", searching)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert main(["plan", str(trace), "-o", str(out)]) == 130
    told = capsys.readouterr()
    assert "step: 3 buffers in" in told.out
    assert "interrupted; this is the best plan till then" in told.err
    assert len(parse_lifetimes("out", out.read_bytes()).buffers) == 3
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_control_c_ends_it(trace, capsys, monkeypatch):
    """As where a single step of the search takes long."""

    def stuck(*_, **__):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(planner, "plan", stuck)
    assert main(["plan", str(trace)]) == 130
    assert capsys.readouterr().err == "sapwood: interrupted\n"


def test_control_c_before_there_is_a_plan(tmp_path, capsys, monkeypatch):
    """Is one line, and nothing is written."""
    real, out = planner.plan, tmp_path / "out.csv"

    def early(buffers, **options):
        signal.raise_signal(signal.SIGINT)
        return real(buffers, **options)

    monkeypatch.setattr(planner, "plan", early)
    path = _many(tmp_path)
    assert main(["plan", path, "-o", str(out)]) == 130
    assert capsys.readouterr().err == "sapwood: interrupted\n"
    assert not out.exists()


def test_no_plan_within_the_seconds_fails(tmp_path, capsys):
    """With what would help."""
    assert main(["plan", _many(tmp_path), "--seconds", "0"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("sapwood: there is no plan yet: 1,024 of 1,100 buffers")
    assert told.endswith("Give it more seconds\n")


def _many(folder):
    rows = [f"{n},{n},{n + 9},{n % 7 + 1}" for n in range(1_100)]
    path = folder / "many.csv"
    path.write_text("\n".join(["id,lower,upper,size", *rows]))
    return str(path)


@pytest.mark.parametrize(
    ("slow", "said"),
    [
        ("sapwood.cli.plan.read_file", "step: reading, 1 s"),
        ("sapwood.allocator.planner.plan", "step: no plan so far, 1 s"),
        ("sapwood.allocator.planner.violations", "step: checking the plan, 1 s"),
    ],
)
def test_a_terminal_shows_what_is_being_done(slow, said, trace, capsys, monkeypatch):
    """From reading to checking."""
    shown = []

    def waits(*_, **__):
        while said not in "".join(shown):
            time.sleep(0.02)
            shown.append(capsys.readouterr().err)
        raise KeyboardInterrupt

    monkeypatch.setattr(slow, waits)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert main(["plan", str(trace)]) == 130


def test_one_buffer_is_one(tmp_path, capsys):
    """In words."""
    path = tmp_path / "one.csv"
    path.write_text("id,lower,upper,size\na,0,1,4\n")
    assert main(["plan", str(path)]) == 0
    assert capsys.readouterr().out.startswith("one: 1 buffer in 4 bytes")


def test_no_name_and_a_full_disk_are_told(trace, capsys):
    """The one is wrong usage, the other is nobody's fault."""
    assert main(["plan", ""]) == 2
    assert capsys.readouterr().err.startswith("sapwood: '' cannot be read: ")
    assert main(["plan", str(trace), "-o", "/dev/full"]) == 1
    full = "sapwood: /dev/full cannot be written: No space left on device\n"
    assert capsys.readouterr().err == full
