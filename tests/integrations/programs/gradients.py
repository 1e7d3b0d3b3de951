"""Gradients of gradients, of arguments and of bare tensors."""

from __future__ import annotations

import pytest

from tests.integrations.models.worlds import Trial
from tests.integrations.programs.kit import CALLS, adamw, stepped, trial

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
func = torch.func

TRIALS: list[Trial] = []


def smooth(given=2, hidden=16, made=1):
    return nn.Sequential(nn.Linear(given, hidden), nn.Tanh(), nn.Linear(hidden, made))


def of_points(f, x, order=True):
    """Return the gradient of a sum over points, which may be derived once more."""
    return torch.autograd.grad(f.sum(), x, create_graph=order)[0]


@trial(TRIALS)
def informed_by_physics(w):
    """Burgers' equation: second derivatives in the loss of a step."""
    model = w.model(smooth, train=True)
    optimizer = adamw(model.parameters())

    def step(points, start):
        x, t = (each.clone().requires_grad_() for each in points.unbind(1))
        u = model(torch.stack([x, t], 1))[:, 0]
        slope, rate = of_points(u, x), of_points(u, t)
        rest = rate + u * slope - 0.01 * of_points(slope, x)
        first = model(torch.stack([start, torch.zeros_like(start)], 1))[:, 0]
        loss = rest.square().mean() + F.mse_loss(first, -torch.sin(start))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach(), rest.detach()

    make = lambda: (w.values(8, 2), w.values(4))  # noqa: E731
    yield from stepped(w, step, make, model.state_dict)


@trial(TRIALS)
def penalty_between(w):
    """A critic's gradient at random places between what is real and what is made."""
    critic = w.model(lambda: smooth(6, 16), train=True)
    optimizer = torch.optim.Adam(critic.parameters(), betas=(0.0, 0.9), capturable=True)

    def step(real, made):
        share = torch.rand(real.shape[0], 1, device=real.device)
        between = (share * real + (1 - share) * made).requires_grad_()
        (slope,) = torch.autograd.grad(
            outputs=critic(between),
            inputs=between,
            grad_outputs=torch.ones(real.shape[0], 1, device=real.device),
            create_graph=True,
            retain_graph=True,
        )
        penalty = 10 * ((slope.norm(2, dim=1) - 1) ** 2).mean()
        loss = critic(made).mean() - critic(real).mean() + penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach(), penalty.detach()

    make = lambda: (w.values(5, 6), w.values(5, 6))  # noqa: E731
    yield from stepped(w, step, make, critic.state_dict)


@trial(TRIALS)
def learned_to_learn(w):
    """A step on each task inside of the loss, through which the outer step goes."""
    model = w.model(lambda: smooth(1, 8), train=True)
    optimizer = adamw(model.parameters())

    def adapted(weights, x, y, steps=2):
        for _ in range(steps):
            loss = F.mse_loss(func.functional_call(model, weights, (x,)), y)
            grads = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            pairs = zip(weights.items(), grads, strict=True)
            weights = {name: p - 0.1 * g for (name, p), g in pairs}
        return weights

    def step(tasks):
        optimizer.zero_grad()
        losses = []
        for task in tasks:
            weights = adapted(dict(model.named_parameters()), *task["support"])
            x, y = task["query"]
            losses.append(F.mse_loss(func.functional_call(model, weights, (x,)), y))
        loss = torch.stack(losses).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def make():
        pair = lambda: (w.values(4, 1), w.values(4, 1))  # noqa: E731
        return ([{"support": pair(), "query": pair()} for _ in range(2)],)

    yield from stepped(w, step, make, model.state_dict)


@trial(TRIALS)
def solved_by_products_with_the_hessian(w):
    """Conjugate gradients on products with a Hessian, by two passes back."""
    model = w.model(lambda: smooth(3, 6))
    parameters = list(model.parameters())

    def product(x, y, flat):
        loss = F.mse_loss(model(x), y)
        grads = torch.autograd.grad(loss, parameters, create_graph=True)
        dot = torch.cat([g.reshape(-1) for g in grads]) @ flat
        twice = torch.autograd.grad(dot, parameters)
        return torch.cat([g.reshape(-1) for g in twice]) + 0.5 * flat

    def step(x, y):
        loss = F.mse_loss(model(x), y)
        r = -torch.cat([g.view(-1) for g in torch.autograd.grad(loss, parameters)])
        p, found, size = r, torch.zeros_like(r), r @ r
        for _ in range(3):
            q = product(x, y, p)
            share = size / (p @ q)
            found, r = found + share * p, r - share * q
            p, size = r + (r @ r) / size * p, r @ r
        sizes = [p.numel() for p in parameters]
        with torch.no_grad():
            for p, move in zip(parameters, found.split(sizes), strict=True):
                p.add_(move.view_as(p))
        return loss.detach(), size

    make = lambda: (w.values(6, 3), w.values(6, 1))  # noqa: E731
    yield from stepped(w, step, make, lambda: parameters)


