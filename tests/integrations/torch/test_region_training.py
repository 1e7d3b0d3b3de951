"""Training steps with eager regions in them, as people write them."""

from __future__ import annotations

import copy
import gc

import pytest

import sapwood as sw

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

pytestmark = [
    pytest.mark.gpu,
    # Torch's own, where it imports parts of itself.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def test_gradients_add_up_over_micro_batches(alike, network, replayed):
    """An eager region between the backward passes reads what was added up so far."""

    def program(w):
        model, norms = network(), []
        sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        @sw.eager
        def note(loss, i):
            norms.append((i, loss.item(), model[0].weight.grad.norm().item()))

        def step(x, y):
            sgd.zero_grad(set_to_none=True)
            losses = []
            for i, (a, b) in enumerate(zip(x.chunk(3), y.chunk(3), strict=True)):
                loss = F.mse_loss(model(a), b) / 3
                loss.backward()
                note(loss, i)
                losses.append(loss.detach())
            sgd.step()
            return torch.stack(losses)

        f = w.graph(step)
        for _ in range(10):
            yield f(w.values(12, 16), w.values(12, 4)), list(norms)
            yield [(p.detach(), p.grad) for p in model.parameters()]

    replayed(alike(program), 4)


def test_gradients_add_up_over_calls(alike, network, replayed):
    """Every fourth call finds no gradients, the others write those of the last."""

    def program(w):
        model, seen = network(), []
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)

        @sw.eager
        def note(loss):
            seen.append((loss.item(), model[0].bias.grad.sum().item()))

        def accumulate(x):
            loss = model(x).square().mean()
            loss.backward()
            note(loss)
            return loss.detach() * 2

        f = w.graph(accumulate)
        for i in range(24):
            yield f(w.values(8, 16)), list(seen), [p.grad for p in model.parameters()]
            if i % 4 == 3:
                sgd.step()
                sgd.zero_grad(set_to_none=True)

    replayed(alike(program), 4)


def test_an_overflow_is_found_on_the_host(alike, network, replayed):
    """Under autocast, gradients are unscaled live, and zeroed where one overflowed."""

    def program(w):
        model, found = network(), []
        sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scale = torch.full((), 2.0**12, device="cuda")

        @sw.eager
        def peek(h):
            found.append((str(h.dtype), h.float().sum().item()))

        @sw.eager
        def unscale():
            grads = [p.grad for p in model.parameters()]
            torch._foreach_div_(grads, scale)
            finite = all(bool(g.isfinite().all()) for g in grads)
            found.append(finite)
            if not finite:
                torch._foreach_zero_(grads)
                scale.mul_(0.5)

        def step(x):
            sgd.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype=torch.float16):
                h = model(x)
                peek(h)
                h = h + model(x * 0.5)
            loss = h.float().square().mean()
            (loss * scale).backward()
            unscale()
            sgd.step()
            return loss.detach()

        f = w.graph(step)
        for i in range(12):
            x = w.values(8, 16) * (1e5 if i in {3, 7, 8} else 1)
            yield f(x), [flag for flag in found if flag in {True, False}], scale
            yield str(found), [(p.detach(), p.grad) for p in model.parameters()]
        assert False in found

    replayed(alike(program), 4)


def test_averaged_weights(alike, network, replayed):
    """An average is moved live, by a rate that changes, and evaluated behind it."""

    def program(w):
        model, steps = network(), []
        average = copy.deepcopy(model).requires_grad_(requires_grad=False)
        adamw = torch.optim.AdamW(model.parameters(), lr=0.01, capturable=True)

        @sw.eager
        @torch.no_grad()
        def update():
            steps.append(len(steps) + 1)
            pairs = zip(average.parameters(), model.parameters(), strict=True)
            for mean, parameter in pairs:
                mean.lerp_(parameter, 1 / steps[-1])

        def step(x, y):
            adamw.zero_grad(set_to_none=True)
            loss = F.mse_loss(model(x), y)
            loss.backward()
            adamw.step()
            update()
            return loss.detach(), average(x)

        f = w.graph(step)
        for _ in range(10):
            yield f(w.values(8, 16), w.values(8, 4)), average.state_dict()

    replayed(alike(program), 4)


