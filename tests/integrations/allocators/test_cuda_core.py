"""``cuda.core`` on lent memory: stream by stream, in new releases and in older ones."""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace

import pytest

from sapwood import MisuseError
from sapwood.integrations.cuda_core import library, resource


class MemoryResource:
    """The class that resources must be."""


class Buffer:
    """A buffer that frees itself on the stream that it knows."""

    def __init__(self, ptr, size, mr, stream) -> None:
        self.handle, self.size, self.mr, self.stream = ptr, size, mr, stream

    @classmethod
    def from_handle(cls, ptr, size, mr=None, owner=None, *, stream=None):
        assert owner is None
        return cls(ptr, size, mr, stream)

    def close(self, stream=None) -> None:
        self.mr.deallocate(self.handle, self.size, stream=stream or self.stream)


class OldBuffer(Buffer):
    """As up to release 1.0: it knows no stream."""

    @classmethod
    def from_handle(cls, ptr, size, mr=None, owner=None):
        assert owner is None
        return cls(ptr, size, mr, None)


def stream_of(raw: int):
    return SimpleNamespace(__cuda_stream__=lambda: (0, raw))


@pytest.fixture(params=[Buffer, OldBuffer], ids=["new", "old"])
def core(request, face):
    contents = {"MemoryResource": MemoryResource, "Buffer": request.param}
    face(cuda={}, cuda__core=contents)


@pytest.mark.usefixtures("core")
def test_a_buffer_is_lent_and_comes_back(lender, raw):
    """It has the bytes for its stream, knows its resource, and closes into it."""
    made = resource(lender)
    assert isinstance(made, MemoryResource)
    facts = made.device_id, made.is_device_accessible, made.is_host_accessible
    assert (*facts, made.is_managed) == (0, True, False, False)
    buffer = made.allocate(1000, stream=stream_of(raw[0]))
    (segment,) = lender.allocator.picture().segments
    assert lender.driver.raw_stream(segment.stream) == raw[0]
    assert (buffer.size, buffer.mr, lender.lent()) == (1000, made, 1)
    buffer.close()
    assert lender.lent() == 0


@pytest.mark.usefixtures("core")
def test_closing_on_another_stream_orders_after_its_work(lender, raw):
    """The block waits until what that stream was given before is over."""
    made = resource(lender)
    one, two = map(stream_of, raw)
    buffer = made.allocate(1000, stream=one)
    address = buffer.handle
    lender.driver.call_host(lambda: None, lender.driver.adopt_stream(raw[1]))
    buffer.close(two)
    other = made.allocate(1000, stream=one)
    assert other.handle != address
    lender.driver.synchronize()
    again = made.allocate(1000, stream=one)
    assert again.handle == address
    other.close()
    again.close()


@pytest.mark.usefixtures("core")
def test_what_makes_no_buffer_is_not_lent(lender):
    """Where ``cuda.core`` refuses, the memory goes back."""
    made = resource(lender)

    def refuse(*_args, **_named):
        raise TypeError("no stream of mine")

    made.buffer = SimpleNamespace(from_handle=refuse)
    with pytest.raises(TypeError, match="of mine"):
        made.allocate(10, stream=stream_of(0))
    assert lender.lent() == 0


@pytest.mark.usefixtures("core")
def test_memory_is_for_a_stream(lender):
    """An allocation that names none is refused, with what to pass."""
    with pytest.raises(MisuseError, match="pass stream="):
        resource(lender).allocate(10)


def test_without_cuda_core_the_error_says_what_to_install(monkeypatch, face):
    """The remedy is in the text, also where it is too old."""
    face(cuda={}, cuda__core={})
    with pytest.raises(MisuseError, match=r"install cuda-core 0.5 or newer"):
        library()
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    monkeypatch.delattr(sys.modules["cuda"], "core")
    with pytest.raises(MisuseError, match="Install it: pip install cuda-core"):
        library()


@pytest.mark.gpu
def test_buffers_hold_what_was_copied():
    """Bytes go through twenty buffers on two streams, and all memory comes back."""
    from sapwood.runtime.allocators import allocator_for, lender

    try:
        core = library()
    except MisuseError as missing:
        pytest.skip(str(missing))
    device = core.Device(0)
    device.set_current()
    before = lender().lent()
    made = allocator_for("cuda.core")
    host = core.LegacyPinnedMemoryResource()
    streams = [device.create_stream() for _ in range(2)]
    for turn in range(20):
        stream = streams[turn % 2]
        there, back = (host.allocate(1 << 20, stream=stream) for _ in range(2))
        ctypes.memset(int(there.handle), turn, 1 << 20)
        buffer = made.allocate(1 << 20, stream=stream)
        assert lender().lent() == before + 1
        buffer.copy_from(there, stream=stream)
        buffer.copy_to(back, stream=stream)
        stream.sync()
        assert ctypes.string_at(int(back.handle), 1 << 20) == bytes([turn]) * (1 << 20)
        buffer.close(stream)
    for stream in streams:
        lender().forget_stream(int(stream.handle))
    assert lender().lent() == before
