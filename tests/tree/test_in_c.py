"""Fast replays in C give what eager gives, and leave to Python what does not fit."""

from __future__ import annotations

import gc
import random
import signal
import threading
import weakref
from functools import partial

import numpy as np
import pytest

import sapwood as sw
from sapwood import _fast
from sapwood.tree.replay.compiled import MISS
from sapwood.tree.replay.fast_replay import FastReplay
from tests.support import lending
from tests.support.c_mutants import AGAIN_MUTANTS
from tests.support.lending import relook
from tests.support.rig import IN_C, Rig

SEEDS = range(4)
TURNS = 300
LENGTH = 24


@pytest.fixture(autouse=True)
def _compiler():
    if _fast.native() is None:
        pytest.skip("nothing in C here")


@pytest.fixture
def rig():
    made = Rig(IN_C)
    yield made
    gc.collect()
    made.finish()


class Slots:
    """What functions read besides their arguments."""


def _pair(o, x, y):
    return x * 2.0 + o.shift, y - x


def _scaled(o, x):
    x *= 0.5
    return x[::2] + o.shift[: len(x) : 2]


def _alone(_, x):
    return [x + 1.0]


def _first(_, x, y):
    x *= 0.5
    return y * 1.0


FUNCTIONS = {_pair: 2, _scaled: 1, _alone: 1, _first: 2}


def _plain(rig, here, fn):
    """Return a function of arrays alone."""
    return rig.runtime.graph(lambda *args: fn(here, *args))


def _nested(rig, here, fn):
    """Return a function whose arguments come in a dict, behind a plain value."""
    graphed = rig.runtime.graph(lambda scale, *, given: fn(here, *given["of"][scale]))
    return lambda *args: graphed(1, given={"of": ((), [*args])})


class Beside:
    """The same functions on a device and on the host, and arrays to call them with."""

    def __init__(self, rig, chance, *, nested=False):
        self.chance = chance
        self.host, self.device = Slots(), Slots()
        self.host.shift, self.host.next = np.arange(LENGTH * 1.0), np.ones(LENGTH)
        for name, value in vars(self.host).items():
            setattr(self.device, name, rig.runtime.array(value))
        self.hosts = [np.full(LENGTH, float(k)) for k in range(5)]
        self.given = [rig.runtime.array(each) for each in self.hosts]
        # Two that overlap, and one of another length.
        host = np.arange(LENGTH * 2.0)
        whole = rig.runtime.array(host)
        for cut in (slice(0, LENGTH), slice(8, LENGTH + 8), slice(3)):
            self.hosts.append(host[cut])
            self.given.append(whole[cut])
        here = self.device
        graph = _nested if nested else _plain
        self.functions = [
            (graph(rig, here, fn), fn, count) for fn, count in FUNCTIONS.items()
        ]
        self.kept = []

    def turn(self):
        """Call once; return whether all is right."""
        chance = self.chance
        graphed, plain, count = chance.choice(self.functions)
        numbers = [self.number(count) for _ in range(count)]
        for _ in range(chance.choice((2, 8, 30))):
            found = graphed(*[self.given[k] for k in numbers])
            expected = plain(self.host, *[self.hosts[k] for k in numbers])
            match chance.randrange(16):
                case 0:
                    self.kept.append((found, expected))
                case 1 if not _same(found, expected):
                    return False
            del found
            if chance.random() < 0.2:
                numbers[0] = self.number(count)
        right = chance.random() < 0.8 or self.rightly()
        self.kept = self.kept[-3:] if chance.random() < 0.5 else []
        if chance.random() < 0.1:
            for slots in (self.host, self.device):
                slots.shift, slots.next = slots.next, slots.shift
        if chance.random() < 0.1:
            self.host.shift = self.host.shift[::-1]
            relook(self.device.shift, lambda face: face[::-1])
        return right

    def number(self, count):
        """Return which array is passed: alone, it may be the short one."""
        return self.chance.randrange(len(self.given) - (count > 1))

    def rightly(self):
        """Return whether all that is kept or written is as on the host."""
        pairs = zip(self.given, self.hosts, strict=True)
        return all(_same(*each) for each in [*pairs, *self.kept])


