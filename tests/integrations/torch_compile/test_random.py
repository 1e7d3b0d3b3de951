"""Random numbers of compiled code: drawn as without graphs, and again in backwards."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from itertools import permutations

import pytest

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    # A partition that takes generators may run as it is compiled.
    pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning"),
]


def noise(x):
    """Draw by an operator that Inductor does not replace by its own."""
    if not hasattr(torch.ops.sapwood_tests, "noise"):
        tags = (torch.Tag.nondeterministic_seeded,)
        draw = torch.library.custom_op(
            "sapwood_tests::noise", mutates_args=(), tags=tags
        )

        @draw
        def drawn(x: torch.Tensor) -> torch.Tensor:
            return torch.rand_like(x)

        drawn.register_fake(torch.empty_like)
    return torch.ops.sapwood_tests.noise(x.detach())


DRAWS = {"inductor": torch.rand_like, "operator": noise}


@pytest.fixture(params=DRAWS)
def segment(request):
    """Return a segment whose backward draws again; what draws exists by then.

    Of ones it returns what it has drawn, and their gradient is that, too.
    """
    draw = DRAWS[request.param]
    draw(torch.ones(1))
    return drawn_again(draw)


def drawn_again(draw):
    utils = import_module("torch.utils.checkpoint")

    def policy(*_, **__):
        return utils.CheckpointPolicy.MUST_RECOMPUTE

    def drawn(*given):
        found = tuple(x * draw(x) for x in given)
        return found if len(found) > 1 else found[0]

    return partial(
        utils.checkpoint,
        drawn,
        use_reentrant=False,
        context_fn=partial(utils.create_selective_checkpoint_contexts, policy),
    )


def ones():
    return torch.ones(64, device="cuda", requires_grad=True)


def test_numbers_where_torch_has_no_trees(alike):
    def program(w):
        f = w.compile(lambda x: (torch.rand_like(x), torch.randn_like(x) * x))
        for _ in range(3):
            torch.manual_seed(5)
            for _ in range(4):
                yield f(w.values(64)), f(w.values(64))

    assert alike(program, **{"triton.cudagraph_trees": False}).replays >= 12


def test_draws_by_weights_are_recorded(alike):
    """And are those of an eager call."""

    def draws(x):
        return torch.multinomial(x, 4, replacement=True) + 1

    def program(w):
        f, x = w.compile(draws), w.values(8, 16).abs()
        for i in range(8):
            torch.manual_seed(i)
            expected = draws(x)
            torch.manual_seed(i)
            found = f(x)
            assert torch.equal(found, expected)
            yield found

    told = alike(program)
    assert told.replays >= 5
    assert told.passed_through == 0


def test_a_backward_draws_what_its_forward_drew(alike, segment):
    def program(w):
        f, seen = w.compile(segment), []
        for _ in range(5):
            x = ones()
            y = f(x)
            y.backward(torch.ones_like(y))
            assert torch.equal(y, x.grad)
            assert not any(torch.equal(y, each) for each in seen)
            seen.append(y.detach())
            yield y, x.grad

    alike(program)


def test_backwards_in_any_order_draw_what_their_forwards_drew(ours, segment):
    f = torch.compile(segment, backend=ours)
    for order in permutations(range(3)):
        given = [ones() for _ in order]
        drawn = [f(x) for x in given]
        for i in order:
            drawn[i].backward(torch.ones_like(drawn[i]))
            assert torch.equal(given[i].grad, drawn[i])
        assert not torch.equal(drawn[0], drawn[1])
        assert not torch.equal(drawn[1], drawn[2])


def test_a_backward_that_runs_twice_draws_the_same(ours, segment):
    f = torch.compile(segment, backend=ours)
    for _ in range(4):
        x = ones()
        y = f(x)
        y.backward(torch.ones_like(y), retain_graph=True)
        assert torch.equal(x.grad, y)
        y.backward(torch.ones_like(y))
        assert torch.equal(x.grad, y * 2)


def test_a_checkpointed_draw_by_inductor_is_recorded(alike):
    def program(w):
        f = w.compile(drawn_again(torch.rand_like))
        for _ in range(8):
            x = ones()
            y = f(x)
            y.backward(torch.ones_like(y))
            yield y, x.grad

    told = alike(program)
    assert told.replays >= 8
    assert told.passed_through == 0


def test_draws_on_the_host_and_on_the_device(ours, segment):
    """Both in one checkpoint."""
    f = torch.compile(segment, backend=ours)
    for _ in range(5):
        given = ones(), torch.ones(64, requires_grad=True)
        for x, y in zip(given, f(*given), strict=True):
            y.sum().backward(retain_graph=True)
            assert torch.equal(x.grad, y.detach())


def steps(f, device="cuda"):
    """Return what three steps give, from one seed."""
    torch.manual_seed(5)
    seen = []
    for _ in range(3):
        x = torch.ones(64, device=device, requires_grad=True)
        y = f(x)
        y.backward(torch.ones_like(y) * 2)
        seen += y.detach(), x.grad
    return seen


@pytest.mark.parametrize("split", [False, True])
def test_numbers_are_those_without_a_compiler_behind(ours, bits, split):
    """Of what is traced, and then run by eager operators."""
    noise(torch.ones(1))
    segment = drawn_again(noise)
    expected = steps(torch.compile(segment, backend="aot_eager"))
    torch._dynamo.reset()
    options = {"graph_partition": split}
    assert bits(steps(torch.compile(segment, backend=ours, options=options))) == bits(
        expected
    )


@pytest.fixture
def two_devices():
    """Return the backend, whose runtimes are those of the process."""
    if torch.cuda.device_count() < 2:
        pytest.skip("there are not two devices here")
    return import_module("sapwood.integrations.torch.backend").backend


def test_numbers_on_a_second_device(two_devices, bits):
    noise(torch.ones(1))
    segment = drawn_again(noise)
    expected = steps(torch.compile(segment, backend="aot_eager"), "cuda:1")
    torch._dynamo.reset()
    assert bits(steps(torch.compile(segment, backend=two_devices), "cuda:1")) == bits(
        expected
    )


def test_draws_on_two_devices(two_devices, segment, bits):
    def run(backend):
        torch._dynamo.reset()
        torch.manual_seed(5)
        f, seen = torch.compile(segment, backend=backend), []
        for _ in range(4):
            given = ones(), torch.ones(64, device="cuda:1", requires_grad=True)
            for x, y in zip(given, f(*given), strict=True):
                y.sum().backward(retain_graph=True)
                seen += [x.grad, y.detach()]
        return bits(seen)

    assert run(two_devices) == run("inductor")
