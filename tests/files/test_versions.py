"""Law 2: a store never serves what was read where no fingerprint could tell."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def versions(run_program, programs, tmp_path_factory):
    """Return what both versions of all programs told, one after the other."""
    store = tmp_path_factory.mktemp("versions") / "store"
    return [run_program(programs / "versions.py", store, v) for v in (2, 3)]


def _agrees(told):
    assert told["found"] == [told["expected"]] * 3


def test_no_version_has_the_recording_of_another(versions):
    """Fifty programs that come to a number by ways that few guards see."""
    first, second = versions
    names = [name for name in first if not name.startswith("seen_")]
    assert len(names) >= 50
    for name in names:
        _agrees(first[name])
        _agrees(second[name])
        assert first[name]["expected"] != second[name]["expected"], name
        assert second[name]["restored"] == 0, name


def test_what_reads_nothing_else_is_restored(versions):
    """The same program in another process, by what people use without a thought."""
    first, second = versions
    names = [name for name in first if name.startswith("seen_")]
    assert len(names) >= 5
    for name in names:
        _agrees(second[name])
        assert second[name]["restored"] == 1, (name, second[name]["why"])
