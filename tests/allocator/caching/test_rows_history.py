"""Table E: history, pictures, settings, and who hears of shortages.

Each docstring begins with the row of docs/allocator-rows.md that the test is for.
"""

from __future__ import annotations

import json
import random

import pytest

from sapwood.allocator.caching.settings import DEFAULT, VARIABLE, Settings
from sapwood.errors import MisuseError, OutOfMemory

MIB = 1 << 20


def _block(rig, address):
    (found,) = [block for block in rig.blocks() if block.address == address]
    return found


def _actions(rig):
    return [entry.action for entry in rig.allocator.history()]


def _is_here(frames):
    return any(frame.filename == __file__ for frame in frames)


@pytest.mark.deep
def test_a_picture_shows_who_asked(rig):
    """E test_memory_snapshot: every block by its size, address and file.

    1000 blocks of 512 bytes tile; what an empty cache did last is give memory back.
    """
    allocator, stream = rig.allocator, rig.stream()
    allocator.record_history("all", context="all")
    one = allocator.malloc(311 * 411 * 4, stream)
    many = [allocator.malloc(512, stream) for _ in range(1000)]
    picture = allocator.picture()
    assert all(_is_here(segment.frames) for segment in picture.segments)
    (found,) = [b for b in rig.blocks("allocated") if b.requested == 311 * 411 * 4]
    assert found.address == one
    assert _is_here(found.frames)
    assert sorted(many) == list(range(min(many), min(many) + 512_000, 512))
    for address in (one, *many):
        allocator.free(address)
    allocator.empty_cache()
    assert _actions(rig)[-1] in {"segment_free", "segment_unmap"}


def test_a_live_block_has_a_stack(rig):
    """E test_allocation_traceback: while it lives, and not when it is free."""
    allocator, stream = rig.allocator, rig.stream()
    allocator.record_history("state", context="state")
    address = allocator.malloc(700, stream)
    assert _is_here(_block(rig, address).frames)
    allocator.free(address)
    assert not any(block.frames for block in rig.blocks("free"))
    assert allocator.history() == ()


def test_without_recording_there_is_no_stack(rig):
    """E test_allocation_traceback_no_recording: nor any event."""
    address = rig.allocator.malloc(700, rig.stream())
    assert _block(rig, address).frames == ()
    assert rig.allocator.history() == ()


@pytest.mark.parametrize("context", ["state", "alloc", "all", None])
def test_free_has_a_stack_if_all_is_asked_for(rig, context):
    """E test_memory_plots_free_stack: frees only with "all", allocs unless "state"."""
    allocator, stream = rig.allocator, rig.stream()
    allocator.record_history("all", context=context)
    allocator.free(allocator.malloc(MIB, stream))
    found = {entry.action: bool(entry.frames) for entry in allocator.history()}
    assert found["alloc"] == (context in {"alloc", "all"})
    assert found["free_requested"] == (context == "all")


@pytest.mark.parametrize("context", ["alloc", "all"])
def test_segments_free_has_a_stack_if_all_is_asked_for(either, context):
    """E test_memory_plots_free_segment_stack: only with "all"."""
    allocator, stream = either.allocator, either.stream()
    allocator.record_history("all", context=context)
    allocator.free(allocator.malloc(MIB, stream))
    allocator.empty_cache()
    given = [
        entry
        for entry in allocator.history()
        if entry.action in {"segment_free", "segment_unmap"}
    ]
    assert given
    assert all(bool(entry.frames) == (context == "all") for entry in given)


def test_a_new_context_is_for_later_events(rig):
    """E test_memory_plots_history_context: earlier events stay as they are."""
    allocator, stream = rig.allocator, rig.stream()
    for context in (None, "alloc"):
        allocator.record_history("all", context=context)
        allocator.free(allocator.malloc(MIB, stream))
    stacks = [bool(e.frames) for e in allocator.history() if e.action == "alloc"]
    assert stacks == [False, True]


def test_annotations_go_with_every_event(rig):
    """E test_memory_plots_metadata: what was set when it happened."""
    allocator, stream = rig.allocator, rig.stream()
    for note in ("", "step 1", "step 2"):
        allocator.record_history("all", context=None, annotation=note)
        allocator.free(allocator.malloc(MIB, stream))
    said = [e.annotation for e in allocator.history() if e.action == "alloc"]
    assert said == ["", "step 1", "step 2"]
    freed = [e.annotation for e in allocator.history() if e.action == "free_completed"]
    assert freed == said


SKIPS = [
    ["alloc"],
    ["free_requested"],
    ["free_completed"],
    ["alloc", "free_requested", "free_completed"],
    ["segment_alloc", "segment_free", "segment_map", "segment_unmap"],
    ["oom"],
]


