"""Traces come out of files as they went in; what is wrong there is named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.allocator.caching.export import snapshot
from sapwood.allocator.caching.export.torch_snapshot import dumps_torch
from sapwood.allocator.caching.picture import (
    DEFAULT_POOL,
    BlockPicture,
    Entry,
    Picture,
    SegmentPicture,
)
from sapwood.allocator.simulate import Buffer, Trace, read_trace
from sapwood.allocator.simulate.reading import Log, from_picture, from_rmm
from sapwood.driver.api import StreamHandle
from sapwood.errors import MisuseError
from sapwood.units import Addr, Size

CSV = "id,lower,upper,size\na,0,5,100\nb,2,7,50\n"
RMM = "Thread,Time,Action,Pointer,Size,Stream\n"


@pytest.fixture
def file(tmp_path):
    def write(text: str | bytes):
        path = tmp_path / "given.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.mark.parametrize(
    "text",
    [
        CSV,
        "\ufeff" + CSV,
        CSV.replace("\n", "\r\n"),
        CSV + "\n\n",
        "size, upper ,note,lower,id\n100,5,x,0,a\n50,7,,2,b",
        'id,lower,upper,size\n"a","0",5,100\nb, 2,7 ,50\n',
    ],
    ids=["plain", "mark", "carriage returns", "empty lines", "columns", "quotes"],
)
def test_lifetimes_are_read(text, file):
    """Order and number of columns, line ends, quotes and spaces change nothing."""
    assert read_trace(file(text)).buffers == (
        Buffer("a", 0, 5, 100),
        Buffer("b", 2, 7, 50),
    )


def test_a_column_of_streams_is_kept(file):
    """With a column ``stream``, buffers are on streams; without, on the default one."""
    trace = read_trace(file("id,lower,upper,size,stream\na,0,5,100,7\n"))
    assert [buffer.stream for buffer in trace.buffers] == [7]


def test_large_numbers_are_exact(file):
    """Times and sizes beyond 64 bits are kept to the last digit."""
    large = 10**30 + 1
    trace = read_trace(file(f"id,lower,upper,size\na,{-large},{large},{large}\n"))
    assert trace.buffers == (Buffer("a", -large, large, large),)
    assert trace.peak == large


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id,lower,upper\na,0,5\n", "has no column 'size'"),
        ("id,lower,upper,size\na,0,5\n", "line 2 of .*given.csv has 3 cells. Give 4"),
        (
            "id,lower,upper,size\na,0,5,1\nb,0,x,1\n",
            "line 3 of .*given.csv has 'x' in its column up",
        ),
        ("id,lower,upper,size\na,0,5,1.5\n", "has '1.5' in its column size"),
        ("id,lower,upper,size\na,0,5,1_0\n", "has '1_0' in its column size"),
        ("id,lower,upper,size\na,0,5," + "9" * 5000, "at most 40 digits"),
        (
            "id,lower,upper,size\na,5,5,1\n",
            "line 2 of .*given.csv has a lower of 5",
        ),
        ("id,lower,upper,size\na,0,5,-1\n", "has a size of -1"),
        ("id,lower,upper,size\na,0,5,1\na,6,7,1\n", "has the id 'a' of line 2"),
        ('id,lower,upper,size\n"a,0,5,1\n', "is no CSV"),
        (RMM + "1,t,allocate,0x10,5\n", "line 2 of given has 5 cells"),
        (RMM + "1,t,lease,0x10,5,0\n", "line 2 of given: Action is 'lease'"),
        (RMM + "1,t,free,0xzz,5,0\n", "Pointer is '0xzz'"),
        (RMM + "1,t,free,0x10,-5,0\n", "Size is '-5'"),
        ("a picture\n", "is no trace"),
        ("", "is no trace"),
        (b"\xff\xfe", "is no trace"),
    ],
)
def test_what_is_wrong_is_named(text, said, file):
    """Errors name the file, the line and the column, and say what would be right."""
    with pytest.raises(MisuseError, match=said):
        read_trace(file(text))


def test_a_missing_file_is_named(tmp_path):
    """A file that is not there is the user's to mend."""
    with pytest.raises(MisuseError, match=r"nothing\.csv cannot be read: No such file"):
        read_trace(tmp_path / "nothing.csv")


