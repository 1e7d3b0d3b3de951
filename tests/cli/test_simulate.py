"""``sapwood simulate`` answers on every policy, for people and for machines."""

from __future__ import annotations

import json
import time

import pytest

from sapwood.allocator.simulate import POLICIES
from sapwood.cli import main

ROWS = "id,lower,upper,size\na,0,4,30000000\nb,1,3,30000000\nc,5,6,100\n"


@pytest.fixture
def trace(tmp_path) -> str:
    path = tmp_path / "steps.csv"
    path.write_text(ROWS)
    return str(path)


def _told(capsys, *argv: str):
    code = main(["simulate", *argv, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_all_policies_are_compared(trace, capsys):
    """Without a policy, machines get a list with one object for each."""
    code, told = _told(capsys, trace)
    assert code == 0
    assert [one["policy"] for one in told] == list(POLICIES)
    for one in told:
        assert one["peak"] == one["lower_bound"] == 60_000_000
        assert one["ratio"] == one["reserved"] / one["peak"] >= 1.0
        assert one["driver_calls"] == sum(one["calls"].values())
        assert (one["trace"], one["requests"], one["failure"]) == ("steps", 3, None)


def test_one_policy_is_one_object(trace, capsys):
    """One policy gives an object, several, however they are named, a list."""
    assert _told(capsys, trace, "--policy", "classic")[1]["policy"] == "classic"
    for argv in (["classic,planned"], ["classic", "--policy", "planned"]):
        told = _told(capsys, trace, "--policy", *argv)[1]
        assert [one["policy"] for one in told] == ["classic", "planned"]


def test_people_see_a_table(trace, capsys, monkeypatch):
    """The table names every policy, what it is, and its ratio."""
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["simulate", trace]) == 0
    told = capsys.readouterr().out
    assert max(map(len, told.splitlines())) <= 80
    assert "3 buffers, at most 57.2 MiB alive" in told
    for policy in POLICIES.values():
        assert policy.name in told
        assert policy.about in told


def test_running_out_is_told(trace, capsys):
    """A device that is too small is exit code 1; where and why is said."""
    code, told = _told(capsys, trace, "--policy", "default", "--device-memory", "40MiB")
    assert code == 1
    assert told["ratio"] is None
    assert told["failure"]["buffer"] == "b"
    assert told["failure"]["live"] == 30_000_000
    assert main(["simulate", trace, "--device-memory", "40MiB"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "default ran out of memory in pass 1, at time 1: buffer b" in text


@pytest.mark.parametrize(
    "change", ["large_segment_size_mb=64", "large_segment_size_mb:64"]
)
def test_settings_are_spelt_as_in_the_environment(change, trace, capsys, monkeypatch):
    """``--set`` changes what the environment set, in the same spelling."""
    argv = [trace, "--policy", "expandable", "--repeat", "2"]
    assert _told(capsys, *argv, "--set", change)[1]["reserved"] == (64 + 2) << 20
    monkeypatch.setenv("SAPWOOD_ALLOC_CONF", "large_segment_size_mb:128")
    assert _told(capsys, *argv)[1]["reserved"] == (128 + 2) << 20
    assert _told(capsys, *argv, "--set", change)[1]["reserved"] == (64 + 2) << 20


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--policy", "fastest"], "there is no policy 'fastest'"),
        (["--set", "max_split_size_mb"], "Write KEY=VALUE"),
        (["--set", "max_split_size=-1"], "max_split_size"),
        (["--set", "max_spilt_size_mb=64"], "max_split_size_mb"),
        (["--device-memory", "80 bananas"], "--device-memory='80 bananas'"),
        (["--device-memory", "1025TiB"], "1025 TiB is more than any device has"),
        (["--device-memory", "9" * 40], "Give at most 1024 TiB"),
        (["--device", "5"], "steps.csv is no snapshot of PyTorch"),
    ],
)
def test_what_is_not_understood_is_named(argv, said, trace, capsys):
    """Wrong usage is exit code 2, with what would be right."""
    assert main(["simulate", trace, *argv]) == 2
    assert said in capsys.readouterr().err


def test_more_than_can_be_simulated_is_named(tmp_path, capsys):
    """A buffer that no device holds is wrong usage, however it came about."""
    path = tmp_path / "big.csv"
    for size in (2**39 + 1, 2**63 - 1, 10**30):
        path.write_text(f"id,lower,upper,size\na,0,2,5\nb,0,1,{size}\n")
        assert main(["simulate", str(path)]) == 2
        assert "buffer b alone" in capsys.readouterr().err
        assert _told(capsys, str(path), "--policy", "classic")[0] == 0


def test_the_largest_device_is_simulated(trace, capsys):
    """And its size is written as people do."""
    code, told = _told(capsys, trace, "--device-memory", "1024TiB")
    assert (code, {one["failure"] for one in told}) == (0, {None})


def test_a_file_that_is_no_trace_is_named(tmp_path, capsys):
    """So is a file that cannot be read."""
    assert main(["simulate", str(tmp_path / "none.csv")]) == 2
    assert "none.csv cannot be read" in capsys.readouterr().err
    path = tmp_path / "latin.csv"
    path.write_bytes("id,lower,upper,size\né,0,1,4\n".encode("latin-1"))
    assert main(["simulate", str(path)]) == 2
    assert f"line 2 of {path} is no text in UTF-8" in capsys.readouterr().err


def test_tabs_will_do(tmp_path, capsys):
    """As for a plan."""
    path = tmp_path / "tabs.csv"
    path.write_text(ROWS.replace(",", "\t"))
    told = _told(capsys, str(path), "--policy", "classic")[1]
    assert told["peak"] == 60_000_000


def test_a_terminal_shows_how_far_it_is(trace, capsys, monkeypatch):
    """After a second, while it runs; then the line is empty."""
    shown = []

    def slow(*_, **__):
        while "steps: 0 of 1 policies, 1 s" not in "".join(shown):
            time.sleep(0.02)
            shown.append(capsys.readouterr().err)
        raise KeyboardInterrupt

    monkeypatch.setattr("sapwood.cli.simulate.outcome_of", slow)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert main(["simulate", trace, "--policy", "classic"]) == 130
    told = capsys.readouterr().err
    assert told.endswith(f"\r{'':79}\rsapwood: interrupted\n")


@pytest.mark.parametrize("data", [b"{}", b"{", b"\x80\x04]r\xff\xff\xff\xff."])
def test_what_is_wrong_in_a_snapshot_names_its_file(data, tmp_path, capsys):
    """As for other traces."""
    path = tmp_path / "d.json"
    path.write_bytes(data)
    assert main(["simulate", str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"sapwood: {path}: the ")
