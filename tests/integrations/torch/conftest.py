"""Torch with and without a GPU, and all ways in which a program holds a tensor."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import pytest

from sapwood import Runtime
from sapwood.driver.api import KernelOp
from sapwood.errors import DriverError
from sapwood.tree.record import adopted
from tests.support.rig import fast_replays_at_once


@pytest.fixture
def new_process():
    """Return what runs a program in a new process, and returns what it has printed."""

    def run(program):
        command = [sys.executable, "-W", "ignore", "-c", program]
        ran = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=100
        )
        assert not ran.returncode, ran.stderr
        return ran.stdout

    return run


# On a GPU.


@pytest.fixture
def same(torch):
    """Return what asserts that two nests of tensors are bit for bit the same."""

    def same(found, expected):
        if isinstance(expected, torch.Tensor):
            assert found.shape == expected.shape
            assert found.dtype == expected.dtype
            assert found.stride() == expected.stride()
            assert torch.equal(found, expected)
        elif isinstance(expected, dict):
            assert found.keys() == expected.keys()
            for key in expected:
                same(found[key], expected[key])
        elif isinstance(expected, (list, tuple)):
            assert len(found) == len(expected)
            for pair in zip(found, expected, strict=True):
                same(*pair)
        else:
            assert found == expected

    return same


class World:
    """Where a program runs, replayed or eager; it makes what the program needs."""

    def __init__(self, torch, rt, *, replayed):
        self.torch, self.rt, self.replayed = torch, rt, replayed
        self.functions = []

    def graph(self, fn=None, **options):
        """Graph a function; eagerly, return it."""
        if fn is None:
            return lambda fn: self.graph(fn, **options)
        if not self.replayed:
            return fn
        self.functions.append(self.rt.graph(fn, **options))
        return self.functions[-1]

    def values(self, *shape, dtype=None):
        """Return a tensor of new values: in both worlds the same, in their order."""
        dtype = dtype or self.torch.get_default_dtype()
        if dtype.is_floating_point or dtype.is_complex:
            made = self.torch.randn(shape, device="cuda", dtype=self.torch.complex128)
            return (made if dtype.is_complex else made.real.clone()).to(dtype)
        made = self.torch.randint(0, 40, shape, device="cuda")
        return made > 20 if dtype is self.torch.bool else made.to(dtype)

    def count(self, field):
        """Return the sum of one statistic over the functions of this world."""
        return sum(getattr(function.stats(), field) for function in self.functions)


@pytest.fixture(params=["behind layers", "in C"])
def played(request):
    """Return a runtime of torch's tensors, whose replays are decided, or played in C.

    C launches past all layers: where there are some, it plays none.
    """
    if request.param == "behind layers":
        yield request.getfixturevalue("rt")
        return
    with Runtime(device="cuda:0", arrays="torch") as made:
        fast_replays_at_once(made)
        yield made


@pytest.fixture
def alike(played, torch, bits):
    """Return what runs a program eagerly and replayed, and gives the world of that.

    A program is a generator function. It gets a `World`, and yields what must be the
    same in both, bit for bit.
    """

    def run(program, world):
        torch.manual_seed(11)
        running, seen = program(world), []
        while True:
            try:
                shown = next(running)
            except StopIteration:
                return seen
            seen.append(bits(shown))
            del shown

    def alike(program):
        expected = run(program, World(torch, played, replayed=False))
        assert expected, "a program yields something"
        world = World(torch, played, replayed=True)
        found = run(program, world)
        assert len(found) == len(expected)
        for i, pair in enumerate(zip(found, expected, strict=True)):
            assert pair[0] == pair[1], f"what is yielded as number {i} differs"
        return world

    return alike


@pytest.fixture
def agrees(alike):
    """Return what compares calls of one function, with lasting and new arguments.

    ``make`` gets a world and returns the arguments. Results and arguments are compared
    after every call.
    """

    def agrees(fn, make, calls=6):
        def lasting(w):
            f, args = w.graph(fn), make(w)
            for _ in range(calls):
                yield f(*args), args

        def fresh(w):
            f = w.graph(fn)
            for _ in range(calls):
                args = make(w)
                yield f(*args), args

        world = alike(lasting)
        assert world.count("recordings") == 1
        assert world.count("replays") == calls - 2
        assert alike(fresh).count("replays") >= 1

    return agrees


@pytest.fixture
def named(monkeypatch):
    """Return what tells in how many tensors words of captured kernels lie.

    Words that look like addresses are found whatever torch says: all of these tensors
    were told of by the dispatcher.
    """
    found, built = [], adopted.built

    def words_of(driver, graph):
        for node in driver.nodes(graph):
            try:
                op = driver.node_op(node)
            except DriverError:
                continue  # launched in a way that no op can say
            if isinstance(op, KernelOp):
                yield from (each.lo for each in driver.pointers(op.function, op.params))

    def noted(scene, taken):
        captured = taken.captured
        words = {*words_of(scene.recordings.device.driver, captured.graph)}
        told = [(s.address, s.address + s.size) for s in captured.session.used]
        found.append((words, told))
        return built(scene, taken)

    def named(tensors):
        count = 0
        for words, told in found:
            for each in tensors:
                at, end = each.data_ptr(), each.data_ptr() + each.nbytes
                if any(at <= word < end for word in words):
                    assert any(lo <= at < hi for lo, hi in told)
                    count += 1
        return count

    monkeypatch.setattr(adopted, "built", noted)
    return named


# Ways to hold a tensor: each returns what reads the old values again, once.


def _itself(_, y):
    return lambda: y


def _view(_, y):
    part = y[1:]
    return lambda: part


def _view_of_a_view(_, y):
    part = y.detach()[1:].t()
    return lambda: part


def _data(_, y):
    data = y.data
    return lambda: data


def _storage(torch, y):
    memory = y.untyped_storage()
    look = y.storage_offset(), y.shape, y.stride()
    dtype, device = y.dtype, y.device
    return lambda: torch.empty(0, dtype=dtype, device=device).set_(memory, *look)


def _set(torch, y):
    other = torch.empty(0, dtype=y.dtype, device=y.device).set_(y)
    return lambda: other


def _parameter(torch, y):
    parameter = torch.nn.Parameter(torch.empty_like(y))
    parameter.data = y
    return parameter.detach


def _saved(torch, y):
    with torch.enable_grad():
        weight = torch.ones_like(y).requires_grad_()
        total = (y * weight).sum()
    return lambda: torch.autograd.grad(total, weight)[0].contiguous()


def _gradient(torch, y):
    leaf = torch.zeros_like(y).requires_grad_()
    leaf.grad = y
    return lambda: leaf.grad


def _capsule(torch, y):
    capsule = torch.utils.dlpack.to_dlpack(y)
    return lambda: torch.utils.dlpack.from_dlpack(capsule)


def _exchanged(torch, y):
    other = torch.from_dlpack(y)
    return lambda: other


def _foreign(torch, y):
    """Held by an array of another library, which knows its address alone."""
    if y.is_cuda:
        array = pytest.importorskip("cupy").asarray(y)
        return lambda: torch.as_tensor(array, device="cuda")
    array = y.numpy()
    return lambda: torch.from_numpy(array)


def _thread(_, y):
    held, wanted, found = [y], threading.Event(), []

    def hold():
        mine = held.pop()
        wanted.wait(100)
        found.append(mine)

    def read():
        wanted.set()
        thread.join()
        return found[0]

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    return read


def _generator(_, y):
    def later(y):
        yield None
        yield y

    paused = later(y)
    next(paused)
    return lambda: next(paused)


def _traceback(_, y):
    def fail(mine):
        raise ValueError(len(mine))

    try:
        fail(y)
    except ValueError as error:
        caught = error
    return lambda: caught.__traceback__.tb_next.tb_frame.f_locals["mine"]


class _Undying:
    """Garbage in a cycle, whose finaliser brings back what it has."""

    def __init__(self, y, saved):
        self.y, self.saved, self.me = y, saved, self

    def __del__(self):
        self.saved.append(self.y)


def _garbage(_, y):
    saved = []
    _Undying(y, saved)

    def read():
        gc.collect()
        return saved[0]

    return read


HOLDS = {
    "as a gradient": _gradient,
    "by a capsule": _capsule,
    "by a generator": _generator,
    "by a parameter": _parameter,
    "by a storage": _storage,
    "by a thread": _thread,
    "by a traceback": _traceback,
    "by a view": _view,
    "by a view of a view": _view_of_a_view,
    "by another array": _foreign,
    "by autograd": _saved,
    "by data": _data,
    "by dlpack": _exchanged,
    "by garbage": _garbage,
    "by set_": _set,
    "itself": _itself,
}


@pytest.fixture(params=HOLDS)
def hold(request, torch):
    """Return one way of holding a tensor: it returns what reads the old values."""
    return lambda y: HOLDS[request.param](torch, y)


@pytest.fixture
def holds(torch):
    """Return all ways of holding a tensor."""

    def bound(way):
        return lambda y: way(torch, y)

    return [bound(way) for way in HOLDS.values()]


@pytest.fixture
def cuda(torch):
    """Return what moves a module to the device, its values from one seed."""

    def move(module):
        torch.manual_seed(3)
        return module.cuda()

    return move


@pytest.fixture
def network(torch, cuda):
    """Return what makes a small network, with dropout of so much."""
    nn = torch.nn

    def make(p=0.0):
        layers = nn.Linear(16, 32), nn.GELU(), nn.Dropout(p), nn.Linear(32, 4)
        return cuda(nn.Sequential(*layers))

    return make


@pytest.fixture
def replayed():
    """Return what asserts that calls were replayed, and none run eagerly for good."""

    def check(world, at_least=3):
        assert world.count("replays") >= at_least
        assert world.count("passed_through") == 0

    return check