def test_logs_of_rmm_are_read():
    """Events keep their order and streams; failures and empty blocks leave nothing."""
    trace = from_rmm(
        "log",
        RMM + "1,10:00:00:1,allocate,0x10,100,0x2\n"
        "1,10:00:00:2,allocate failure,(nil),900,0x2\n"
        "2,10:00:00:3,allocate,0x90,50,0\n"
        "2,10:00:00:4,allocate,0x0,0,0\n"
        "1,10:00:00:5,free,0x10,100,0x2\n"
        "1,10:00:00:6,free,0x30,7,0x2\n",
    )
    assert trace.buffers == (
        Buffer("0", 0, 4, 7, 2),  # freed, but never allocated: there before
        Buffer("1", 1, 3, 100, 2),
        Buffer("2", 2, 5, 50, 0),
    )


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(0, 3)), max_size=40))
def test_a_log_gives_back_what_was_done(sizes):
    """The trace of a program's log has that program's peak."""
    log, live, most = Log(), {}, 0
    for address, (size, slot) in enumerate(sizes):
        if slot in live:
            log.free(*live.pop(slot), 0)
        log.allocate(address, size, 0)
        live[slot] = address, size
        most = max(most, sum(size for _, size in live.values()))
    trace = log.trace("log")
    assert trace.peak == most
    assert sorted(buffer.size for buffer in trace.buffers) == sorted(
        size for size, _ in sizes
    )


def test_what_a_log_does_not_know_was_there_before():
    """Blocks alive at the end, allocated before the beginning, live all through."""
    log = Log()
    log.allocate(1, 10, 0)
    log.free(1, 10, 0)
    log.allocate(2, 20, 3)
    log.survive([(2, 20, 3), (9, 90, 4)])
    assert log.trace("log") == Trace.of(
        "log",
        [
            Buffer("0", 0, 4, 90, 4),
            Buffer("1", 1, 2, 10, 0),
            Buffer("2", 3, 4, 20, 3),
        ],
    )


def _entry(action, address, size, stream=0):
    return Entry(action, Addr(address), Size(size), StreamHandle(stream), 1)


def _picture(history, blocks=()) -> Picture:
    size = Size(sum(block.size for block in blocks))
    segment = SegmentPicture(
        Addr(4096), size, StreamHandle(5), "small", DEFAULT_POOL, True, blocks, ()
    )
    return Picture(0, size, size, size, (segment,), (), history=history)


def test_our_history_is_read(file):
    """A buffer ends where its block became free; what history does not know lasts."""
    picture = _picture(
        (
            _entry("alloc", 4096, 100),
            _entry("segment_map", 4096, 2 << 20),
            _entry("free_requested", 4096, 100),
            _entry("alloc", 8192, 50),
            _entry("free_completed", 4096, 100),
            _entry("free_requested", 8192, 50),
        ),
        (
            BlockPicture(Addr(4096), Size(4096), Size(0), "free"),
            BlockPicture(Addr(8192), Size(4096), Size(50), "pending"),
            BlockPicture(Addr(12288), Size(512), Size(7), "allocated"),
        ),
    )
    trace = read_trace(file(snapshot.dumps(picture)))
    assert [(b.size, b.stream) for b in trace.buffers] == [(7, 5), (100, 0), (50, 0)]
    assert trace.steps == (0, 1, 2, ~1, ~0, ~2)


def test_without_completions_frees_end_buffers():
    """A history that skips ``free_completed`` ends buffers where they were freed."""
    picture = _picture((_entry("alloc", 1, 9), _entry("free_requested", 1, 9)))
    assert from_picture("history", picture).steps == (0, ~0)


def test_a_snapshot_that_is_none_is_named(file):
    """JSON of something else is refused."""
    with pytest.raises(MisuseError, match="format"):
        read_trace(file('{"format": "something"}'))


def test_snapshots_of_pytorch_are_read(file):
    """A pickle gives what its picture gives; of several devices, the one asked for."""
    picture = _picture((_entry("alloc", 1, 9), _entry("free_requested", 1, 9)))
    other = replace(picture, device=1, history=(_entry("alloc", 1, 7),))
    both = file(dumps_torch(picture, other))
    assert read_trace(both, 0).buffers == (Buffer("0", 1, 2, 9),)
    assert read_trace(both, 1).buffers == (Buffer("0", 1, 2, 7),)
    with pytest.raises(MisuseError, match="devices 0, 1"):
        read_trace(both)


def test_a_pickle_runs_nothing(file):
    """A pickle that names code is refused."""
    with pytest.raises(MisuseError, match=r"posix\.getcwd|os\.getcwd"):
        read_trace(file(b"\x80\x04cos\ngetcwd\n)R."))