def _same(found, expected):
    if isinstance(expected, (list, tuple)):
        return type(found) is type(expected) and all(map(_same, found, expected))
    return np.asarray(found).tobytes() == np.ascontiguousarray(expected).tobytes()


def wrong_turn(seed, *, nested=False):
    """Return the turn at which something was wrong, or None; and launches by C."""
    rig = Rig(IN_C)
    beside = Beside(rig, random.Random(seed), nested=nested)
    for turn in range(TURNS):
        if not beside.turn():
            rig.abandon()
            return turn, 0
    launches, right = rig.lending.launches, beside.rightly()
    del beside
    gc.collect()
    if right:
        rig.finish()
    else:
        rig.abandon()
    return (None if right else TURNS), launches


@pytest.mark.one_in(2)
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_what_c_plays_is_right(seed, nested):
    """Arguments that move, that are written, outputs that are held or dropped."""
    turn, launches = wrong_turn(seed, nested=nested)
    assert turn is None
    assert launches > TURNS


def test_what_c_plays_is_right_without_a_quick_look(monkeypatch):
    """Where a framework has none, C looks at arrays as DLPack has it."""
    monkeypatch.setattr(lending._Looked, "_quick", lambda _: ())
    turn, launches = wrong_turn(SEEDS[0])
    assert turn is None
    assert launches > TURNS


def test_replays_by_c_are_counted(rig):
    """Statistics, explanations and the picture tell of them as of all others."""
    f, x = rig.runtime.graph(lambda x: x + 1.0), rig.runtime.array(np.zeros(4))
    for _ in range(60):
        f(x)
    assert rig.lending.launches > 40
    stats = f.stats()
    assert stats.replays + stats.warmups + stats.recordings - 1 >= 59
    assert f"{stats.replays} replays of" in f.explain()
    assert rig.runtime.snapshot()["recordings"][0]["hits"] == stats.replays


def test_what_is_kept_is_copied_out_by_c(rig):
    """All outputs stay what they were; C plays on, and copies nothing that is free."""
    f, x = rig.runtime.graph(lambda x: (x * 2.0, x.sum())), rig.runtime.array([1.0] * 6)
    kept = []
    for turn in range(120):
        kept.append(f(x))
        x += 1.0
        if turn == 60:
            before = rig.lending.launches
    for turn, (double, total) in enumerate(kept):
        assert np.asarray(double).tolist() == [2.0 * (turn + 1)] * 6
        assert float(total) == 6.0 * (turn + 1)
    assert rig.lending.launches > before + 50
    escaped = f.stats().escaped
    assert escaped > 200
    del double, total
    kept.clear()
    for _ in range(20):
        f(x)
    assert f.stats().escaped == escaped, "nobody holds outputs: no copies"


def test_room_for_copies_is_made_beside_the_recording(rig, monkeypatch):
    """Where a framework has no memory for one, all others go, and this one stays."""
    copier, gone = lending._Looked.copier, []

    def greedy(self, template, address, size, room):
        copy = copier(self, template, address, size, room)

        def copied():
            while room():
                gone.append(size)
            return copy()

        return copied

    monkeypatch.setattr(lending._Looked, "copier", greedy)
    f, x = rig.runtime.graph(lambda x: x * 2.0), rig.runtime.array([1.0] * 6)
    other = rig.runtime.graph(lambda x: x - 1.0)
    for _ in range(10):
        other(x)
    kept = [f(x) for _ in range(80)]
    assert gone
    assert all(np.asarray(each).tolist() == [2.0] * 6 for each in kept)
    assert np.asarray(other(x)).tolist() == [0.0] * 6


@pytest.mark.parametrize("kept", [False, True])
def test_shapes_in_turn_are_played_by_c(rig, kept):
    """What one keeps for its next replay is where others compute, and gives way."""
    f = rig.runtime.graph(lambda x: (x * 2.0, x.sum()))
    arrays = [rig.runtime.array(np.full(n, 1.0)) for n in (4, 6, 9)]
    held = []
    for turn in range(120):
        x = arrays[turn % 3]
        double, total = f(x)
        held = [*held, double][-2:] if kept else []
        assert np.asarray(double).tolist() == [2.0] * len(x)
        assert float(total) == len(x)
        del double, total
        if turn == 80:
            before = rig.lending.launches
    assert rig.lending.launches > before + 30
    assert kept or f.stats().recordings == len(arrays), "they lie in the same pages"


