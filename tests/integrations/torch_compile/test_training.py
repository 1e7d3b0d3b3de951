"""Compiled training: forward and backward are recordings, gradients as without."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn
functional = torch.nn.functional

pytestmark = pytest.mark.gpu


def network(width=32, p=0.0):
    torch.manual_seed(3)
    layers = nn.Linear(width, width), nn.GELU(), nn.Dropout(p), nn.Linear(width, width)
    return nn.Sequential(*layers).cuda()


def gradients(model):
    return [each.grad for each in model.parameters()]


def test_forward_and_backward(alike):
    def program(w):
        model = network()
        f = w.compile(model)
        for _ in range(10):
            y = f(w.values(8, 32))
            y.square().mean().backward()
            yield y, gradients(model)
            model.zero_grad()

    told = alike(program)
    assert told.replays >= 12
    assert told.passed_through == 0


@pytest.mark.parametrize("none", [False, True])
def test_steps_of_an_optimizer(alike, none):
    def program(w):
        model = network()
        f, optimizer = w.compile(model), torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(10):
            loss = functional.mse_loss(f(w.values(8, 32)), w.values(8, 32))
            optimizer.zero_grad(set_to_none=none)
            loss.backward()
            optimizer.step()
            yield loss, list(model.parameters())

    assert alike(program).replays >= 12


def test_gradients_accumulate(alike):
    """Micro-batches, whose gradients are added in place."""

    def program(w):
        model = network()
        f = w.compile(model)
        for _ in range(4):
            for _ in range(3):
                f(w.values(8, 32)).sum().backward()
            yield gradients(model)
            model.zero_grad()

    assert alike(program).replays >= 12


def test_two_forwards_before_two_backwards(alike):
    def program(w):
        model = network()
        f = w.compile(model)
        for _ in range(8):
            one, two = f(w.values(8, 32)), f(w.values(8, 32))
            two.square().sum().backward()
            yield gradients(model)
            one.square().sum().backward()
            yield gradients(model), one, two
            model.zero_grad()

    assert alike(program).replays >= 8


def test_backwards_that_never_come(alike):
    def program(w):
        model = network()
        f = w.compile(model)
        for i in range(12):
            y = f(w.values(8, 32))
            if i % 3 == 2:
                y.sum().backward()
                yield gradients(model)
            yield y.detach()

    assert alike(program).replays >= 6


def test_losses_that_are_kept(alike):
    def program(w):
        model = network()
        f = w.compile(lambda x: model(x).square().mean())
        losses = []
        for _ in range(10):
            loss = f(w.values(8, 32))
            loss.backward()
            losses.append(loss.detach())
        yield losses, gradients(model)

    assert alike(program).replays >= 10


def test_outputs_with_history_are_kept(alike):
    def program(w):
        model = network()
        f = w.compile(model)
        held = [f(w.values(8, 32)) for _ in range(6)]
        for each in held:
            each.sum().backward()
            yield gradients(model)
        yield [each.detach() for each in held]

    alike(program)


def test_a_graph_that_is_retained(alike):
    def program(w):
        model = network(p=0.5)
        f = w.compile(model)
        for _ in range(6):
            loss = f(w.values(8, 32)).square().sum()
            loss.backward(retain_graph=True)
            loss.backward()
            yield gradients(model)
            model.zero_grad()

    alike(program)


def test_dropout(alike):
    def program(w):
        model = network(p=0.5)
        f = w.compile(model)
        torch.manual_seed(5)
        for _ in range(8):
            y = f(w.values(8, 32))
            y.sum().backward()
            yield y, gradients(model)
            model.zero_grad()

    assert alike(program).replays >= 8


class Attention(nn.Module):
    """A head looks back at what came before."""

    def __init__(self, dtype, chance):
        super().__init__()
        torch.manual_seed(3)
        self.parts = nn.Linear(32, 96, device="cuda", dtype=dtype)
        self.last, self.chance = nn.Dropout(0.1), chance

    def forward(self, x):
        parts = self.parts(x).view(2, 16, 3, 2, 16).permute(2, 0, 3, 1, 4)
        looks = {"is_causal": True, "dropout_p": self.chance}
        return self.last(functional.scaled_dot_product_attention(*parts, **looks))


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("chance", [0.0, 0.1])
@pytest.mark.parametrize("kernel", ["math", "efficient", "flash", "cudnn"])
def test_attention(alike, kernel, chance):
    """Seeds are on the host outside of captures, where attention keeps little."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backend = SDPBackend.MATH
    if kernel != "math":
        backend = getattr(SDPBackend, f"{kernel.upper()}_ATTENTION")
    dtype = torch.bfloat16 if kernel in {"flash", "cudnn"} else torch.float32

    def program(w):
        model = Attention(dtype, chance)
        f = w.compile(model)
        torch.manual_seed(5)
        for _ in range(10):
            with sdpa_kernel(backend):
                y = f(w.values(2, 16, 32, dtype=dtype))
                y.square().sum().backward()
            yield y, gradients(model)
            model.zero_grad()

    told = alike(program)
    if kernel == "efficient" and chance:
        assert any("seeds on the host" in why for why, _ in told.skipped)
        assert not told.recordings
    else:
        assert told.replays >= 14


