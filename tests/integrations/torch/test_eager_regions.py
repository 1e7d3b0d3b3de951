"""Eager regions between recorded parts of torch's functions: training steps, too."""

from __future__ import annotations

import copy
import gc
import threading
import weakref

import pytest

import sapwood as sw

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("max_variants", [1, 4])
def test_kept_outputs_never_change(rt, max_variants):
    """Losses that an eager region logs and the call returns are kept, all of them."""
    logged = []

    @sw.eager
    def log(loss):
        logged.append(loss)

    def fn(x):
        h = x * 2
        log(h)
        h *= 3
        return h, h.sum()

    f, kept = rt.graph(fn, max_variants=max_variants), []
    x = torch.arange(8.0, device="cuda")
    kept += [(f(x + i), (x + i) * 6) for i in range(60)]
    for (h, total), expected in kept:
        assert torch.equal(h, expected)
        assert torch.equal(total, expected.sum())
    assert all(map(torch.equal, logged, [each for _, each in kept]))
    stats = f.stats()
    assert stats.recordings <= max_variants + 1
    assert stats.replays >= 50
    assert stats.passed_through == 0
    kept.clear()
    logged.clear()
    for i in range(5):
        assert torch.equal(f(x + i)[0], (x + i) * 6)
        logged.clear()
    assert f.stats().recordings == stats.recordings


def _network():
    torch.manual_seed(3)
    layers = torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Dropout(0.2)
    return torch.nn.Sequential(*layers, torch.nn.Linear(32, 4)).cuda()


def _trains(model, log):
    adamw = torch.optim.AdamW(model.parameters(), lr=0.01, capturable=True)

    def step(x, y):
        adamw.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(model(x), y)
        log(loss)
        loss.backward()
        log(model[0].weight.grad)
        adamw.step()
        return loss.detach()

    return step


def test_a_training_step(rt, same):
    """Forward, live, backward, live, optimizer: weights and gradients are eager's."""
    eager, graphed = _network(), _network()
    seen = [], []
    plain = _trains(eager, lambda x: seen[0].append(x.sum().item()))
    log = sw.eager(lambda x: seen[1].append(x.sum().item()))
    step = rt.graph(_trains(graphed, log))
    losses = [], []
    for i, (fn, model) in enumerate(((plain, eager), (step, graphed))):
        torch.manual_seed(5)
        grads = []
        for _ in range(12):
            x, y = torch.randn(8, 16, device="cuda"), torch.randn(8, 4, device="cuda")
            losses[i].append(fn(x, y))
            grads.append([p.grad.clone() for p in model.parameters()])
        losses[i].append(grads)
    same(losses[1], losses[0])
    same([*graphed.parameters()], [*eager.parameters()])
    assert seen[0] == seen[1]
    assert step.stats().replays >= 4
    assert step.stats().passed_through == 0


def test_gradients_are_clipped_live(rt, same):
    """An eager region may write gradients, by what it finds on the host."""

    def made(live):
        model = _network().eval()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)

        @live
        def clip():
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            assert float(norm) > 0

        def step(x):
            sgd.zero_grad(set_to_none=True)
            model(x).square().sum().backward()
            clip()
            sgd.step()

        return model, step

    (eager, plain), (graphed, fn) = made(lambda f: f), made(sw.eager)
    step = rt.graph(fn)
    for _ in range(7):
        x = torch.randn(8, 16, device="cuda")
        plain(x)
        step(x)
        same([*graphed.parameters()], [*eager.parameters()])
        same(*([p.grad for p in m.parameters()] for m in (graphed, eager)))
    assert step.stats().replays >= 3


def test_eager_regions_are_in_the_modes_of_the_function(rt):
    """Those that the function has switched to are on when a region is replayed."""
    seen = []

    @sw.eager
    def look(_):
        half = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda")
        seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled(), half))

    def fn(x):
        look(x)
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
            y = x @ x
            look(y)
        with torch.inference_mode():
            look(y)
        return y * 2

    f, x = rt.graph(fn), torch.eye(8, device="cuda")
    for _ in range(5):
        f(x)
    assert f.stats().replays == 3
    first = [(True, False, False), (False, False, torch.bfloat16), (False, True, False)]
    assert seen == first * 5
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cuda")


def test_random_numbers(alike):
    """Draws before, in and behind an eager region follow each other as eagerly."""

    def program(w):
        @sw.eager
        def noise(x):
            return x + torch.rand(3, device="cuda") * float(x[0] > 0)

        def fn(x):
            h = x + torch.rand(3, device="cuda")
            return noise(h) * torch.rand(3, device="cuda")

        f = w.graph(fn)
        for _ in range(6):
            yield f(w.values(3)), torch.rand(2, device="cuda")

    assert alike(program).count("replays") >= 3


def test_slots_are_bound_before_an_eager_region(alike):
    """What is bound before a break is seen behind it, by live and recorded parts."""

    def program(w):
        class Cell:
            def __init__(self):
                self.h, self.c, self.seen = w.values(3), w.values(3), []

            @sw.eager
            def look(self):
                self.seen.append(float(self.h.sum()))
                self.c.copy_(self.h * 2)

            def step(self, x):
                self.h = x * 0.5
                self.look()
                return self.h + self.c

        cell, x = Cell(), w.values(3)
        step = w.graph(cell.step)
        for _ in range(7):
            x += 1
            yield step(x), cell.h, cell.c, list(cell.seen)

    assert alike(program).count("replays") >= 3


