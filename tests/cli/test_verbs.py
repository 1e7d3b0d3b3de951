"""The command's verbs keep their promises and their exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

import sapwood as sw
from sapwood.cli import doctor, main


def test_doctor_says_what_is_here(capsys, monkeypatch):
    """The emulated device works anywhere; changed settings are named."""
    monkeypatch.setenv("SAPWOOD_MAX_VARIANTS", "3")
    monkeypatch.setenv("SAPWOOD_MAXIMUM", "3")
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["devices"][0] | {"note": ""} == {
        "name": "emulated",
        "works": True,
        "note": "",
    }
    assert found["frameworks"].keys() == found["runs"].keys()
    assert found["settings"] == {"SAPWOOD_MAX_VARIANTS": "3"}
    assert "self-check passed" in found["devices"][0]["note"]
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "SAPWOOD_MAX_VARIANTS is set: 3" in said
    assert "SAPWOOD_MAXIMUM is set, but is no setting" in said
    assert f"fast path in C: {found['fast']}" in said


def test_doctor_leaves_the_store_alone(tmp_path, monkeypatch, capsys):
    """It makes no folder and no entry, and warns of none."""
    monkeypatch.setenv("SAPWOOD_STORE", str(tmp_path / "new" / "deep"))
    assert main(["doctor"]) == 0
    assert not [*tmp_path.iterdir()]
    assert "new/deep" in "".join(capsys.readouterr().out.split())
    (tmp_path / "new").touch()
    assert main(["doctor"]) == 0
    assert capsys.readouterr().err == ""


def test_the_package_is_the_command():
    """``python -m sapwood`` does what ``sapwood`` does, with its exit codes."""
    told = subprocess.run(
        [sys.executable, "-m", "sapwood", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == f"sapwood {sw.__version__}\n"
    wrong = subprocess.run(
        [sys.executable, "-m", "sapwood", "fly"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("sapwood: argument VERB: invalid choice: 'fly'")


def test_doctor_fails_where_nothing_works(capsys, monkeypatch):
    """A device that cannot be opened is reported with its reason."""

    def broken(device):
        raise sw.NoDevice("open", 100, "NO_DEVICE", f"no {device} here. Try another")

    monkeypatch.setattr(sw, "Runtime", broken)
    assert main(["doctor"]) == 1
    assert "no emulated here" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["fly"],
        ["plan", "x", "--seed", "y"],
        ["plan", "x", "--seed", "9" * 5_000],
        ["--json", "store", "gc"],
        ["plan", "x", "x"],
        ["store", "--json"],
        ["--bogus", "plan", "x"],
    ],
    ids=lambda argv: " ".join(argv)[:20],
)
def test_wrong_usage_exits_with_two(argv, capsys):
    """What cannot be understood is refused in one line, which says where to look."""
    with pytest.raises(SystemExit) as refused:
        main(argv)
    assert refused.value.code == 2
    told = capsys.readouterr().err
    assert re.fullmatch(r"sapwood.*: .*\. See sapwood.* --help\n", told)


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--bogus"], "sapwood: --bogus is no option. The verbs are doctor, show, "),
        (["--seed=3"], "sapwood: --seed needs a verb. The verbs are doctor, show, "),
        (["store", "--json"], "sapwood store: --json needs a verb. The verbs are ls, "),
        (["--bogus", "plan", "x"], "sapwood plan: there is no use for --bogus"),
        (["store", "ls", "--bogus"], "sapwood store ls: there is no use for --bogus"),
        (["store", "--bogus", "ls"], "sapwood store ls: there is no use for --bogus"),
        (["plan", "x", "-o", ""], "sapwood plan: argument -o/--output: '' names no "),
        (["report", "x", "-o", "y/"], "sapwood report: argument -o/--output: 'y/' na"),
        (["plan"], "sapwood plan: the following arguments are required: TRACE.csv"),
    ],
    ids=lambda argv: " ".join(argv)[:20],
)
def test_what_is_wrong_is_said(argv, told, capsys):
    """And not that of which it was the consequence."""
    with pytest.raises(SystemExit):
        main(argv)
    assert capsys.readouterr().err.startswith(told)


def test_help_is_of_what_it_stands_behind(capsys):
    """So is the version."""
    for argv, told in (
        (["--help", "plan"], "usage: sapwood [-h]"),
        (["plan", "--help"], "usage: sapwood plan"),
        (["--version", "plan"], f"sapwood {sw.__version__}"),
    ):
        with pytest.raises(SystemExit, match="0"):
            main(argv)
        assert capsys.readouterr().out.startswith(told)


@pytest.mark.parametrize(
    "argv",
    [
        ["--seconds", "2", "-o", "plan", "plan", "t.csv"],
        ["--seconds=2", "plan", "-o", "plan", "t.csv"],
        ["-o", "plan", "plan", "t.csv", "--seconds", "2"],
    ],
)
def test_options_with_a_value_may_go_before_their_verb(argv, tmp_path, monkeypatch):
    """Whatever the value is."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("id,lower,upper,size\n")
    assert main(argv) == 0
    assert (tmp_path / "plan").read_text() == "id,lower,upper,size,offset\n"


