"""What PyTorch asks of pinned memory, as far as it is not about tensors."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import textwrap

import pytest

from sapwood.allocator.caching.picture import PoolId
from sapwood.allocator.pinned import PinnedAllocator
from sapwood.driver.emulated import Emulated
from sapwood.driver.layers import Recorded
from sapwood.errors import DriverError
from tests.support.threads import in_threads

KIB, MIB = 1 << 10, 1 << 20
POOL = PoolId(1, 0)
REGISTERED = {"pinned_use_cuda_host_register": True, "pinned_num_register_threads": 8}


def _current(allocator, *names):
    stats = allocator.memory_stats()
    return [stats[name] for name in names]


def test_pinned_memory_with_cudaregister(rig, read):
    """B test_pinned_memory_with_cudaregister: 2^21 and 2^24 floats, by 8 threads."""
    allocator, stream = rig.allocator(**REGISTERED), rig.stream()
    device = rig.device_memory()
    for size in (4 << 21, 4 << 24):
        address = allocator.malloc(size)
        assert rig.checked.leaks()["registered"] == 1
        assert "host" not in rig.checked.leaks()
        assert allocator.owns(address + size - 1)
        assert read(address, 8) == read(address + size - 8, 8) == bytes(8)
        rig.upload(allocator, device, address + size - 8, 8, stream)
        assert rig.driver.download(device, 8, stream) == bytes(8)
        allocator.free(address)
        rig.driver.synchronize()
        assert allocator.empty_cache() == size


def test_pinned_memory_with_cudaregister_multithread(rig):
    """B test_pinned_memory_with_cudaregister_multithread: by four callers at once."""
    allocator, made = rig.allocator(**REGISTERED), []
    in_threads(*[lambda: made.append(allocator.malloc(4 << 21))] * 4)
    assert len(set(made)) == 4
    for address in made:
        allocator.free(address)


def test_host_memory_stats(rig):
    """B test_host_memory_stats: blocks of 64 and 128 KiB, counted one by one."""
    allocator = rig.allocator()
    names = (
        *("allocations.current", "allocated_bytes.current", "active_requests.current"),
        *("active_bytes.current", "num_host_alloc", "host_alloc_time.count"),
        *("num_host_free", "host_free_time.count"),
    )
    first = allocator.malloc(40 * KIB)
    assert _current(allocator, *names) == [1, 64 * KIB, 1, 64 * KIB, 1, 1, 0, 0]
    second = allocator.malloc(80 * KIB)
    assert _current(allocator, *names) == [2, 192 * KIB, 2, 192 * KIB, 2, 2, 0, 0]
    assert allocator.empty_cache() == 0
    assert _current(allocator, *names) == [2, 192 * KIB, 2, 192 * KIB, 2, 2, 0, 0]
    allocator.free(first)
    assert _current(allocator, *names) == [2, 192 * KIB, 1, 128 * KIB, 2, 2, 0, 0]
    first = allocator.malloc(64 * KIB)
    assert _current(allocator, *names) == [2, 192 * KIB, 2, 192 * KIB, 2, 2, 0, 0]
    for address in (first, second):
        allocator.free(address)
    assert allocator.empty_cache() == 192 * KIB
    assert _current(allocator, *names) == [0, 0, 0, 0, 2, 2, 2, 2]


def test_pinned_memory_empty_cache(rig, mode):
    """B test_pinned_memory_empty_cache: what is idle goes back, and comes anew."""
    allocator = rig.allocator(**mode)
    for _ in range(2):
        addresses = [allocator.malloc(size * MIB) for size in (1, 16, 3)]
        for address in addresses:
            allocator.free(address)
        held = _current(allocator, "allocated_bytes.current")[0]
        kept = mode.get("pinned_reserve_segment_size", 0)
        assert allocator.empty_cache() == held - kept
        assert _current(allocator, "allocated_bytes.current") == [kept]


def test_pinned_memory_use_background_threads():
    """B test_pinned_memory_use_background_threads: the process ends, without a word."""
    program = """
        import sys
        from sapwood.driver.emulated import Emulated
        from sapwood.allocator.caching.settings import Settings
        from sapwood.allocator.pinned import PinnedAllocator
        device = Emulated(schedule=sys.argv[1])
        allocator = PinnedAllocator(
            device, Settings(pinned_use_background_threads=True)
        )
        stream = device.create_stream()
        for _ in range(3):
            address = allocator.malloc(1 << 20)
            device.copy(address, address + 64, 64, stream)
            allocator.record_use(address, stream)
            allocator.free(address)
        print("done")
    """
    for schedule in ("earliest", "latest"):
        told = subprocess.run(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(program), schedule],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (told.returncode, told.stdout, told.stderr) == (0, "done\n", "")


def test_caching_pinned_memory(lazy):
    """B test_caching_pinned_memory: reused at once, but not while a copy reads it."""
    allocator, stream = lazy.allocator(), lazy.stream()
    device = lazy.device_memory()
    unused = allocator.malloc(4)
    allocator.free(unused)
    used = allocator.malloc(4)
    assert used == unused
    with lazy.held_up(stream):
        lazy.upload(allocator, device, used, 4, stream)
        allocator.free(used)
        other = allocator.malloc(4)
        assert other != used
    lazy.driver.synchronize_stream(stream)
    assert allocator.malloc(4) == used
    allocator.free(used)
    allocator.free(other)


def test_is_pinned_no_context():
    """B test_is_pinned_no_context: asking makes no device call, nor does making one."""
    driver = Recorded(Emulated())
    allocator = PinnedAllocator(driver)
    assert not allocator.owns(1)
    assert driver.counts() == {}
    driver.close()


def test_copy_non_blocking(rig, read, write):
    """B test_copy_non_blocking: after its event a copy is seen, from views as well."""
    allocator, stream = rig.allocator(), rig.stream()
    device, base = rig.device_memory(), allocator.malloc(1000)
    write(base, 1, 500)
    write(base + 500, 2, 500)
    assert allocator.owns(base + 500)
    rig.upload(allocator, device, base + 500, 500, stream)
    rig.driver.copy(base, device, 500, stream)
    allocator.record_use(base, stream)
    event = rig.driver.create_event()
    rig.driver.record_event(event, stream)
    rig.driver.synchronize_event(event)
    assert read(base, 1000) == bytes([2]) * 1000
    rig.driver.destroy_event(event)
    allocator.free(base)


def test_to_non_blocking(lazy):
    """B test_to_non_blocking: a copy of pinned memory is pending when it is given."""
    allocator, stream = lazy.allocator(), lazy.stream()
    device, address = lazy.device_memory(), allocator.malloc(64)
    with lazy.held_up(stream):
        lazy.upload(allocator, device, address, 64, stream)
        assert not lazy.driver.query_stream(stream)
    lazy.driver.synchronize_stream(stream)
    assert lazy.driver.query_stream(stream)
    allocator.free(address)


def test_to_cpu_blocking_by_default(rig):
    """B test_to_cpu_blocking_by_default: bytes come out when they are there."""
    allocator, stream = rig.allocator(), rig.stream()
    device, address = rig.device_memory(), allocator.malloc(4)
    allocator.view(address)[:] = b"abcd"
    rig.upload(allocator, device, address, 4, stream)
    data = rig.driver.download(device, 4, stream)
    assert rig.driver.query_stream(stream)
    assert data == b"abcd"
    assert not allocator.owns(ctypes.addressof(ctypes.c_char.from_buffer(data)))


@pytest.fixture(params=[4, 4 * MIB], ids=["small", "large"])
def size(request):
    """Return how much each test about captures asks for."""
    return request.param


def _graph(rig, allocator, stream, captured, pool=POOL):
    """Return an executable of what a function gives a stream while it captures."""
    with allocator.using(pool):
        rig.driver.begin_capture(stream)
        captured()
        graph = rig.driver.end_capture(stream)
    exec_ = rig.driver.instantiate(graph)
    rig.driver.destroy_graph(graph)
    return exec_


def test_pin_memory_no_use(rig, mode, size):
    """B test_pin_memory_no_use: in a capture two live blocks differ."""
    allocator, stream, made = rig.allocator(**mode), rig.stream(), []
    exec_ = _graph(
        rig,
        allocator,
        stream,
        lambda: made.extend(allocator.malloc(size) for _ in range(2)),
    )
    assert abs(made[0] - made[1]) >= size
    for address in made:
        allocator.free(address)
    rig.driver.destroy_exec(exec_)
    allocator.release_pool(POOL)


def test_pin_memory_no_use2(rig, mode, size):
    """B test_pin_memory_no_use2: a block that no copy used is reused when freed."""
    allocator, stream, made = rig.allocator(**mode), rig.stream(), []

    def captured():
        made.append(allocator.malloc(size))
        allocator.free(made[0])
        made.append(allocator.malloc(size))

    exec_ = _graph(rig, allocator, stream, captured)
    assert made[0] == made[1]
    allocator.free(made[1])
    rig.driver.destroy_exec(exec_)
    allocator.release_pool(POOL)


def test_pin_memory_use(rig, mode, size):
    """B test_pin_memory_use: a block that a recorded copy uses is not reused."""
    allocator, stream, made = rig.allocator(**mode), rig.stream(), []
    device = rig.device_memory()

    def captured():
        made.append(allocator.malloc(size))
        rig.upload(allocator, device, made[0], 4, stream)
        allocator.free(made[0])
        made.append(allocator.malloc(size))

    exec_ = _graph(rig, allocator, stream, captured)
    assert abs(made[0] - made[1]) >= size
    rig.driver.launch_graph(exec_, stream)
    rig.driver.synchronize_stream(stream)
    allocator.free(made[1])
    rig.driver.destroy_exec(exec_)
    allocator.release_pool(POOL)
    assert _current(allocator, "active_bytes.current") == [0]


@pytest.mark.parametrize("freed", [False, True], ids=["held", "freed"])
@pytest.mark.parametrize("used", [False, True], ids=["unused", "used"])
@pytest.mark.parametrize("shared", [False, True], ids=["two pools", "one pool"])
def test_two_graphs(rig, size, shared, used, freed):
    """B test_two_graphs: in the second it is reused if freed, unused and shared."""
    allocator, stream, made = rig.allocator(), rig.stream(), []
    device, pools = rig.device_memory(), (POOL, POOL if shared else PoolId(2, 0))

    def first():
        made.append(allocator.malloc(size))
        if used:
            rig.upload(allocator, device, made[0], 4, stream)
        if freed:
            allocator.free(made[0])

    def second():
        made.append(allocator.malloc(size))

    execs = [
        _graph(rig, allocator, stream, captured, pool)
        for captured, pool in zip((first, second), pools, strict=True)
    ]
    assert (made[0] == made[1]) == (shared and freed and not used)
    for address in made[freed:]:
        allocator.free(address)
    for exec_, pool in zip(execs, pools, strict=True):
        rig.driver.destroy_exec(exec_)
        allocator.release_pool(pool)
    assert _current(allocator, "active_bytes.current") == [0]


def _refused_in_capture(rig, stream, copy):
    rig.driver.begin_capture(stream)
    with pytest.raises(DriverError, match="while it is capturing"):
        copy()
    with pytest.raises(DriverError, match="INVALIDATED"):
        rig.driver.end_capture(stream)


def test_unpinned_memory_use(rig):
    """B test_unpinned_memory_use: copies of other memory in cannot be captured."""
    stream, device = rig.stream(), rig.device_memory()
    _refused_in_capture(
        rig, stream, lambda: rig.driver.upload(device, memoryview(b"abcd"), stream)
    )


def test_unpinned_memory_use_device_to_host(rig):
    """B test_unpinned_memory_use_device_to_host: nor can copies out."""
    stream, device = rig.stream(), rig.device_memory()
    _refused_in_capture(rig, stream, lambda: rig.driver.download(device, 4, stream))