@trial(TRIALS)
def pictures_that_mislead(w):
    """Projected ascent on an argument's copy, the model's own gradients left alone."""
    model = w.model(lambda: smooth(8, 16, 3))

    def fn(x, y, reach=0.1):
        move = torch.empty_like(x).uniform_(-reach, reach)
        for _ in range(3):
            move.requires_grad_()
            loss = F.cross_entropy(model(x + move), y)
            (grad,) = torch.autograd.grad(loss, move)
            move = (move.detach() + 0.05 * grad.sign()).clamp(-reach, reach)
        return x + move, loss.detach()

    f, kept = w.graph(fn), []
    for _ in range(CALLS):
        kept.append(f(w.values(4, 8), w.ids(4) % 3))
        yield kept, [p.grad for p in model.parameters()]


# That the device without memory is not asked for: captures tell.
@trial(TRIALS, skips="a gradient on an argument", reads=True)
def gradient_left_on_an_argument(w):
    """Whoever calls reads it from what was passed."""
    model = w.model(lambda: smooth(8, 16, 3))

    def saliency(x):
        model(x).amax(1).sum().backward()
        return x.detach() * 2

    f = w.graph(saliency)
    for _ in range(CALLS):
        x = w.values(4, 8).requires_grad_()
        yield f(x), x.grad
        model.zero_grad()