@pytest.mark.parametrize("skip", SKIPS, ids="+".join)
def test_skipped_actions_are_absent(either, skip):
    """E test_memory_snapshot_skip_actions: and only those; what is none is refused."""
    allocator, stream = either.allocator, either.stream()

    def run():
        allocator.free(allocator.malloc(MIB, stream))
        allocator.empty_cache()
        with pytest.raises(OutOfMemory):
            allocator.malloc(1 << 50, stream)

    allocator.record_history("all")
    run()
    everything = set(_actions(either))
    assert {"alloc", "free_requested", "free_completed", "oom"} < everything
    allocator.record_history(None)
    allocator.record_history("all", skip=skip)
    before = len(allocator.history())
    run()
    later = {entry.action for entry in allocator.history()[before:]}
    assert later == everything - set(skip)


def test_an_unknown_action_cannot_be_skipped(rig):
    """E test_memory_snapshot_skip_actions: it is refused by name."""
    with pytest.raises(MisuseError, match="dealloc"):
        rig.allocator.record_history("all", skip=["dealloc"])
    assert rig.allocator.history() == ()


def test_a_picture_is_an_event_of_the_next(rig):
    """It says how many bytes were active, and where it was asked for."""
    allocator, stream = rig.allocator, rig.stream()
    allocator.record_history()
    allocator.malloc(MIB, stream)
    first = allocator.picture()
    actions = [entry.action for entry in first.history]
    assert actions[-1] == "alloc"
    assert "snapshot" not in actions
    event = allocator.picture().history[len(actions)]
    assert (event.action, event.address, event.size) == ("snapshot", 0, MIB)
    assert event.frames[0].name == "test_a_picture_is_an_event_of_the_next"


def test_a_pictured_allocator_is_plain_data(rig):
    """E test_memory_profiler_viz: pictures become JSON; stacks iff context is on."""
    from dataclasses import asdict

    allocator, stream = rig.allocator, rig.stream()
    for context in (None, "all"):
        allocator.record_history("all", context=context)
        address = allocator.malloc(MIB, stream)
        picture = allocator.picture()
        assert json.loads(json.dumps(asdict(picture)))["total"] == picture.total
        assert bool(_block(rig, address).frames) == (context is not None)


def test_large_blocks_beside_a_split_limit(make_rig):
    """E test_max_split_expandable: both kinds of segments under one limit of 120 MB.

    What does not fit beside them does when they are free.
    """
    rig = make_rig(total=128 * MIB, settings=DEFAULT.replace(expandable_segments=False))
    allocator, stream = rig.allocator, rig.stream()
    text = "expandable_segments:{},max_split_size_mb:40"
    allocator.configure(text.format("False"))
    allocator.memory_fraction = 120 / 128
    held = [allocator.malloc(40 * MIB, stream)]
    allocator.configure(text.format("True"))
    allocator.memory_fraction = 120 / 128
    held += [allocator.malloc(40 * MIB, stream) for _ in range(2)]
    with pytest.raises(OutOfMemory):
        allocator.malloc(40 * MIB, stream)
    for address in held:
        allocator.free(address)
    assert allocator.malloc(120 * MIB, stream)


def test_collecting_garbage_beside_ranges(make_rig):
    """E test_garbage_collect_expandable: free parts of ranges are no garbage."""
    rig = make_rig(total=128 * MIB, settings=DEFAULT.replace(expandable_segments=False))
    allocator, stream = rig.allocator, rig.stream()
    text = "expandable_segments:{},garbage_collection_threshold:0.5"
    allocator.configure(text.format("False"))
    allocator.memory_fraction = 120 / 128
    held = [allocator.malloc(30 * MIB, stream)]
    allocator.configure(text.format("True"))
    allocator.memory_fraction = 120 / 128
    held.append(allocator.malloc(30 * MIB, stream))
    for address in held:
        allocator.free(address)
    assert allocator.malloc(80 * MIB, stream)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("roundup_power2_divisions:4", {84: 96, 100: 112}),
        ("roundup_power2_divisions:[64:8,128:2,256:4,512:1,>:1]", {84: 88, 140: 192}),
    ],
)
def test_rounding_is_as_set(make_rig, text, sizes):
    """E test_allocator_settings: exact sizes; a later text replaces an earlier one."""
    rig = make_rig(total=512 * MIB)
    allocator, stream = rig.allocator, rig.stream()
    allocator.configure(text)
    for asked, rounded in sizes.items():
        address = allocator.malloc(asked * MIB, stream)
        assert _block(rig, address).size == rounded * MIB
        allocator.free(address)
    allocator.configure("garbage_collection_threshold:0.5")
    allocator.empty_cache()
    address = allocator.malloc(84 * MIB, stream)
    assert _block(rig, address).size == 84 * MIB, "the divisions have been reset"


