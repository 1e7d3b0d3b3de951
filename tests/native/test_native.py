"""What is in C is built from the sources as they are; where it is not, that is said."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace

import pytest

import sapwood as sw
from sapwood import MisuseError, _fast
from sapwood._fast import build as builder
from sapwood._fast import segments
from sapwood._fast.build import FLAGS, LIBRARIES, NotBuilt, compiled, flags, is_built

ROOT = Path(__file__).parents[2]
ROOM = Path(_fast.__file__).parent
SEGMENTS, STATE, NATIVE = NAMES = [_fast.path(name).name for name in LIBRARIES]


@pytest.fixture(autouse=True)
def _compiler(monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("no C compiler here")


@pytest.fixture
def checkout(tmp_path):
    """Return a copy of the room, in which nothing is built, as in a checkout."""
    room = tmp_path / "src" / "sapwood" / "_fast"
    unwanted = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOM, room, ignore=unwanted)
    shutil.copy(ROOM.parent / "version.py", room.parent)
    return room


@pytest.fixture
def broken(tmp_path):
    """Return a compiler that writes half of a file, and fails."""
    path = tmp_path / "bin" / "ccc"
    path.parent.mkdir()
    path.write_text(
        "#!/bin/sh\n"
        'for last; do :; done; echo half > "$last"; echo out of ideas >&2; exit 1\n'
    )
    path.chmod(0o700)
    return path


def built(room, **environment):
    """Build what is in a room, by the path of the file and with Python alone."""
    return subprocess.run(
        [sys.executable, "-I", "-S", room / "build.py"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def others(room):
    """Return the names of all files but the sources."""
    ours = {".c", ".h", ".py", ".pyi"}
    return {each.name for each in room.iterdir() if each.suffix not in ours}


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_source_compiles_without_a_warning(tmp_path, name):
    """All that the compiler could say about it is an error here."""
    strict = ("-Wall", "-Wextra", "-Wconversion", "-Wno-sign-conversion", "-Werror")
    sources = (*LIBRARIES[name], ROOM / "digest.c")
    told = flags(LIBRARIES[name])
    command = ["cc", *FLAGS, *told, "-pedantic", *strict, *sources, "-o"]
    command.append(tmp_path / "a.so")
    assert subprocess.run(command, check=True, capture_output=True).stderr == b""


def test_what_is_loaded_was_built_from_these_sources():
    """`scripts/test` sees to it; by hand it is ``python -m sapwood._fast.build``."""
    assert is_built()
    assert _fast.segments().sapwood_open is not None
    assert _fast.trouble() is None
    assert _fast.native() is not None


@pytest.mark.deep
def test_it_is_built_once(checkout):
    """The second time all is left as it is, and nothing is said."""
    assert built(checkout).stdout.count("built ") == 3
    files = [checkout / name for name in NAMES]
    written = [file.stat().st_mtime_ns for file in files]
    again = built(checkout)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert [file.stat().st_mtime_ns for file in files] == written
    assert others(checkout) == {*NAMES}


@pytest.mark.deep
def test_what_was_built_from_other_sources_is_built_anew(checkout):
    """A header counts; and what does not include it is left as it is."""
    built(checkout)
    fast, other = ((checkout / name).stat().st_ino for name in (NATIVE, SEGMENTS))
    header = checkout / "native.h"
    header.write_text(header.read_text() + "\n")
    assert built(checkout).returncode == 0
    assert (checkout / NATIVE).stat().st_ino != fast
    assert (checkout / SEGMENTS).stat().st_ino == other


def test_without_a_compiler_what_was_built_from_other_sources_goes(checkout, tmp_path):
    """A remedy, and no library that may not fit the Python beside it."""
    for name in NAMES:
        (checkout / name).write_text("of other sources")
    done = built(checkout, PATH=str(tmp_path))
    assert done.returncode == 1
    assert "no C compiler here (cc, gcc, clang). Install gcc" in done.stderr
    assert SEGMENTS not in others(checkout)


def test_a_compiler_that_fails_is_quoted(checkout, broken):
    """What it said is told, and no half-written file stays; $CC comes first."""
    done = built(checkout, CC=f"{broken} -of=mine")
    assert done.returncode == 1
    assert "ccc -of=mine cannot compile segments.c: out of ideas" in done.stderr
    assert others(checkout) == set()


@pytest.mark.deep
def test_a_compiler_that_is_not_there_is_passed_over(checkout):
    """Where $CC names none, the usual ones are tried."""
    assert built(checkout, CC="/no/such/compiler").returncode == 0


def test_a_folder_that_is_none_is_named(tmp_path):
    """The error says which file was not built."""
    source = tmp_path / "tiny.c"
    source.write_text("int tiny;\n")
    with pytest.raises(NotBuilt, match=r"tiny\.c"):
        compiled([source], source / "a.so")


@pytest.fixture
def nothing(monkeypatch, tmp_path):
    """Look for libraries in a folder in which there are none."""
    monkeypatch.setattr(_fast, "path", lambda name: tmp_path / f"{name}.so")
    return tmp_path


def test_what_is_not_built_is_told(nothing):
    """There is nothing for guards and replays, an error for segments, and a remedy."""
    remedy = r"_segments\.so is missing: .* and run python -m sapwood\._fast\.build$"
    with pytest.raises(MisuseError, match=remedy):
        segments.__wrapped__()
    assert f"{nothing}/_state.so is missing" in _fast.trouble()


def test_what_is_no_library_is_told(nothing):
    """One of another machine, or half of one."""
    for name in LIBRARIES:
        (nothing / f"{name}.so").write_text("half")
    with pytest.raises(MisuseError, match=r"cannot be loaded \(.*\)\. Remove it, and"):
        segments.__wrapped__()
    assert "_state.so cannot be loaded" in _fast.trouble()


def test_other_versions_are_told(monkeypatch):
    """What was left behind by one of them is not what these sources go with."""
    monkeypatch.setattr(_fast, "native", lambda: None)
    assert f"not of version {sw.__version__}. Run python -m" in _fast.trouble()


@pytest.mark.parametrize(
    ("implementation", "free", "headers", "told"),
    [
        ("pypy", 0, None, "for CPython with one lock"),
        ("cpython", 1, None, "for CPython with one lock"),
        ("cpython", 0, "/nowhere", "Python's headers are not in /nowhere. Install"),
    ],
)
def test_other_interpreters_are_told(monkeypatch, implementation, free, headers, told):
    """What is for none of them is not built, and what is missing is named."""
    monkeypatch.setattr(sys.implementation, "name", implementation)
    monkeypatch.setattr(builder, "get_config_var", lambda _: free)
    if headers is not None:
        monkeypatch.setattr(builder, "get_path", lambda _: headers)
    with pytest.raises(NotBuilt, match=told):
        flags(LIBRARIES["_native"])
    assert flags(LIBRARIES["_segments"])


@pytest.fixture
def hook(checkout):
    """Run the hook of the package's build, for a target; return data and warnings."""
    pytest.importorskip("hatchling")
    spec = spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)

    def run(target):
        said, data = [], {"pure_python": True, "infer_tag": False, "artifacts": []}
        app = SimpleNamespace(display_warning=said.append)
        root = str(checkout.parents[2])
        made = module.FastBuildHook(root, {}, None, None, "", target, app)
        made.initialize("standard", data)
        return data, said

    return run


