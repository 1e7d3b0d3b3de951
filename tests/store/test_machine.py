"""The machine of the store finds nothing, and its files keep their promises."""

from __future__ import annotations

import pytest
from hypothesis import settings

from sapwood.persist.disk import DiskStore
from tests.support.lossy import Crashed, Lossy
from tests.support.store import Puts

TestPuts = Puts.TestCase
TestPuts.settings = settings(stateful_step_count=20)


def test_contents_that_are_not_synced_are_torn(tmp_path):
    """What was written and renamed, and not synced, is half there after a crash."""
    files = Lossy()
    fd = files.create(str(tmp_path / "new"))
    files.write(fd, memoryview(b"12345678"))
    files.close(fd)
    files.rename(str(tmp_path / "new"), str(tmp_path / "x"))
    files.lose_power(undo=False)
    assert (tmp_path / "x").read_bytes() == b"1234"


@pytest.mark.parametrize("before", [None, b"old"])
@pytest.mark.parametrize("synced", [True, False])
def test_names_that_are_not_synced_may_be_the_old_ones(tmp_path, before, synced):
    """A renamed file may be the one before it, or none, until its folder is synced."""
    files = Lossy()
    path = tmp_path / "x"
    if before is not None:
        path.write_bytes(before)
    fd = files.create(str(tmp_path / "new"))
    files.write(fd, memoryview(b"12"))
    files.sync(fd)
    files.close(fd)
    files.rename(str(tmp_path / "new"), str(path))
    if synced:
        files.sync_folder(str(tmp_path))
    files.lose_power(undo=True)
    expected = b"12" if synced else before
    assert (path.read_bytes() if path.exists() else None) == expected


@pytest.mark.parametrize("fuse", range(8))
def test_a_fuse_burns_through_every_change(tmp_path, fuse):
    """A store dies at each of its changes, and whoever comes next finds all or none."""
    files = Lossy(fuse=fuse)
    store = DiskStore(tmp_path / "store", 1 << 20, files=files)
    with pytest.raises(Crashed):
        store.put("x", b"12345678")
    with pytest.raises(Crashed):
        store.put("x", b"12345678")
    files.lose_power(undo=False)
    assert DiskStore(tmp_path / "store", 1 << 20).get("x") in {None, b"12345678"}


def test_a_write_may_be_short(tmp_path):
    """As ``write`` says: whoever writes has to look."""
    files = Lossy(most=3)
    fd = files.create(str(tmp_path / "x"))
    assert files.write(fd, memoryview(b"12345")) == 3
    files.close(fd)
    assert (tmp_path / "x").read_bytes() == b"123"