def test_calls_that_are_decided_leave_others_to_c(rig):
    """A function with a region is decided each time; C plays the other one on."""
    live = sw.eager(lambda _: None)

    def fn(x):
        h = x * 3.0
        live(h)
        return h + 1.0

    f, g, x = rig.runtime.graph(lambda x: x * 2.0), rig.runtime.graph(fn), Slots()
    x.here = rig.runtime.array(np.ones(4))
    for turn in range(90):
        assert np.asarray(f(x.here)).tolist() == [2.0] * 4
        assert np.asarray(g(x.here)).tolist() == [4.0] * 4
        if turn == 60:
            before = rig.lending.launches
    assert rig.lending.launches > before + 20
    assert f.stats().recordings == 1


@pytest.mark.parametrize("beside", ["steps", "waits", "looks"])
def test_what_looks_at_memory_leaves_it_to_c(rig, beside):
    """Steps end what is held, and others ask who holds what: not what is kept."""
    runtime = rig.runtime
    f, x = runtime.graph(lambda x: (x * 2.0, x.sum())), runtime.array(np.ones(4))
    held = []
    for turn in range(90):
        if beside == "steps":
            with runtime.step(keep=held):
                held = [f(x)[0]] if turn % 7 == 0 else held
        elif beside == "waits":
            runtime.synchronize()
        else:
            assert runtime.memory_stats()["pages.live"] == 0
        double, total = f(x)
        assert np.asarray(double).tolist() == [2.0] * 4
        assert float(total) == 4.0
        assert all(np.asarray(each).tolist() == [2.0] * 4 for each in held)
        del double, total
        if turn == 60:
            before = rig.lending.launches
    assert rig.lending.launches > before + 15


def test_two_streams_are_ordered_for_c(rig):
    """Other arrays in each call, some of which another stream has written last."""
    runtime = rig.runtime
    f = runtime.graph(lambda x, y: (x.__imul__(0.5), x + y)[1])
    hosts = [np.full(4, float(k)) for k in range(5)]
    arrays, streams = [*map(runtime.array, hosts)], [runtime.stream() for _ in range(2)]
    for turn in range(200):
        i, j = turn % 5, (turn + 1 + turn % 3) % 5
        with streams[turn % 20 == 0]:
            found = f(arrays[i], arrays[j])
            hosts[i] *= 0.5
            if turn % 3 == 0:
                assert np.asarray(found).tolist() == (hosts[i] + hosts[j]).tolist()
        del found
        if turn == 100:
            before = rig.lending.launches
    assert rig.lending.launches > before + 40
    for array, host in zip(arrays, hosts, strict=True):
        assert np.asarray(array).tolist() == host.tolist()


