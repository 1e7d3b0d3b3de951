"""A framework that captures by itself, made of NumPy: what it records, replayed.

Its allocator serves lent addresses and says when each block was in use. Replays must
give what NumPy gives, however few pages lie behind those addresses.
"""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Callable
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import partial

import numpy as np
import pytest

import sapwood as sw
from sapwood.driver.emulated import Emulated
from sapwood.driver.facade import Layer
from sapwood.driver.layers import Checked
from sapwood.memory.device import routed
from sapwood.memory.fold import Life
from sapwood.memory.storage import Storage
from sapwood.memory.validate import validate
from sapwood.tree.record import adopted
from sapwood.tree.record.adopted import record_adopted
from sapwood.tree.watch import session
from sapwood.units import Addr, Size
from tests.support.inexact import Inexact
from tests.support.rig import poison_idle

PAGE = Size(1 << 12)
LENGTH = 2000
LOST = 77
"""The length of results that the framework could not let out of a replay."""
"""Of arrays of doubles: about four pages each."""


class Adopting(Layer):
    """A device on which graphs may be somebody else's: raw numbers are handles."""

    def adopt_graph(self, raw):
        return raw

    def adopt_exec(self, graph, raw):
        del graph
        return raw


class Block:
    """The token of a block of an owner's."""

    def __init__(self, owner, address):
        self.owner, self.address = owner, address

    def ended(self, streams):
        del streams
        self.owner.free(self.address)


class Nobody:
    """The token of bytes that somebody else gives back."""

    def ended(self, streams):
        del streams


_NOBODY = Nobody()