def test_what_an_eager_region_binds_is_found(rt):
    """A slot that it binds anew in each call is read behind it, under its name."""
    state = {"c": torch.ones(3, device="cuda")}

    @sw.eager
    def renew(h):
        state["c"] = h * 2

    def fn(x):
        h = x + 1
        renew(h)
        return h * state["c"]

    f = rt.graph(fn, fullgraph=True)
    for n in range(8):
        x = torch.full((3,), float(n), device="cuda")
        assert f(x).tolist() == [2 * (n + 1) ** 2] * 3
        assert state["c"].tolist() == [2 * (n + 1)] * 3
    assert f.stats().replays >= 4


def test_no_gradient_comes_back_from_an_eager_region(rt):
    """A result that requires grad is refused at once: replays would cut its way."""
    weight = torch.ones(3, device="cuda", requires_grad=True)

    @sw.eager
    def scale(h):
        return h * 2

    def fn(x):
        loss = scale(x * weight).sum()
        loss.backward()
        return loss.detach()

    with pytest.raises(TypeError, match="requires grad"):
        rt.graph(fn)(torch.ones(3, device="cuda"))


def test_other_threads_meanwhile(rt):
    """While an eager region runs, another thread may warm up, record and replay."""
    g = rt.graph(lambda x: x * 3)

    @sw.eager
    def start(h):
        found = []

        def work():
            found.extend(g(h.detach()).sum().item() for _ in range(3))

        other = threading.Thread(target=work)
        other.start()
        other.join(60)
        assert found == [float(h.sum()) * 3] * 3

    def fn(x):
        h = x + 1
        start(h)
        return h * 2

    f, x = rt.graph(fn), torch.zeros(3, device="cuda")
    for _ in range(5):
        assert f(x).tolist() == [2] * 3
    assert f.stats().replays == 3


def test_live_methods_hold_nobody(rt):
    """A module whose forward has a region is not kept alive by its recordings."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.seen = torch.nn.Linear(4, 4), []

        @sw.eager
        def note(self, h):
            self.seen.append(float(h.sum()))

        def forward(self, x):
            h = self.inner(x)
            self.note(h)
            return h.relu()

    torch.manual_seed(1)
    net, x = Net().cuda(), torch.randn(2, 4, device="cuda")
    f, twin = rt.graph(net), copy.deepcopy(net)
    with torch.no_grad():
        for _ in range(5):
            assert torch.equal(f(x), twin(x))
    assert net.seen == twin.seen
    assert f.stats().replays == 3
    gone = weakref.ref(net)
    del net, f
    gc.collect()
    assert gone() is None


def test_streams(alike):
    """An eager region runs on the stream that the call is made on."""

    def program(w):
        side, seen = torch.cuda.Stream(), []

        @sw.eager
        def note(x, y):
            seen.append(torch.cuda.current_stream() == side)
            x += float(y[0])
            return y * 2

        def fn(x):
            h = x * 2
            y = note(x, h)
            x += h + y
            return h + y, x * 1

        f, x = w.graph(fn), w.values(4)
        for i in range(8):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side if i % 2 else torch.cuda.current_stream()):
                y = f(x)
            torch.cuda.current_stream().wait_stream(side)
            yield y, x, list(seen)

    assert alike(program).count("replays") >= 3


def test_inside_a_stream_of_the_functions_own(rt):
    """A break there is refused: what follows would not be captured."""
    side, mark = torch.cuda.Stream(), sw.eager(lambda: None)

    def fn(x):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x * 2
            mark()
            y += 1
        torch.cuda.current_stream().wait_stream(side)
        return y

    f, x = rt.graph(fn, fullgraph=True), torch.ones(3, device="cuda")
    assert f(x).tolist() == [3] * 3
    with pytest.raises(sw.CaptureError, match="another stream than the call's"):
        f(x)
    gc.collect()


def test_on_a_thread_of_autograds(rt):
    """An eager region in a hook is refused: no replay would come to it."""
    note = sw.eager(lambda _: None)

    def fn(x):
        y = x.detach().requires_grad_()
        y.register_hook(note)
        (y * 2).sum().backward()
        return y.grad

    with pytest.raises(sw.CaptureError, match="another thread"):
        rt.graph(fn, fullgraph=True)(torch.ones(3, device="cuda"))
    gc.collect()


def test_large_arguments_and_results(alike):
    """Copies of large arguments last as long as any part uses them."""

    def program(w):
        @sw.eager
        def live(h):
            h[0] += 1
            return h * float(h[1])

        def fn(x, y):
            h = x * 2 + y
            z = live(h)
            z += h
            return z + x, h - y

        f, kept = w.graph(fn), []
        for i in range(9):
            kept.append(f(w.values(1_300_000), w.values(1_300_000)))
            if i == 7:
                kept.clear()
            yield [each.double().sum() for pair in kept[-2:] for each in pair]

    assert alike(program).count("replays") >= 3
