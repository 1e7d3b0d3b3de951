"""The folder of a disk store: what lies there, who may use it, and what goes wrong."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sapwood.errors import StoreError
from sapwood.persist.disk import KEPT_DAMAGED, DiskStore, Files, Folder, Trimmed
from sapwood.persist.entries import Absent, Entries
from sapwood.persist.evict import YOUNG

LIMIT = 1 << 20
MUTATIONS = (
    "make_folder",
    "create",
    "write",
    "sync",
    "sync_folder",
    "rename",
    "remove",
    "stamp",
)


@dataclass
class Faulty(Files):
    """Files of which some operations fail."""

    error: OSError
    fails: tuple[str, ...]
    owner: int | None = None
    calls: list[str] = field(default_factory=list)

    def __getattribute__(self, name):
        if name in object.__getattribute__(self, "fails"):
            return self._fail
        return super().__getattribute__(name)

    def _fail(self, *_):
        raise self.error

    def stat(self, path):
        facts = super().stat(path)
        if self.owner is None:
            return facts
        return os.stat_result([*facts[:4], self.owner, *facts[5:]])


def _files(path):
    return sorted(p for p in path.glob("v1/?/*") if p.is_file())


def _only_file(path):
    (file,) = _files(path)
    return file


# What lies there.


def test_nothing_is_made_before_the_first_put(path):
    """Opening, looking, counting, deleting and trimming touch nothing."""
    store = DiskStore(path, LIMIT)
    assert store.get("x") is None
    assert list(store.scan()) == []
    assert store.delete("x") is False
    assert store.trim() == Trimmed((), 0, 0)
    assert not path.exists()


def test_the_folder_is_for_one_user(path):
    """Folders and files are made for their owner alone, parents included or not."""
    store = DiskStore(path / "deep" / "er", LIMIT)
    store.put("x", b"1")
    for made in [path / "deep" / "er", *(path / "deep" / "er").rglob("*")]:
        assert stat.S_IMODE(made.stat().st_mode) & 0o077 == 0


def test_a_path_is_a_place(path, monkeypatch, tmp_path):
    """It stays where it was when the process changes its folder; ~ is home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    store, at_home = DiskStore("store", LIMIT), DiskStore("~/store", LIMIT)
    monkeypatch.chdir("/")
    store.put("x", b"1")
    assert at_home.get("x") == DiskStore(path, LIMIT).get("x") == b"1"


def test_what_is_put_is_durable_before_it_has_its_name(path):
    """Contents are synced, then renamed, then the name is synced."""
    done = []

    class Watched(Files):
        def sync(self, _):
            done.append("sync")

        def rename(self, path, to):
            done.append("rename")
            super().rename(path, to)

        def sync_folder(self, path):
            done.append(Path(path).name)

    store = DiskStore(path, LIMIT, files=Watched())
    store.put("x", b"1")
    shard = _only_file(path).parent.name
    done.clear()
    store.put("x", b"2")
    assert done == ["sync", "rename", shard]


def test_strangers_are_left_alone(path):
    """What is no value of the store is neither told nor counted, nor in the way."""
    store = DiskStore(path, 2_000)
    store.put("x", b"1")
    (path / "v1/README").write_text("mine")
    (path / "v1/0").mkdir(exist_ok=True)
    (path / "v1/0/Not A Name").write_bytes(b"x" * 5_000)
    (path / "v1/0/folder").mkdir()
    (path / "v1/new/folder").mkdir()
    assert [item.name for item in store.scan()] == ["x"]
    assert store.trim().left < 100
    assert (path / "v1/0/Not A Name").exists()


# Who may use it.