def test_saved_views_of_one_tensor(alike):
    """The backward takes several, and is played like another."""

    def program(w):
        model = nn.ModuleList(nn.Embedding(16, 8) for _ in range(4)).cuda()
        f = w.compile(
            lambda names: torch.cat(
                [table(names[:, i]).sin() for i, table in enumerate(model)], -1
            ).square()
        )
        for i in range(12):
            names = torch.arange(16, device="cuda").view(4, 4).roll(i)
            y = f(names)
            y.sum().backward()
            yield y, gradients(model)
            model.zero_grad()

    assert alike(program).replays >= 16


def test_arguments_that_require_grad(alike):
    def program(w):
        f = w.compile(lambda x, y: (x * y).sin().sum(0))
        for _ in range(8):
            x, y = w.values(8, 8).requires_grad_(), w.values(8, 8)
            out = f(x, y)
            out.sum().backward()
            yield out, x.grad

    assert alike(program).replays >= 8


def test_evaluation_between(alike):
    def program(w):
        model = network(p=0.1)
        f = w.compile(model)
        for _ in range(6):
            model.train()
            f(w.values(8, 32)).sum().backward()
            yield gradients(model)
            model.eval()
            with torch.no_grad():
                yield f(w.values(8, 32))

    assert alike(program).replays >= 8


def test_autocast(alike):
    def program(w):
        model = network()
        f = w.compile(model)
        scaler = torch.amp.GradScaler("cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(8):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = f(w.values(8, 32)).float().square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            yield loss, list(model.parameters())

    assert alike(program).replays >= 8


def test_checkpointed_segments(alike):
    """What they draw again in the backward is what they drew in the forward."""
    from torch.utils.checkpoint import checkpoint

    def program(w):
        model = network(p=0.3)

        @w.compile
        def f(x):
            return checkpoint(model, x, use_reentrant=False) * 2

        for _ in range(8):
            y = f(w.values(8, 32).requires_grad_())
            y.sum().backward()
            yield y, gradients(model)
            model.zero_grad()

    alike(program)


def test_dynamic_shapes(alike):
    def program(w):
        model = network()
        f = w.compile(model, dynamic=True)
        for size in (3, 5, 3, 5, 3, 5, 3, 5):
            y = f(w.values(size, 32))
            y.sum().backward()
            yield y, gradients(model)
            model.zero_grad()

    assert alike(program).replays >= 6


def test_a_shared_and_a_frozen_parameter(alike):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.one = nn.Linear(16, 16, bias=False)
            self.two = nn.Linear(16, 16, bias=False)
            self.two.weight = self.one.weight
            self.frozen = nn.Linear(16, 16).requires_grad_(requires_grad=False)

        def forward(self, x):
            return self.two(self.frozen(self.one(x)).relu())

    def program(w):
        model = Tied().cuda()
        f = w.compile(model)
        for _ in range(8):
            f(w.values(4, 16)).sum().backward()
            yield gradients(model)

    assert alike(program).replays >= 8


def test_hooks_on_outputs(alike):
    """They run where the user has set them, and on no later output."""

    def program(w):
        model, seen = network(), []
        f = w.compile(model)
        for i in range(6):
            y = f(w.values(8, 32))
            if i % 2:
                y.register_hook(lambda grad: seen.append(grad.sum()))
            y.sum().backward()
            yield list(seen), gradients(model)

    alike(program)


def test_a_convolutional_network(alike):
    def program(w):
        torch.manual_seed(3)
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(8 * 16, 10),
        ).cuda()
        f, optimizer = w.compile(model), torch.optim.SGD(model.parameters(), 0.1, 0.9)
        for _ in range(8):
            loss = functional.cross_entropy(
                f(w.values(4, 3, 8, 8)), torch.arange(4, device="cuda")
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss, model.state_dict()

    with torch.backends.cudnn.flags(enabled=True, deterministic=True):
        assert alike(program).replays >= 8


def test_a_whole_step_is_compiled(alike):
    """The optimizer's step, too."""

    def program(w):
        model = network()
        optimizer = torch.optim.Adam(
            model.parameters(), lr=torch.tensor(0.01, device="cuda"), capturable=True
        )
        f, step = w.compile(model), w.compile(optimizer.step)
        for _ in range(8):
            f(w.values(8, 32)).square().mean().backward()
            step()
            optimizer.zero_grad()
            yield list(model.parameters())

    assert alike(program).replays >= 12
