"""A framework that launches by itself: what is inside a stream comes in its order."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest

from sapwood.driver.emulated import Emulated
from sapwood.driver.streams import current_stream
from sapwood.errors import DriverError, MisuseError
from sapwood.memory.framework import GuestFramework
from sapwood.units import Size
from tests.support.threads import in_threads

DEFAULT = 1


class Guest(GuestFramework):
    """A framework whose current stream is the last of a list of numbers."""

    def __init__(self):
        super().__init__()
        self.now = [DEFAULT]

    def raw(self):
        return self.now[-1]

    @contextmanager
    def _current(self, raw):
        self.now.append(raw)
        yield
        self.now.pop()

    def inside(self, stream):
        raw = stream.driver.raw_stream(stream.handle)
        return raw, self._current(raw)

    def default(self, driver, dropped):
        return self.adopt(DEFAULT, "default", driver, dropped)

    def trim(self):
        return Size(0)

    def included(self):
        return False

    def prime(self):
        pass

    def watched(self, allocate):
        del allocate
        return nullcontext()

    def resting(self):
        return nullcontext()

    def adopt_current(self, raw, driver, dropped):
        return self.adopt(raw, f"theirs {raw}", driver, dropped)


def torchs(torch, monkeypatch):
    """Return torch's framework, on streams that are numbers alone."""
    from sapwood.integrations.torch.streams import TorchFramework

    now = [DEFAULT]

    @contextmanager
    def current(stream):
        now.append(stream.cuda_stream)
        yield
        now.pop()

    def named(raw, device=None):
        assert device == framework.place
        return SimpleNamespace(cuda_stream=raw)

    framework = TorchFramework(torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "ExternalStream", named)
    monkeypatch.setattr(torch.cuda, "stream", current)
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda device: named(now[-1], device)
    )
    for name, answer in (
        ("_cuda_getCurrentRawStream", lambda _: now[-1]),
        ("_cuda_getDevice", lambda: 1),
    ):
        monkeypatch.setattr(torch._C, name, answer, raising=False)
    return framework, now


def cupys(cupy, monkeypatch):
    """Return CuPy's framework, on streams that are numbers alone."""
    from sapwood.integrations.cupy.streams import CupyFramework

    now = [DEFAULT]

    class Named:
        def __init__(self, raw):
            self.ptr = raw

        def __enter__(self):
            now.append(self.ptr)

        def __exit__(self, *_):
            now.pop()

    monkeypatch.setattr(
        cupy.cuda,
        "Stream",
        SimpleNamespace(
            null=Named(DEFAULT),
            from_external=lambda stream: Named(stream.__cuda_stream__()[1]),
        ),
    )
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda: Named(now[-1]))
    return CupyFramework(0), now


@pytest.fixture(params=["plain", "torch", "cupy"])
def world(request, monkeypatch):
    """Return a device, a guest on it, and the guest's current streams."""
    if request.param == "plain":
        guest = Guest()
        now = guest.now
    else:
        made = torchs if request.param == "torch" else cupys
        guest, now = made(pytest.importorskip(request.param), monkeypatch)
    device = Emulated(schedule="latest")
    world = SimpleNamespace(device=device, guest=guest, now=now, dropped=deque())
    yield world
    guest.close()


@pytest.fixture
def make(world):
    """Return what makes a stream of our own, and gives work to one."""

    def make(name):
        handle = world.device.create_stream()
        return world.guest.stream(world.device, handle, name, world.dropped)

    return make


@pytest.mark.parametrize(
    "name",
    [
        "adopt_current",
        "default",
        "included",
        "inside",
        "prime",
        "raw",
        "resting",
        "trim",
        "watched",
    ],
)
def test_a_guest_says_all_that_is_its_own(name):
    """The defaults of `Framework` are those of arrays of the device: not a guest's."""
    without = {key: value for key, value in vars(Guest).items() if key != name}
    with pytest.raises(TypeError, match=f"abstract method '?{name}"):
        type("Without", (GuestFramework,), without)()


def test_a_stream_is_adopted_once(world):
    """Whoever adopts it first, at the same time too: one that goes takes its handle."""
    raw, found = world.device.open_foreign_stream(), []

    def adopt():
        found.append(world.guest.adopt(raw, "theirs", world.device, world.dropped))

    in_threads(*[adopt] * 4)
    assert {id(each) for each in found} == {id(world.guest.known(raw))}
    assert not world.dropped


def test_work_comes_in_the_order_of_the_program(world, make):
    """Before, inside and behind a stream, whoever's it is: one after the other."""
    device, done = world.device, []
    stream, other = make("s"), make("t")

    def give(what):
        current = world.guest.current(device, world.dropped)
        device.call_host(lambda: done.append(what), current.handle)

    give(1)
    with stream:
        give(2)
        with other:
            give(3)
        give(4)
    give(5)
    # Under this schedule nothing runs but what somebody waits for.
    world.guest.current(device, world.dropped).synchronize()
    assert done == [1, 2, 3, 4, 5]


def test_a_stream_is_the_current_one_inside_and_no_longer(world, make):
    """And it is found by its number; the framework's own is adopted once."""
    stream = make("s")
    around = world.guest.current(world.device, world.dropped)
    with stream, stream:
        assert world.guest.current(world.device, world.dropped) is stream
        assert world.now[-1] == world.device.raw_stream(stream.handle)
    assert world.guest.current(world.device, world.dropped) is around
    assert world.now == [DEFAULT]
    assert [*world.guest.adopted.values()] == [around]
    assert world.guest.known(world.device.raw_stream(stream.handle)) is stream


def test_a_stream_that_cannot_be_ordered_is_not_entered(world, make, monkeypatch):
    """Nothing is current that was not; blocks are left in their order."""
    stream, other = make("s"), make("t")

    def fails(*_):
        raise DriverError("wait_event", 1, "INVALID_VALUE", "the test says so")

    with monkeypatch.context() as broken:
        broken.setattr(world.device, "wait_event", fails)
        with pytest.raises(DriverError):
            stream.__enter__()
    assert world.now == [DEFAULT]
    assert current_stream(world.device) is None
    with stream, other, pytest.raises(MisuseError, match="not the current one"):
        stream.__exit__()
    assert world.now == [DEFAULT]


class Threaded(Guest):
    """The same, with streams that are current on one thread."""

    def __init__(self):
        GuestFramework.__init__(self)
        self.local = threading.local()

    @property
    def now(self):
        return self.local.__dict__.setdefault("now", [DEFAULT])

    @contextmanager
    def _current(self, raw):
        # As frameworks have it: whoever leaves is where it was when it entered.
        before = list(self.now)
        self.now.append(raw)
        yield
        self.now[:] = before


def test_two_threads_inside_one_stream_leave_their_own_ways():
    """Whoever leaves first is back where it was, and so is the other."""
    driver, dropped = Emulated(Size(1 << 20), Size(4096)), deque()
    framework, found, turns = Threaded(), {}, threading.Barrier(2, timeout=20)
    framework.adopt(DEFAULT, "default", driver, dropped)
    stream = framework.stream(driver, driver.create_stream(), "shared", dropped)
    other = framework.stream(driver, driver.create_stream(), "other", dropped)

    def first():
        with stream:
            turns.wait()
            turns.wait()
        found["first"] = framework.raw()
        turns.wait()

    def second():
        turns.wait()
        with other, stream:
            turns.wait()
            turns.wait()
        found["second"] = framework.raw()

    in_threads(first, second)
    assert found == {"first": DEFAULT, "second": DEFAULT}
    framework.close()
    driver.close()
