"""The kernels that copy, their text run line by line: no GPU is needed for that."""

from __future__ import annotations

import ctypes
import enum
import itertools
import re
import struct
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sapwood.driver.api import MOST_COPIES, CopiesOp, CopyOp
from sapwood.driver.cuda.bindings import Library, address_of
from sapwood.driver.cuda.copies import ROOMS, Copies, copies_of, room_for
from sapwood.driver.cuda.graphs import Graphs
from sapwood.driver.cuda.kernels import Function, Kernels
from sapwood.driver.handles import Table
from sapwood.driver.results import Refusal

WIDTH = {"u8": 8, "u32": 32, "b32": 32, "u64": 64, "b64": 64}
TESTS = {"eq": int.__eq__, "ne": int.__ne__, "le": int.__le__, "ge": int.__ge__}
SUMS = {
    "add": int.__add__,
    "sub": int.__sub__,
    "min": min,
    "or": int.__or__,
    "and": int.__and__,
    "shl": int.__lshift__,
    "shr": int.__rshift__,
}
LINE = re.compile(r"(?:@(\w+) )?([a-z][\w.]*) ?(.*);")
OPERAND = re.compile(r"\{[^}]*\}|\[[^]]*\]|[^,\s]+")


class Ptx:
    """A PTX kernel that runs on the memory of this process, thread by thread."""

    def __init__(self, image):
        _, _, body = image.decode().partition("{")
        self.lines, self.labels = [], {}
        for line in map(str.strip, body.splitlines()):
            if match := LINE.fullmatch(line):
                if not match[2].startswith("."):
                    operands = OPERAND.findall(match[3])
                    self.lines.append((match[1], match[2].split("."), operands))
            elif line.endswith(":"):
                self.labels[line[:-1]] = len(self.lines)

    def run(self, op, threads):
        """Run a launch, its last block first, of so many threads each."""
        for block, thread in itertools.product(
            reversed(range(op.grid[0])), range(threads)
        ):
            given = {
                "%ctaid.x": block,
                "%nctaid.x": op.grid[0],
                "%ntid.x": threads,
                "%tid.x": thread,
                "table": 0,
            }
            self._run(op.params, given)

    def _run(self, params, values):
        at = 0
        while True:
            predicate, (name, *how), operands = self.lines[at]
            at += 1
            if predicate is not None and not values[predicate]:
                continue
            if name == "ret":
                return
            if name == "bra":
                at = self.labels[operands[0]]
            else:
                self._step(name, how, operands, params, values)

    def _step(self, name, how, operands, params, values):
        def value(text):
            return values[text] if text in values else int(text)

        def place(text):
            base, _, more = text.strip("[]").partition("+")
            return value(base) + int(more or 0)

        size = WIDTH[how[-1]]
        if name in {"ld", "st"}:
            first, second = operands if name == "ld" else operands[::-1]
            registers, address = first.strip("{}").split(", "), place(second)
            number = len(registers) * size // 8
            assert address % number == 0
            assert number == (16 if "v4" in how else size // 8)
            form = {8: "B", 32: "I", 64: "Q"}[size]
            layout = struct.Struct(f"<{len(registers)}{form}")
            if how[0] == "param":
                found = layout.unpack_from(params, address)
            elif name == "ld":
                found = layout.unpack(ctypes.string_at(address, number))
            else:
                data = layout.pack(*map(value, registers))
                ctypes.memmove(address, data, number)
                return
            values.update(zip(registers, found, strict=True))
            return
        to, *of = operands[0], *map(value, operands[1:])
        if name == "setp":
            values[to] = TESTS[how[0]](*of)
        elif name == "selp":
            values[to] = of[0] if of[2] else of[1]
        elif name == "mul":
            assert how == ["wide", "u32"]
            values[to] = of[0] * of[1]
        elif name in {"mov", "cvt"}:
            values[to] = of[0]
        else:
            values[to] = SUMS[name](*of) & ((1 << size) - 1)


@pytest.fixture(scope="session")
def made():
    """Return the copies of a library that keeps images, and those by their name."""
    images = {}

    class Kept(Kernels):
        def __init__(self):
            self.functions = Table("function")

        def keep(self, image, name):
            (size,) = re.findall(rb"table\[(\d+)\]", image)
            assert size == re.findall(rb"\.b8 table\[(\d+)\]", image)[0]
            room = int(name.rpartition("_")[2])
            images[room] = Ptx(image)
            function = Function(room, name, ((0, int(size)),))
            return self.functions.put(room, function)

    kernels = Kept()
    return SimpleNamespace(copies=Copies(kernels), kernels=kernels, images=images)


def _laid_out(memory, rows):
    """Return copies of ``(size, dst's offset, src's offset)``, side by side."""
    base = ctypes.addressof(memory) + -ctypes.addressof(memory) % 16
    at, columns = base, []
    for size, to, of in rows:
        dst = at + to
        src = dst + size + -(dst + size) % 16 + of
        at = src + size + -(src + size) % 16
        columns.append((dst, src, size))
    assert at <= ctypes.addressof(memory) + len(memory)
    return CopiesOp(*zip(*columns, strict=True))


def _expected(memory, op):
    """Return what memory holds when all copies were made, one by one."""
    base, held = ctypes.addressof(memory), bytearray(memory.raw)
    for dst, src, size in zip(op.dsts, op.srcs, op.sizes, strict=True):
        held[dst - base : dst - base + size] = memory.raw[src - base :][:size]
    return bytes(held)


ROOM = 1 << 17
ROWS = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 70), st.sampled_from([4096, 4097, 9000])),
        st.sampled_from([0, 0, 0, 1, 8, 15]),
        st.sampled_from([0, 0, 0, 1, 8, 15]),
    ),
    min_size=1,
    max_size=5,
)


