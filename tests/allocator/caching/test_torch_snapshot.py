"""Snapshots in PyTorch's structure: its tools read ours, and we read its."""

from __future__ import annotations

import base64
import json
import os
import pickle
import re
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sapwood.allocator.caching.export.torch_snapshot import (
    dumps_torch,
    from_torch,
    load_plain,
    loads_torch,
    to_torch,
)
from sapwood.allocator.caching.picture import DEFAULT_POOL, Picture
from sapwood.allocator.caching.settings import Settings
from sapwood.allocator.caching.shortage import reserved
from sapwood.errors import MisuseError
from sapwood.units import Size
from tests.support.pictures import pictures

SLOW = settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def viz():
    return pytest.importorskip("torch.cuda._memory_viz")


def _mapped(picture):
    return [
        (block, segment)
        for segment in picture.segments
        for block in segment.blocks
        if block.state != "unmapped"
    ]


@SLOW
@given(pictures())
def test_segments_are_the_mapped_ranges(picture):
    """Each byte of memory is in one segment, and sums are those of the blocks."""
    written = to_torch(picture)
    assert sum(s["total_size"] for s in written["segments"]) == reserved(picture)
    for segment in written["segments"]:
        blocks = segment["blocks"]
        assert sum(block["size"] for block in blocks) == segment["total_size"]
        active = [block for block in blocks if block["state"] != "inactive"]
        assert segment["active_size"] == sum(block["size"] for block in active)
        assert segment["requested_size"] == sum(b["requested_size"] for b in active)
    assert sum(len(s["blocks"]) for s in written["segments"]) == len(_mapped(picture))


@SLOW
@given(pictures())
def test_reading_back_keeps_what_the_structure_holds(picture):
    """Blocks, their states, stacks and events are read back from a pickle."""
    read = loads_torch(dumps_torch(picture), picture.device)
    kept = [
        (replace(block, users=()), segment.stream, segment.pool, segment.size_class)
        for block, segment in _mapped(picture)
    ]
    assert kept == [
        (block, segment.stream, segment.pool, segment.size_class)
        for block, segment in _mapped(read)
    ]
    assert read.history == picture.history
    assert reserved(read) == reserved(picture)
    assert to_torch(read)["segments"] == to_torch(picture)["segments"]


@SLOW
@given(pictures())
def test_snapshots_are_plain(picture):
    """Nothing in a snapshot needs this library to be read."""
    written = to_torch(picture)
    assert pickle.loads(dumps_torch(picture)) == written
    assert load_plain(pickle.dumps(written)) == written
    assert {type(size) for s in written["segments"] for size in s.values()} <= {
        *(int, str, tuple, bool, list),
    }


@SLOW
@given(pictures())
def test_memory_viz_draws_it(viz, picture):
    """The tools that make text and flame graphs accept it, with the right sums."""
    written = to_torch(picture)
    text = viz.segsum(written)
    assert f"segments: {len(written['segments'])}" in text
    assert f"total_reserved: {viz.Bytes(reserved(picture))}" in text
    assert viz.trace(written).count("TOTAL MEM") == bool(picture.history)
    for draw in (viz.segments, viz.memory):
        lines = draw(written, format_flamegraph=str).splitlines()
        drawn = sum(int(line.rsplit(" ", 1)[1]) for line in lines)
        assert drawn == reserved(picture)


@SLOW
@given(pictures(), pictures())
def test_memory_viz_compares_two(viz, before, after):
    """Segments that only one of two snapshots has are what is drawn."""
    first, second = (to_torch(picture)["segments"] for picture in (before, after))
    lines = viz.compare(first, second, format_flamegraph=str).splitlines()
    keys = [{(s["address"], s["total_size"]) for s in held} for held in (first, second)]
    drawn = sum(int(line.rsplit(" ", 1)[1]) for line in lines)
    assert drawn == sum(size for _, size in keys[0] ^ keys[1])


@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
@given(pictures())
def test_memory_viz_plots_it(viz, picture):
    """E test_memory_plots: `trace_plot` and `segment_plot` carry the whole snapshot."""
    for plot in (viz.trace_plot, viz.segment_plot):
        page = plot(to_torch(picture))
        carried = re.search(r"local_files = (\[.*\])$", page, re.MULTILINE)
        (file,) = json.loads(carried[1])
        assert pickle.loads(base64.b64decode(file["base64"])) == to_torch(picture)


def _picture(**changes):
    return Picture(0, Size(1), Size(1), Size(1), (), (), **changes)


