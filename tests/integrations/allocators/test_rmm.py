"""RMM on lent memory: both callbacks, each with its stream."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from sapwood import MisuseError
from sapwood.integrations.rmm import library, resource


class Stream:
    """RMM's: known to others by the common protocol."""

    def __init__(self, raw: int) -> None:
        self._raw = raw

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._raw


@pytest.fixture
def rmm(face):
    """RMM's class of resources that call back, which keeps what it is given."""
    made = {"CallbackMemoryResource": lambda *calls: SimpleNamespace(calls=calls)}
    face(rmm={}, rmm__mr=made)


@pytest.mark.usefixtures("rmm")
def test_memory_is_of_the_stream_that_is_named(lender, raw):
    """It is asked for on one stream, and reused after the work of the other too."""
    allocate, deallocate = resource(lender).calls
    one, two = map(Stream, raw)
    address = allocate(1000, one)
    (segment,) = lender.allocator.picture().segments
    assert lender.driver.raw_stream(segment.stream) == raw[0]
    lender.driver.call_host(lambda: None, lender.driver.adopt_stream(raw[1]))
    deallocate(address, 1000, two)
    again = allocate(1000, one)
    assert again != address
    lender.driver.synchronize()
    deallocate(again, 1000, one)
    third = allocate(1000, one)
    assert third in {address, again}
    deallocate(third, 1000, one)


@pytest.mark.usefixtures("rmm")
def test_what_does_not_fit_is_a_memory_error(lender, raw):
    """RMM makes a bad_alloc of it."""
    allocate, _ = resource(lender).calls
    with pytest.raises(MemoryError):
        allocate(1 << 45, Stream(raw[0]))


def test_without_rmm_the_error_says_what_to_install(monkeypatch):
    """The remedy is in the text."""
    monkeypatch.setitem(sys.modules, "rmm", None)
    with pytest.raises(MisuseError, match="Install it: pip install rmm"):
        library()


PROGRAM = """
import json, rmm
from sapwood.runtime.allocators import allocator_for, lender
rmm.mr.set_current_device_resource(allocator_for("rmm"))
stream = rmm.pylibrmm.stream.Stream()
data = bytes(range(256)) * 4096
buffers = [rmm.DeviceBuffer.to_device(data, stream) for _ in range(20)]
lent = lender().lent()
copies = [buffer.copy_to_host(stream=stream).tobytes() for buffer in buffers]
del buffers
print(json.dumps({"lent": lent, "equal": all(each == data for each in copies),
                  "left": lender().lent()}), flush=True)
import os; os._exit(0)  # what RMM destroys at exit is not the subject
"""


@pytest.mark.gpu
def test_buffers_hold_what_was_written(run_program):
    """Twenty device buffers come back as they went, and their memory too."""
    pytest.importorskip("rmm")
    told = run_program(PROGRAM)
    assert told == {"lent": 20, "equal": True, "left": 0}
