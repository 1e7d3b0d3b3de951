"""Programs with live parts, as people write them, and what is nasty about them."""

from __future__ import annotations

import contextlib
import copy
import gc
import random
from typing import Any, NamedTuple

import pytest

import sapwood as sw

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

pytestmark = [
    pytest.mark.gpu,
    # Torch's own, where it imports parts of itself.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def cuda(module):
    """Return a module on the device, its values from the seed."""
    torch.manual_seed(3)
    return module.cuda()


def network(p=0.0):
    layers = nn.Linear(16, 32), nn.GELU(), nn.Dropout(p), nn.Linear(32, 4)
    return cuda(nn.Sequential(*layers))


def replayed(world, at_least=3):
    """Assert that calls were replayed, and none was run eagerly for good."""
    assert world.count("replays") >= at_least
    assert world.count("passed_through") == 0


class Mine(Exception):
    """An exception of the user, which may have a tensor."""

    def __init__(self, tensor=None):
        super().__init__("as thrown")
        self.tensor = tensor


class Pair(NamedTuple):
    a: Any
    b: Any


# Inference.


@torch.no_grad()
def test_experts_are_routed_on_the_host(alike):
    """Tokens are counted and dispatched live, by capacity; the rest is replayed."""

    def program(w):
        router = cuda(nn.Linear(16, 4))
        experts = cuda(nn.ModuleList(nn.Linear(16, 16) for _ in range(4)))
        loads = []

        @sw.eager
        def dispatch(h, chosen):
            y = torch.zeros_like(h)
            loads.append([int((chosen == i).sum()) for i in range(4)])
            for i, expert in enumerate(experts):
                if loads[-1][i]:
                    mine = (chosen == i).nonzero().flatten()[:6]
                    y[mine] = expert(h[mine])
            return y

        def layer(x):
            h = F.layer_norm(x, (16,))
            gate, chosen = router(h).softmax(-1).max(-1)
            return x + gate[:, None] * dispatch(h, chosen)

        f = w.graph(lambda x: layer(layer(x)))
        for _ in range(8):
            yield f(w.values(24, 16)), list(loads)

    replayed(alike(program))


@torch.no_grad()
def test_a_decoder_samples_live(alike):
    """With a cache that is written in place, tokens drawn live are fed back."""

    def program(w):
        embed, head = cuda(nn.Embedding(32, 16)), cuda(nn.Linear(16, 32))
        project, text = cuda(nn.Linear(16, 48)), []
        cache = torch.zeros(2, 20, 16, device="cuda")
        place = torch.zeros(1, dtype=torch.int64, device="cuda")

        @sw.eager
        def sample(logits):
            drawn = len(text) % 3 > 0
            token = logits.argmax(-1, keepdim=True)
            token = torch.multinomial(logits.softmax(-1), 1) if drawn else token
            text.append(token.item())
            return token

        def decode(token):
            q, k, v = project(embed(token)).chunk(3, -1)
            cache[0].index_copy_(0, place, k)
            cache[1].index_copy_(0, place, v)
            seen = torch.arange(20, device="cuda") <= place
            scores = (q @ cache[0].T).masked_fill(~seen, -torch.inf)
            logits = head(scores.softmax(-1) @ cache[1])
            token = sample(logits[0])
            place.add_(1)
            return token, logits

        f, token = w.graph(decode), torch.ones(1, dtype=torch.int64, device="cuda")
        for _ in range(18):
            token, logits = f(token)
            yield token, logits, list(text), cache, place

    replayed(alike(program), 10)


@torch.no_grad()
def test_activations_are_kept_for_ever(alike):
    """Logged views of what is written and returned later are eager's, all of them."""

    def program(w):
        layers, logged = cuda(nn.ModuleList(nn.Linear(16, 16) for _ in range(3))), []

        @sw.eager
        def log(name, h):
            logged.append((name, h.mean().item(), h, h.detach()[:, ::2]))

        def fn(x):
            for i, layer in enumerate(layers):
                x = layer(x)
                log(f"layer {i}", x)
                x.relu_()
            log("out", x)
            return x, x.T

        f, kept = w.graph(fn), []
        for i in range(20):
            kept.append(f(w.values(8, 16)))
            yield kept[-2:], logged[-9:]
            if i == 12:
                yield kept, logged
                del kept[::2], logged[::3]
        yield kept, logged

    replayed(alike(program))


@torch.no_grad()
def test_a_module_with_live_parts_inside(alike):
    """Blocks of one class, each with a live method, in a module that is graphed."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
            self.register_buffer("largest", torch.zeros(()))
            self.seen = []

        @sw.eager
        def calibrate(self, h):
            self.seen.append(h.abs().max().item())
            self.largest.fill_(max(self.seen))
            return h / max(self.seen)

        def forward(self, x):
            h = self.norm(self.inner(x))
            return x + self.calibrate(h) * self.largest.sqrt()

    def program(w):
        model = cuda(nn.Sequential(Block(), Block(), nn.ReLU(), Block())).train()
        f = w.graph(model)
        for _ in range(8):
            yield f(w.values(6, 8)), model.state_dict(), [m.seen for m in model[:2]]

    replayed(alike(program))


@torch.no_grad()
def test_dropout_around_a_live_part(alike):
    """Masks before, in and behind a live part follow each other as eagerly."""

    def program(w):
        model, aside = network(0.3).train(), nn.Dropout(0.5)

        @sw.eager
        def shake(h):
            return aside(h) if float(h.sum()) > 0 else h * 0.5

        f = w.graph(lambda x: F.dropout(model(shake(F.dropout(x, 0.2))), 0.2))
        for i in range(9):
            if i == 6:
                torch.manual_seed(21)
            yield f(w.values(8, 16)), torch.rand(2, device="cuda")

    replayed(alike(program))


def test_a_live_part_seeds(alike):
    """What is drawn behind a live part goes on from where it left the generator."""

    def program(w):
        seen = []

        @sw.eager
        def seed(x):
            seen.append(float(x[0]))
            if len(seen) % 3:
                torch.manual_seed(len(seen) // 2)

        @sw.eager
        def peek():
            state = torch.cuda.get_rng_state()
            seen.append(float(torch.rand(1, device="cuda")))
            torch.cuda.set_rng_state(state)

        def fn(x):
            h = x + torch.rand(4, device="cuda")
            seed(h)
            h = h + torch.rand(4, device="cuda")
            peek()
            return h, torch.rand(1, device="cuda")

        f = w.graph(fn)
        for _ in range(9):
            yield f(w.values(4)), list(seen), torch.rand(1, device="cuda")

    replayed(alike(program))


# Training.


def test_gradients_add_up_over_micro_batches(alike):
    """A live part between the backward passes reads what was added up so far."""

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


def test_gradients_add_up_over_calls(alike):
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


def test_an_overflow_is_found_on_the_host(alike):
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


def test_averaged_weights(alike):
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


def test_a_schedule_writes_the_learning_rate(alike):
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


def test_an_optimizer_that_steps_live(alike):
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


def test_checkpointed_blocks(alike):
    """Blocks before and behind a live part are recomputed in the backward pass."""

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


def test_gradients_of_arguments(alike):
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
def test_live_parts_in_the_backward_pass(rt, where):
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
    f = rt.graph(step)
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


# Views, and what overlaps.


def test_views_cross_a_break(alike):
    """Transposed, strided and expanded views are one memory before and behind it."""

    def program(w):
        @sw.eager
        def touch(t, rows, wide):
            rows += float(t[0, 0])
            t[-1].zero_()
            return t[:2], wide.clone()

        def fn(x):
            h = x * 2
            t, rows, wide = h.t(), h[1:, ::2], h[:1].expand(4, 6)
            rows.mul_(3)
            back, copied = touch(t, rows, wide)
            back[0] += 1
            rows.sub_(x[1:, ::2])
            return h, t, wide + copied, x[1:].t(), back

        f = w.graph(fn)
        for i in range(12):
            x = w.values(6, 4).t() if i % 3 == 2 else w.values(4, 6)
            yield f(x), x

    replayed(alike(program))


def test_arguments_of_all_layouts(alike):
    """One tensor twice, transposed, interleaved, expanded, and overlapping ones."""

    def program(w):
        seen = []
        note = sw.eager(lambda *each: seen.extend(v.sum().item() for v in each))

        def fn(a, b):
            h = a * b
            note(h, b)
            a += 1
            note(a, b)
            b = b * 2
            return h + b, a

        f = w.graph(fn)
        for _ in range(5):
            x, y, z = w.values(4, 4), w.values(5, 4), w.values(8, 4)
            yield f(x, x), x
            yield f(x.t(), x.t()), x
            yield f(x, x.t()), x
            yield f(y[:-1], y[1:]), y
            yield f(y[1:], y[:-1]), y
            yield f(z[::2], z[1::2]), z
            yield f(x, y[:1].expand(4, 4)), x, y
            yield f(x, y[0, 0]), list(seen)

    assert alike(program).count("replays") >= 3


def test_an_argument_that_the_function_knows(alike):
    """One that is also read by a name, written behind a break, in some calls only."""

    def program(w):
        weight, seen = w.values(6), []
        note = sw.eager(lambda *each: seen.extend(v.sum().item() for v in each))

        def fn(x):
            h = x * 2
            note(h)
            x += 1
            note(x, weight)
            return h + weight

        f = w.graph(fn)
        for i in range(16):
            x = w.values(6)
            yield f(weight if i % 3 == 1 else x), x, weight, list(seen)
            if i % 5 == 4:
                yield f(weight), weight

    assert alike(program).count("replays") >= 3


def test_results_that_lie_in_each_other(alike):
    """A live part returns memory of its own, twice; what is written there stays."""

    def program(w):
        table = w.values(6)

        @sw.eager
        def look(x):
            table.mul_(0.5 if float(x[0]) > 0 else -1)
            return table, {"tail": table[1:], "same": table}, table[:2].clone()

        def fn(x):
            a, rest, c = look(x)
            a += x
            rest["tail"].mul_(2)
            return rest["same"] + 1, a - 1, c

        f = w.graph(fn)
        for _ in range(8):
            yield f(w.values(6)), table

    replayed(alike(program))


def test_conjugates_cross_a_break(alike):
    """Lazy conjugates and negatives are passed, written, and returned as such."""

    def program(w):
        @sw.eager
        def spin(c, i):
            c.mul_(2 if float(i[0]) > 0 else 3j)
            return c.conj(), i

        def fn(x):
            z = x * 1j
            c = z.conj()
            back, i = spin(c, c.imag)
            c += 1
            return back + c, z * 1, i * 2

        f = w.graph(fn)
        for _ in range(8):
            x = w.values(4, dtype=torch.complex64)
            yield f(x), x

    replayed(alike(program))


DTYPES = "bool", "uint8", "int64", "float16", "bfloat16", "float64", "complex64"


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(alike, dtype):
    """All kinds of values cross breaks, and are written behind them."""

    def program(w):
        @sw.eager
        def turn(h, part):
            return h.roll(int(part.count_nonzero()) % 3 + 1)

        def fn(x):
            h = torch.cat([x, x.flip(0)])
            y = turn(h, h[1:-1])
            h.copy_(y)
            return h, y[::2], x[1:]

        f = w.graph(fn)
        for _ in range(7):
            x = w.values(5, dtype=getattr(torch, dtype))
            yield f(x), x

    replayed(alike(program))


def test_nothing_and_single_values(alike):
    """Tensors of no elements, and of no dimensions, are passed and returned."""

    def program(w):
        seen = []

        @sw.eager
        def measure(n, s):
            seen.append((n.shape, s.item()))
            s += 1
            return n.clone(), torch.full((), seen[-1][1], device="cuda"), s

        def fn(x):
            n, s = x[:0] * 2, x.sum()
            e, t, same = measure(n, s)
            same *= 2
            return e, t, t + x, torch.cat([e, x, n]), s

        f = w.graph(fn)
        for i in range(16):
            yield f(w.values(0 if i % 2 else 5)), f(w.values(0, 3)), list(seen)

    replayed(alike(program))


# What live parts do, and where they are.


def test_kinds_of_results(alike):
    """One live part returns None, a dict, a named tuple or a part, by its argument."""

    def program(w):
        @sw.eager
        def make(h, kind):
            n = float(h[0])
            if kind == "none":
                return None
            if kind == "dict":
                return {"a": h * n, "b": [h[1:], None, ()]}
            return Pair(h + n, b=(h, {})) if kind == "pair" else h

        def fn(x):
            h = x + 1
            assert make(h, "none") is None
            found, pair = make(h, "dict"), make(h, kind="pair")
            found["b"][0].mul_(2)
            same = make(h, "self")
            same -= 1
            assert found["b"][1] is None
            assert type(pair) is Pair
            return found["a"] + pair.a, pair.b[0], same

        f = w.graph(fn)
        for _ in range(8):
            yield f(w.values(4))

    replayed(alike(program))


WHERE = {
    "first": lambda live, x: live(x) * 2,
    "last": lambda live, x: live(x * 2),
    "alone": lambda live, x: live(x),
    "in a row": lambda live, x: live(live(live(x + 1))) + 1,
    "with nothing between": lambda live, x: (live(x), live(x), x),
    "unused": lambda live, x: (x, [live(x) for _ in range(3)][0:0]),
    "on views alone": lambda live, x: live(live(x[1:]).t()).t(),
}


@pytest.mark.parametrize("where", WHERE)
def test_where_live_parts_are(alike, where):
    """First, last, in a row, with nothing recorded between, and with nothing at all."""

    def program(w):
        seen = []

        @sw.eager
        def live(h):
            seen.append(h.sum().item())
            return h * (1 + len(seen) % 2)

        f, x = w.graph(lambda x: WHERE[where](live, x)), w.values(3, 3)
        for i in range(9):
            x = x if i % 2 else w.values(3, 3)
            yield f(x), x, list(seen)

    replayed(alike(program))


def test_batches_come_from_a_live_part(alike):
    """A loader on the host is asked first, and its pinned batches are copied in."""

    def program(w):
        data = w.values(64, 8).cpu().pin_memory()
        batches = iter(data.split(4))

        @sw.eager
        def load():
            batch = next(batches).to("cuda", non_blocking=True)
            return batch, batch.flip(0)

        def fn(weight):
            x, y = load()
            weight += (x * y).mean(0)
            x.relu_()
            return x * weight, y

        f, weight = w.graph(fn), w.values(8)
        for _ in range(10):
            yield f(weight), weight

    replayed(alike(program))


def test_live_parts_wait_measure_and_copy(alike):
    """Events around a recorded part, waits for the device, and a way by the host."""

    def program(w):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        host = torch.empty(256, pin_memory=True)

        @sw.eager
        def start():
            torch.cuda.synchronize()
            begin.record()

        @sw.eager
        def stop(h):
            end.record()
            end.synchronize()
            assert begin.elapsed_time(end) >= 0
            host.copy_(h, non_blocking=True)
            torch.cuda.current_stream().synchronize()
            return torch.from_numpy(host.numpy() * 2).to("cuda")

        def fn(x):
            h = x * 2
            start()
            h = h.softmax(-1)
            y = stop(h)
            return h + y

        f = w.graph(fn)
        for _ in range(8):
            yield f(w.values(256))

    replayed(alike(program))


def test_a_users_own_graph_in_a_live_part(alike):
    """A live part captures CUDA graphs by hand, now and then, and replays them."""

    def program(w):
        static, made, calls = torch.zeros(64, device="cuda"), [], []

        @sw.eager
        def by_hand(h):
            static.copy_(h)
            calls.append(float(h[0]))
            if len(calls) % 3 == 1:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    out = static * 2 + 1
                made[:] = [(graph, out)]
            graph, out = made[0]
            graph.replay()
            return out.clone()

        def fn(x):
            h = x + 1
            y = by_hand(h)
            y += h
            return by_hand(y) - h

        f = w.graph(fn)
        for _ in range(8):
            yield f(w.values(64))
        del made[:]

    replayed(alike(program))


def test_live_parts_reuse_memory(alike):
    """Blocks are allocated, spoilt and freed around parts; nothing kept is touched."""

    def program(w):
        seen = []

        @sw.eager
        def churn(*held):
            for size in (1 << 20, 1 << 22, 1 << 20, 3 << 19):
                junk = [torch.full((size,), torch.nan, device="cuda") for _ in range(4)]
                del junk
            seen.append(held)
            del seen[:-5]
            if len(seen) == 4:
                gc.collect()
                torch.cuda.empty_cache()

        def fn(x):
            churn()
            h = x * 2
            big = h.repeat(2).flip(0)
            churn(h, big[5:])
            y = big[: x.numel()] + h
            churn(y)
            return y * 2, h.sum(), y

        f, kept = w.graph(fn), []
        for _ in range(10):
            kept.append(f(w.values(1 << 20)))
            yield kept, seen
            del kept[:-3]

    replayed(alike(program))


def test_streams_inside_and_around(alike):
    """Calls on two streams in turn, and a live part that works on a third."""

    def program(w):
        sides = [torch.cuda.Stream() for _ in range(3)]

        @sw.eager
        def aside(h):
            here, there = torch.cuda.current_stream(), sides[2]
            there.wait_stream(here)
            with torch.cuda.stream(there):
                y = h.flip(0) * 2
                h.add_(1)
            h.record_stream(there)
            here.wait_stream(there)
            y.record_stream(here)
            return y

        def fn(x):
            h = x * 2
            y = aside(h)
            x += h
            return y + h, y

        f, x = w.graph(fn), w.values(1 << 18)
        for i in range(12):
            side = sides[i % 2]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                y = f(x)
            torch.cuda.current_stream().wait_stream(side)
            yield y, x
            del y

    replayed(alike(program))


MODES = {
    "no grad": (torch.no_grad,),
    "inference": (torch.inference_mode,),
    "bfloat16": (torch.no_grad, lambda: torch.autocast("cuda", torch.bfloat16)),
    "half, uncached": (
        torch.no_grad,
        lambda: torch.autocast("cuda", torch.float16, cache_enabled=False),
    ),
}


def test_modes_around_the_call(alike):
    """Each mode has its recordings, and live parts run in it."""

    def program(w):
        model, seen = network(), []

        @sw.eager
        def scale(h):
            y = model[3](model[1](h))
            seen.append((str(h.dtype), str(y.dtype), torch.is_inference_mode_enabled()))
            h.mul_(1 / (1 + float(y.abs().max())))
            return y

        def fn(x):
            h = model[0](x)
            y = scale(h)
            return model[3](h) + y, y

        f = w.graph(fn)
        for i in range(24):
            x, modes = w.values(8, 16), [*MODES.values()][i % 5 % 4]
            with contextlib.ExitStack() as stack:
                for mode in modes:
                    stack.enter_context(mode())
                y = f(x)
            yield y, list(seen)

    replayed(alike(program), 8)


def test_graphed_functions_with_live_parts_in_others(alike):
    """The inner one, with a live part, is called inside another and for itself."""

    def program(w):
        seen, total = [], w.values(4)

        @sw.eager
        def halve(h):
            seen.append(h.sum().item())
            return h * (0.5 if seen[-1] > 0 else 2)

        def inner(x):
            y = halve(x + 1)
            total.add_(y)
            return y - total

        def outer(x):
            h = g(x) * 2
            halve(h)
            return g(h) + h, x

        g = w.graph(inner)
        f = w.graph(outer)
        for i in range(10):
            x = w.values(4)
            yield f(x), g(x) if i % 2 else None, total, list(seen)

    world = alike(program)
    replayed(world)
    assert all(f.stats().replays >= 2 for f in world.functions)


# Many calls.


def test_two_hundred_calls(alike):
    """Shapes in turn, results fed back, kept and dropped at random, logs as well."""

    def program(w):
        chance, logged, kept = random.Random(5), [], []
        total = w.values(3)

        @sw.eager
        def log(h):
            if chance.random() < 0.3:
                logged.append(h)
            if len(logged) > 6:
                del logged[chance.randrange(6)]
            return h.abs().max() + 1

        def fn(x):
            h = x * 0.5
            largest = log(h)
            h += 1 / largest
            total.add_(h[:3])
            log(total)
            return h, h[1:] / largest

        f = w.graph(fn)
        for i in range(200):
            old = [h for pair in kept for h in pair if h.numel() > 3]
            fed = old and chance.random() < 0.4
            x = chance.choice(old) if fed else w.values(chance.choice([3, 64, 5000]))
            kept.append(f(x))
            while len(kept) > 8 or (kept and chance.random() < 0.3):
                del kept[chance.randrange(len(kept))]
            del x, old
            if i % 10 == 9:
                yield kept, logged, total

    world = alike(program)
    assert world.count("replays") >= 60


def test_exceptions_at_random_calls(alike):
    """Live parts raise now and then; state is as far as an eager call would be."""

    def program(w):
        chance, total, x = random.Random(9), w.values(4), w.values(4)

        @sw.eager
        def check(h, factor):
            h.mul_(factor if float(h[0]) > 0 else 1)
            if chance.random() < 0.12:
                raise Mine
            return h.sum()

        def fn(x):
            total.add_(x)
            s = check(total * 2, 3)
            x.mul_(0.5).add_(s.sigmoid())
            s = check(x, 0.5)
            total.sub_(s)
            return total * 1, s

        f, raised = w.graph(fn), 0
        for _ in range(40):
            y = None
            try:
                y = f(x)
            except Mine:
                raised += 1
            yield y, x, total
        assert 3 <= raised < 30

    replayed(alike(program))


@pytest.mark.parametrize("when", [0, 1, 4])
def test_an_exception_is_kept_with_its_tensor(alike, when):
    """What it holds is never overwritten, and later calls are right."""

    def program(w):
        errors, calls = [], []

        @sw.eager
        def check(h):
            calls.append(float(h[0]))
            if len(calls) == when + 1:
                raise Mine(h)

        def fn(x):
            h = x * 2
            check(h)
            h += 1
            return h, h * x

        f, kept = w.graph(fn), []
        for _ in range(10):
            try:
                kept.append(f(w.values(4)))
            except Mine as error:
                errors.append(error)
            yield kept, [error.tensor for error in errors]
        errors.clear()
        gc.collect()

    replayed(alike(program))


# What may be refused, and is never stale.


@pytest.mark.parametrize("settles", [True, False])
def test_a_live_part_switches_the_mode_of_a_module(rt, settles):
    """What follows is what the new mode says, or the call ends by name."""

    class Scaled(nn.Module):
        def forward(self, x):
            return x * 2 if self.training else x * 3

    model, calls, refused = Scaled(), [], []

    @sw.eager
    def switch(h):
        calls.append(h.sum().item())
        model.train(mode=not settles and len(calls) % 3 == 0)

    def fn(x):
        h = x + 1
        switch(h)
        return model(h), h

    f = rt.graph(fn)
    for _ in range(14):
        x = torch.randn(4, device="cuda")
        try:
            y, h = f(x)
        except sw.CaptureError as error:
            refused.append(str(error))
            gc.collect()
            continue
        assert torch.equal(h, x + 1)
        assert torch.equal(y, model(h))
    assert len(calls) == 14
    assert all("training" in each or "switch" in each for each in refused)
    if settles:
        assert refused == []
        assert f.stats().replays >= 8


@pytest.mark.filterwarnings("ignore")
def test_a_scheduler_steps_live(rt, same):
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
    f, refused = rt.graph(fn, max_variants=8), []
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


def test_a_step_inside_a_live_part(rt):
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


@pytest.mark.filterwarnings("ignore")
@torch.no_grad()
def test_a_compiled_function_beside_a_live_part(rt, same):
    """One that torch has compiled, before, in and behind a live part."""
    torch._dynamo.reset()
    layer, seen = cuda(nn.Linear(16, 16)), ([], [])
    compiled = torch.compile(lambda x: F.gelu(layer(x)).softmax(-1))

    def made(log, live):
        @live
        def note(h):
            log.append(h.sum().item())
            return compiled(h * 2)

        def fn(x):
            h = compiled(x)
            y = note(h)
            return compiled(h + y), y

        return fn

    plain, f = made(seen[0], lambda fn: fn), rt.graph(made(seen[1], sw.eager))
    kept = []
    for _ in range(14):
        x = torch.randn(8, 16, device="cuda")
        kept.append((f(x), plain(x)))
    same([found for found, _ in kept], [expected for _, expected in kept])
    assert seen[0] == seen[1]
    assert f.stats().replays >= 4