def test_settings_have_pytorchs_names():
    """The settings are under PyTorch's names, divisions by interval."""
    chosen = Settings(expandable_segments=False, roundup_power2_divisions={64: 8})
    written = to_torch(_picture(settings=chosen.plain()))["allocator_settings"]
    assert written["max_split_size"] == -1
    assert written["expandable_segments"] is False
    divisions = written["roundup_power2_divisions"]
    assert divisions == {str(1 << n): 8 if n <= 6 else 0 for n in range(16)}
    assert Settings.parse(written["PYTORCH_CUDA_ALLOC_CONF"]) == chosen


def test_devices_are_kept_apart():
    """Several allocators make one snapshot; one device of it is read at a time."""
    first, second = _picture(), replace(_picture(), device=2)
    written = to_torch(first, second)
    assert written["device_traces"] == [[], [], []]
    segment = {"address": 0, "total_size": 0, "blocks": [], "stream": 0}
    segments = [{**segment, "segment_type": "small", "device": at} for at in (0, 2)]
    with pytest.raises(MisuseError, match="holds devices 0, 2"):
        from_torch({"segments": segments})
    assert from_torch({"segments": segments}, 2).device == 2


def test_old_snapshots_are_read():
    """Lists of segments alone, without what came later, are read as they were meant."""
    block = {"size": 512, "state": "active_awaiting_free"}
    rest = {"size": 1536, "state": "inactive"}
    segment = {
        "address": 4096,
        "total_size": 2048,
        "stream": 7,
        "segment_type": "small",
        "blocks": [block, rest],
    }
    (read,) = from_torch([segment]).segments
    assert [(b.address, b.size, b.state) for b in read.blocks] == [
        (4096, 512, "pending"),
        (4608, 1536, "free"),
    ]
    assert read.pool == DEFAULT_POOL


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"total_size": 4096}, "as large as its blocks"),
        ({"stream": "7"}, r"segments\[0\]\.stream is '7'"),
        ({"segment_type": "medium"}, "one of small, large"),
        ({"blocks": [{"size": 0, "state": "inactive"}]}, "a whole number from 1"),
        ({"blocks": [{"size": 2048}]}, "a mapping with state"),
        ({"blocks": [{"size": 2048, "state": "gone"}]}, "active_allocated"),
        ({"blocks": [{"size": 2048, "address": 1, "state": "inactive"}]}, "ends"),
    ],
)
def test_a_wrong_snapshot_says_where(change, said):
    """What is not as PyTorch writes it is refused with its place."""
    segment = {
        "address": 4096,
        "total_size": 2048,
        "stream": 7,
        "segment_type": "small",
        "blocks": [{"size": 2048, "state": "inactive"}],
    }
    with pytest.raises(MisuseError, match=said):
        from_torch({"segments": [segment | change]})


class _Evil:
    """What runs a command when it is read by an unpickler that looks up names."""

    def __reduce__(self):
        return os.system, ("exit 3",)


@pytest.mark.parametrize("harm", [_Evil(), os.system, {"segments": [_Evil()]}, type])
def test_pickles_that_name_code_are_refused(harm):
    """Reading a pickle looks up no name, however innocent."""
    with pytest.raises(MisuseError, match="only plain data is read"):
        loads_torch(pickle.dumps(harm))


@SLOW
@given(st.binary(max_size=40), st.integers(0, 5))
def test_damaged_pickles_are_refused(junk, protocol):
    """Bytes that are no pickle, or end early, are refused; nothing else happens."""
    whole = pickle.dumps({"segments": []}, protocol)
    for data in (junk, whole[: len(whole) // 2], whole[:3] + junk):
        with pytest.raises(MisuseError):
            loads_torch(data)


def _shared(depth):
    """Return lists in lists that a text of all of them would take forever to write."""
    inner = []
    for _ in range(depth):
        inner = [inner, inner]
    return inner


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps({"segments": _shared(50), "device_traces": []}),
        pickle.dumps({"segments": [{"address": 1 << 100_000}]}),
        b"\x80\x04" + b"(" * 300_000 + b"t" * 300_000 + b".",
        b"\x80\x04" + b"(" * 300_000 + b"t" * 300_000 + b"Q.",
    ],
    ids=["shared", "large", "deep", "deep reference"],
)
def test_values_of_any_size_are_told_in_a_few_words(data):
    """However often a value is shared, and however deep it lies."""
    with pytest.raises(MisuseError) as refused:
        loads_torch(data)
    assert len(str(refused.value)) < 200


def test_damage_without_words_is_told():
    """As that of a place among what was read that memory does not reach."""
    with pytest.raises(MisuseError, match="cannot be read: it is damaged"):
        loads_torch(b"\x80\x04]r\xff\xff\xff\xff.")
