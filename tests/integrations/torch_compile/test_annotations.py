"""Which graphs are to be recorded, as marks in the program and policies of torch's say.

On a CPU, as if that took graphs: torch reads these before it asks whom to wrap.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from importlib import import_module

import pytest

import sapwood as sw
from tests.integrations.torch_compile import test_seam as seam

torch = pytest.importorskip("torch")
nn = torch.nn

pytestmark = pytest.mark.filterwarnings("ignore")
taken, partitions = seam.taken, seam.partitions
split = pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])


def mark(**ways):
    return torch._dynamo.override_cudagraphs(**ways)


@pytest.fixture
def ways(taken):
    """Return what calls a function, and says which ways of its graphs were taken.

    It is called three times, and gives what it gives without a compiler. With ``off``
    it is compiled as for nobody who wants graphs, and we are in the place of torch's.
    """
    if not hasattr(torch._dynamo, "override_cudagraphs"):
        pytest.skip("this torch has no marks for graphs")

    def ways(f, *, trained=False, off=False):
        torch.compiler.reset()
        taken.clear()
        with sw.trees() if off else nullcontext():
            plain = torch.compile(f, options=seam.PATCHES)
            made = plain if off else seam.compiled(f)
            for i in range(3):
                found, expected = called(made, i, trained), called(f, i, trained)
                assert all(map(torch.equal, found, expected))
        return ["backward" if back else "forward" for _, back, *_ in taken]

    return ways


def called(f, i, trained):
    x = torch.arange(4.0).add_(i).requires_grad_(trained)
    y = f(x)
    if not trained:
        return [y]
    y.sum().backward()
    return [y.detach(), x.grad]


FORWARD, BOTH = ["forward"], ["forward", "backward"]


def test_a_helper_that_is_marked_decides_for_the_graph(ways):
    @mark(fwd=False)
    def helper(x):
        return x * 2

    assert ways(lambda x: helper(x) + 1) == []
    assert ways(lambda x: x * 2 + 1) == FORWARD


@pytest.mark.parametrize(
    ("marked", "expected"),
    [
        ({}, BOTH),
        ({"fwd": False, "bwd": False}, []),
        ({"bwd": False}, FORWARD),
        # A backward alone would have to copy all that was saved for it.
        ({"fwd": False}, []),
    ],
)
def test_the_ways_of_training_that_are_marked(ways, marked, expected):
    @mark(**marked)
    def helper(x):
        return x * x * 2

    assert ways(lambda x: helper(x) + 1, trained=True) == expected


def test_of_two_graphs_the_one_that_is_not_marked(ways):
    @mark(fwd=False)
    def helper(x):
        return x * 2

    def f(x):
        y = helper(x)
        torch._dynamo.graph_break()
        return y + 1

    assert ways(f) == FORWARD


def test_two_graphs_with_a_mark_each(ways):
    @mark(fwd=False)
    def one(x):
        return x * 2

    @mark(fwd=False)
    def two(x):
        return x + 1

    def f(x):
        y = one(x)
        torch._dynamo.graph_break()
        return two(y)

    assert ways(f) == []


def test_a_mark_deep_within(ways):
    @mark(fwd=False)
    def inner(x):
        return x * 2

    def middle(x):
        return inner(x) + 1

    assert ways(lambda x: middle(x) * 3 + 1) == []


@pytest.mark.parametrize("on", [False, True])
def test_a_block_that_is_marked(ways, on):
    """With the graphs that end in it; those before it and behind it are as they were.

    Two are in it, and two are not.
    """

    def f(x):
        x = x * 2
        torch._dynamo.graph_break()
        with mark(fwd=on):
            x = x + 1
            torch._dynamo.graph_break()
            x = x * 3
        torch._dynamo.graph_break()
        return x + 5

    assert ways(f, off=on) == FORWARD * 2


def module(breaks, **ways):
    """Return a module whose forward is marked; it ends a graph where it ``breaks``."""

    class Marked(nn.Module):
        @mark(**ways)
        def forward(self, x):
            x = x * 2
            if breaks:
                torch._dynamo.graph_break()
            return x * x

    return Marked()


def test_a_module_that_is_marked(ways):
    assert ways(module(breaks=False, fwd=False)) == []


@pytest.mark.parametrize(
    ("marked", "expected"),
    [
        ({}, []),
        ({"fwd": True, "bwd": True}, BOTH),
        # Its backward is as the forward is.
        ({"fwd": True}, BOTH),
    ],
)
def test_a_mark_turns_graphs_on(ways, marked, expected):
    @mark(**marked)
    def helper(x):
        return x * x * 2

    assert ways(lambda x: helper(x) + 1, trained=True, off=True) == expected
    if marked:
        assert ways(lambda x: helper(x) + 1, off=True) == FORWARD


@pytest.mark.parametrize("where", ["module", "callee"])
@pytest.mark.parametrize(
    ("marked", "off", "expected"),
    [
        ({"fwd": True}, True, FORWARD * 2),
        ({"fwd": False}, False, []),
        ({"fwd": False, "bwd": False}, False, []),
    ],
)
def test_a_mark_is_for_all_graphs_of_what_is_marked(ways, where, marked, off, expected):
    marked = module(breaks=True, **marked)

    def f(x):
        return marked(x) + 1

    with torch._dynamo.config.patch(nested_graph_breaks=True):
        assert ways(marked if where == "module" else f, off=off) == expected


def test_a_mark_against_backwards_is_for_all_graphs_of_what_is_marked(ways):
    marked = module(breaks=True, bwd=False)
    with torch._dynamo.config.patch(nested_graph_breaks=True):
        found = ways(lambda x: marked(x * 3) + 1, trained=True)
    assert found == FORWARD * 2


@pytest.fixture
def policy(taken):
    """Return a context in which torch asks a policy first, and notes that."""
    utils = import_module("torch._inductor.cudagraph_utils")
    config = import_module("torch._inductor.config")
    if not hasattr(utils, "CUDAGraphPolicy"):
        pytest.skip("this torch has no policies for graphs")

    class Noting(utils.CUDAGraphPolicy):
        def __init__(self, wraps):
            self.wraps, self.asked, self.given = wraps, [], []

        def cudagraphify(self, model, *args, **options):
            self.asked.append(options["is_backward"])
            return super().cudagraphify(model, *args, **options)

        def should_wrap(self, _):
            return self.wraps

        def wrap_output(self, output):
            self.given.append(type(output).__name__)
            return output

    @contextmanager
    def policy(*, wraps=True, noting=True):
        torch.compiler.reset()
        taken.clear()
        made = Noting(wraps) if noting else utils.CUDAGraphPolicy()
        with config.patch(cudagraph_policy=made):
            yield made

    return policy


def results(f):
    with torch.no_grad():
        return [f(torch.arange(4.0).add_(i)) for i in range(3)]


def computed(x):
    return (x * 2 + 1).relu()


@pytest.mark.usefixtures("partitions")
@split
def test_a_policy_is_asked_before_us(policy, taken, split):
    """It is given whole graphs, and passes on to us what it does not wrap itself."""
    with policy() as made:
        f = seam.compiled(computed, graph_partition=split)
        assert all(map(torch.equal, results(f), results(computed)))
    assert made.asked == [False]
    assert len(taken) == 1


@pytest.mark.usefixtures("partitions")
@split
def test_a_policy_that_leaves_all_as_it_is(policy, taken, split):
    with policy(noting=False):
        f = seam.compiled(computed, graph_partition=split)
        assert all(map(torch.equal, results(f), results(computed)))
    assert len(taken) == 1


@split
def test_a_policy_that_wraps_no_graph(policy, taken, split):
    """Torch counts that; what is outside of it is for the policy, too."""
    counters = import_module("torch._dynamo.utils").counters
    with policy(wraps=False) as made:
        before = counters["inductor"]["cudagraph_skips"]
        f = seam.compiled(computed, graph_partition=split)
        assert all(map(torch.equal, results(f), results(computed)))
        assert counters["inductor"]["cudagraph_skips"] == before + 1
    assert made.given == ["CompiledFxGraph"]
    assert not made.asked
    assert not taken


def test_a_policy_is_given_what_was_compiled(policy, taken):
    with policy() as made:
        f = seam.compiled(computed)
        assert all(map(torch.equal, results(f), results(computed)))
    assert made.given == ["CompiledFxGraph"]
    assert len(taken) == 1
