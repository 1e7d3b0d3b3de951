"""Allocators on small devices, looked after: nothing may be left when a test ends."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest

from sapwood.allocator.caching.settings import DEFAULT
from sapwood.driver.cuda import Cuda
from sapwood.driver.emulated import Emulated
from sapwood.units import Size

MIB = 1 << 20
PAGE = Size(2 * MIB)
TOTAL = Size(128 * MIB)


class Busy:
    """Streams that have work which does not end before `let_go`, on any device."""

    def __init__(self, rig):
        self.rig, self.gates = rig, {}

    def keep(self, stream, seconds=None):
        """Give a stream work that ends when it is let go, or waited for.

        On a GPU, where the wait is real, it can be waited for after some ``seconds``.
        """
        gate = threading.Event()
        emulated = self.rig.checked.abilities.kind == "emulated"
        # The emulated device that runs work latest leaves it until somebody waits.
        call = (lambda: None) if emulated else partial(gate.wait, seconds)
        self.rig.checked.call_host(call, stream)
        self.gates.setdefault(stream, []).append(gate)

    def let_go(self, stream):
        """Let a stream run to its end, and wait for it."""
        for gate in self.gates.pop(stream, ()):
            gate.set()
        self.rig.checked.synchronize_stream(stream)

    def end(self):
        for stream in list(self.gates):
            self.let_go(stream)


@contextmanager
def opened(kind="latest", *, settings=DEFAULT, total=TOTAL, page=PAGE):
    """Open a rig on a device of its own; nothing of it may be left at the end."""
    from tests.support.caching_rig import CachingRig

    device = Cuda() if kind == "cuda" else Emulated(total, page, kind)
    rig = CachingRig(device, settings, total=total if kind == "cuda" else None)
    rig.busy = Busy(rig)
    try:
        yield rig
        rig.busy.end()
        rig.finish()
    except BaseException:
        rig.busy.end()
        rig.abandon()
        raise


@pytest.fixture(params=["latest", pytest.param("cuda", marks=pytest.mark.gpu)])
def open_rig(request):
    """Return what opens rigs on a kind of device, for ``with``."""

    def open_(**options):
        return opened(request.param, **options)

    return open_


@pytest.fixture
def make_rig(open_rig):
    """Return a maker of rigs; nothing of any may be left when the test ends."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(open_rig(**options))


@pytest.fixture
def rig(make_rig):
    """Return an allocator with the settings that it has by itself."""
    return make_rig()


@pytest.fixture(params=[True, False], ids=["expandable", "classic"])
def either(request, make_rig):
    """Return an allocator with expandable segments, and one without."""
    return make_rig(settings=DEFAULT.replace(expandable_segments=request.param))


@pytest.fixture
def classic(make_rig):
    """Return an allocator of classic segments."""
    return make_rig(settings=DEFAULT.replace(expandable_segments=False))