def test_a_folder_of_another_user_is_refused(path):
    """Everything is refused, by whose it is and what to do; a call does not fail."""
    DiskStore(path, LIMIT).put("x", b"1")
    store = DiskStore(path, LIMIT, files=Faulty(OSError(), (), owner=4_242))
    calls = (
        lambda: store.get("x"),
        lambda: store.put("x", b"2"),
        lambda: store.delete("x"),
        lambda: list(store.scan()),
        store.trim,
    )
    for call in calls:
        with pytest.raises(PermissionError, match=r"belongs to user 4242.*of your own"):
            call()
    assert DiskStore(path, LIMIT).get("x") == b"1"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_that_really_is_of_another_user_is_refused(path, make_key):
    """Also for root; nothing is found and nothing put, and that is told."""
    DiskStore(path, LIMIT).put("x", b"1")
    os.chown(path, 65_534, -1)
    told = []
    entries = Entries(DiskStore(path, LIMIT), told.append)
    assert entries.find(make_key(a="1")).outcome == "refused"
    entries.put(make_key(a="1"), {"ops": b""})
    assert entries.tally == {"refused": 2}
    assert all("belongs to user 65534" in text for text in told)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_that_another_user_planted_is_absent(path, make_key):
    """As before others lost the right to write the folder; a put takes its place."""
    key, parts = make_key(a="1"), {"ops": b"1"}
    entries = Entries(DiskStore(path, LIMIT))
    entries.put(key, parts)
    for file in _files(path):
        os.chown(file, 65_534, -1)
    found = entries.find(key)
    assert found.outcome == "damaged"
    assert "no file of this user's" in found.reason
    entries.put(key, parts)
    assert entries.find(key) == parts


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777, 0o1777])
def test_a_folder_that_others_may_write_is_refused(path, mode):
    """Whatever is in it may have been put there by them."""
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(PermissionError, match="chmod go-w"):
        DiskStore(path, LIMIT).get("x")
    with pytest.raises(PermissionError, match="chmod go-w"):
        DiskStore(path, LIMIT).put("x", b"")


def test_a_folder_that_others_may_read_is_used(path):
    """Reading puts nothing there."""
    path.mkdir(mode=0o755)
    DiskStore(path, LIMIT).put("x", b"1")
    assert DiskStore(path, LIMIT).get("x") == b"1"


def test_a_file_is_no_folder(path, make_key):
    """A path that names a file is told, and a call does not fail."""
    path.write_text("mine")
    with pytest.raises(NotADirectoryError, match="Name a folder"):
        DiskStore(path, LIMIT).put("x", b"")
    entries = Entries(DiskStore(path / "below", LIMIT))
    assert isinstance(entries.find(make_key(a="1")), Absent)
    entries.put(make_key(a="1"), {"ops": b""})
    assert entries.tally == {"refused": 2}
    assert path.read_text() == "mine"


# Read only.


def test_what_is_read_only_is_not_changed(path):
    """No file, time or name changes; what is damaged stays."""
    DiskStore(path, LIMIT).put("x", b"1")
    DiskStore(path, LIMIT).put("y", b"2")
    damaged = path / next(p for p in _files(path) if p.name == "y")
    damaged.write_bytes(b"")
    before = {p: (p.stat().st_mtime_ns, p.stat().st_ino) for p in path.rglob("*")}
    store = DiskStore(path, LIMIT, read_only=True)
    assert store.get("x") == b"1"
    with pytest.raises(StoreError):
        store.get("y")
    calls = (lambda: store.put("z", b""), lambda: store.delete("x"), store.trim)
    for call in calls:
        with pytest.raises(OSError, match="to be read only") as refused:
            call()
        assert refused.value.errno == errno.EROFS
    assert before == {p: (p.stat().st_mtime_ns, p.stat().st_ino) for p in before}


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_folder_that_cannot_be_written_can_be_read(path, make_key, number):
    """Hits go on; puts stop at the first, and say so once."""
    key, parts, told = make_key(a="1"), {"ops": b"1"}, []
    Entries(DiskStore(path, LIMIT)).put(key, parts)
    faulty = Faulty(OSError(number, os.strerror(number), "/there"), MUTATIONS)
    entries = Entries(DiskStore(path, LIMIT, files=faulty), told.append)
    for _ in range(3):
        assert entries.find(key) == parts
        entries.put(key, parts)
    assert entries.tally == {"hits": 3, "refused": 3}
    assert told == [entries.stopped]
    assert entries.stopped.endswith(f"{os.strerror(number)}: /there")


# What goes wrong.