@given(ROWS, st.sampled_from([1, 3, 8]))
@example([(0, 0, 0)], 8)
@example([(0, 0, 0), (0, 0, 0)], 8)
@example([(9000, 0, 0), (0, 1, 1), (5, 0, 0), (0, 0, 0)], 256)
@example([(i % 3 * 17, i % 2, 0) for i in range(9)], 8)
@example([(16, 0, 0)] * 32, 8)
@example([(i % 3 * 17, i % 2, 0) for i in range(33)], 8)
@example([(1, 0, 0)] * MOST_COPIES, 2)
@pytest.mark.deep
def test_the_text_copies_what_the_op_says(made, rows, threads):
    """All bytes of each copy, whatever their size and alignment, and nothing else."""
    memory = ctypes.create_string_buffer(ROOM)
    memory.raw = bytes(i * 7 % 251 for i in range(ROOM))
    op = _laid_out(memory, rows)
    expected = _expected(memory, op)
    kernel = made.copies.kernel(op)
    made.images[kernel.function].run(kernel, threads)
    assert memory.raw == expected


WORDS = st.integers(0, (1 << 64) - 1)


@given(
    st.lists(
        st.tuples(WORDS, WORDS, st.integers(0, 1 << 40)),
        min_size=1,
        max_size=MOST_COPIES,
    )
)
def test_a_launch_says_what_it_copies(made, rows):
    """The op can be read from the parameters, and has blocks for what it copies."""
    op = CopiesOp(*zip(*rows, strict=True))
    kernel = made.copies.kernel(op)
    assert copies_of(kernel) == op
    assert 1 <= kernel.grid[0] < 1 << 31
    assert len(kernel.params) <= 4096
    if len(rows) == 1:
        assert made.copies.kernel(CopyOp(*rows[0])) == kernel


def test_tables_are_powers_of_two():
    """The search halves its steps; the largest has room for every op."""
    assert all(room & (room - 1) == 0 for room in ROOMS)
    assert [room_for(n) for n in (1, 2, 8, 9, MOST_COPIES)] == [1, 8, 8, 32, ROOMS[-1]]


class Cuda:
    """As much of CUDA as nodes of kernels need; an exec holds what it was set to."""

    def __init__(self):
        self.held, self.refuses, self.told, self.found = {}, False, 0, []
        kinds = ("KERNEL", "MEMCPY", "MEMSET", "HOST", "EMPTY")
        prefix = "CU_GRAPH_NODE_TYPE_"
        self.CUgraphNodeType = SimpleNamespace(**{prefix + k: k for k in kinds})
        self.CUDA_KERNEL_NODE_PARAMS = Params
        self.CUdriverProcAddress_flags = SimpleNamespace(
            CU_GET_PROC_ADDRESS_LEGACY_STREAM=1
        )

        self.cuGraphCreate = self.cuGraphInstantiate = lambda *_: (0, 1)
        self.cuGetErrorString = lambda _: (0, b"its text")
        self.cuGraphAddKernelNode = self._add
        self.cuGraphExecKernelNodeSetParams = self._set
        self.cuGetProcAddress = self._find

    def _add(self, _graph, _before, _number, params):
        node = 10 + len(self.held)
        self.held[node] = self.params(params)
        return 0, node

    def _set(self, _exec, node, params):
        if self.refuses:
            return (Code.CUDA_ERROR_INVALID_VALUE,)
        self.held[node], self.told = self.params(params), self.told + 1
        return (0,)

    def _find(self, *args):
        self.found.append(args)
        return 0, 0 if args[0] == b"cuNothing" else 4096, None

    def params(self, params):
        """Return a grid, and what lies where the parameters begin."""
        start = ctypes.c_uint64.from_address(params.kernelParams).value
        return params.gridDimX, ctypes.string_at(start, SIZES[params.func])


