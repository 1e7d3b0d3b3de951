"""Where compiled code comes from, and from where it is never loaded."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys

import pytest

from sapwood import MisuseError
from sapwood.memory.native.library import SOURCE as SEGMENTS
from sapwood.native import FLAGS, cache_folder, compiled, native_path
from sapwood.tree.guards.steps_in_c import SOURCE as STEPS
from sapwood.tree.replay.in_c import SOURCE as AGAIN


@pytest.mark.parametrize("source", [AGAIN, SEGMENTS, STEPS], ids=lambda each: each.stem)
def test_the_source_compiles_without_a_warning(tmp_path, source):
    """All that the compiler could say about it is an error here."""
    strict = ("-Wall", "-Wextra", "-Wconversion", "-Wno-sign-conversion", "-Werror")
    command = ["cc", *FLAGS, "-pedantic", *strict, source, "-o", tmp_path / "a.so"]
    assert subprocess.run(command, check=True, capture_output=True).stderr == b""


@pytest.mark.deep
def test_it_is_compiled_once(tmp_path):
    """The second time what is there is used, and nothing else is left behind."""
    path = compiled(SEGMENTS, tmp_path / "new")
    written = path.stat().st_mtime_ns
    assert compiled(SEGMENTS, tmp_path / "new") == path
    assert path.stat().st_mtime_ns == written
    assert list(path.parent.iterdir()) == [path]
    assert ctypes.CDLL(str(path)).sapwood_open is not None


def test_without_a_compiler_the_error_says_what_to_install(tmp_path, monkeypatch):
    """None on the path: a remedy, and no file."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MisuseError, match=r"no C compiler here .* Install gcc"):
        compiled(SEGMENTS, tmp_path / "a")
    assert list((tmp_path / "a").iterdir()) == []


def test_a_compiler_that_fails_is_quoted(tmp_path, monkeypatch):
    """What it said is in the error, and no half-written file stays."""
    broken = tmp_path / "bin" / "cc"
    broken.parent.mkdir()
    broken.write_text(
        "#!/bin/sh\n"
        'for last; do :; done; echo half > "$last"; echo out of ideas >&2; exit 1\n'
    )
    broken.chmod(0o700)
    monkeypatch.setenv("PATH", str(broken.parent), prepend=os.pathsep)
    with pytest.raises(MisuseError, match=r"cannot compile segments.c: out of ideas"):
        compiled(SEGMENTS, tmp_path / "a")
    assert list((tmp_path / "a").iterdir()) == []


def test_what_others_may_write_is_not_loaded(tmp_path):
    """Neither a folder nor a file that somebody else could have put code into."""
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(MisuseError, match="written by others"):
        compiled(SEGMENTS, folder)
    folder.chmod(0o700)
    path = folder / native_path(SEGMENTS).name
    shutil.copy(native_path(SEGMENTS), path)
    path.chmod(0o700)
    assert compiled(SEGMENTS, folder) == path
    path.chmod(0o720)
    with pytest.raises(MisuseError, match="written by others"):
        compiled(SEGMENTS, folder)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    """The error says where, why, and which variable moves it."""
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(MisuseError, match=r"cannot be kept in .*HOME"):
        compiled(SEGMENTS, tmp_path / "file" / "native")


def test_the_cache_is_the_users(tmp_path, monkeypatch):
    """It is where users' caches are, and moves with their home."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "sapwood" / "native"


@pytest.mark.deep
def test_processes_that_race_load_whole_code(tmp_path):
    """Several may compile at once: each loads a whole library, and one stays."""
    probe = "from sapwood.memory.native import native_library as n; n().sapwood_open"
    environment = {**os.environ, "HOME": str(tmp_path)}
    racing = [
        subprocess.Popen([sys.executable, "-c", probe], env=environment)
        for _ in range(2)
    ]
    assert [process.wait(60) for process in racing] == [0, 0]
    assert len(list((tmp_path / ".cache/sapwood/native").iterdir())) == 1
