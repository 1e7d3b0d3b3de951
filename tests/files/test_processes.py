"""Law 1: saved here, loaded in a process that has no source, and equal to the bit."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest

from sapwood.cli import main
from sapwood.tree.nests.containers import flatten


def _module(path):
    name = f"corpus_{path.stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder of the files."""
    return tmp_path_factory.mktemp("corpus")


@pytest.fixture(scope="module")
def saved(run_program, programs, folder):
    """Return what the process that saved everything saw afterwards."""
    return run_program(programs / "saving.py", folder)


@pytest.fixture(scope="module")
def loaded(run_program, programs, folder, saved):
    """Return what a process saw that loaded everything."""
    assert saved
    return run_program(programs / "loading.py", folder)


@pytest.fixture(scope="module")
def inputs(programs):
    """Return what the programs are called with."""
    return _module(programs / "inputs.py")


def test_every_call_is_equal_to_the_bit(saved, loaded, inputs):
    """Results, arguments and state, after every call; and nothing is recorded."""
    assert saved["shown"].keys() == loaded["shown"].keys() == inputs.INPUTS.keys()
    for name, pictures in saved["shown"].items():
        assert len(pictures) == inputs.CALLS >= 3
        for k, (mine, theirs) in enumerate(
            zip(pictures, loaded["shown"][name], strict=True)
        ):
            assert mine == theirs, f"{name}, call {k}"
        stats = loaded["stats"][name]
        assert stats["restored"] >= 1, name
        assert stats["restored"] + stats["replays"] == inputs.CALLS, name
        assert not stats["warmups"] + stats["recordings"] + stats["passed_through"]


def test_no_range_is_where_it_was(saved, loaded):
    """The second process had other addresses for all: everything was relocated."""
    for name, bases in saved["bases"].items():
        assert bases
        assert loaded["bases"][name]
        assert not set(bases) & set(loaded["bases"][name])


class Hosts:
    """Makes host arrays, for files; kept ones are in the saved file."""

    def __init__(self):
        self.kept_names = []

    def __call__(self, host):
        return np.asarray(host)

    def kept(self, name, host):
        del name, host


def _inputs(inputs, name, folder):
    args, kwargs = inputs.INPUTS[name](Hosts(), 0)
    leaves, _ = flatten((args, kwargs), lambda value: isinstance(value, np.ndarray))
    argv = []
    for number, leaf in enumerate(leaves):
        if isinstance(leaf, np.ndarray):
            path = folder / f"{name}.in{number}.npy"
            np.save(path, leaf)
            argv += ["--input", str(path)]
    return argv


def test_files_run_from_the_command_line(saved, inputs, programs, folder, capsys):
    """`sapwood run` gives the arrays of the first call, in their order."""
    bits = _module(programs / "nests.py").bits
    ran = [name for name in inputs.INPUTS if name not in inputs.ONLY_HERE]
    assert len(ran) > 12
    for name in ran:
        (shape, *_), leaves, *_ = saved["shown"][name][0]
        arrays = [leaf for leaf in leaves[: _last(shape)] if len(leaf) == 4]
        outputs = [folder / f"{name}.out{i}.npy" for i in range(len(arrays))]
        argv = ["run", str(folder / f"{name}.sapwood"), *_inputs(inputs, name, folder)]
        for path in outputs:
            argv += ["--output", str(path)]
        assert main(argv) == 0, (name, capsys.readouterr().err)
        for path, (dtype, shape, *_, text) in zip(outputs, arrays, strict=True):
            found = np.load(path)
            told = str(found.dtype), list(found.shape), bits(found)
            assert told == (dtype, shape, text), path.name
    assert "not written" not in capsys.readouterr().out


def _last(shape):
    """Return the number of the last leaf in a part of a picture."""
    if not isinstance(shape, list):
        return shape if isinstance(shape, int) else 0
    return max(map(_last, shape), default=0)


def test_show_tells_what_is_in_every_file(saved, folder, capsys):
    """Without the classes of results, too, which are not loaded here."""
    for name in saved["shown"]:
        assert main(["show", str(folder / f"{name}.sapwood")]) == 0
        told = capsys.readouterr().out
        assert "recording 1: " in told
        assert "contents of arrays: " in told