class Code(enum.IntEnum):
    """One of CUDA's results."""

    CUDA_ERROR_INVALID_VALUE = 1


class Params(SimpleNamespace):
    """A CUDA_KERNEL_NODE_PARAMS."""

    def __init__(self):
        super().__init__(getPtr=lambda: id(self))


SIZES = {room: 24 if room == 1 else 28 * room + 4 for room in ROOMS}


@pytest.fixture
def graphs(made):
    """Return the graphs of such a CUDA, and that."""
    cuda = Cuda()
    place = SimpleNamespace(context=3, current=nullcontext())
    graphs = Graphs(Library(cuda), place, made.kernels, None)
    graphs._copies = made.copies
    return graphs, cuda


def _held_copies(made, op):
    kernel = made.copies.kernel(op)
    return kernel.grid[0], kernel.params


def _op(number, at, size=5000):
    numbers = range(number)
    return CopiesOp(
        tuple(at + (i << 21) for i in numbers),
        tuple((1 << 40) + at + i for i in numbers),
        tuple(size * i for i in numbers),
    )


@pytest.mark.parametrize("number", [1, 2, 9, MOST_COPIES])
def test_an_exec_holds_what_it_was_set_to(made, graphs, number):
    """Whatever differs: addresses, sizes or the number of copies."""
    graphs, cuda = graphs
    graph = graphs.create_graph()
    node = graphs.add_node(graph, _op(number, 16), ())
    assert cuda.held[node] == _held_copies(made, _op(number, 16))
    exec_ = graphs.instantiate(graph)
    ops = [_op(number, 64), _op(number, 80), _op(3, 64), _op(number, 32, 9000)]
    for times, op in enumerate(ops, 1):
        graphs.set_op(exec_, node, op)
        assert cuda.held[node] == _held_copies(made, op)
        assert cuda.told == times


def test_c_finds_what_an_exec_holds(made, graphs):
    """Also where CUDA has refused another op, and where a word cannot be written."""
    graphs, cuda = graphs
    graph = graphs.create_graph()
    node = graphs.add_node(graph, _op(9, 16), ())
    exec_ = graphs.instantiate(graph)
    graphs.set_op(exec_, node, _op(9, 32))
    native = graphs.native(exec_, [node])
    assert (native.launch, native.exec_, native.context) == (4096, exec_, 3)
    (copies,) = native.copies
    array = ctypes.c_uint64 * copies.number
    dsts, srcs = array.from_address(copies.dsts), array.from_address(copies.srcs)
    cuda.refuses = True
    with pytest.raises(Refusal, match="its text"):
        graphs.set_op(exec_, node, _op(9, 64))
    cuda.refuses = False
    with pytest.raises(struct.error):
        graphs.set_op(exec_, node, replace(_op(9, 64), srcs=(1 << 64,) * 9))
    assert cuda.held[node] == _held_copies(made, _op(9, 32))
    assert (tuple(dsts), tuple(srcs)) == (_op(9, 32).dsts, _op(9, 32).srcs)
    srcs[:] = _op(9, 48).srcs
    (owner,) = native.owners
    assert id(owner.params) == copies.params
    assert cuda.params(owner.params) == _held_copies(
        made, replace(_op(9, 32), srcs=_op(9, 48).srcs)
    )
    graphs.set_op(exec_, node, _op(9, 32))
    assert tuple(srcs) == _op(9, 32).srcs


def test_functions_are_found_for_c(graphs):
    """As of the version that this library needs, or an error that names them."""
    _, cuda = graphs
    assert address_of(Library(cuda), "cuGraphLaunch") == 4096
    with pytest.raises(Refusal, match="no cuNothing"):
        address_of(Library(cuda), "cuNothing")
    assert cuda.found == [(b"cuGraphLaunch", 13000, 1), (b"cuNothing", 13000, 1)]
