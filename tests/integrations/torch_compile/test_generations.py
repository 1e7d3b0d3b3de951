"""Calls in any order: chains, breaks, backwards that are pending, results of before."""

from __future__ import annotations

import gc
from time import monotonic, sleep

import pytest

from sapwood.events import Missed

torch = pytest.importorskip("torch")
nn = torch.nn

pytestmark = pytest.mark.gpu


def network(width=32):
    torch.manual_seed(3)
    layers = nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)
    return nn.Sequential(*layers).cuda()


def gradients(model):
    return [each.grad for each in model.parameters()]


def live(rt):
    """Return how many results of recordings somebody holds."""
    gc.collect()
    told = rt.snapshot()["recordings"]
    return sum(output["live"] for each in told for output in each["outputs"])


def come_down(rt, number):
    """Return whether so many are held, when autograd's thread has let go of its own."""
    end = monotonic() + 2
    while live(rt) > number and monotonic() < end:
        sleep(0.01)
    return live(rt) == number


# One function and another, at any time.


@pytest.mark.parametrize("turns", [(4, 5) * 3, (4,) * 3 + (5,) * 3])
def test_each_shape_has_one_recording(alike, turns):
    """Whether they come in turn, or one when the other is over."""

    def program(w):
        f = w.compile(lambda x: x * x * x, dynamic=False)
        values = {size: w.values(size, size) for size in (4, 5)}
        for size in turns:
            yield f(values[size])

    told = alike(program)
    assert (told.warmups, told.recordings, told.replays) == (2, 2, 2)


def test_a_function_that_is_called_twice_in_a_step(alike):
    """Each of its pieces is recorded once, and for results that are held."""

    def program(w):
        @w.compile
        def f(x):
            y = x.sin() + 1
            torch._dynamo.graph_break()
            return y * y

        x = w.values(16)
        for _ in range(6):
            yield f(f(x))

    told = alike(program)
    assert told.warmups == 2
    assert told.recordings <= 8
    assert told.replays >= 12


def test_a_chain_that_ends_early(alike):
    """The next step begins where only a part of the last one was gone through."""

    def program(w):
        f, g = w.compile(lambda x: x.sin() * 2), w.compile(lambda y: y.relu() + 1)
        x = w.values(16)
        for i in range(16):
            y = f(x + i)
            yield y
            if i % 3:
                yield g(y), y

    told = alike(program)
    assert told.recordings <= 8
    assert told.replays >= 14


def test_a_result_takes_its_memory_while_it_is_held(ours, rt):
    f, x = torch.compile(lambda x: x * 3 + 1, backend=ours), torch.ones(8).cuda()
    f(x)
    for _ in range(4):  # a recording, and replays
        out = f(x)
        assert torch.equal(out, x * 3 + 1)
        assert live(rt) == 1
        del out
        assert live(rt) == 0
    told = rt.stats()
    assert (told.recordings, told.replays) == (1, 3)


def test_shapes_and_branches_hold_no_more_than_their_result(ours, rt):
    def fn(x):
        x = x * x * x
        torch._dynamo.graph_break()
        if x.sum() < 0:
            return x - 1
        return x.sin() + 1

    f = torch.compile(fn, backend=ours, dynamic=False)
    values = [torch.full((size,), sign).cuda() for size in (4, 8) for sign in (1.0, -1)]
    for _ in range(5):
        for x in values:
            out = f(x)
            assert torch.allclose(out, fn(x))
            held = live(rt)
            assert held <= 1
            del out
            assert live(rt) == 0
    assert held == 1
    assert rt.stats().replays >= 20


def test_results_stay_while_others_are_recorded(alike):
    """One dies between two recordings; the memory of the other is not theirs."""

    def program(w):
        f = w.compile(lambda x: (x.sin(), x * 2))
        g, h = w.compile(lambda y: y.sum(0) + 3), w.compile(lambda z: z @ z)
        x = w.values(64, 64)
        for _ in range(4):
            first, second = f(x)
        for _ in range(4):
            yield g(first), first, second
        del first
        for _ in range(4):
            yield h(second), second
        for _ in range(2):
            yield f(x), h(second), second

    told = alike(program)
    assert told.recordings <= 5
    assert told.replays >= 8