def test_a_schedule_writes_the_learning_rate(alike, network, replayed):
    """A rate in a tensor is set live, by the loss on the host, before the optimizer."""

    def program(w):
        model, rates = network(), [0.01]
        lr = torch.tensor(0.01, device="cuda")
        adamw = torch.optim.AdamW(model.parameters(), lr=lr, capturable=True)

        @sw.eager
        def schedule(loss):
            rates.append(rates[-1] * (0.9 if loss.item() > 1 else 1.1))
            adamw.param_groups[0]["lr"].fill_(rates[-1])

        def step(x, y):
            adamw.zero_grad(set_to_none=True)
            loss = F.mse_loss(model(x), y)
            loss.backward()
            schedule(loss)
            adamw.step()
            return loss.detach()

        f = w.graph(step)
        for _ in range(10):
            yield f(w.values(8, 16), w.values(8, 4)), list(rates), lr
            yield list(model.state_dict().values())

    replayed(alike(program), 4)


def test_an_optimizer_that_steps_live(alike, network, replayed):
    """One that counts on the host, and drops all gradients; weights are read behind."""

    def program(w):
        model = network()
        adam = torch.optim.Adam(model.parameters(), lr=0.01)

        @sw.eager
        def update(loss):
            adam.step()
            if loss.item() > 0.5:
                for p in model.parameters():
                    p.detach().clamp_(-0.15, 0.15)
            adam.zero_grad(set_to_none=True)

        def step(x, y):
            loss = F.mse_loss(model(x), y)
            loss.backward()
            update(loss)
            with torch.no_grad():
                return loss.detach(), model(x)

        f = w.graph(step)
        for _ in range(10):
            yield f(w.values(8, 16), w.values(8, 4)), model.state_dict()

    replayed(alike(program), 4)


def test_checkpointed_blocks(alike, cuda, network, replayed):
    """Blocks before and behind an eager region are recomputed in the backward pass."""

    def program(w):
        first, second = network(), cuda(nn.Sequential(nn.Linear(4, 8), nn.Tanh()))
        every, seen = [*first.parameters(), *second.parameters()], []
        sgd = torch.optim.SGD(every, lr=0.1)

        def block(module, x):
            return torch.utils.checkpoint.checkpoint(
                module, x, use_reentrant=False, preserve_rng_state=False
            )

        note = sw.eager(lambda h: seen.append(h.sum().item()))

        def step(x):
            sgd.zero_grad(set_to_none=True)
            h = block(first, x)
            note(h)
            h = block(second, h)
            note(h)
            h.square().mean().backward()
            sgd.step()
            return h.detach()

        f = w.graph(step)
        for _ in range(10):
            yield f(w.values(8, 16)), list(seen), [p.grad for p in every]

    replayed(alike(program), 4)


def test_gradients_of_arguments(alike, replayed):
    """Arguments that require grad cross a break, and their way back does."""

    def program(w):
        weight, seen = w.values(6), []
        note = sw.eager(lambda v: seen.append(v.sum().item()))

        def attack(x):
            h = x * weight
            note(h)
            loss = (h * x).square().sum()
            note(loss)
            (g,) = torch.autograd.grad(loss, x)
            note(g)
            return x.detach() - g.sign() * 0.1, g

        f, x = w.graph(attack), w.values(6).requires_grad_()
        for i in range(10):
            y, g = f(x)
            yield y, g, list(seen)
            x = (w.values(6) if i % 4 == 3 else y).requires_grad_()

    replayed(alike(program))


