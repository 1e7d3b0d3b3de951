"""Small devices, looked after: nothing of them may be left when a test is over."""

from __future__ import annotations

import gc
import itertools
import mmap
from contextlib import ExitStack, contextmanager, suppress

import pytest

from sapwood.allocator.caching.allocator import Allocator
from sapwood.driver.emulated import Emulated
from sapwood.driver.layers import Checked, Faulty, Recorded
from sapwood.errors import DriverError, SapwoodError
from sapwood.memory.device import Device
from sapwood.memory.pages import Pages
from sapwood.units import Size

PAGE = Size(mmap.PAGESIZE)
PAGES = 64


class Bench:
    """A device behind every layer; ``recorded`` is what it calls."""

    def __init__(self, schedule, *, pages=PAGES, limit=None, owns_driver=False):
        self.emulated = Emulated(Size(pages * PAGE), PAGE, schedule)
        self.checked = Checked(self.emulated)
        self.faulty = Faulty(self.checked)
        self.recorded = Recorded(self.faulty)
        self.device = Device(
            self.recorded,
            Allocator,
            None if limit is None else Size(limit * PAGE),
            owns_driver=owns_driver,
        )

    def write(self, storage, value, stream):
        storage.order_write(stream)
        self.recorded.set(storage.address, value, storage.size, stream.handle)

    def copy(self, dst, src, stream):
        src.order_read(stream)
        dst.order_write(stream)
        self.recorded.copy(dst.address, src.address, src.size, stream.handle)

    def read(self, storage, stream):
        """Return the one value that all bytes have."""
        storage.order_read(stream)
        data = self.recorded.download(storage.address, storage.size, stream.handle)
        (value,) = set(data)
        return value

    def drain(self):
        with self.device.lock:
            self.device.returns.drain()

    def free_pages(self):
        return self.emulated.memory_info().free // PAGE

    def finish(self):
        self.faulty.plan = ()
        if not self.device.closed:
            self.device.close()
        if "close" in self.recorded.counts():
            return  # its own driver, which took all along
        if self.checked.leaks():
            gc.collect()
        assert self.checked.leaks() == {}
        assert not any(self.emulated.live_handles().values())
        self.emulated.close()

    def abandon(self):
        """Give all back by force, where a test has failed."""
        self.device.returns.end()
        with suppress(SapwoodError):
            self.emulated.close()


@contextmanager
def opened(schedule="latest", **options):
    """Open a bench; nothing of it may be left at the end."""
    bench = Bench(schedule, **options)
    try:
        yield bench
        bench.finish()
    except BaseException:
        bench.abandon()
        raise


@pytest.fixture(scope="session")
def open_bench():
    """Return what opens benches for properties, which need one per example."""
    return opened


@pytest.fixture(params=["earliest", "latest", "random:1"])
def make_bench(request):
    """Return a maker of benches; nothing of any may be left when the test ends."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(opened(request.param, **options))


@pytest.fixture(scope="session")
def every_fault():
    """Return what fails each driver call of a scenario once, by position.

    The error must come out, but of calls that are ``unheard``, made by finalisers or
    tried again; and nothing may be left. It returns the names of the calls.
    """

    def fail_at(scenario, position, unheard):
        with opened() as bench:
            faulty = bench.faulty
            faulty.position, faulty.plan = 0, {position}
            raised = False
            try:
                scenario(bench)
            except DriverError:
                raised = True
            assert raised == (faulty.fired not in {None, *unheard}), faulty.fired
            return faulty.fired

    def fail_each(scenario, *unheard):
        fired = (fail_at(scenario, place, unheard) for place in itertools.count())
        return list(iter(fired.__next__, None))

    return fail_each


@pytest.fixture
def bench(make_bench):
    """Return a bench of 64 pages."""
    return make_bench()


@pytest.fixture
def pages():
    """Return the pages of a device that has nothing else."""
    emulated = Emulated(Size(PAGES * PAGE), PAGE)
    yield Pages(emulated, None)
    emulated.close()


@pytest.fixture(scope="session")
def page():
    """Return the size of a page of all devices here."""
    return PAGE