def test_options_may_go_before_their_verb(capsys):
    """Those without a value, wherever they are known behind it."""
    for argv in (["--json", "doctor"], ["doctor", "--json"]):
        assert main(argv) == 0
        assert json.loads(capsys.readouterr().out)["sapwood"] == sw.__version__


@pytest.mark.parametrize(
    ("setting", "value", "told"),
    [
        ("EVENTS", "many", "SAPWOOD_EVENTS='many' is not allowed"),
        ("ALLOC_CONF", "zz:1", "zz"),
    ],
)
def test_a_wrong_setting_exits_with_two(setting, value, told, monkeypatch, capsys):
    """A wrong setting is the user's to mend: no traceback."""
    monkeypatch.setenv(f"SAPWOOD_{setting}", value)
    assert main(["doctor"]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FileNotFoundError(2, "No such file or directory", "f"), "directory: f"),
        (OSError("odd"), "sapwood: odd\n"),
        (MemoryError(), "sapwood: there is not enough memory\n"),
        (sw.NoDevice("open", 100, "NO_DEVICE", "no GPU"), "sapwood: no GPU\n"),
        (sw.CaptureError("it waits", remedy="Do not"), "sapwood: it waits. Do not\n"),
    ],
)
def test_what_the_system_refuses_exits_with_one(error, said, monkeypatch, capsys):
    """It is told in a line, with its file, if there is one, or else by its text."""

    def fail():
        raise error

    monkeypatch.setattr(doctor, "findings", fail)
    assert main(["doctor"]) == 1
    assert said in capsys.readouterr().err


def test_control_c_is_one_line(monkeypatch, capsys):
    """And the exit code that shells know."""

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "findings", interrupted)
    assert main(["doctor"]) == 130
    assert capsys.readouterr().err == "sapwood: interrupted\n"


@pytest.mark.parametrize("argv", [["doctor", "--json"], ["doctor"]])
def test_a_reader_that_has_gone_is_no_trouble(argv):
    """What is left is not printed: there is no traceback."""
    ours, theirs = os.pipe()
    os.close(ours)
    ran = subprocess.run(
        [sys.executable, "-c", _MAIN, *argv],
        stdout=theirs,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(theirs)
    assert (ran.returncode, ran.stderr) == (1, b"")


@pytest.mark.parametrize(
    ("streams", "code", "said"),
    [
        (">/dev/full", 1, "sapwood: No space left on device\n"),
        (">&-", 0, ""),
        ("--nonsense 2>/dev/full", 2, ""),
    ],
)
def test_nowhere_to_write_is_no_traceback(streams, code, said):
    """A full disk is told; where nobody is told, the exit code is the same."""
    ran = subprocess.run(
        ["sh", "-c", f'"$0" -m sapwood doctor --json {streams}', sys.executable],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (code, said)


def test_any_name_can_be_shown(tmp_path):
    """Of files and functions, on any terminal: what it cannot show is escaped."""
    path = tmp_path / os.fsdecode(b"gr\xf6\xdfe.csv")
    path.write_text("id,lower,upper,size\n")
    for encoding in ("ascii", "utf-8"):
        ran = subprocess.run(
            [sys.executable, "-c", _MAIN, "plan", path],
            capture_output=True,
            env=os.environ | {"PYTHONIOENCODING": f"{encoding}:strict"},
            check=True,
        )
        assert ran.stdout.startswith(rb"gr\udcf6\udcdfe: 0 buffers")


_MAIN = "import sys; from sapwood.cli import main; sys.exit(main())"
