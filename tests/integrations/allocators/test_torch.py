"""PyTorch's pools on lent memory: segments by C, and back when the pool is closed."""

from __future__ import annotations

import ctypes
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from sapwood import MisuseError
from sapwood.integrations.torch_pool import library, open_pool

MIB = 1 << 20
WORD = ctypes.c_void_p


class Pluggable:
    """PyTorch's allocator out of a file and two of its functions."""

    def __init__(self, path: str, serve: str, take_back: str) -> None:
        self.file = ctypes.CDLL(path)
        size, number = ctypes.c_size_t, ctypes.c_int
        self.serve = ctypes.CFUNCTYPE(WORD, size, number, WORD)((serve, self.file))
        kind = ctypes.CFUNCTYPE(None, WORD, size, number, WORD)
        self.take_back = kind((take_back, self.file))

    def allocator(self):
        return self


class MemPool:
    """PyTorch's pool: asks for segments, and gives them back when its cache goes."""

    cached: list[tuple[Pluggable, int, int]] = []  # noqa: RUF012 - of the library

    def __init__(self, allocator, **options) -> None:
        self.allocator, self.options, self.users = allocator, options, 1

    def use_count(self) -> int:
        return self.users

    def segment(self, size: int, device: int = 0, stream: int = 0) -> int | None:
        return self.allocator.serve(size, device, stream)

    def drop(self, address: int, size: int) -> None:
        self.cached.append((self.allocator, address, size))


def empty_cache() -> None:
    while MemPool.cached:
        allocator, address, size = MemPool.cached.pop()
        allocator.take_back(address, size, 0, 0)


@pytest.fixture(autouse=True)
def torch(face, request):
    """PyTorch's face, but not for programs that run the real one."""
    if request.node.get_closest_marker("gpu") is None:
        face(
            torch={"version": SimpleNamespace(cuda="13.0"), "__version__": "2.11"},
            torch__cuda={
                "MemPool": MemPool,
                "device": nullcontext,
                "empty_cache": empty_cache,
            },
            torch__cuda__memory={"CUDAPluggableAllocator": Pluggable},
        )


def test_a_pool_serves_segments_of_lent_memory(lender):
    """Segments are whole pages inside one block of the allocator's."""
    with open_pool(lender, 9 * MIB) as pool:
        (segment,) = lender.allocator.picture().segments
        addresses = [pool.mempool.segment(size) for size in (2 * MIB, 3 * MIB)]
        assert all(address % (2 * MIB) == 0 for address in addresses)
        assert segment.address <= addresses[0] < addresses[1]
        assert addresses[1] + 4 * MIB <= segment.address + segment.size
        assert pool.mempool.segment(6 * MIB) is None
        counters = pool.counters()
        assert (counters.served, counters.wanted) == (2, 6 * MIB)
        pool.mempool.drop(addresses[0], 2 * MIB)
        pool.mempool.drop(addresses[1], 3 * MIB)
    assert lender.lent() == 0


def test_its_memory_can_be_used_to_the_last_byte(lender):
    """All that was asked for is served, whatever the block's alignment."""
    lender.take_back(0)
    odd = lender.lend(700 * 1024, 0)
    with open_pool(lender, 6 * MIB) as pool:
        address = pool.mempool.segment(6 * MIB)
        assert address % (2 * MIB) == 0
        pool.mempool.drop(address, 6 * MIB)
    lender.take_back(odd)


def test_a_pool_with_tensors_is_not_closed(lender):
    """Its memory would be somebody else's; what it caches does not count."""
    pool = open_pool(lender, 4 * MIB)
    mempool = pool.mempool
    address = mempool.segment(2 * MIB)
    with pytest.raises(MisuseError, match=r"still out. Drop"):
        pool.close()
    assert lender.lent() == 1
    mempool.drop(address, 2 * MIB)
    pool.close()
    pool.close()
    assert lender.lent() == 0


def test_a_pool_in_use_is_not_closed(lender):
    """PyTorch ends the process where a pool goes before a graph that uses it."""
    pool = open_pool(lender, 2 * MIB)
    mempool = pool.mempool
    mempool.users = 2
    with pytest.raises(MisuseError, match="delete the graphs"):
        pool.close()
    assert pool.mempool is mempool
    mempool.users = 1
    pool.close()


