"""What C is given of an exec on a GPU, used as C uses it."""

from __future__ import annotations

import ctypes
import random

import pytest

from sapwood.driver.api import MOST_COPIES, CopiesOp, CopyOp
from sapwood.units import Size

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda_image")]

POINTER = ctypes.c_void_p
CALL = ctypes.CFUNCTYPE(ctypes.c_int, POINTER, POINTER, POINTER)
START = ctypes.CFUNCTYPE(ctypes.c_int, POINTER, POINTER)
ASK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(POINTER))
ROW = 64


class C:
    """A caller of CUDA that knows nothing but numbers."""

    def __init__(self, native):
        self.native = native
        self.set_params = CALL(native.set_params)
        self.start = START(native.launch)
        self.ask = ASK(native.context_of)

    def context(self):
        found = POINTER()
        assert self.ask(ctypes.byref(found)) == 0
        return found.value

    def words(self, number):
        """Return the words of a node: copied to, and copied from."""
        node = self.native.copies[number]
        array = ctypes.c_uint64 * node.number
        return array.from_address(node.dsts), array.from_address(node.srcs)

    def settle(self, number):
        node = self.native.copies[number]
        return self.set_params(self.native.exec_, node.node, node.params)

    def launch(self, stream):
        assert self.start(self.native.exec_, stream) == 0


@pytest.fixture
def placed(cuda, raw):
    """Let the device's context be this thread's for the test."""
    raw.cuCtxPushCurrent(cuda._place.context)
    yield
    raw.cuCtxPopCurrent()


def _copies(gpu, number):
    """Return an exec with a node of that many copies, and where rows come from."""
    driver, address, stream = gpu.driver, gpu.memory(), gpu.stream()
    data = random.Random(number).randbytes(4 * MOST_COPIES * ROW)
    driver.upload(address, memoryview(data), stream)
    driver.synchronize_stream(stream)
    to = address + (1 << 20)
    dsts = tuple(to + ROW * i for i in range(number))
    srcs = tuple(address + ROW * i for i in range(number))
    graph = driver.create_graph()
    op = CopiesOp(dsts, srcs, (Size(ROW),) * number)
    node = driver.add_node(graph, op)
    return gpu.exec_(graph), node, op, data


def _held(gpu, op, stream):
    size = Size(ROW * len(op.sizes))
    return bytes(gpu.driver.download(op.dsts[0], size, stream))


@pytest.mark.parametrize("number", [1, 2, 8, 33, MOST_COPIES])
@pytest.mark.usefixtures("placed")
def test_c_aims_and_launches(gpu, number):
    """It finds the words as the exec holds them; so does who sets the op next."""
    driver, stream, rng = gpu.driver, gpu.stream(), random.Random(number)
    exec_, node, op, data = _copies(gpu, number)
    if number % 2:
        driver.set_op(exec_, node, op)
    c = C(driver.native(exec_, [node]))
    assert c.context() == c.native.context
    dsts, srcs = c.words(0)
    assert (tuple(dsts), tuple(srcs)) == (op.dsts, op.srcs)
    for turn in range(20):
        rows = [rng.randrange(4 * MOST_COPIES) for _ in range(number)]
        moved = tuple(op.srcs[0] + ROW * row for row in rows)
        if turn % 3:
            srcs[:] = moved
            assert c.settle(0) == 0
        else:
            driver.set_op(exec_, node, CopiesOp(op.dsts, moved, op.sizes))
            assert tuple(srcs) == moved
        if turn % 2:
            c.launch(driver.raw_stream(stream))
        else:
            driver.launch_graph(exec_, stream)
        expected = b"".join(data[ROW * row :][:ROW] for row in rows)
        assert _held(gpu, op, stream) == expected


def test_a_refused_change_leaves_the_words(gpu, refused):
    """They are what the exec still holds, and what it runs."""
    driver, stream = gpu.driver, gpu.stream()
    exec_, node, op, data = _copies(gpu, 9)
    c = C(driver.native(exec_, [node]))
    for dsts in (op.srcs, (op.dsts[0],) * 9):
        with refused("INVALID_VALUE"):
            driver.set_op(exec_, node, CopiesOp(dsts, op.srcs[::-1], op.sizes))
        assert tuple(map(tuple, c.words(0))) == (op.dsts, op.srcs)
    driver.launch_graph(exec_, stream)
    assert _held(gpu, op, stream) == data[: 9 * ROW]


def test_only_copies_are_given_to_c(gpu, refused):
    """Other nodes have no words that C may write, nor have those of other graphs."""
    driver, address = gpu.driver, gpu.memory()
    exec_, node, _, _ = _copies(gpu, 2)
    graph = driver.create_graph()
    one = driver.add_node(graph, CopyOp(address, address + 64, Size(8)))
    other = gpu.exec_(graph)
    for of, nodes in ((other, [one]), (other, [node]), (exec_, [node, one])):
        with refused("INVALID_VALUE"):
            driver.native(of, nodes)
    assert driver.native(other, []).copies == ()