def test_what_a_replay_elsewhere_wrote_before_the_last_call_is_waited_for(rig):
    """Nothing has changed since that call, which used other arrays."""
    runtime = rig.runtime
    f, adds = runtime.graph(lambda x: x * 2.0), runtime.graph(lambda x: x.__iadd__(1.0))
    arrays = [runtime.array(np.full(4, float(k))) for k in range(3)]
    one, two = runtime.stream(), runtime.stream()
    for turn in range(60):
        last = arrays[1 + turn % 2]
        with two:
            adds(last)
        with one:
            f(arrays[0])
            found = f(last)
            expected = [2.0 * (1 + turn % 2 + turn // 2 + 1)] * 4
            assert np.asarray(found).tolist() == expected
        del found
        if turn == 40:
            before = rig.lending.launches
    assert rig.lending.launches > before + 10


def test_one_of_several_is_kept_by_c(rig):
    """A loss that is kept is copied alone."""
    f, x = rig.runtime.graph(lambda x: (x * 2.0, x.sum())), rig.runtime.array([1.0] * 6)
    losses = [f(x)[1] for _ in range(100)]
    assert [float(each) for each in losses] == [6.0] * 100
    before = f.stats().escaped
    losses += [f(x)[1] for _ in range(100)]
    assert f.stats().escaped == before + 100


@pytest.mark.parametrize("pack", [lambda x: x, lambda x: [x]], ids=["C", "Python"])
def test_a_step_ends_what_would_be_copied(rig, pack):
    """Copies are this library's once there are steps, which end them."""

    def fn(x):
        x = x[0] if isinstance(x, list) else x
        return x * 2.0, x + 1.0

    f, x = rig.runtime.graph(fn), rig.runtime.array([1.0] * 6)
    kept = [f(pack(x)) for _ in range(60)]
    with rig.runtime.step(keep=kept):
        kept += [f(pack(x)) for _ in range(20)]
    for double, more in kept:
        assert np.asarray(double).tolist() == np.asarray(more).tolist() == [2.0] * 6
    del double, more
    with rig.runtime.step(), pytest.raises(sw.StaleOutput):
        np.asarray(kept[-1][0])
    del kept


@pytest.mark.parametrize("call", ["launch_graph", "set_op"])
def test_a_driver_that_refuses_is_told_of(rig, call):
    """The error is the driver's, nothing has run, and the next call is right."""
    f = rig.runtime.graph(lambda x: x * 3.0)
    given = [rig.runtime.array(np.full(4, float(k))) for k in range(3)]
    for turn in range(40):
        f(given[turn % 3])
    assert rig.lending.launches > 20
    fail = _Refusing(rig, call)
    for number in (1, 2, 0):
        fail.armed = True
        with pytest.raises(sw.DriverError, match=call):
            f(given[number])
        fail.armed = False
        assert np.asarray(f(given[number])).tolist() == [3.0 * number] * 4


class _Refusing:
    """Has every call of one name refused while it is armed."""

    def __init__(self, rig, name):
        self.armed = False
        below = rig.lending.driver
        inner = getattr(below, name)

        def refuse(*args):
            if self.armed:
                raise sw.DriverError(name, 999, "UNKNOWN", "refused")
            return inner(*args)

        setattr(below, name, refuse)


def test_waiting_for_others_may_be_interrupted(rig):
    """The interrupt comes out, nothing is held, and the next call is right."""
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals are for the main thread")
    f, x = rig.runtime.graph(lambda x: x + 1.0), rig.runtime.array(np.zeros(4))
    for _ in range(40):
        f(x)
    launches, lock = rig.lending.launches, rig.runtime._recordings.device.lock
    held, over = threading.Event(), threading.Event()
    thread = threading.Thread(target=_hold, args=(lock, held, over))
    main = threading.get_ident()
    later = threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGUSR1))
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        thread.start()
        held.wait()
        later.start()
        with pytest.raises(KeyboardInterrupt):
            f(x)
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    assert np.asarray(f(x)).tolist() == [1.0] * 4
    assert rig.lending.launches == launches + 1


def test_what_is_read_has_to_lie_where_it_did(monkeypatch):
    """Under the same object: one array of several that moved is enough."""
    quick, moved = lending._Looked._data, set()

    def found(self, array, data):
        code = quick(self, array, data)
        data[0] += 64 * (id(array) in moved)
        return code

    monkeypatch.setattr(lending._Looked, "_data", found)
    rig = Rig(IN_C)
    o = Slots()
    o.shift, o.next = (rig.runtime.array(np.ones(4)) for _ in range(2))
    f, x = rig.runtime.graph(lambda x: x + o.shift - o.next), rig.runtime.array([3.0])
    for _ in range(40):
        f(x)
    (play,) = f.runner().fast_replays.players
    for each in (o.shift, o.next):
        assert play(x) is not MISS
        moved.add(id(each))
        assert play(x) is MISS
        moved.clear()
    assert np.asarray(f(x)).tolist() == [3.0] * 4
    del each, o.shift, o.next, x, f, play
    gc.collect()
    rig.finish()


LOOKS = {
    "dimensions": lambda face: face[..., None],
    "shape": lambda face: face.reshape(2, 8),
    "strides": lambda face: face.T,
    "dtype": lambda face: face.view(np.int64),
}