class Owner:
    """One capture; blocks are used again for the same size alone."""

    launches = False

    def __init__(self, world, range_, room, stream):
        self.world, self.stream = world, stream
        pages = world.rooms.pop() if world.rooms else 256
        self.base, size = range_.lend(Size(min(room, pages * PAGE)))
        self.stop, self.moment, self.short = self.base, 0, False
        self.limit = Addr(self.base + min(size, pages * PAGE))
        self.idle: dict[Size, list[Addr]] = {}
        self.alive: dict[Addr, tuple[Size, int]] = {}
        self.over: list[Life] = []
        self.last: dict[Storage, int | None] = {}
        range_.outsiders = lambda: bool(self.survivors())

    def allocate(self, size, stream):
        del stream
        returns = self.world.device.returns
        returns.drain()
        whole = Size(-(-size // 512) * 512)
        again = self.idle.setdefault(whole, [])
        if not again:
            if self.stop + whole > self.limit:
                self.short = True
                raise RuntimeError("the framework's allocator has nothing left")
            again.append(self.stop)
            self.stop = Addr(self.stop + whole)
        address = again.pop()
        self.moment += 1
        self.alive[address] = whole, self.moment
        return Storage(address, size, Block(self, address), returns, captured=True)

    def free(self, address):
        self.moment += 1
        size, born = self.alive.pop(address)
        self.over.append(Life(address, Addr(address + size), born, self.moment))
        self.idle[size].append(address)

    def holding(self, _):
        return nullcontext()

    def follow(self, stages):
        if self.world.follows:
            self.last = dict.fromkeys(stages, 0)

    def passed(self, storage, *, writes):
        if storage in self.last:
            lasts = writes or self.last[storage] is None
            self.last[storage] = None if lasts else self.moment + 1

    def begin(self):
        self.world.current = self
        self.world.captures += 1
        self.world.below.begin_capture(self.stream.handle)

    def end(self):
        self.world.current = None
        self.graph = self.world.below.end_capture(self.stream.handle)
        self.world.device.returns.drain()
        if self.world.spoils:
            self.world.spoils.pop()()
            self.world.below.destroy_graph(self.graph)
            raise sw.DriverError("end", 901, "STREAM_CAPTURE_INVALIDATED", "made up")
        return self.graph

    def returned(self, _):
        pass

    def abandon(self):
        self.world.below.destroy_graph(self.end())

    def lives(self, stages):
        if not self.world.folds:
            return [Life(self.base, self.stop, 0, None)]
        lasting = [
            Life(at, Addr(at + size), born, None)
            for at, (size, born) in self.alive.items()
        ]
        staged = [
            Life(each.address, Addr(each.address + each.size), -1, self.last.get(each))
            for each in stages
        ]
        return [Life(self.base, self.stop, 0, 0), *self.over, *lasting, *staged]

    def survivors(self):
        self.world.device.returns.drain()
        return [(at, size) for at, (size, _) in self.alive.items()]

    def refusal(self, result, _):
        return self.world.refusal(result)

    def instantiate(self):
        return self.world.below.instantiate(self.graph)

    def close(self):
        pass


class World:
    """A runtime whose recordings are such a framework's."""

    def __init__(self, *, folds=True, follows=True):
        self.folds, self.follows = folds, follows
        self.rooms: list[int] = []
        self.asked: list[Size] = []
        self.warm: list[bool] = []
        self.spoils: list[Callable[[], object]] = []
        self.current, self.rejoined, self.captures = None, 0, 0
        self.emulated = Emulated(Size(1 << 23), PAGE, "latest")
        self.below = Adopting(Inexact(self.emulated))
        self.checked = Checked(self.below)
        self.runtime = sw.Runtime(device=self.checked)
        self.recordings = self.runtime._recordings
        self.device = self.recordings.device
        self.recordings.capturer = self
        self.recordings.recorder = partial(record_adopted, capturer=self)
        self.device.framework.watched = self.watched
        self.device.framework.resting = self.resting
        poison_idle(self.runtime, self.checked)

    def stream(self):
        return self.recordings.capture_stream()

    def rejoin(self):
        self.rejoined += 1

    def histories(self, _):
        return {}

    def refusal(self, result, _=None):
        """As the framework does not let a result of this length go out."""
        lost = getattr(result, "shape", None) == (LOST,)
        return sw.CaptureError("it leads back", remedy="Return it") if lost else None

    def owner(self, range_, room, *, warm):
        self.asked.append(room)
        self.warm.append(warm)
        return Owner(self, range_, room, self.stream())

    def allocate(self, size, stream):
        return self.current.allocate(size, stream)

    @contextmanager
    def watched(self, allocate):
        del allocate
        captures = self.current is not None
        token = _current.set(self if captures else None)
        try:
            with routed(self) if captures else nullcontext():
                yield
        finally:
            _current.reset(token)

    @contextmanager
    def resting(self):
        token = _current.set(None)
        try:
            yield
        finally:
            _current.reset(token)

    def check(self):
        """No law of memory is broken."""
        assert validate(self.runtime.memory_snapshot()) == []

    def mapped(self):
        return self.runtime.memory_stats()["pages.mapped"]

    def finish(self):
        self.runtime.close()
        # They hold the stream that all replays were on.
        del self.runtime, self.recordings, self.device
        gc.collect()
        assert self.checked.leaks() == {}
        self.emulated.close()


@pytest.fixture
def make_world(monkeypatch):
    """Return what makes worlds; arrays tell the session in progress of their uses."""
    for name, writes in (("order_read", False), ("order_write", True)):
        monkeypatch.setattr(Storage, name, _told(getattr(Storage, name), writes))
    return open_world


def _told(order, writes):
    def call(storage, stream):
        watching = session.current()
        # A session holds what it is told of: not what this capture has made.
        world, token = _current.get(), storage.token
        mine = isinstance(token, Block) and world and token.owner is world.current
        told = not mine and not _quiet.get()
        if watching is not None and told:
            seen = storage
            if isinstance(token, Block):
                # What an earlier part has made is told of, and not held.
                seen = Storage(storage.address, storage.size, _NOBODY, storage.dropped)
            watching.uses(seen, writes=writes)
            if _current.get() is not None:
                _current.get().current.passed(seen, writes=writes)
        order(storage, stream)

    return call


_quiet = ContextVar("quiet", default=False)
_current = ContextVar("current", default=None)


@contextmanager
def untold(*, noticed=True):
    """Let no session know what is used; it is known that there was something."""
    token = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(token)
    watching = session.current()
    if watching is not None and noticed:
        watching.untold += 1


@contextmanager
def open_world(**options):
    """Open a world; nothing of it may be left when it is over."""
    world = World(**options)
    try:
        yield world
    except BaseException:
        world.emulated.close()
        raise
    world.finish()


def layers(x):
    """Return what layers of several widths make, which are alive in turn."""
    for width in (2, 3, 5, 4):
        wide = np.concatenate([x] * width)
        wide = wide * 0.5 + 1.0
        x = x + wide[: len(x)] * wide[-len(x) :]
    return x


def warmed(world, fn):
    """Return a function, graphed, that was called once with an argument, and that."""
    graphed, host = world.runtime.graph(fn), np.linspace(0.0, 1.0, LENGTH)
    x = world.runtime.array(host)
    _same(graphed(x), layers(host))
    return graphed, host, x


def early(x):
    """Return an array made first, one made last, and one on half a page."""
    first = x * 2.0
    for _ in range(3):
        x = (x + 1.0) * (x - 1.0)
    return first, x, x[:4] * 1.0


def in_place(x):
    """Write a temporary and what becomes of it in place."""
    y = x * 1.0
    y += x
    z = np.concatenate([y, y])
    z *= 2.0
    del y
    w = z[: len(x)] - x
    w += z[len(x) :]
    return w


FUNCTIONS = (layers, early, in_place)


def _same(got, expected):
    gots = got if isinstance(got, tuple) else (got,)
    wants = expected if isinstance(expected, tuple) else (expected,)
    for one, other in zip(gots, wants, strict=True):
        assert np.array_equal(np.asarray(one), other)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", range(4))
def test_replays_give_what_numpy_gives(make_world, seed):
    """In any order, at several sizes, results kept or dropped, memory poisoned."""
    chance = random.Random(seed)
    with make_world() as world:
        graphed = [world.runtime.graph(fn) for fn in FUNCTIONS]
        hosts = [np.linspace(0.0, 1.0, n) for n in (LENGTH, LENGTH // 2, 40)]
        given = [world.runtime.array(host) for host in hosts]
        kept = []
        for _ in range(80):
            which, size = chance.randrange(3), chance.randrange(3)
            x = given[size]
            if chance.random() < 0.3:
                x = world.runtime.array(hosts[size])
            kept.append((graphed[which](x), FUNCTIONS[which](hosts[size])))
            del x
            while len(kept) > chance.randrange(5):
                kept.pop(chance.randrange(len(kept)))
            for got, expected in kept:
                _same(got, expected)
            world.check()
        assert sum(each.stats().replays for each in graphed) > 20
        del got, given, graphed
        kept.clear()


def in_parts(x, y, live):
    """Work around three regions, one of which gives new arrays and one old ones."""
    h = layers(x) + y
    found = live(h, y[::-1])
    h *= 2.0
    z = layers(found[0] + h)
    z += found[1]
    view = live(z, x)[1]
    view += 1.0
    return h, z * view, found[0]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("max_variants", [1, 4])
@pytest.mark.parametrize("seed", range(3))
def test_eager_regions_are_as_with_numpy(make_world, seed, max_variants):
    """Arguments that stay and move, several sizes, all results held for a while."""

    def live(h, x):
        total = float(np.asarray(h)[:3].sum())
        h += 1.0
        return h * total, x

    chance = random.Random(seed)
    with make_world() as world:
        fn = partial(in_parts, live=sw.eager(live))
        f = world.runtime.graph(fn, max_variants=max_variants)
        hosts, kept = [np.linspace(0.0, 1.0, n) for n in (LENGTH, 40)], []
        for _ in range(30):
            host = chance.choice(hosts)
            x, y = world.runtime.array(host), world.runtime.array(host)
            plain = host * 1.0, host * 1.0
            for _ in range(chance.randrange(1, 3)):
                kept.append((f(x, y), in_parts(*plain, live)))
                _same((x, y), plain)
            while len(kept) > chance.randrange(9):
                kept.pop(chance.randrange(len(kept)))
            for got, expected in kept:
                _same(got, expected)
            world.check()
        assert f.stats().replays > 8
        assert f.stats().passed_through == 0
        kept.clear()
        del f, x, y, got


def by_values(x, y, live):
    """Go by what eager regions return, and write between them."""
    h = x * y
    h += 1.0
    for turn in range(3):
        kind, found = live(h, turn)
        if kind == 0:
            h = layers(h) + found
        elif kind == 1:
            y *= 0.5
            h = h - y
        else:
            return found, kind
    return h, y * 1.0


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", range(4))
def test_branches_are_as_with_numpy(make_world, seed):
    """Every way is warmed up, recorded and turned to; each region runs once a call."""
    ran = []

    def live(h, turn):
        ran.append(turn)
        total = float(np.asarray(h)[:3].sum())
        h *= 0.75
        return int(total * 4 + turn) % 3, h * 0.5

    chance = random.Random(seed)
    with make_world() as world:
        fn = partial(by_values, live=sw.eager(live))
        f = world.runtime.graph(fn)
        hosts, kept = [np.linspace(0.1 * k, 1.0, LENGTH) for k in range(4)], []
        for _ in range(60):
            host, other = chance.choice(hosts), chance.choice(hosts)
            x, y = world.runtime.array(host), world.runtime.array(other)
            plain, before = (host * 1.0, other * 1.0), len(ran)
            got, times = f(x, y), len(ran) - before
            kept.append((got, by_values(*plain, live)))
            assert len(ran) - before == 2 * times
            _same((x, y), plain)
            while len(kept) > chance.randrange(6):
                kept.pop(chance.randrange(len(kept)))
            for got, expected in kept:
                _same(got, expected)
            world.check()
        assert f.stats().replays > 20
        kept.clear()
        del f, x, y, got


def test_folding_takes_fewer_pages(make_world):
    """What is alive in turn shares pages: far fewer than without, and never more."""
    taken = {}
    for folds in (False, True):
        with make_world(folds=folds) as world:
            host = np.linspace(0.0, 1.0, LENGTH)
            x = world.runtime.array(host)
            for fn in FUNCTIONS:
                graphed = world.runtime.graph(fn)
                for _ in range(3):
                    _same(graphed(x), fn(host))
                taken.setdefault(folds, []).append(world.mapped())
            del x, graphed
    assert all(few <= many for few, many in zip(taken[True], taken[False], strict=True))
    assert taken[True][0] < 0.6 * taken[False][0]


@pytest.mark.parametrize(
    "error", [KeyError("mine"), sw.DriverError("launch", 999, "UNKNOWN", "made up")]
)
@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_streams_rejoin_after_every_capture(make_world, error):
    """However it ends: what the framework prepared for it comes before all else."""

    def fails(x):
        y = x * 2.0
        if world.current is not None:
            raise error
        return y

    with make_world() as world:
        x = world.runtime.array(np.ones(LENGTH))
        f, g = world.runtime.graph(layers), world.runtime.graph(fails)
        for count in (0, 1, 1):
            f(x)
            assert world.rejoined == count
        g(x)
        g(x)
        assert g.stats().passed_through == 1
        assert world.rejoined == 2
        f(x)
        error.__traceback__ = None
        del f, g, x


def test_who_captures_is_told_whether_the_thread_has_run_the_function(make_world):
    """A warm-up on one thread makes nothing ready for another, nor another's call."""

    @sw.eager
    def shown(x):
        return x

    def parted(x):
        return shown(x * 2.0) + 1.0

    with make_world() as world:
        x, y = (world.runtime.array(np.ones(n)) for n in (LENGTH, LENGTH // 2))
        for fn in (layers, parted):
            f, told = world.runtime.graph(fn), world.warm
            told.clear()
            f(x)
            f(x)
            assert told == [True] * len(told) != []
            told.clear()
            f(y)
            thread = threading.Thread(target=f, args=(y,))
            thread.start()
            thread.join()
            assert told == [False] * len(told) != []
            assert f.stats().recordings == 2
        del f, x, y, thread


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_a_result_that_cannot_be_replayed_around_an_eager_region(make_world):
    """It is found out by a warm-up: behind an eager region the call could not go on."""
    seen = []
    note = sw.eager(lambda y: seen.append(y.size))

    def fn(x):
        y = x * 2.0
        note(y)
        return y + 1.0

    with make_world() as world:
        f, x = world.runtime.graph(fn), world.runtime.array(np.ones(LOST))
        for _ in range(4):
            _same(f(x), np.full(LOST, 3.0))
        assert "leads back" in f.explain()
        assert f.stats().recordings == 0
        assert len(seen) == 4
        del f, x


def _past(x, y, held, noticed):
    """Read one array, write another and one that is named, and nobody is told."""
    z = x * 1.0
    with untold(noticed=noticed):
        z += y
        y += 1.0
        held["h"] *= 0.5
    return z


@pytest.mark.parametrize("words", ["starts", "ends", "hidden"])
@pytest.mark.parametrize("noticed", [True, False])
def test_work_that_is_untold_may_use_all_there_is(
    make_world, monkeypatch, noticed, words
):
    """Whatever it reads and writes is as with NumPy, if only its being is noticed."""
    if words == "hidden":
        monkeypatch.setattr(Adopting, "words", lambda *_: None)
    with make_world() as world:
        held, want = {"h": world.runtime.array(np.ones(9))}, {"h": np.ones(9)}
        if words == "ends":
            look = world.recordings.integration.look
            ends = staticmethod(lambda *_: frozenset({look(held["h"]).span[1]}))
            monkeypatch.setattr(Adopting, "words", ends)
        f = world.runtime.graph(partial(_past, held=held, noticed=noticed))
        wrong = 0
        for k in range(11):
            # What says where its end is knows of no stand-in for it.
            if k == 5 and words != "ends":
                held["h"], want["h"] = world.runtime.array(np.ones(9)), np.ones(9)
            hosts = np.full(9, 1.0 + k), np.full(9, 2.0 * k)
            x, y = map(world.runtime.array, hosts)
            got = f(x, y)
            expected = _past(*hosts, want, noticed=False)
            pairs = ((got, expected), (y, hosts[1]), (held["h"], want["h"]))
            wrong += any(not np.array_equal(np.asarray(a), b) for a, b in pairs)
        assert f.stats().replays > 3
        assert bool(wrong) is not noticed
        held.clear()
        del f, x, y, got, pairs


def narrowing(x):
    """Read an input first, and use less and less from then on."""
    y = np.concatenate([x, x]) * 0.5
    for _ in range(3):
        y = np.concatenate([y, y]) + 1.0
        y = y[: len(y) // 2] * y[len(y) // 2 :]
    return y[: len(x)] - 1.0


def later(x):
    """Read an input once more when much was made of it and dropped."""
    y = narrowing(x)
    return y * x


def in_input(x):
    """Write an input, whose bytes are the caller's at the end."""
    y = narrowing(x)
    x += y
    return narrowing(y)


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("fn", [narrowing, later, in_input])
def test_the_pages_of_an_input_are_others_afterwards(make_world, fn, quiet):
    """With another input every time results are NumPy's, on no more pages.

    Not if it may still be read, or goes back to the caller.
    """

    def told(x):
        with untold() if quiet else nullcontext():
            return fn(x)

    taken = {}
    for follows in (False, True):
        with make_world(follows=follows) as world:
            graphed = world.runtime.graph(told)
            for k in range(6):
                host = np.linspace(0.0, 1.0 + k, LENGTH)
                x = world.runtime.array(host)
                got, expected = graphed(x), fn(host)
                _same((got, x), (expected, host))
                world.check()
            taken[follows] = world.mapped()
            assert graphed.stats().replays > 2
            del x, got, graphed
    if fn is narrowing and not quiet:
        assert taken[True] < taken[False]
    else:
        assert taken[True] <= taken[False]


class Books:
    """What a function notes while it runs, and begins anew at its end."""

    def __init__(self):
        self.now = {}


def _noting(x, books):
    books.now["made"] = {"half": [x * 0.5]}
    y = books.now["made"]["half"][0] + 1.0
    books.now = {}
    return y


def test_what_is_begun_anew_does_not_outlive_the_function(make_world):
    """Arrays in a container that was given up are nobody's."""
    with make_world() as world:
        books, hosts = Books(), [np.full(LENGTH, 1.0 * k) for k in range(6)]
        f = world.runtime.graph(partial(_noting, books=books))
        for host in hosts:
            _same(f(world.runtime.array(host)), host * 0.5 + 1.0)
            assert books.now == {}
            world.check()
        assert f.stats().replays > 2
        del f


def test_what_stood_in_for_an_argument_is_refused_later(make_world, monkeypatch):
    """Whoever has it when a capture has failed finds no bytes behind it."""
    given, seen = [], []

    def refusal(_, __, arrays):
        # What it is passed comes first, and then what it gives.
        seen.extend(each for each in arrays[:1] if not any(each is x for x in given))
        return sw.CaptureError("it is refused", remedy="Go on") if seen else None

    monkeypatch.setattr(Owner, "refusal", refusal)
    with make_world() as world:
        f = world.runtime.graph(lambda x: x + 1.0, fullgraph=True)
        for _ in range(8):
            given.append(world.runtime.array(np.ones(LENGTH)))
            with suppress(sw.CaptureError):
                _same(f(given[-1]), np.full(LENGTH, 2.0))
        assert seen
        for each in seen:
            with pytest.raises(sw.StaleOutput, match="stood in for an argument"):
                each + 1.0
        seen.clear()
        given.clear()
        del f, each
        # In cycles with their errors' frames.
        gc.collect()


@pytest.mark.parametrize("times", [2, None])
def test_what_others_let_go_of_late_has_not_outlived_the_function(
    make_world, monkeypatch, times
):
    """Threads that have done their part of a function may hold of it for a moment."""
    left = iter([[(Addr(1), Size(8), None)]] * (times or 1 << 20))
    with make_world() as world:
        f, x = (
            world.runtime.graph(layers, fullgraph=True),
            world.runtime.array(np.ones(LENGTH)),
        )
        f(x)
        monkeypatch.setattr(adopted._Lent, "_lost", lambda *_: next(left, []))
        with nullcontext() if times else pytest.raises(sw.CaptureError, match="outli"):
            _same(f(x), layers(np.ones(LENGTH)))
        del f, x


@pytest.mark.parametrize("catches", [False, True])
def test_too_little_room_has_the_function_captured_with_more(make_world, catches):
    """What it did for want of room is nobody's result, whatever it made of that."""
    with make_world() as world:
        cache = {}

        def fn(x):
            cache["last"] = x * 2.0
            try:
                return layers(x)
            except RuntimeError:
                cache["low"] = cache["last"]
                if not catches:
                    raise
                return x * 0.0

        graphed, host = world.runtime.graph(fn), np.linspace(0.0, 1.0, LENGTH)
        x = world.runtime.array(host)
        for _ in range(2):  # the second finds what the first has bound
            _same(graphed(x), layers(host))
        world.rooms[:] = [256, 12, 8]
        for _ in range(3):
            _same(graphed(x), layers(host))
            _same(cache["last"], host * 2.0)
            assert "low" not in cache
            assert world.captures == graphed.stats().recordings + 2
        world.check()
        del x, graphed
        cache.clear()


@pytest.mark.parametrize("raises", [False, True])
def test_what_was_written_for_want_of_room_is_put_back(make_world, raises):
    """A plain value that the first capture leaves is not the next one's."""
    with make_world() as world:
        state, factors = {"low": False}, [*map(world.runtime.array, ([1.0], [2.0]))]

        def fn(x):
            try:
                return layers(x * factors[state["low"]])
            except RuntimeError:
                state["low"] = True
                if raises:
                    raise
                return x

        graphed, host, x = warmed(world, fn)
        world.rooms[:] = [256, 3]
        _same(graphed(x), layers(host))
        assert state == {"low": False}
        assert graphed.stats().recordings == 1
        del x, graphed
        factors.clear()


def test_who_interrupts_a_capture_that_had_too_little_room_is_heard(make_world):
    """What ends a program is no error to try again after."""
    with make_world() as world:

        def fn(x):
            try:
                return layers(x)
            except RuntimeError:
                raise KeyboardInterrupt from None

        graphed, host, x = warmed(world, fn)
        world.rooms[:] = [256, 3]
        with pytest.raises(KeyboardInterrupt):
            graphed(x)
        assert world.captures == 1
        for _ in range(3):
            _same(graphed(x), layers(host))
        del x, graphed


def test_nothing_lingers_of_a_capture_that_had_too_little_room(make_world):
    """Though its result was alive when it ended: it is gone before the next begins."""
    with make_world() as world:

        def fn(x):
            first = x * 2.0
            try:
                return layers(x)
            except RuntimeError:
                return first

        graphed, host, x = warmed(world, fn)
        world.rooms[:] = [256, 12]
        for _ in range(3):
            _same(graphed(x), layers(host))
            assert not world.device.pages.lingering
        assert world.captures == 2
        del x, graphed


@pytest.mark.parametrize("writes", [False, True])
def test_a_capture_that_others_spoil_is_made_again(make_world, tmp_path, writes):
    """What the function has written by then does not decide the next one."""
    flag = tmp_path / "noticed"
    flag.touch()
    with make_world() as world:
        state, factors = {"low": False}, [*map(world.runtime.array, ([1.0], [2.0]))]

        def fn(x):
            y = layers(x * factors[state["low"]])
            if writes and world.current is not None and noticed.exists():
                state["low"] = True
            return y

        noticed = flag
        graphed, host, x = warmed(world, fn)
        world.spoils[:] = [flag.unlink]
        for _ in range(3):
            _same(graphed(x), layers(host))
        assert world.captures == 2
        assert graphed.stats().recordings == 1
        assert state == {"low": False}
        assert not world.spoils
        del x, graphed
        factors.clear()


def test_more_room_is_there_where_too_little_has_spoilt_a_capture(make_world):
    """What the function did about it: as much again would be too little, too."""
    with make_world() as world:

        def fn(x):
            try:
                return layers(x)
            except RuntimeError:
                return x

        graphed, host, x = warmed(world, fn)
        world.rooms[:], world.spoils[:] = [256, 3], [int]
        for _ in range(3):
            _same(graphed(x), layers(host))
        first, second = world.asked
        assert second > first
        assert not world.device.pages.lingering
        del x, graphed


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_what_needs_more_room_than_there_can_be_is_told(make_world, monkeypatch):
    """By its own error, or by one that names the limit; nothing is left of it."""
    for module in (adopted,):
        monkeypatch.setattr(module, "LENT", Size(4 * PAGE))

    def heedless(x):
        with suppress(RuntimeError):
            return layers(x)
        return x

    with make_world() as world:
        host = np.linspace(0.0, 1.0, LENGTH)
        x, graph = world.runtime.array(host), world.runtime.graph
        plain, strict = graph(layers, fullgraph=True), graph(heedless, fullgraph=True)
        lenient = graph(heedless)
        for graphed in (plain, strict, lenient):
            _same(graphed(x), layers(host))
        before = world.mapped()
        world.rooms[:] = [1] * 20
        _same(plain(x), layers(host))
        with pytest.raises(sw.CaptureError, match="nothing left"):
            plain(x)
        with pytest.raises(sw.CaptureError, match=r"allocates more than .* captured"):
            strict(x)
        for _ in range(3):
            _same(lenient(x), layers(host))
        assert world.mapped() == before
        assert strict.stats().recordings == lenient.stats().recordings == 0
        del x, graphed, strict, lenient, plain