@trial(TRIALS)
def loss_that_requires_grad(w):
    """The caller goes the way back, and steps the optimizer."""
    model = w.model(lambda: smooth(8, 16, 3), train=True)
    optimizer = adamw(model.parameters())
    f = w.graph(lambda x, y: F.cross_entropy(model(x), y))
    for _ in range(CALLS):
        loss = f(w.values(4, 8), w.ids(4) % 3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shown = loss.detach()
        # What it keeps of the way back would be kept when the next call is captured.
        del loss
        yield shown, model.state_dict()


@trial(TRIALS)
def checkpoints_one_after_another(w):
    """Blocks are computed again on the way back, their dropout, too."""

    def build():
        blocks = [nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.GELU())]
        return nn.Sequential(*blocks, *[nn.Linear(8, 8) for _ in range(3)])

    model = w.model(build, train=True)
    optimizer = adamw(model.parameters())

    def step(x):
        y = torch.utils.checkpoint.checkpoint_sequential(
            model, 2, x, use_reentrant=False, preserve_rng_state=False
        )
        loss = (y - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    # What is drawn is drawn anew on the way back: eager calls do that as well.
    yield from stepped(w, step, lambda: (w.values(4, 8),), model.state_dict)


class Rounded(torch.autograd.Function):
    """Rounded to steps on the way there, passed on the way back where in range."""

    @staticmethod
    def forward(ctx, x, step, bits):
        most = 2 ** (bits - 1) - 1
        inside = (x / step).abs() <= most
        ctx.save_for_backward(inside, x, step)
        return (x / step).round().clamp(-most, most) * step

    @staticmethod
    def backward(ctx, grad):
        inside, x, step = ctx.saved_tensors
        off = torch.where(inside, (x / step).round() - x / step, x.sign())
        return grad * inside, (grad * off).sum(), None


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.strength * grad, None


@trial(TRIALS)
def aware_of_rounding(w):
    """Weights of four bits with a learned step."""
    model = w.model(lambda: smooth(8, 8, 4), train=True)
    steps = nn.ParameterList([torch.full((), 0.1, device=w.place) for _ in range(2)])
    optimizer = adamw([*model.parameters(), *steps])

    def step(x, y):
        first, act, last = model
        z = act(F.linear(x, Rounded.apply(first.weight, steps[0], 4), first.bias))
        z = F.linear(z, Rounded.apply(last.weight, steps[1], 4), last.bias)
        loss = F.cross_entropy(z, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    make = lambda: (w.values(4, 8), w.ids(4) % 4)  # noqa: E731
    writes = lambda: (model.state_dict(), steps.state_dict())  # noqa: E731
    yield from stepped(w, step, make, writes)


@trial(TRIALS)
def one_domain_for_two(w):
    """The gradient of a second head is reversed; its strength is one of two."""
    body, heads = w.model(lambda: smooth(8, 8, 8)), w.model(lambda: smooth(8, 8, 4))
    optimizer = adamw([*body.parameters(), *heads.parameters()])

    def step(x, y, strength):
        z = body(x)
        mine, theirs = heads(z), heads(Reversed.apply(z, strength))
        loss = F.cross_entropy(mine, y)
        loss = loss + F.binary_cross_entropy_with_logits(theirs[:, 0], y.float() / 4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    f = w.graph(step, reads=body.state_dict)
    for i in range(CALLS):
        loss = f(w.values(4, 8), w.ids(4) % 4, 0.5 if i < 4 else 1.0)
        yield loss, body.state_dict()


@trial(TRIALS)
def forces_of_an_energy(w):
    """Molecular dynamics: forces are gradients of places, which move in place."""
    places, speeds = w.values(6, 3), 0.1 * w.values(6, 3)

    def forces(at):
        at = at.detach().requires_grad_()
        apart = (at[:, None] - at[None]).square().sum(-1) + torch.eye(6, device=w.place)
        near = 1 / (apart + 0.3) ** 3
        energy = (4 * (near**2 - near)).triu(1).sum()
        return -torch.autograd.grad(energy, at)[0], energy.detach()

    def step():
        pull, _ = forces(places)
        speeds.add_(pull, alpha=0.005)
        places.add_(speeds, alpha=0.01)
        pull, energy = forces(places)
        speeds.add_(pull, alpha=0.005)
        return energy, speeds.square().sum() / 2

    yield from stepped(w, step, tuple, lambda: (places, speeds), last=None)


class Adjoint(torch.autograd.Function):
    """Euler's steps on the way there; states are found again on the way back."""

    @staticmethod
    def forward(ctx, x, steps, module, *weights):
        with torch.no_grad():
            for _ in range(steps):
                x = x + module(x) / steps
        ctx.save_for_backward(x, *weights)
        ctx.steps, ctx.module = steps, module
        return x

    @staticmethod
    def backward(ctx, grad):
        x, *weights = ctx.saved_tensors
        total = [torch.zeros_like(p) for p in weights]
        for _ in range(ctx.steps):
            with torch.enable_grad():
                at = (x - ctx.module(x) / ctx.steps).detach().requires_grad_()
                slope = ctx.module(at) / ctx.steps
                found = torch.autograd.grad(slope, [at, *weights], grad)
            grad, x = grad + found[0], at.detach()
            total = [a + b for a, b in zip(total, found[1:], strict=True)]
        return grad, None, None, *total


@trial(TRIALS)
def flows_with_an_adjoint(w):
    model = w.model(lambda: smooth(3, 8, 3), train=True)
    optimizer = adamw(model.parameters())

    def step(x, y):
        loss = F.mse_loss(Adjoint.apply(x, 4, model, *model.parameters()), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    make = lambda: (w.values(4, 3), w.values(4, 3))  # noqa: E731
    yield from stepped(w, step, make, model.state_dict)


@trial(TRIALS, skips=r"hooks\.registered")
def balance_that_is_derived(w):
    """A fixed point, and a hook of a tensor that solves for its gradient."""
    model = w.model(lambda: nn.Linear(4, 4), train=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        with torch.no_grad():
            z = torch.zeros_like(x)
            for _ in range(6):
                z = torch.tanh(0.5 * model(z) + x)
        z = torch.tanh(0.5 * model(z) + x)
        at = z.detach().requires_grad_()
        again = torch.tanh(0.5 * model(at) + x)

        def solve(grad):
            found = grad
            for _ in range(6):
                (back,) = torch.autograd.grad(again, at, found, retain_graph=True)
                found = back + grad
            return found

        z.register_hook(solve)
        loss = F.mse_loss(z, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach(), at.detach()

    make = lambda: (w.values(4, 4), w.values(4, 4))  # noqa: E731
    yield from stepped(w, step, make, model.state_dict)