@pytest.mark.parametrize("looks", LOOKS)
@pytest.mark.parametrize("quick", [True, False])
def test_what_is_read_has_to_look_as_it_did(monkeypatch, quick, looks):
    """Under the same object, at the same address: one of several is enough."""
    if not quick:
        monkeypatch.setattr(lending._Looked, "_quick", lambda _: ())
    rig = Rig(IN_C)
    o, host = Slots(), np.arange(16.0).reshape(4, 4)
    o.shift, o.next = (rig.runtime.array(host) for _ in range(2))
    f, x = rig.runtime.graph(lambda x: (x + o.shift, -o.next)), rig.runtime.array([3.0])
    for _ in range(40):
        f(x)
    (play,) = f.runner().fast_replays.players
    for each in (o.shift, o.next):
        before = each.face
        assert play(x) is not MISS
        relook(each, LOOKS[looks])
        assert play(x) is MISS
        relook(each, lambda _, before=before: before)
    relook(o.next, LOOKS[looks])
    for _ in range(8):
        assert _same(f(x), (3.0 + host, -LOOKS[looks](host)))
    del each, before, o.shift, o.next, x, f, play
    gc.collect()
    rig.finish()


def test_a_call_with_a_nest_is_played_in_c(rig):
    """By the arrays in it; where a plain value or the nest is another, it is not."""

    def scaled(pair, factor, *, more, offset=1.0):
        return {"sum": pair["x"] * factor + more[0], "same": pair["x"]}, offset

    hosts = [np.array([float(number)]) for number in range(3, 6)]
    f, given = rig.runtime.graph(scaled), [*map(rig.runtime.array, hosts)]
    calls = (
        lambda f, x, y, _: f({"x": x}, 2.0, more=(y,)),
        lambda f, x, y, _: f({"x": x}, 3.0, more=(y,)),
        lambda f, x, y, z: f({"x": x}, 2.0, more=(y, z)),
        lambda f, x, y, _: f({"x": y}, 2.0, more=[x], offset=5.0),
    )
    for call in calls:
        expected = call(scaled, *hosts)
        for turn in range(60):
            launches = rig.lending.launches
            found = call(f, *given)
            assert np.asarray(found[0]["sum"]).tolist() == expected[0]["sum"].tolist()
            assert found[0]["same"] is given[call is calls[3]]
            assert found[1] == expected[1]
            if turn > 40:
                assert rig.lending.launches == launches + 1
            del found
    kept = [calls[3](f, *given)[0]["sum"] for _ in range(3)]
    assert [np.asarray(each).tolist() for each in kept] == [[11.0]] * 3
    stats = f.stats()
    assert stats.replays + stats.recordings + stats.warmups >= 243
    del kept, given


def test_what_changes_while_it_is_put_to_c_is_not_taken_for_as_it_was(monkeypatch):
    """As by another thread: C would know the other looks, and guards do not ask."""
    rig, inner = Rig(IN_C), FastReplay._look_alike
    host = [np.arange(16.0).reshape(4, 4)]
    o, changes = Slots(), [True] * 3
    o.shift = rig.runtime.array(host[0])

    def meddled(*parts):
        if changes:
            changes.pop()
            host[0] = host[0].T
            relook(o.shift, lambda face: face.T)
        return inner(*parts)

    monkeypatch.setattr(FastReplay, "_look_alike", meddled)
    f, x = rig.runtime.graph(lambda x: x + o.shift), rig.runtime.array([3.0])
    for _ in range(60):
        now = host[0]
        assert _same(f(x), 3.0 + now)
    assert not changes
    assert rig.lending.launches > 20
    del o.shift, x, f
    gc.collect()
    rig.finish()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, ZeroDivisionError])
def test_looking_may_be_interrupted(rig, kind):
    """The interrupt comes out, other errors are Python's to raise; nothing is held."""
    f, x = rig.runtime.graph(lambda x: x + 1.0), rig.runtime.array(np.zeros(4))
    for _ in range(40):
        f(x)
    fast_replays, errors = f.runner().fast_replays, []
    (fast,) = fast_replays._ready
    program = fast.node.ambient.program
    inner = program.read

    def look():
        if errors:
            raise errors.pop()
        return inner()

    program.read, fast_replays.players, fast._rest = look, (), 1
    f(x)
    launches, (play,) = rig.lending.launches, fast_replays.players
    assert play(x) is not MISS
    errors.append(kind())
    if kind is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            play(x)
    else:
        assert play(x) is MISS
    assert not errors
    assert rig.lending.launches == launches + 1
    assert np.asarray(f(x)).tolist() == [1.0] * 4
    assert rig.lending.launches == launches + 2