@pytest.mark.parametrize("where", ["a hook", "a checkpoint"])
def test_eager_regions_in_the_backward_pass(rt, where, cuda):
    """Torch runs them on a thread of its own: every call runs them, or is refused."""
    first = cuda(nn.Linear(4, 4))
    seen = []

    @sw.eager
    def note(h):
        seen.append(h.detach())

    def block(x):
        h = first(x)
        note(h)
        return h.tanh()

    def step(x):
        first.zero_grad(set_to_none=True)
        if where == "a hook":
            h = first(x).tanh()
            h.register_hook(note)
        else:
            h = torch.utils.checkpoint.checkpoint(
                block, x, use_reentrant=False, preserve_rng_state=False
            )
        h.square().sum().backward()
        return h.detach()

    step(torch.ones(2, 4, device="cuda"))
    each = len(seen)
    f = rt.graph(step, fullgraph=True)
    for _ in range(6):
        seen.clear()
        x = torch.randn(2, 4, device="cuda")
        try:
            found = f(x)
        except sw.CaptureError:
            gc.collect()
            continue
        assert len(seen) == each
        mine = [found, *map(torch.clone, seen), first.weight.grad.clone()]
        seen.clear()
        theirs = [step(x), *seen, first.weight.grad]
        assert all(map(torch.equal, mine, theirs))


@pytest.mark.filterwarnings("ignore")
def test_a_scheduler_steps_live(rt, same, network):
    """Its plain rate is followed; where a call ends by name, all of it has run."""

    def made(live):
        torch.manual_seed(3)
        model = network()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(sgd, 8, 0.5)

        @live
        def advance(loss):
            assert loss.item() >= 0
            scheduler.step()

        def step(x):
            sgd.zero_grad(set_to_none=True)
            loss = model(x).square().mean()
            loss.backward()
            sgd.step()
            advance(loss)
            return loss.detach()

        return model, sgd, step

    (eager, one, plain), (graphed, two, fn) = made(lambda f: f), made(sw.eager)
    f, refused = rt.graph(fn, max_variants=8, fullgraph=True), []
    for _ in range(24):
        x = torch.randn(8, 16, device="cuda")
        expected = plain(x)
        try:
            same(f(x), expected)
        except sw.CaptureError as error:
            refused.append(str(error))
            gc.collect()
        same([*graphed.parameters()], [*eager.parameters()])
        assert one.param_groups[0]["lr"] == two.param_groups[0]["lr"]
    assert all("advance" in each for each in refused)
    assert f.stats().replays >= 2


def test_a_step_inside_an_eager_region(rt):
    """It ends results of earlier calls; what the call itself has made stays."""

    @sw.eager
    def end(h):
        with rt.step():
            return h * 2

    def fn(x):
        h = x + 1
        y = end(h)
        h += y
        return h, y

    f, old = rt.graph(fn), None
    for i in range(8):
        x = torch.randn(4, device="cuda")
        h, y = f(x)
        assert torch.equal(y, (x + 1) * 2)
        assert torch.equal(h, (x + 1) + y)
        if i > 4:
            with pytest.raises(RuntimeError, match=r"sapwood\.StaleOutput"):
                old.sum()
        old = h
        del h, y
    assert f.stats().replays >= 3


@pytest.mark.parametrize("held", ["an attribute", "a list"])
def test_what_is_kept_across_an_eager_region_has_its_history(alike, held, network):
    """Gradients come to the part before through whatever the function kept it in."""

    def program(w):
        model, state = network(), {"h": None, "l": [None]}
        note = sw.eager(lambda _: None)

        def step(x):
            h = model(x)
            if held == "an attribute":
                state["h"] = h
            else:
                state["l"][0] = h
            del h
            note(x)
            h = state["h"] if held == "an attribute" else state["l"][0]
            loss = (h * h).sum()
            grads = torch.autograd.grad(loss, list(model.parameters()))
            state["h"] = state["l"][0] = None
            return loss.detach(), grads

        f = w.graph(step)
        for _ in range(6):
            yield f(w.values(8, 16))

    assert alike(program).count("passed_through") == 0
