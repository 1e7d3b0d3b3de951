"""`sapwood show` and `sapwood run`: functions in files, from the command line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import sapwood as sw
from sapwood.cli import main
from sapwood.persist.format import join, split


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a file with a function of two signatures, and state."""
    path = tmp_path_factory.mktemp("saved") / "step.sapwood"
    with sw.Runtime() as rt:
        total, w = rt.array(np.zeros(3)), rt.array(np.full(3, 2.0))

        def step(w, x, *, scale=1.0):
            if x.ndim == 1:
                total[...] += x * w * scale
                return {"total": total * 1.0, "scale": scale, "w": w}
            return x.sum(0) * w, x

        step = rt.graph(step, name="step")
        for _ in range(3):
            step(w, rt.array(np.ones(3)), scale=0.5)
            step(w, rt.array(np.ones((2, 3))))
        sw.save(step, path)
        del step
    return str(path)


@pytest.fixture
def arrays(tmp_path):
    """Return a maker of .npy files."""

    def make(name, array):
        np.save(tmp_path / name, array)
        return str(tmp_path / f"{name}.npy")

    return make


def test_show_tells_people_and_machines(saved, capsys):
    """What it takes, what was saved, what it reads, how large it is."""
    assert main(["show", saved]) == 0
    told = capsys.readouterr().out
    for line in (
        "step, for emulated, pages of ",
        "  recording 1: ",
        "    takes w: float64[3], saved",
        "    takes x: float64[3]\n",
        "    takes x: float64[2, 3]\n",
        "    reads total",
        "    returns 3 leaves",
        "  contents of arrays: 48 B",
    ):
        assert line in told
    assert main(["show", saved, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["name"] == "step"
    assert found["bytes"] == 48
    assert [r["returns"] for r in found["recordings"]] == [3, 2]
    assert found["recordings"][0]["arguments"][0] == {
        "name": "w",
        "array": "float64[3]",
        "saved": True,
    }


def test_run_goes_on_from_the_file(saved, arrays, tmp_path, capsys):
    """Saved arguments and state come from it; plain values are those recorded."""
    x, out = np.arange(3.0), tmp_path / "total.npy"
    assert main(["run", saved, "--input", arrays("x", x), "--output", str(out)]) == 0
    assert np.load(out).tolist() == (3.0 + x * 2.0 * 0.5).tolist()
    told = capsys.readouterr().out
    assert f"{out}: float64[3]" in told
    assert "output 2, not written: float64[3]" in told


def test_no_store_is_used(saved, arrays, tmp_path, monkeypatch, capsys):
    """Nor warned of, where it cannot be."""
    store = tmp_path / "store"
    argv = [["show", saved], ["run", saved, "--input", arrays("x", np.ones(3))]]
    monkeypatch.setenv("SAPWOOD_STORE", str(store))
    assert [main(each) for each in argv] == [0, 0]
    assert not store.exists()
    store.touch()
    assert [main(each) for each in argv] == [0, 0]
    assert capsys.readouterr().err == ""


def test_inputs_choose_the_recording(saved, arrays, tmp_path):
    """By shape and dtype; names may be given, also of saved arguments."""
    x, out = np.arange(6.0).reshape(2, 3), tmp_path / "out.npy"
    w = arrays("w", np.arange(3.0))
    argv = ["run", saved, "--input", f"w={w}", "--input", f"x={arrays('x', x)}"]
    assert main([*argv, "--output", str(out)]) == 0
    assert np.load(out).tolist() == (x.sum(0) * np.arange(3.0)).tolist()


def test_a_path_may_look_like_a_name(saved, tmp_path):
    """A file that is there is a path, whatever is in it."""
    np.save(tmp_path / "x=1.npy", np.ones(3))
    assert main(["run", saved, "--input", str(tmp_path / "x=1.npy")]) == 0


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        (
            [],
            "takes these inputs (none). They take: w (float64[3], saved), x (floa",
        ),
        ([("x", np.ones(4))], "(float64[4])"),
        ([("x", np.ones(3, "f4"))], "(float32[3])"),
        ([(name, np.ones(3)) for name in "xyz"], "no recording in the file takes"),
        ([("z=", np.ones(3))], "z=float64[3]"),
    ],
    ids=["none", "shape", "dtype", "too many", "name"],
)
def test_inputs_that_do_not_fit_are_told(saved, arrays, capsys, inputs, told):
    """Wrong usage: what was given, and what the recordings take."""
    argv = ["run", saved]
    for name, array in inputs:
        path = arrays(name.rstrip("="), array)
        argv += ["--input", name + path if name.endswith("=") else path]
    assert main(argv) == 2
    assert told in capsys.readouterr().err