@pytest.mark.parametrize("operation", MUTATIONS)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_fault_never_fails_a_call(path, make_key, operation, number):
    """At whatever operation: what was there is there, and no file is left over."""
    key, parts = make_key(a="1"), {"ops": b"1" * 5_000}
    Entries(DiskStore(path, LIMIT)).put(key, parts)
    before = _files(path)
    faulty = Faulty(OSError(number, "no"), (operation,))
    entries = Entries(DiskStore(path, LIMIT, files=faulty))
    entries.put(make_key(a="2"), {"ops": b"2" * 5_000})
    entries.find(make_key(a="2"))
    assert entries.find(key) == parts
    assert set(before) <= set(_files(path))
    assert entries.tally.total() == 3
    DiskStore(path, LIMIT).trim()
    assert list(path.glob("v1/new/*")) == []


@contextmanager
def _file_size_limit(size):
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_really_is_full(path, make_key):
    """Files that cannot grow: the entry is refused whole, smaller ones go on."""
    entries = Entries(DiskStore(path, LIMIT))
    with _file_size_limit(10_000):
        entries.put(make_key(a="1"), {"small": b"1", "large": b"2" * 50_000})
        assert isinstance(entries.find(make_key(a="1")), Absent)
        entries.put(make_key(a="2"), {"small": b"1"})
    assert entries.find(make_key(a="2")) == {"small": b"1"}
    assert entries.tally == {"refused": 1, "misses": 1, "puts": 1, "hits": 1}
    assert list(path.glob("v1/new/*")) == []


def test_a_folder_that_is_taken_away_is_made_again(path, make_key):
    """As by somebody who cleans up: a miss, and the next put makes it anew."""
    import shutil

    entries = Entries(DiskStore(path, LIMIT))
    for below in ("", "v1", "v1/new"):
        entries.put(make_key(a="1"), {"ops": b"1"})
        shutil.rmtree(path / below)
        entries.put(make_key(a="2"), {"ops": b"2"})
        assert entries.find(make_key(a="2")) == {"ops": b"2"}
    assert entries.tally["errors"] == 0


def test_a_folder_that_is_taken_away_in_the_middle(path):
    """Between making the file and naming it: the put is done again."""
    import shutil

    class Cleaned(Files):
        cleaned = False

        def sync(self, _):
            if not self.cleaned:
                self.cleaned = True
                shutil.rmtree(path)

    store = DiskStore(path, LIMIT, files=Cleaned())
    store.put("x", b"1")
    assert store.get("x") == b"1"


def test_memory_that_is_short_is_an_error_of_the_store(path):
    """A value that does not fit into memory is no reason to fail."""

    class Short(Files):
        def read(self, *_):
            raise MemoryError

    DiskStore(path, LIMIT).put("x", b"1")
    with pytest.raises(OSError, match="which this process has not") as short:
        DiskStore(path, LIMIT, files=Short()).get("x")
    assert short.value.errno == errno.ENOMEM


# Damage.


@pytest.mark.parametrize("kind", ["folder", "pipe", "link", "dangling"])
def test_what_is_no_file_is_absent(path, kind):
    """It is not waited for and not followed; a put takes its place."""
    store = DiskStore(path, LIMIT)
    store.put("x", b"1")
    file = _only_file(path)
    file.rename(path / "elsewhere")
    if kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to(path / ("elsewhere" if kind == "link" else "nowhere"))
    with pytest.raises((StoreError, OSError)):
        store.get("x")
    store.put("x", b"2")
    assert store.get("x") == b"2"


@pytest.mark.parametrize("full", [False, True])
def test_a_folder_in_the_place_of_a_file_is_moved_aside(path, full):
    """By a put, too, which nobody asked before; what is in it is kept."""
    store = DiskStore(path, LIMIT)
    store.put("x", b"1")
    file = _only_file(path)
    file.unlink()
    file.mkdir()
    if full:
        (file / "theirs").write_text("theirs")
    store.put("x", b"2")
    assert store.get("x") == b"2"
    (aside,) = (path / "v1/damaged").iterdir()
    assert [each.read_text() for each in aside.iterdir()] == ["theirs"] * full