@pytest.mark.deep
def test_a_wheel_brings_it(hook, checkout):
    """It is one for this interpreter then, and leaves out libraries of others."""
    (checkout / "_fast.other.so").touch()
    data, said = hook("wheel")
    assert (data["pure_python"], data["infer_tag"], said) == (False, True, [])
    names = [f"/src/sapwood/_fast/{name}" for name in NAMES]
    assert data["artifacts"] == names


def test_a_wheel_without_it_is_one_of_python(hook, checkout, monkeypatch, tmp_path):
    """A warning says why."""
    monkeypatch.setenv("PATH", str(tmp_path))
    data, said = hook("wheel")
    assert data == {"pure_python": True, "infer_tag": False, "artifacts": []}
    assert len(said) == 1
    assert "without its parts in C: there is no C compiler here" in said[0]
    assert others(checkout) == set()


def test_nothing_is_built_for_sources(hook, checkout):
    """They are built where they are installed."""
    hook("sdist")
    assert others(checkout) == set()


WORKS = """
import sys
import numpy as np
import sapwood as sw
from sapwood import _fast
with sw.Runtime("emulated") as rt:
    double = rt.graph(lambda x: x + x)
    told = [np.asarray(double(rt.array(np.full(3, k)))).tolist() for k in range(5)]
    assert told == [[2 * k] * 3 for k in range(5)]
    assert double.stats().replays > 0
print(_fast.__file__, _fast.native(), "sapwood._fast.build" in sys.modules)
"""


@pytest.mark.deep
def test_without_it_all_works_in_python(tmp_path):
    """In a process of its own, of a package in which it was not built."""
    package = tmp_path / "src" / "sapwood"
    unwanted = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOM.parent, package, ignore=unwanted)
    done = subprocess.run(
        [sys.executable, "-c", WORKS],
        env=os.environ | {"PYTHONPATH": str(package.parent)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [f"{package}/_fast/__init__.py", "None", "False"]