def test_a_result_that_dies_before_the_next_recording(ours, rt):
    f = torch.compile(lambda x: (x.sin(), x * 2), backend=ours)
    g, x = torch.compile(lambda y: y + 3, backend=ours), torch.randn(64).cuda()
    for _ in range(3):
        f(x)
    first, second = f(x)
    assert live(rt) == 2
    g(second)
    del first
    assert live(rt) == 1
    out = g(second)
    assert live(rt) == 2
    assert torch.equal(second, x * 2)
    assert torch.equal(out, x * 2 + 3)
    del second
    assert live(rt) == 1
    assert torch.equal(out, x * 2 + 3)


@pytest.mark.parametrize("base_first", [False, True])
def test_two_results_of_one_memory_die_together(ours, rt, base_first):
    f = torch.compile(lambda x: ((y := x * 2 + 1), y[4:]), backend=ours)
    g, x = torch.compile(lambda y: y.cos(), backend=ours), torch.randn(64).cuda()
    for _ in range(3):
        f(x)
    held = [*f(x)]
    assert live(rt) == 1
    del held[0 if base_first else 1]
    expected = (x * 2 + 1)[4 * base_first :]
    for i in range(4):
        g(x)
        f(x + i)
        assert live(rt) == 1
        assert torch.equal(held[0], expected)
    held.clear()
    assert live(rt) == 0


def test_a_result_is_replaced_by_an_ordinary_tensor(alike):
    def program(w):
        f, g = w.compile(lambda x: x.sin() + 1), w.compile(lambda y: (y * y, y.sum()))
        for i in range(16):
            y = f(w.values(16))
            yield g(y if i % 4 else y.clone()), y

    told = alike(program)
    assert told.replays >= 12
    assert told.passed_through == 0


def test_why_there_is_another_recording_is_told(ours, rt):
    f = torch.compile(lambda x: x * 2, backend=ours)
    x = torch.ones(8, device="cuda")
    held = [f(x) for _ in range(4)]
    assert rt.stats().recordings >= 2
    told = [each for each in rt.events() if isinstance(each, Missed)]
    assert any("still held" in each.reason for each in told)
    assert all("compiled graph" in each.function for each in told)
    assert all(torch.equal(each, x * 2) for each in held)


# Backwards.


def test_what_was_saved_is_given_back_by_the_backward(ours, rt):
    """Until then, it is held; without gradients, only the result is."""
    model = network()
    f, x = torch.compile(model, backend=ours), torch.randn(8, 32).cuda()
    for _ in range(4):
        f(x).sum().backward()
        model.zero_grad()
    assert come_down(rt, 0)
    before = rt.stats()
    y = f(x)
    assert live(rt) >= 2
    y.sum().backward()
    del y
    model.zero_grad()
    assert come_down(rt, 0)
    assert rt.stats().recordings <= before.recordings + 1
    with torch.no_grad():
        for _ in range(3):
            y = f(x)
            del y
        y = f(x)
    assert not y.requires_grad
    assert live(rt) == 1


@pytest.mark.filterwarnings("ignore")
def test_forward_and_backward_from_a_cache(ours, rt, bits, monkeypatch, tmp_path):
    """What was compiled before, and lies on disk, is recorded likewise."""
    counters = pytest.importorskip("torch._dynamo.utils").counters
    config = pytest.importorskip("torch._inductor.config")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    x, found = torch.randn(8, 32).cuda(), []
    with config.patch(fx_graph_cache=True):
        for again in range(2):
            torch._dynamo.reset()
            counters.clear()
            model = network()
            f, told = torch.compile(model, backend=ours), []
            for _ in range(5):
                y = f(x)
                y.square().sum().backward()
                told.append(bits(y, gradients(model)))
                model.zero_grad()
                del y
            assert counters["aot_autograd"]["autograd_cache_hit"] == again
            assert rt.stats().replays >= 4
            found.append(told)
            del f
    assert found[0] == found[1]
    assert all(each == found[0][0] for each in found[0])