def test_what_was_evicted_is_played_no_more(rig):
    """Even by whoever was about to, and has all that it needs."""
    f, x = rig.runtime.graph(lambda x: x + 1.0), rig.runtime.array(np.zeros(4))
    for _ in range(40):
        f(x)
    fast_replays, launches = f.runner().fast_replays, rig.lending.launches
    (fast,), (play,) = fast_replays._ready, fast_replays.players
    assert play(x) is not MISS
    rig.runtime._recordings.fell(fast.node, "for this test")
    assert play(x) is MISS
    assert rig.lending.launches == launches + 1


def _hold(lock, held, over):
    with lock:
        held.set()
        over.wait(20)


def test_nothing_is_kept_alive(rig):
    """Neither the arguments, nor what the function reads, nor the function."""
    o = Slots()
    o.shift = rig.runtime.array(np.ones(4))
    f = rig.runtime.graph(lambda x: x + o.shift)
    x = rig.runtime.array(np.zeros(4))
    for _ in range(40):
        f(x)
    assert rig.lending.launches > 20
    gone = [weakref.ref(each) for each in (x, o.shift, f)]
    del x, o.shift, f
    assert [each() for each in gone] == [None] * 3


def test_outputs_of_other_recordings_stay(rig):
    """Recordings of one function share the pages of outputs, but not while one is held.

    The short one is played in C again and again, beside an output of the long one.
    """
    f = rig.runtime.graph(lambda x: x + 1.0)
    long, short = (rig.runtime.array(np.zeros(n)) for n in (64, 4))
    for turn in range(60):
        f(short)
        if turn % 6 == 0:
            held = f(long)
        assert np.asarray(held).tolist() == [1.0] * 64
    launches = rig.lending.launches
    del held
    for _ in range(40):
        f(short)
    assert rig.lending.launches > launches + 20


def test_what_is_called_on_another_stream_runs_there(rig):
    """Who gives that stream work by himself, or waits for it, comes after the call."""
    f, x = rig.runtime.graph(lambda x: x + 1.0), rig.runtime.array(np.zeros(4))
    for _ in range(40):
        f(x)
    launches, other = rig.lending.launches, rig.runtime.stream()
    assert launches > 20
    x += 1.0
    f(x)
    assert rig.lending.launches == launches + 1
    x += 1.0
    with other:
        y = f(x)
    found = rig.checked.download(y.address, 32, other.handle)
    assert np.frombuffer(found).tolist() == [3.0] * 4
    assert rig.lending.launches == launches + 1


def test_what_is_read_may_be_a_part_of_the_result(rig):
    """Beside new arrays, arguments and plain values: each is where it was."""
    o, host = Slots(), np.arange(4.0)
    o.shift, o.next = (rig.runtime.array(host + k) for k in range(2))
    f = rig.runtime.graph(lambda x, y: [o.next, y, 7, x + o.shift + o.next, o.shift, x])
    x, y = (rig.runtime.array(host) for _ in range(2))
    for _ in range(40):
        after, given, plain, new, read, first = f(x, y)
        assert after is o.next
        assert read is o.shift
        assert (first is x, given is y, plain) == (True, True, 7)
        assert np.asarray(new).tolist() == (3 * host + 1).tolist()
        del new
    assert rig.lending.launches > 20


def test_keywords_and_others_go_by_python(rig):
    """What C does not know is played all the same."""
    f = rig.runtime.graph(lambda x, k=1.0: x * k)
    x = rig.runtime.array(np.ones(4))
    for _ in range(20):
        assert np.asarray(f(x, k=2.0)).tolist() == [2.0] * 4
        assert np.asarray(f(x)).tolist() == [1.0] * 4
        assert np.asarray(f(x=x)).tolist() == [1.0] * 4


