"""Parts of a graph, and values that the host has: scalars of its own, and sizes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

# They need torch.
from tests.integrations.torch_compile.partitions import check  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    # What torch says of its operators, and of itself. What is not recorded is counted.
    pytest.mark.filterwarnings("ignore"),
]


def scalar(i):
    return torch.tensor(i + 0.5)


# Scalars on the host.


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, s: x * s,
        lambda x, s: (x * s).sum(0) + s,
        lambda x, s: (x @ x).sin() @ x + s,
        lambda x, s: (x * (s + 1)).relu(),
    ],
    ids=["once", "twice", "late", "computed"],
)
def test_a_scalar_is_brought_in_front_of_one_part(alike, fn):
    """And is another one in each call."""

    def program(w):
        f = w.compile(fn)
        for i in range(6):
            yield f(w.values(8, 8), scalar(i))

    check(alike(program), 1, 6)


def test_scalars_are_brought_together(alike):
    def program(w):
        f = w.compile(lambda x, s, t: (x * s + t, x @ x - s))
        for i in range(6):
            yield f(w.values(8, 8), scalar(i), scalar(7 - i))

    check(alike(program), 1, 6)


def test_a_scalar_that_is_written(alike):
    """It is written where it is, on the host."""

    def program(w):
        @w.compile
        def f(x, s):
            s.add_(1)
            return x * s

        lasting = scalar(0)
        for i in range(6):
            s = scalar(i)
            yield f(w.values(8, 8), s), s
            yield f(w.values(8, 8), lasting), lasting

    told = alike(program)
    assert told.warmups >= 1
    assert told.replays >= 8
    assert told.passed_through == 0


def test_a_scalar_is_brought_to_the_device_and_back(alike):
    def program(w):
        @w.compile
        def f(x, s):
            there = s.to("cuda")
            return there.cpu(), x * there

        for i in range(8):
            yield f(w.values(8, 8), scalar(i))

    told = alike(program)
    assert told.warmups >= 1
    assert told.replays >= 5
    assert told.passed_through == 0


def test_a_scalar_that_goes_out_is_that_of_the_host(alike):
    def program(w):
        f = w.compile(lambda x, s: (x * s, s, s + 1))
        for i in range(6):
            s = scalar(i)
            out = f(w.values(8, 8), s)
            assert out[1].device.type == "cpu"
            assert out[1] == s
            yield out

    told = alike(program)
    assert told.warmups >= 1
    assert told.replays >= 3


@pytest.mark.parametrize("trains", [False, True])
def test_a_scalar_that_work_of_the_host_uses(alike, trains):
    """That is between two parts."""

    def program(w):
        @w.compile
        def f(x, host, s):
            y = (x * 2).sin()
            there = y.cpu() * host * s
            return there.to("cuda") @ y

        for i in range(8):
            x = w.values(8, 8, requires_grad=trains)
            y = f(x, torch.randn(8), scalar(i))
            if trains:
                y.sum().backward()
            yield y.detach(), x.grad

    told = alike(program)
    assert told.warmups >= 3 if trains else told.warmups == 2
    assert told.replays >= 8
    assert told.passed_through == 0


# Sizes.


def test_sizes_of_two_parts_around_work_of_the_host(alike):
    """Two parts, of two sizes."""

    def program(w):
        f = w.compile(lambda x: ((x + 1).cpu() * 2).to("cuda").sin() + x, dynamic=True)
        for size in (3, 5) * 5:
            yield f(w.values(size, 8))

    check(alike(program), 4, 5)


def test_sizes_of_tensors_of_the_host_are_no_part_of_it(alike):
    """There are three of what is recorded, however many the host has."""

    def program(w):
        f = w.compile(lambda x, host: (x.sin() + 1, host * 2), dynamic=True)
        for i in range(15):
            yield f(w.values(20 + i % 3), torch.randn(3 + i))

    check(alike(program), 3, 5)


def test_a_size_reaches_all_parts(alike, ops):
    def program(w):
        @w.compile(dynamic=True)
        def f(x, y):
            z = ops.apart(x.sin() * x.shape[0])
            return z.cos() @ y + y.shape[1]

        for size in (3, 5) * 5:
            yield f(w.values(size, size + 1), w.values(size + 1, size + 20))

    check(alike(program), 4, 5)


def test_sizes_in_strides_reach_all_parts(alike, ops):
    """Of views that are not contiguous."""

    def program(w):
        f = w.compile(lambda x: ops.apart(x.sin()) @ x.t(), dynamic=True)
        for width in (6, 10) * 5:
            yield f(w.values(8, 3 * width)[:, :width])

    told = alike(program)
    assert told.warmups == 4
    assert told.replays >= 8
    assert told.passed_through == 0


def test_gradients_of_what_is_concatenated(alike, ops):
    def program(w):
        @w.compile(dynamic=True)
        def f(x, y):
            return ops.apart(torch.cat([x, y.sin()])).cos().sum(0)

        for size in (3, 5) * 6:
            x = w.values(size, 8, requires_grad=True)
            y = w.values(2 * size, 8, requires_grad=True)
            out = f(x, y)
            out.sum().backward()
            yield out.detach(), x.grad, y.grad

    told = alike(program)
    assert told.warmups >= 4
    assert told.replays >= 12
    assert told.passed_through == 0


def test_indices_of_indices(alike):
    """Of rows that are repeated, each as often as another tensor says."""

    def program(w):
        @w.compile(dynamic=True)
        def f(x, counts, at):
            rows = torch.repeat_interleave(x, counts, 0, output_size=2 * x.shape[0])
            return rows[at[at]].sin() + 1

        for size in (4, 6) * 4:
            counts = torch.arange(size, device="cuda") % 2 * 2 + 1
            at = torch.arange(size - 1, -1, -1, device="cuda")
            yield f(w.values(size, 8), counts, at)

    alike(program)


def test_a_store_at_an_index(alike):
    """One that counts from the end, too."""

    def program(w):
        @w.compile(dynamic=True)
        def f(x, i):
            y = x.sin()
            y[i] = 1.0
            return y * 2

        for i in (2, 3, -2, 2, 3, -2, -3) * 3:
            yield f(w.values(7, 8), i)

    told = alike(program)
    assert told.replays >= 4
    assert told.passed_through == 0


def test_sizes_that_nothing_may_be_known_of(alike, ops):
    def program(w):
        f = w.compile(lambda x: ops.apart(x.sin()).cos().sum(0))
        for size in (3, 5) * 5:
            x = w.values(size, 8)
            torch._dynamo.decorators.mark_unbacked(x, 0)
            yield f(x)

    check(alike(program), 4, 5)


def test_sizes_that_a_branch_does_not_know(alike):
    """What both ways of it return is as long as what was found in the call."""

    def program(w):
        @w.compile
        def f(x):
            at = x.relu().nonzero()
            ways = lambda a: (a + 1, a * 2), lambda a: (a - 1, a * 3)
            one, two = torch.cond(x.sum() > 0, *ways, (at,))
            return one + two, x.sin()

        for _ in range(8):
            yield f(w.values(32))

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        alike(program)


def test_an_integer_is_an_argument(alike, ops):
    """Each has recordings of its own."""

    def program(w):
        @w.compile(dynamic=True)
        def f(x, n):
            return ops.apart(x.sin() * n).cos() + n

        for n in (3, 5, 7) * 5:
            yield f(w.values(8, 8), n)

    told = alike(program)
    assert told.replays >= 12
    assert told.passed_through == 0


@pytest.mark.parametrize("kind", [int, float])
def test_a_value_that_is_read_in_the_graph(alike, kind):
    """What is behind it, is of that value."""

    def program(w):
        @w.compile
        def f(x):
            y = x.sin()
            total = y.sum() if kind is float else (y * 4).sum().long()
            return y.cos() * total.item()

        given = [w.values(8, 8) for _ in range(2)]
        for _ in range(6):
            for each in given:
                yield f(each)

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        told = alike(program)
    assert told.replays >= 6
    assert told.passed_through == 0
