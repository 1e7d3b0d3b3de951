"""Graphs that Inductor splits: each part is recorded, what is between them runs."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")

# They need torch.
from tests.integrations.torch_compile.partitions import check  # noqa: E402

nn = torch.nn
functional = torch.nn.functional

pytestmark = [
    pytest.mark.gpu,
    # What torch says of its operators, and of itself. What is not recorded is counted.
    pytest.mark.filterwarnings("ignore"),
]


def trained(f, x):
    """Return what a step gives, and the gradient; the caller alone holds them."""
    y = f(x.requires_grad_())
    y.sum().backward()
    return y.detach(), x.grad


# What splits.


def test_a_graph_that_nothing_splits_is_one_part(alike):
    def program(w):
        f = w.compile(lambda x, y: ((x @ y).relu() @ x, x.sum(0)))
        for _ in range(6):
            yield f(w.values(8, 8), w.values(8, 8))

    check(alike(program, graph_partition=True), 1, 6)


@pytest.mark.parametrize(("least", "parts"), [(1, 1), (4, 0)])
def test_parts_of_fewer_kernels_than_asked_for_run(alike, least, parts):
    config = pytest.importorskip("torch._inductor.config")
    if not hasattr(config.triton, "cudagraph_min_partition_size"):
        pytest.skip("Inductor has no option of that kind here")

    def program(w):
        f = w.compile(lambda x: (x @ x).relu())
        for _ in range(6):
            yield f(w.values(8, 8))

    told = alike(program, **{"triton.cudagraph_min_partition_size": least})
    check(told, parts, 6)


def test_operators_that_no_graph_takes_are_between(alike, ops):
    """Two of them, and three parts."""

    def program(w):
        @w.compile
        def f(x):
            y = ops.apart((x * 2).sin())
            return ops.apart(y.cos()) @ x

        for _ in range(6):
            yield f(w.values(8, 8))

    check(alike(program), 3, 6)


def test_an_operator_that_a_graph_takes_splits_nothing(alike, ops):
    """One part, of three sizes."""

    def program(w):
        f = w.compile(lambda x: ops.within(x.sin()).cos(), dynamic=True)
        for size in (3, 5, 7) * 5:
            yield f(w.values(size, 8))

    check(alike(program), 3, 5)


def test_parts_of_each_size(alike, ops):
    """Two of them, of three sizes."""

    def program(w):
        f = w.compile(lambda x: ops.apart(x.sin()).cos(), dynamic=True)
        for size in (3, 5, 7) * 5:
            yield f(w.values(size, 8))

    check(alike(program), 6, 5)


@pytest.mark.parametrize(
    ("names", "parts"),
    [
        ([], 1),
        (["sapwood_parts::within"], 2),
        (["sapwood_parts::other"], 1),
        (["sapwood_parts::within.default"], 2),
    ],
    ids=["none", "operator", "another", "overload"],
)
def test_operators_that_are_named_split(alike, ops, names, parts):
    def program(w):
        f = w.compile(lambda x: ops.within(x.sin()).cos())
        for _ in range(6):
            yield f(w.values(8, 8))

    check(alike(program, custom_should_partition_ops=names), parts, 6)


def test_names_that_are_given_later_split_nothing(ours, rt, ops):
    """What is compiled stays, and what is recorded."""
    config = pytest.importorskip("torch._inductor.config")
    f = torch.compile(lambda x: ops.within(x.relu()) * 2, backend=ours)
    x = torch.randn(8, 8, device="cuda")
    for _ in range(4):
        assert torch.equal(f(x), x.relu() * 4)
    recordings = rt.stats().recordings
    with config.patch(custom_should_partition_ops=["sapwood_parts::within"]):
        for _ in range(4):
            assert torch.equal(f(x), x.relu() * 4)
    check(rt.stats(), 1, 8)
    assert rt.stats().recordings == recordings


@pytest.mark.parametrize("named", [False, True])
def test_what_uses_a_size_that_only_the_host_knows(alike, ops, named):
    """It is recorded for each, or not at all where its operator is named."""
    options = {"cudagraph_unsafe_unbacked_ops": ["sapwood_parts::positive"] * named}

    def program(w):
        @w.compile
        def f(x):
            y = x.sin()
            return ops.positive(y) * 2, y.cos()

        x = w.values(16, 8)
        for _ in range(6):
            yield f(x)

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        told = alike(program, **options)
    check(told, 2 - named, 6)


def test_a_store_at_a_mask_splits(alike):
    def program(w):
        @w.compile
        def f(x, mask, row):
            y = x * 2
            y[mask] = row
            return y.relu() + 1

        for _ in range(6):
            yield f(w.values(8, 4), w.values(8) > 0, w.values(4))

    check(alike(program), 2, 6)


def test_a_buffer_written_at_a_mask_is_passed_on(alike):
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("rows", torch.zeros(8, 4, device="cuda"))

        def forward(self, x, mask):
            self.rows.add_(x)
            self.rows[mask] = x[0]
            return self.rows.cos() @ x.t()

    def program(w):
        module = Table()
        f = w.compile(module)
        for _ in range(8):
            yield f(w.values(8, 4), w.values(8) > 0), module.rows

    told = alike(program)
    assert told.warmups >= 2
    assert told.replays >= 8
    assert told.passed_through == 0


def test_indices_of_the_host(alike):
    def program(w):
        @w.compile
        def f(x, at, rows):
            y = x * 2
            y[at] = rows
            return y.relu() + 1

        for i in range(8):
            yield f(w.values(8, 4), torch.tensor([i % 8, (i + 3) % 8]), w.values(2, 4))

    alike(program)


# Operators that write.


def test_an_operator_between_writes_its_argument(alike, ops):
    """What was made by the part before, and is read by the part behind."""

    def program(w):
        @w.compile
        def f(x):
            y = x.sin()
            ops.store(x @ x, y)
            return y.cos()

        for _ in range(8):
            yield f(w.values(8, 8))

    check(alike(program), 2, 8)


def test_an_operator_within_writes_and_another_is_between(alike, ops):
    def program(w):
        @w.compile
        def f(x):
            y = torch.zeros_like(x)
            ops.fill(x.sin(), y)
            z = ops.apart(y)
            ops.fill(z.cos(), y)
            return y + z

        for _ in range(8):
            yield f(w.values(8, 8))

    told = alike(program)
    assert told.warmups >= 2
    assert told.replays >= 8
    assert told.passed_through == 0


def test_an_argument_is_written_by_parts_and_between(alike, ops):
    def program(w):
        @w.compile
        def f(x, out):
            out.add_(x)
            ops.store(x.sin(), out)
            out.mul_(2)
            return out.cos()

        for _ in range(8):
            out = w.values(8, 8)
            yield f(w.values(8, 8), out), out

    told = alike(program)
    assert told.warmups >= 1
    assert told.replays >= 5
    assert told.passed_through == 0


def test_what_is_written_between_is_freed_late(alike, ops):
    """Parts in front made it, the last one is the last to read it."""

    def program(w):
        @w.compile
        def f(x, y):
            a, b = x.sin(), y.cos()
            c = a @ b
            ops.store(c, a)
            return (a + b).sum(0) @ c, b.t() @ a

        for _ in range(8):
            yield f(w.values(8, 8), w.values(8, 8))

    check(alike(program), 2, 8)


def test_memory_is_used_again_around_operators_that_write(alike, ops):
    """Layers, each of which has an operator fill what was allocated for it."""

    def program(w):
        @w.compile
        def f(x, weight):
            for _ in range(3):
                query = x @ weight
                out = torch.empty_like(query)
                ops.store((query @ (query * 2).t()).softmax(-1) @ (query + 1), out)
                x = out.relu() @ weight
            return x

        for _ in range(8):
            yield f(w.values(8, 8), w.values(8, 8))

    check(alike(program), 4, 8)


def test_memory_is_used_again_by_later_parts(alike, ops):
    def program(w):
        @w.compile
        def f(x):
            for _ in range(3):
                x = ops.apart((x @ x).sin()).cos()
            return x

        for _ in range(8):
            yield f(w.values(8, 8))

    check(alike(program), 4, 8)


# Work of the host, and other devices.


@pytest.mark.parametrize("way", ["fetched", "sent", "fetch", "both"])
def test_operators_across_devices(alike, ops, way):
    """No graph takes what copies from or to memory of the host: it is seen anew."""

    def call(x, host):
        if way == "fetched":
            return ops.fetched(x) + 1
        if way == "sent":
            return ops.sent(host, x).cos()
        if way == "both":
            here, there = ops.both(x)
            return here.cos(), there + 1
        out = torch.empty_like(host)
        ops.fetch(x, out)
        return out + 1

    def program(w):
        f = w.compile(lambda x, host: (call((x @ x).sin(), host), x.cos()))
        for _ in range(8):
            yield f(w.values(8, 8), torch.randn(8, 8))

    alike(program)


def test_copies_between_devices_that_convert(alike):
    def program(w):
        @w.compile
        def f(x):
            host = (x + 1).to("cpu", torch.float64)
            return (host * 2).to("cuda", torch.float32) @ x

        for _ in range(8):
            yield f(w.values(8, 8))

    check(alike(program), 2, 8)


def test_work_of_the_host_is_moved_out_of_one_part(alike):
    def program(w):
        @w.compile
        def f(x, host):
            y, there = x @ x, host @ host
            return y @ x, there @ host

        for _ in range(6):
            yield f(w.values(8, 8), torch.randn(8, 8))

    check(alike(program), 1, 6)


def test_work_of_the_host_that_alternates_is_moved_out(alike):
    """Five parts become two."""

    def program(w):
        @w.compile
        def f(x, host):
            one = x @ x
            there = host @ host
            two = one @ x
            there = there @ host
            return two @ x, there

        for _ in range(6):
            yield f(w.values(8, 8), torch.randn(8, 8))

    check(alike(program), 1, 6)


def test_an_operator_that_needs_no_part_is_moved_in_front(alike, ops):
    """Of each of two shapes one graph is compiled, in one part, and used again."""

    def program(w):
        @w.compile(dynamic=False)
        def f(x):
            y = x @ x
            return ops.apart(x) + y.cos()

        for size in (4, 8, 4, 4, 8, 8, 4, 8, 4, 8):
            yield f(w.values(size, size))

    check(alike(program), 2, 5)


def test_arguments_of_the_host_and_of_a_device(alike):
    def program(w):
        f = w.compile(lambda x, host: (x.relu() * 3, host * 2))
        for _ in range(6):
            yield f(w.values(8, 8), torch.randn(8))

    check(alike(program), 1, 6)


def test_two_devices_in_one_graph_are_not_recorded():
    """It runs as it is compiled."""
    from sapwood.integrations.torch.backend import backend

    if torch.cuda.device_count() < 2:
        pytest.skip("it needs two GPUs")
    f = torch.compile(lambda x, y: (x.relu() * 2, y.relu() * 4), backend=backend)
    for _ in range(4):
        x, y = torch.randn(8, device="cuda:0"), torch.randn(8, device="cuda:1")
        found = f(x, y)
        assert torch.equal(found[0], x.relu() * 2)
        assert torch.equal(found[1], y.relu() * 4)


@pytest.mark.parametrize("partition", [False, True])
def test_parts_are_recorded_where_graphs_are_asked_for(ours, rt, partition):
    """Not in the default mode of Inductor, whatever it says of partitions."""
    import sapwood as sw

    assert ours  # what is recorded, the runtime of the test has
    x = torch.randn(8, 8, device="cuda")
    with sw.trees():
        options = {"graph_partition": partition}
        f = torch.compile(lambda x: x.relu() * 2, options=options)
        for _ in range(4):
            assert torch.equal(f(x), x.relu() * 2)
        assert not rt.stats().warmups
        options["triton.cudagraphs"] = True
        g = torch.compile(lambda x: x.relu() * 4, options=options)
        for _ in range(4):
            assert torch.equal(g(x), x.relu() * 4)
        check(rt.stats(), 1, 4)


def test_each_part_has_a_name(ours, rt, ops):
    f = torch.compile(lambda x: ops.apart(x.relu() * 2).relu() * 2, backend=ours)
    x = torch.randn(8, 8, device="cuda")
    for _ in range(5):
        assert torch.equal(f(x), (x.relu() * 2 + 1) * 2)
    found = rt.snapshot()["functions"]
    names = [each["name"] for each in found]
    assert len({*names}) == 2
    assert all("compiled graph 0/0, forward" in name for name in names)
    assert all(each["recordings"] for each in found)
    check(rt.stats(), 2, 5)


# What a part may be.


def test_views_alone(alike):
    """Nothing is launched, and nobody warns of a graph that is empty."""
    warnings.filterwarnings("error", ".*empty")

    def program(w):
        f = w.compile(lambda x: (x.t(), x.view(-1)[1:], x))
        for _ in range(6):
            yield f(w.values(4, 4))

    alike(program)


def test_an_allocation_alone(alike):
    warnings.filterwarnings("error", ".*empty")

    def program(w):
        f = w.compile(lambda x: torch.empty_like(x))
        held = []
        for i in range(6):
            out = f(w.values(64, 64))
            held.append(out.fill_(i))
            yield held

    alike(program)


def test_operators_of_many_tensors(alike):
    def program(w):
        @w.compile
        def f(xs, ys):
            sums = torch._foreach_add(xs, ys)
            return torch._foreach_mul(sums, 2.0), sums

        for _ in range(6):
            yield f(
                [w.values(8, i) for i in (2, 3, 4)], [w.values(8, i) for i in (2, 3, 4)]
            )

    check(alike(program), 1, 6)


@pytest.mark.parametrize("shape", [(8, 8), (64, 200)])
def test_parts_that_are_alike(alike, ops, shape):
    """They may be of one kernel."""

    def program(w):
        @w.compile
        def f(x):
            y = ops.apart((x.sin() + 1).softmax(-1))
            return (y.sin() + 1).softmax(-1)

        for _ in range(6):
            yield f(w.values(*shape))

    check(alike(program), 2, 6)


def test_aliases_across_a_break(alike):
    def program(w):
        @w.compile
        def f(x):
            y = x * 2
            row, flat = y[1], y.view(-1)
            torch._dynamo.graph_break()
            return row + flat[:8], flat.view(8, 8).t() @ y

        for _ in range(8):
            yield f(w.values(8, 8))

    told = alike(program)
    assert told.replays >= 8
    assert told.passed_through == 0


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_branch_that_the_device_takes(alike, dynamic):
    def program(w):
        @w.compile(dynamic=dynamic)
        def f(x):
            y = x * 2
            z = torch.cond(y.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (y,))
            return z + x

        for i in range(8):
            yield f(w.values(4 + 4 * (i % 2), 8).abs() * (-1) ** (i // 2))

    alike(program)


def test_attention_with_dropout(alike):
    """It draws as it does without graphs."""

    def program(w):
        @w.compile
        def f(x):
            y = functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
            return y.relu() + 1

        for _ in range(2):
            torch.manual_seed(5)
            for _ in range(4):
                yield f(w.values(2, 4, 16, 32))

    assert alike(program).warmups >= 1


def test_a_decomposition_that_waits_for_the_device(alike):
    def program(w):
        @w.compile
        def f(x):
            y = x @ x.t()
            return torch.linalg.eigvalsh(y).relu() @ y

        for _ in range(6):
            yield f(w.values(8, 8))

    alike(program)


# Training.


def test_a_forward_in_two_parts_and_a_backward_in_one(alike, ops):
    def program(w):
        f = w.compile(lambda x: ops.apart((x * 2).sin()).cos())
        for _ in range(8):
            yield trained(f, w.values(8, 8))

    check(alike(program), 3, 8)


def test_a_backward_of_which_only_the_ends_are_recorded(alike, ops):
    def program(w):
        f = w.compile(lambda x: ops.later((x * 2).sin()).cos())
        for _ in range(8):
            yield trained(f, w.values(8, 8))

    check(alike(program), 3, 8)


def test_a_backward_that_is_not_recorded(alike, ops):
    """The next forward is replayed nevertheless."""

    def program(w):
        f = w.compile(lambda x: ops.later(x))
        for _ in range(8):
            yield trained(f, w.values(8, 8))

    told = alike(program)
    check(told, 1, 8)


@pytest.mark.parametrize("every", [1, 3, None])
def test_forwards_in_parts_without_backward(alike, ops, every):
    """All of them, none, or some are not differentiated."""

    def program(w):
        f = w.compile(lambda x: ops.apart((x * 2).sin()).cos())
        for i in range(12):
            x = w.values(8, 8).requires_grad_()
            y = f(x)
            if every and i % every == every - 1:
                y.sum().backward()
            yield y.detach(), x.grad

    told = alike(program)
    assert told.warmups == 2 + bool(every)
    assert told.replays >= 12
    assert told.passed_through == 0


def test_what_parts_save_moves(alike, ops):
    """Two forwards are pending, one is replayed in memory other than that of the other.

    Parameters are where they were, what was saved is not.
    """

    def program(w):
        torch.manual_seed(3)
        weight = w.values(8, 8).requires_grad_()
        f = w.compile(lambda x: (ops.apart((x @ weight).sin()).cos() @ weight).sum())
        for i in range(10):
            one, two = f(w.values(8, 8)), f(w.values(8, 8))
            for each in (one, two) if i % 2 else (two, one):
                each.backward()
                yield weight.grad
            weight.grad = None

    told = alike(program)
    assert told.warmups == 3
    assert told.replays >= 20
    assert told.passed_through == 0


def test_what_one_part_saves_of_a_forward_that_is_partly_recorded(alike, ops):
    """Behind an operator that is in front of the only part."""

    def program(w):
        f = w.compile(lambda x: (ops.apart(x) * 2).sin().cos())
        for i in range(10):
            one = f(w.values(8, 8).requires_grad_())
            x = w.values(8, 8)
            yield trained(f, x)
            one.sum().backward()
            yield one.detach(), i

    told = alike(program)
    assert told.warmups == 2
    assert told.replays >= 20
    assert told.passed_through == 0


def test_what_a_forward_in_one_part_saves_is_not_copied(alike):
    """Its backward reads it where the replay has put it."""
    size = 256

    def program(w):
        torch.manual_seed(3)
        weight = w.values(size, size).requires_grad_()
        f = w.compile(lambda x: ((x @ weight).sin() @ weight).sum())
        x = w.values(size, size)
        for _ in range(10):
            f(x).backward()
            yield weight.grad
            weight.grad = None

    told = alike(program)
    assert told.warmups == 2
    assert told.replays >= 12
    assert told.copied_bytes < size * size * 4
