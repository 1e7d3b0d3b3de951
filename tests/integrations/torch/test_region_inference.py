"""Models that are asked, with eager regions in them, as people write them."""

from __future__ import annotations

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


@torch.no_grad()
def test_experts_are_routed_on_the_host(alike, cuda, replayed):
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
def test_a_decoder_samples_live(alike, cuda, replayed):
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
def test_activations_are_kept_for_ever(alike, cuda, replayed):
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
def test_a_module_with_eager_regions_inside(alike, cuda, replayed):
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
def test_dropout_around_an_eager_region(alike, network, replayed):
    """Masks before, in and behind an eager region follow each other as eagerly."""

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


def test_an_eager_region_seeds(alike, replayed):
    """What is drawn behind an eager region goes on from where it left the generator."""

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


@pytest.mark.parametrize("settles", [True, False])
def test_an_eager_region_switches_the_mode_of_a_module(rt, settles):
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

    f = rt.graph(fn, fullgraph=True)
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
@torch.no_grad()
def test_a_compiled_function_beside_an_eager_region(rt, same, cuda):
    """One that torch has compiled, before, in and behind an eager region."""
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