def test_a_backward_that_is_not_recorded(alike):
    """It works on the host; the forward is replayed as if it were."""

    class Sine(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return (grad.cpu() * 2).to(x.device) * x.cos()

    def program(w):
        f, x = w.compile(lambda x: Sine.apply(x * 2)), w.values(16).requires_grad_()
        for _ in range(6):
            f(x).sum().backward()
            yield x.grad
            x.grad = None

    told = alike(program, graph_partition=False)
    assert told.warmups == 1
    assert told.recordings <= 2
    assert told.replays >= 3


@pytest.mark.parametrize("marked", [False, True])
def test_forwards_whose_backwards_are_pending(alike, marked):
    """All are recorded and replayed, and may be gone back whenever it pleases."""

    def program(w):
        model = network()
        f, pending = w.compile(model), []
        for _ in range(8):
            if marked:
                torch.compiler.cudagraph_mark_step_begin()
            pending.append(f(w.values(8, 32)))
        for each in reversed(pending):
            each.square().sum().backward()
            yield gradients(model), each
        for _ in range(4):
            if marked:
                torch.compiler.cudagraph_mark_step_begin()
            yield f(w.values(8, 32))

    told = alike(program)
    assert told.replays >= 6
    assert told.passed_through == 0


def test_a_parameter_moves_while_a_backward_is_pending(alike):
    """And another function runs, whose own has moved as well."""

    def program(w):
        one, two = network(), network()
        f, g = w.compile(one), w.compile(two)
        x = w.values(8, 32)
        for i in range(10):
            y = f(x)
            if i % 3 == 2:
                two[0].weight.data = two[0].weight.data * 0.5
                one[2].bias.data = one[2].bias.data.clone()
            with torch.no_grad():
                yield g(x + i)
            y.square().sum().backward()
            yield gradients(one)
            one.zero_grad()

    told = alike(program)
    assert told.replays >= 8
    assert told.passed_through == 0


def test_a_result_that_is_held_keeps_its_history(alike):
    """Over other calls, of its own function and of another."""

    def program(w):
        one, two = network(), network()
        f, g, x = w.compile(one), w.compile(two), w.values(8, 32)
        for _ in range(4):
            f(x).sum().backward()
            one.zero_grad()
        held = f(x)
        history = held.grad_fn
        for i in range(5):
            g(x * i).sum().backward()
            yield f(x + i), gradients(two)
        assert held.grad_fn is history
        held.square().sum().backward()
        yield held, gradients(one)

    assert alike(program).replays >= 10


def test_inference_with_a_history_makes_no_more_recordings(ours, rt):
    """Nobody goes back; one function's results are another's arguments."""
    one, two = network(), network()
    f, g = torch.compile(one, backend=ours), torch.compile(two, backend=ours)
    x = torch.randn(8, 32, device="cuda")
    expected = g(f(x)).detach().clone()
    for _ in range(5):
        assert torch.equal(g(f(x)), expected)
    before = rt.stats()
    for _ in range(8):
        assert torch.equal(g(f(x)), expected)
    after = rt.stats()
    assert after.recordings - before.recordings <= 1
    assert after.replays - before.replays >= 15


def test_what_only_autograd_holds_is_held(ours, rt):
    f = torch.compile(lambda x: x * 2 + 1, backend=ours)
    x, scale = torch.randn(8).cuda(), torch.ones(8).cuda().requires_grad_()
    for _ in range(3):
        f(x)
    y = f(x)
    expected = y.clone()
    product = y * scale
    del y
    assert live(rt) == 1
    for i in range(3):
        assert torch.equal(f(x * i), x * i * 2 + 1)
    product.sum().backward()
    assert torch.equal(scale.grad, expected)
    del product
    scale.grad = None
    assert come_down(rt, 0)


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("graph", [False, True], ids=["in place", "out of place"])
def test_gradients_are_added_as_ever(alike, graph):
    """In place, or with ``create_graph`` to a new tensor: what is held is as it was."""

    def program(w):
        weight = w.values(8, 8).requires_grad_()
        f = w.compile(lambda x: (x @ weight).sin())
        for _ in range(4):
            kept = []
            for _ in range(3):
                f(w.values(4, 8)).sum().backward(create_graph=graph)
                same = bool(kept) and weight.grad is kept[-1]
                kept.append(weight.grad)
                yield same, [each.detach() for each in kept]
            del kept
            weight.grad = None

    assert alike(program).replays >= 12


@pytest.mark.filterwarnings("ignore")
def test_compiled_autograd_does_not_copy_parameters(alike):
    autograd = pytest.importorskip("torch._dynamo.compiled_autograd")

    def program(w):
        model = network(256)
        f, x = w.compile(model), w.values(4, 256)
        for _ in range(8):
            loss = f(x).square().sum()
            with autograd._enable(w.compile, dynamic=False):
                loss.backward()
            yield loss, gradients(model)
            model.zero_grad()

    told = alike(program)
    assert told.replays >= 5
    assert told.copied_bytes < 256 * 256 * 4


# Results of before.


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("which", [0, 1, 2, 3])
def test_a_result_of_any_call_stays(alike, which, marked):
    """Of the warm-up, the recording, a replay; where it lies does not change."""

    def program(w):
        f = w.compile(lambda x: x.sin() * 2)
        for i in range(9):
            if marked:
                torch.compiler.cudagraph_mark_step_begin()
            out = f(w.values(16))
            if i == which:
                held, place = out, out.data_ptr()
            yield out
        assert held.data_ptr() == place
        yield held

    assert alike(program).replays >= 4


def test_a_result_that_nobody_holds_is_made_where_it_was(ours, rt):
    """And copied nowhere."""
    f = torch.compile(lambda x: x.sin() * 2, backend=ours)
    x = torch.randn(16, device="cuda")
    for _ in range(3):
        f(x)
    assert len({f(x).data_ptr() for _ in range(5)}) == 1
    told = rt.stats()
    assert (told.recordings, told.replays) == (1, 6)
    assert told.escaped == told.copied_bytes == 0


@pytest.mark.parametrize("held", ["both", "views"])
def test_a_result_and_views_of_it_stay_together(alike, held):
    """In one memory, at their places in it."""

    def program(w):
        f = w.compile(lambda x: ((y := x * 2), y[2:], y.t()))
        kept = []
        for _ in range(9):
            torch.compiler.cudagraph_mark_step_begin()
            out = f(w.values(8, 8))
            kept.append(out[held == "views" :])
            assert len({each.untyped_storage().data_ptr() for each in out}) == 1
            del out
            yield kept[-1]
        kept[0][0].add_(1)  # seen in the other
        yield kept

    assert alike(program).replays >= 4


def test_a_view_that_is_only_saved_stays(alike):
    """Nobody sees it but the backward, which is gone through steps later."""

    def program(w):
        weight = w.values(8, 8).requires_grad_()

        @w.compile
        def f(x):
            y = (x @ weight).sin()
            return y, y.t() @ y

        kept = []
        for _ in range(8):
            torch.compiler.cudagraph_mark_step_begin()
            kept.append(f(w.values(8, 8)))
        for first, second in kept:
            (first.sum() + second.square().sum()).backward()
            yield weight.grad, first, second

    told = alike(program)
    assert told.replays >= 6
    assert told.passed_through == 0


def test_a_view_of_another_functions_result_stays(alike):
    def program(w):
        f, g = w.compile(lambda x: x * 2), w.compile(lambda y: (y[2:], y.sum()))
        kept = []
        for _ in range(9):
            torch.compiler.cudagraph_mark_step_begin()
            y = f(w.values(8, 8))
            view, total = g(y)
            assert view.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
            kept.append((y, view, total))
            yield kept[-1]
        kept[3][0].zero_()
        yield kept

    assert alike(program).replays >= 8


def test_a_view_of_the_users_own_stays(alike):
    """All that is left of a result, of each call."""

    def program(w):
        f, kept = w.compile(lambda x: x.sin() * 2), []
        for _ in range(9):
            torch.compiler.cudagraph_mark_step_begin()
            kept.append(f(w.values(8, 8))[3:, 1])
            yield kept[-1]
        yield kept

    assert alike(program).replays >= 4


@pytest.mark.parametrize("saved", ["the result", "a view", "a view that is returned"])
@pytest.mark.parametrize("dropped", [False, True])
def test_what_was_saved_for_a_backward_outside_stays(alike, saved, dropped):
    """The user's own operation has saved it; then come other steps."""

    def program(w):
        f = w.compile(lambda x: ((y := x.sin() * 2), y[2:]))
        scale = w.values(()).requires_grad_()
        pending = []
        for _ in range(8):
            torch.compiler.cudagraph_mark_step_begin()
            y, part = f(w.values(8, 8))
            used = {"the result": y, "a view": y.t()[1:]}.get(saved, part)
            pending.append(((used * scale).sum(), None if dropped else y))
            del y, part, used
        for loss, held in pending:
            loss.backward()
            yield scale.grad, held

    assert alike(program).replays >= 4