def test_files_that_are_no_arrays_are_told(saved, tmp_path, capsys):
    """Missing, empty, text, several in one, no zip, or of any size that it says."""
    np.savez(tmp_path / "many.npz", a=np.ones(3))
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "text.npy").write_text("1 2 3")
    (tmp_path / "zip.npy").write_bytes(b"PK\x03\x04 and nothing else")
    for name, size in (("bomb.npy", 8 * 10**13), ("beyond.npy", 10**32 - 1)):
        with (tmp_path / name).open("wb") as file:
            told = {"descr": "<f8", "fortran_order": False, "shape": (size,)}
            np.lib.format.write_array_header_1_0(file, told)
    np.save(tmp_path / "whole.npy", np.ones(2))
    whole = (tmp_path / "whole.npy").read_bytes()
    (tmp_path / "header.npy").write_bytes(whole.replace(b")", b" "))
    (tmp_path / "keys.npy").write_bytes(whole.replace(b"'descr'", b"[1,2,3]"))
    (tmp_path / "whole.npy").unlink()
    for name in ("missing.npy", *sorted(path.name for path in tmp_path.iterdir())):
        assert main(["run", saved, "--input", str(tmp_path / name)]) == 2
        assert f"{name} " in capsys.readouterr().err


def test_outputs_that_cannot_be_are_told(saved, arrays, tmp_path, capsys):
    """More than there are, or where nothing can be written."""
    argv = ["run", saved, "--input", arrays("x", np.ones(3))]
    many = [f"--output={tmp_path / str(i)}" for i in range(4)]
    assert main([*argv, *many]) == 2
    assert "4 outputs were named, and the function returns 2" in capsys.readouterr().err
    assert main([*argv, "--output", str(tmp_path / "none" / "out.npy")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert main([*argv, "--output", "/dev/full"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("sapwood: /dev/full cannot be written: No space left on")


@pytest.mark.parametrize("verb", ["show", "run"])
def test_files_that_are_none_are_told(verb, saved, tmp_path, capsys):
    """Wrong usage, whether it is missing or damaged: one line, which names it."""
    damaged = tmp_path / "damaged"
    damaged.write_bytes(Path(saved).read_bytes()[:-1])
    pipe, endless = tmp_path / "pipe", tmp_path / "endless"
    os.mkfifo(pipe)
    with endless.open("wb") as file:
        file.truncate(1 << 42)
    missing = tmp_path / "missing"
    for path in (damaged, endless, missing, tmp_path, pipe, "a" * 300):
        assert main([verb, str(path)]) == 2
        told = capsys.readouterr().err
        assert told.startswith(f"sapwood: {path}")
        assert told.count("\n") == 1


def test_all_arguments_may_be_given_in_their_order(saved, arrays, capsys):
    """The contents of one that was saved are replaced, as by its name."""
    paths = [arrays("x", np.full(3, 2.0)), arrays("y", np.full(3, 5.0))]
    argv = ["run", saved, "--input", paths[0], "--input", paths[1]]
    assert main(argv) == 0
    told = capsys.readouterr().out
    assert "output 1" in told


def test_what_no_command_line_can_say_is_told(tmp_path, arrays, capsys):
    """A plain value too long to be written in a signature needs Python."""
    path = str(tmp_path / "f")
    with sw.Runtime() as rt:
        f = rt.graph(lambda x, text: x * float(len(text)), name="f")
        for _ in range(2):
            f(rt.array(np.ones(2)), "long " * 40)
        sw.save(f, path)
        del f
    assert main(["run", path, "--input", arrays("x", np.ones(2))]) == 2
    assert "an argument is a str, which no command line can" in capsys.readouterr().err


def test_names_in_files_may_be_anybodys(saved, tmp_path, capsys):
    """What would move the cursor, or cannot be printed, is shown as text."""
    sections = split(Path(saved).read_bytes())
    index = json.loads(sections["index"])
    index["name"] = "a\x1b[2Jb\ud800\nc"
    text = json.dumps(index, separators=(",", ":"), sort_keys=True).encode()
    path = tmp_path / "named"
    path.write_bytes(join(sections | {"index": text}))
    assert main(["show", str(path)]) == 0
    assert capsys.readouterr().out.startswith(r"a\x1b[2Jb\ud800\nc, for ")
    assert main(["run", str(path)]) == 2