@pytest.mark.parametrize(
    "text",
    [
        "foo:1,bar:2",
        "garbage_collection_threshold:1.2",
        "max_split_size_mb:2",
        "release_lock_on_cudamalloc:none",
        "pinned_use_cuda_host_register:none",
        "pinned_num_register_threads:none",
        "pinned_num_register_threads:1024",
        "expandable_segments:False,max_split_size_mb:x",
    ],
)
def test_wrong_settings_change_nothing(rig, text):
    """E test_allocator_settings: the cases that are refused, as a whole."""
    before = rig.allocator.settings
    with pytest.raises(MisuseError):
        rig.allocator.configure(text)
    assert rig.allocator.settings == before


def test_the_only_backend_is_native(rig):
    """E test_allocator_backend: PyTorch's key is read; another backend is refused."""
    rig.allocator.configure("backend:native,max_split_size_mb:40")
    assert rig.allocator.settings.max_split_size == 40 * MIB
    with pytest.raises(MisuseError, match="backend"):
        rig.allocator.configure("backend:cudaMallocAsync")


@pytest.mark.parametrize("fraction", [0.0, 0.5, 1.0])
def test_the_environment_sets_the_fraction(make_rig, monkeypatch, fraction):
    """E test_allocator_memory_fraction_setting: 0, a half and 1 are honoured."""
    monkeypatch.setenv(VARIABLE, f"per_process_memory_fraction:{fraction}")
    rig = make_rig(settings=Settings.from_env(), total=64 * MIB)
    assert rig.allocator.memory_fraction == fraction
    assert rig.allocator.picture().limit == 64 * MIB * fraction


@pytest.mark.parametrize("fraction", ["-0.1", "1.1"])
def test_the_environment_is_checked(monkeypatch, fraction):
    """E test_allocator_memory_fraction_setting: below 0 and above 1 are refused."""
    monkeypatch.setenv(VARIABLE, f"per_process_memory_fraction:{fraction}")
    with pytest.raises(MisuseError, match=VARIABLE):
        Settings.from_env()


def test_requested_bytes_are_exact(rig):
    """E test_cachingAllocator_raw_alloc: what was asked for, to the byte."""
    allocator, stream = rig.allocator, rig.stream()
    address = allocator.malloc(1234, stream)
    assert allocator.counters().total.requested_bytes.current == 1234
    allocator.free(address)
    assert allocator.counters().total.requested_bytes.current == 0


@pytest.mark.parametrize("text", ["", "max_split_size_mb:41"])
def test_four_tebibytes_are_too_many(either, text):
    """E test_raises_oom: with and without a split limit."""
    either.allocator.configure(text)
    with pytest.raises(OutOfMemory):
        either.allocator.malloc(4 << 40, either.stream())


def test_the_last_event_is_the_last_allocation(rig):
    """E test_cpp_memory_snapshot_pickle: of the exact size that was asked for."""
    allocator, stream = rig.allocator, rig.stream()
    allocator.record_history("all")
    address = allocator.malloc(311 * 411 * 4, stream)
    entry = allocator.history()[-1]
    assert (entry.action, entry.address) == ("alloc", address)
    assert (entry.size, entry.stream) == (311 * 411 * 4, stream)


def test_observers_hear_of_a_shortage(rig):
    """E test_notifies_oom: each is told once, outside the lock, until it detaches."""
    allocator, stream = rig.allocator, rig.stream()
    heard = []

    def observe(*told):
        heard.append((told, allocator.picture().device))

    detach = allocator.on_out_of_memory(observe)
    with pytest.raises(OutOfMemory):
        allocator.malloc(4 << 40, stream)
    assert len(heard) == 1
    detach()
    with pytest.raises(OutOfMemory):
        allocator.malloc(4 << 40, stream)
    assert len(heard) == 1


def test_allocation_fuzz_of_the_row(make_rig):
    """E test_allocator_fuzz: random steps of 2 to 20 MiB; contents never overlap.

    The 10,000 steps are in test_fuzz.py, on a small device.
    """
    rig = make_rig(total=96 * MIB)
    allocator, stream = rig.allocator, rig.stream()
    chance, held = random.Random(7), []
    for step in range(300):
        size = chance.randrange(2, 20) * MIB
        if chance.random() < 0.05:
            allocator.empty_cache()
        while held and sum(each[1] for each in held) + size > 60 * MIB:
            address, length, value = held.pop(chance.randrange(len(held)))
            assert rig.read(address, 4096, stream).count(value) == 4096
            end = address + length - 4096
            assert rig.read(end, 4096, stream).count(value) == 4096
            allocator.free(address)
        held.append((allocator.malloc(size, stream), size, step % 255))
        rig.fill(*held[-1], stream)