@pytest.mark.deep
@pytest.mark.parametrize("mutant", AGAIN_MUTANTS, ids=lambda mutant: mutant.name)
def test_mutants_are_caught(mutant):
    """Each under one of the seeds at least."""
    with mutant.patch():
        assert any(wrong_turn(seed)[0] is not None for seed in SEEDS)


def _asked_of_a_slot(o, x):
    return x * 2.0 if o.a is x else x * 3.0


def _asked_of_keys(o, x):
    return x * o.known.get(x, 3.0)


def test_one_array_passed_twice(rig):
    """Where one of the two is only asked about, and was another so far."""
    f = rig.runtime.graph(lambda a, b: a * 2.0 if a is b else a * 3.0)
    x, y, z = (rig.runtime.array(np.full(4, k)) for k in (1.0, 5.0, 7.0))
    pairs = [(x, y), (x, z), (y, z), (z, x)]
    for turn in range(60):
        f(*pairs[turn % 4])
    assert rig.lending.launches > 20
    for _ in range(3):
        assert np.asarray(f(x, x)).tolist() == [2.0] * 4
        assert np.asarray(f(x, y)).tolist() == [3.0] * 4


def test_views_of_one_array_are_played_by_c(rig):
    """Where they lie in it as they did; elsewhere the call is another one."""
    f = rig.runtime.graph(lambda a, b, c: a * 2.0 + b - c)
    rooms = [np.arange(24.0) * k for k in range(1, 4)]
    given = [rig.runtime.array(each) for each in rooms]
    cuts = [slice(0, 8), slice(16, 24)], [slice(16, 24), slice(0, 8)]
    for turn in range(120):
        room, other = turn % 3, (turn + 1) % 3
        a, b = cuts[turn // 20 % 2]
        found = f(given[room][a], given[other][:8], given[room][b])
        host, beside = rooms[room], rooms[other][:8]
        assert np.array_equal(np.asarray(found), host[a] * 2.0 + beside - host[b])
    assert rig.lending.launches > 40


def test_many_arguments_may_lie_anywhere(rig):
    """They may overlap as they come, and lie in any order."""
    whole = np.arange(800.0)
    room, chance = rig.runtime.array(whole), random.Random(4)
    f = rig.runtime.graph(lambda *arrays: arrays[0] + arrays[-1] * 2.0)
    apart = [[*range(0, 800, 16)] for _ in range(4)]
    for starts in apart[1:]:
        chance.shuffle(starts)
    for turn in range(80):
        starts = [*apart[turn // 20]]
        if turn % 20 > 16:
            starts[0] = starts[-1] + 4
        found = f(*(room[k : k + 8] for k in starts))
        a, b = (whole[k : k + 8] for k in (starts[0], starts[-1]))
        assert np.array_equal(np.asarray(found), a + b * 2.0)
    assert rig.lending.launches > 20


@pytest.fixture
def by_attributes(rig):
    """Return a rig whose arrays C looks at as at CuPy's."""
    with lending.looked_at_by_attributes(rig.runtime):
        yield rig


def _full(rt, value):
    return rt.array(np.full(16, float(value)))


def test_arrays_are_looked_at_by_attributes(by_attributes):
    """Other arguments, results that are kept, and what the function reads."""
    rt, held = by_attributes.runtime, []
    w, given = _full(rt, 3), [_full(rt, k) for k in range(5)]
    f = rt.graph(lambda x: (x * w, x - 1))
    for i in range(60):
        held.append((i % 5, f(given[i % 5])))
        del held[: -1 - i % 3]
        for k, (product, less) in held:
            assert np.asarray(product).tolist() == [3.0 * k] * 16
            assert np.asarray(less).tolist() == [k - 1.0] * 16
    assert by_attributes.lending.launches


def _writes(x):
    x += 1
    return x * 2


@pytest.mark.parametrize("reads", [False, True])
def test_what_another_stream_does_is_waited_for(by_attributes, reads):
    """To bytes that no replay has met: nobody has told C of them."""
    rt, side, found = by_attributes.runtime, by_attributes.runtime.stream(), []
    f, given = rt.graph(_writes), [_full(rt, k) for k in range(4)]
    if reads:
        others = [_full(rt, 10 + i) for i in range(20)]
    with side:
        if reads:
            found += [(x * 5, 5.0 * (10 + i)) for i, x in enumerate(others)]
        else:
            others = [_full(rt, 10 + i) for i in range(20)]
    for i in range(40):
        f(given[i % 4])
    launched = by_attributes.lending.launches
    assert launched
    for i, other in enumerate(others):
        for turn in range(1, 4):
            calls = 10 + 3 * i + turn
            found += [(f(x), 2.0 * (k + calls)) for k, x in enumerate(given)]
        found.append((f(other), 2.0 * (11 + i)))
    assert by_attributes.lending.launches > launched
    for array, expected in found:
        assert np.asarray(array).tolist() == [expected] * 16


@pytest.mark.parametrize("fn", [_asked_of_a_slot, _asked_of_keys])
def test_an_argument_that_the_function_has_itself(rig, fn):
    """All is as ever but that: what it asks has another answer."""
    o, runtime = Slots(), rig.runtime
    o.a, o.w = runtime.array(np.ones(4)), runtime.array(np.ones(4))
    o.known = {o.a: 2.0}
    f = runtime.graph(lambda x: fn(o, x) + o.w)
    given = [runtime.array(np.full(4, float(k))) for k in range(3)]
    for turn in range(40):
        f(given[turn % 3])
    before = rig.lending.launches
    for turn in range(6):
        assert np.asarray(f(given[turn % 3])).tolist() == [turn % 3 * 3.0 + 1.0] * 4
    assert rig.lending.launches == before + 6
    before = rig.lending.launches
    for _ in range(60):
        assert np.asarray(f(o.a)).tolist() == [3.0] * 4
    assert rig.lending.launches > before
    assert np.asarray(f(given[1])).tolist() == [4.0] * 4
    assert np.asarray(f(o.a[:])).tolist() == [4.0] * 4


ADDED = 0


def _adding_to_an_attribute(o, x):
    o.calls += 1
    return x * 2.0


def _adding_to_an_item(o, x):
    o.table["rows"] += len(x)
    return x + o.shift


def _appending(o, x):
    y = x + 1.0
    o.log.append(y)
    return y


def _adding_to_a_global(_, x):
    global ADDED  # noqa: PLW0603 - what is tested
    ADDED += 2
    return [x, x - 1.0]


def _binding_an_attribute(o, x):
    o.last = x * o.shift
    return x * 3.0


def _adding_nests(o, x):
    o.calls += 1
    o.log.append({"calls": 1, "x": x * o.calls if False else x - 2.0})
    return x


def _said(value):
    match value:
        case dict():
            return {key: _said(each) for key, each in value.items()}
        case list():
            return [_said(each) for each in value]
        case int() | float():
            return value
    return np.asarray(value).tolist()


BINDING = (
    _adding_to_an_attribute,
    _adding_to_an_item,
    _adding_to_a_global,
    _adding_nests,
    _appending,
    _binding_an_attribute,
)


@pytest.mark.parametrize("fn", BINDING)
@pytest.mark.parametrize("is_kept", [False, True], ids=["dropped", "kept"])
def test_what_is_added_or_bound_anywhere(rig, fn, is_kept):
    """C does it too, whichever way leads there, also where that way changes."""
    global ADDED
    runs = []
    for bring in (np.array, rig.runtime.array):
        o, ADDED, kept, said = Slots(), 0, [], []
        o.calls, o.table, o.log = 0, {"rows": 0}, []
        o.last = o.shift = bring(np.arange(4.0))
        given = [bring(np.full(4, float(k))) for k in range(3)]
        f = partial(fn, o) if bring is np.array else rig.runtime.graph(partial(fn, o))
        for turn in range(60):
            if turn == 40:
                o.table, o.log = {"rows": 7}, []
            result = f(given[turn % 3])
            kept += [result] if is_kept else []
            held = o.calls, o.table["rows"], o.last, ADDED
            said.append(_said([result, *held]))
            del result, held
        runs.append([said, _said(kept), _said(o.log)])
    assert runs[0] == runs[1]
    # What is bound lives until the next is: then two recordings take turns.
    assert rig.lending.launches > 20 or (is_kept and fn is _binding_an_attribute)