def test_a_folder_that_cannot_be_moved_aside_is_named(path):
    """A put says so then, and leaves nothing behind."""
    DiskStore(path, LIMIT).put("x", b"1")
    file = _only_file(path)
    file.unlink()
    file.mkdir()

    class Fixed(Files):
        def rename(self, path, to):
            if path == str(file):
                raise PermissionError(errno.EACCES, "Permission denied")
            super().rename(path, to)

    store = DiskStore(path, LIMIT, files=Fixed())
    with pytest.raises(PermissionError, match="a folder lies where x is to be") as told:
        store.put("x", b"2")
    assert told.value.filename == str(file)
    with pytest.raises(StoreError, match="where it can be moved aside"):
        store.get("x")
    assert list((path / "v1/new").iterdir()) == []


def test_a_file_that_was_made_longer_is_not_read_to_its_end(path):
    """However long it is now, it is damaged, and gone with the first get."""
    store = DiskStore(path, LIMIT)
    for damage in (b"", b"1"):
        store.put("x", damage)
        os.truncate(_only_file(path), 1 << 40)
        with pytest.raises(StoreError, match=r"it holds 10995116.* bytes"):
            store.get("x")
        assert store.get("x") is None
    store.put("x", b"2")
    assert store.get("x") == b"2"


def test_damaged_files_are_kept_to_look_at(path):
    """The last few of them, as they were found."""
    store = DiskStore(path, LIMIT)
    for number in range(KEPT_DAMAGED + 5):
        store.put("x", b"1")
        _only_file(path).write_bytes(b"%d" % number)
        with pytest.raises(StoreError, match="the next put writes it anew"):
            store.get("x")
        assert store.get("x") is None
    kept = sorted((path / "v1/damaged").iterdir())
    assert [int(file.read_bytes()) for file in kept] == list(range(5, KEPT_DAMAGED + 5))


def test_large_damaged_files_are_not_kept(path):
    """They take a sixteenth of the limit at most."""
    store = DiskStore(path, 64_000)
    for _ in range(3):
        store.put("x", b"1")
        _only_file(path).write_bytes(b"x" * 3_000)
        with pytest.raises(StoreError):
            store.get("x")
    assert len(list((path / "v1/damaged").iterdir())) == 1


def test_what_was_healed_is_not_moved_aside(path):
    """A file that took the damaged one's place meanwhile stays."""
    store = DiskStore(path, LIMIT)
    store.put("x", b"1")
    Folder(str(path), Files()).quarantine("x", 0, LIMIT)
    assert store.get("x") == b"1"


# What dead writers leave.


def test_a_living_writers_file_is_not_swept(path):
    """Its lock tells; when it is gone, so is the file."""
    store = DiskStore(path, LIMIT)
    store.put("x", b"1")
    with Folder(str(path), Files()).writing() as (file, _):
        assert store.trim().swept == 0
        dead = Path(file).with_name("dead")
        dead.write_bytes(b"torn")
        assert store.trim().swept == 1
        assert Path(file).exists()
    assert not dead.exists()


def test_a_file_swept_before_it_was_locked_is_made_anew(path):
    """The sweeper may be faster than the writer's lock."""
    swept = []

    class Slow(Files):
        def create(self, path):
            fd = super().create(path)
            if not swept:
                swept.append(path)
                Path(path).unlink()
            return fd

    store = DiskStore(path, LIMIT, files=Slow())
    store.put("x", b"1")
    assert len(swept) == 1
    assert store.get("x") == b"1"


def test_without_locks_age_tells(path, monkeypatch):
    """On a file system that has none, files are swept after an hour."""
    store = DiskStore(path, LIMIT)
    store.put("x", b"1")
    file = path / "v1/new/dead"
    file.write_bytes(b"torn")

    def unsupported(*_):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr("fcntl.flock", unsupported)
    store.put("y", b"1")
    assert store.trim().swept == 0
    os.utime(file, ns=(0, 0))
    assert store.trim().swept == 1