def test_other_streams_wait_until_the_pool_settles(lender):
    """What one stream gave back may still be in use: others get it after a wait."""
    ran = []
    stream = lender.driver.create_stream()
    with open_pool(lender, 2 * MIB) as pool:
        address = pool.mempool.segment(2 * MIB, stream=0)
        pool.mempool.drop(address, 2 * MIB)
        empty_cache()
        assert pool.mempool.segment(2 * MIB, stream=9) is None
        lender.driver.call_host(lambda: ran.append(True), stream)
        pool.settle()
        assert ran == [True]
        assert pool.mempool.segment(2 * MIB, stream=9) == address
        pool.mempool.drop(address, 2 * MIB)
    lender.driver.destroy_stream(stream)


def test_options_are_passed_on_only_when_they_are_set(lender):
    """Releases that do not know an option are not told of it."""
    with (
        open_pool(lender, MIB) as plain,
        open_pool(lender, MIB, no_split=True) as whole,
    ):
        assert plain.mempool.options == {}
        assert whole.mempool.options == {"no_split": True}
    with open_pool(lender, MIB, use_on_oom=True) as last:
        assert last.mempool.options == {"use_on_oom": True}


def test_a_pool_that_cannot_be_made_takes_nothing(lender, monkeypatch):
    """Neither for want of memory nor after an error of PyTorch's is anything held."""
    with pytest.raises(MemoryError):
        open_pool(lender, 1 << 45)

    def refuse(*_args, **_options):
        raise RuntimeError("no")

    monkeypatch.setattr(sys.modules["torch.cuda"], "MemPool", refuse)
    with pytest.raises(RuntimeError, match="no"):
        open_pool(lender, 2 * MIB)
    assert lender.lent() == 0


def test_without_torch_the_error_says_what_to_install(monkeypatch):
    """The remedy is in the text, also for a PyTorch without CUDA."""
    monkeypatch.setattr(sys.modules["torch"], "version", SimpleNamespace(cuda=None))
    with pytest.raises(MisuseError, match="built without CUDA"):
        library()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MisuseError, match="Install it: pip install torch"):
        library()


PROGRAM = """
import json, threading, torch
from sapwood import MisuseError
from sapwood.runtime.allocators import lender, torch_pool

torch.manual_seed(1)
a, b = (torch.randn(1024, 1024, device="cuda") for _ in range(2))
expected = (a @ b).relu().sum(0)
told = {"equal": True, "inside": True}
pool = torch_pool(256 << 20)
begin, end = pool.segments.base, pool.segments.base + pool.segments.size

def churn():
    for _ in range(200):
        torch.empty(1 << 20, device="cuda")

others = [threading.Thread(target=churn) for _ in range(3)]
for thread in others: thread.start()
for _ in range(50):
    with torch.cuda.use_mem_pool(pool.mempool):
        product = (a @ b).relu()
    told["inside"] &= begin <= product.data_ptr() < end
    told["equal"] &= torch.equal(product.sum(0), expected)
for thread in others: thread.join()

graph, x = torch.cuda.CUDAGraph(), torch.ones(1 << 20, device="cuda")
warm = torch.cuda.Stream()
with torch.cuda.stream(warm): (x * 2 + 1).sum()
torch.cuda.synchronize()
with torch.cuda.graph(graph, pool=pool.mempool.id):
    y = (x * 2 + 1) * x
x.fill_(3); graph.replay()
told["graph"] = bool((y == 21).all()) and begin <= y.data_ptr() < end

try:
    with torch.cuda.use_mem_pool(pool.mempool): torch.empty(1 << 30, device="cuda")
except torch.cuda.OutOfMemoryError: told["full"] = pool.counters().wanted >= 1 << 30
for thing in ("graph", "y"):
    try: pool.close()
    except MisuseError: told[thing + " held"] = True
    if thing == "graph": del graph
del product, y
pool.close()
told["left"] = lender().lent()
print(json.dumps(told))
"""


@pytest.mark.gpu
def test_tensors_and_graphs_are_right_in_a_pool(run_program):
    """Products and a captured graph equal plain ones; full, held and closed as said."""
    pytest.importorskip("torch")
    flags = dict.fromkeys(
        ("equal", "inside", "graph", "full", "graph held", "y held"), True
    )
    assert run_program(PROGRAM) == {**flags, "left": 0}