def test_the_first_put_of_a_process_sweeps(path):
    """Nobody has to ask for it."""
    DiskStore(path, LIMIT).put("x", b"1")
    (path / "v1/new/dead").write_bytes(b"torn")
    DiskStore(path, LIMIT).put("y", b"1")
    assert list((path / "v1/new").iterdir()) == []


# Room.


def test_trim_heeds_a_lower_limit(path, make_key):
    """What is over it goes, whole entries, longest unused first."""
    entries = Entries(DiskStore(path, LIMIT))
    for number in range(10):
        entries.put(make_key(n=str(number)), {"ops": b"%d" % number * 5_000})
    trimmed = DiskStore(path, 30_000).trim()
    assert trimmed.left <= 30_000
    assert sum(file.stat().st_size for file in _files(path)) == trimmed.left
    left = [dict(key.components)["n"] for key in entries.keys()]  # noqa: SIM118
    assert left == [b"%d" % n for n in range(10 - len(left), 10)]
    assert len(trimmed.removed) == 2 * (10 - len(left))


def test_what_is_used_meanwhile_is_not_evicted(path, make_key):
    """An entry that is found while others are chosen stays, with all of its blobs."""
    entries = Entries(DiskStore(path, LIMIT))
    for number in range(4):
        entries.put(make_key(n=str(number)), {"ops": b"%d" % number * 5_000, "s": b"s"})

    class Watched(Files):
        used = False

        def remove(self, path):
            if not self.used:
                self.used = True
                entries.find(make_key(n="1"))
            super().remove(path)

    DiskStore(path, 12_000, files=Watched()).trim()
    assert entries.find(make_key(n="1")) == {"ops": b"1" * 5_000, "s": b"s"}
    assert isinstance(entries.find(make_key(n="0")), Absent)


def test_blobs_of_dead_writers_go_first(path, make_key):
    """A blob that has waited for its manifest for long is nobody's."""
    store = DiskStore(path, LIMIT)
    store.put("blob-0", b"x" * 10_000)
    old = _only_file(path)
    times = old.stat().st_mtime_ns - 2 * YOUNG
    Entries(store).put(make_key(a="1"), {"ops": b"1" * 10_000})
    os.utime(old, ns=(times, times))
    assert DiskStore(path, 20_000).trim().removed == ("blob-0",)


def test_what_vanishes_while_it_is_counted_is_not_counted(path):
    """Another process may evict at the same time."""

    class Vanishing(Files):
        def list(self, path):
            found = super().list(path)
            for name, _ in found:
                if name.startswith("x"):
                    (Path(path) / name).unlink()
            return found

    DiskStore(path, LIMIT).put("x1", b"x" * 3_000)
    DiskStore(path, LIMIT).put("entry-x", b"x" * 3_000)
    store = DiskStore(path, 4_000, files=Vanishing())
    store.put("y", b"y" * 1_000)
    assert store.get("y") == b"y" * 1_000
    assert {item.name for item in DiskStore(path, LIMIT).scan()} <= {"y", "entry-x"}


def test_a_manifest_that_cannot_be_read_holds_nothing(path, make_key):
    """It is no reason to fail when room is made, and neither is one that vanishes."""
    entries = Entries(DiskStore(path, LIMIT))
    for number in range(4):
        entries.put(make_key(n=str(number)), {"ops": b"%d" % number * 3_000})
    manifests = sorted(path.glob("v1/?/entry-*"), key=lambda file: file.stat().st_mtime)
    manifests[0].write_bytes(b"")
    for file in path.glob("v1/?/*-*"):
        # Long ago: what is new may be about to be named, and is kept.
        then = file.stat().st_mtime - 1_000
        os.utime(file, (then, then))

    class Vanishing(Files):
        def open(self, path):
            if path == str(manifests[1]):
                manifests[1].unlink(missing_ok=True)
            return super().open(path)

    tight = Entries(DiskStore(path, 13_000, files=Vanishing()))
    tight.put(make_key(n="4"), {"ops": b"4" * 3_000})
    assert tight.tally == {"puts": 1}
    for number in (3, 4):
        assert entries.find(make_key(n=str(number))) == {"ops": b"%d" % number * 3_000}
