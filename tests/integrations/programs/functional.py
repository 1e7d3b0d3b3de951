"""Functions of functions: gradients, Jacobians and Hessians, of many at once."""

from __future__ import annotations

import pytest

from tests.integrations.models.worlds import Trial
from tests.integrations.programs.gradients import smooth
from tests.integrations.programs.kit import called, stepped, trial

torch = pytest.importorskip("torch")
F, func = torch.nn.functional, torch.func

TRIALS: list[Trial] = []


@trial(TRIALS)
def models_side_by_side(w):
    """An ensemble by vmap: gradients of all, and one step over stacked weights."""
    models = [w.model(lambda: smooth(4, 8, 3)) for _ in range(3)]
    weights, buffers = func.stack_module_state(models)
    weights = {k: (v + 0.1 * w.values(*v.shape)).detach() for k, v in weights.items()}
    base = models[0]

    def loss(weights, buffers, x, y):
        logits = func.functional_call(base, (weights, buffers), (x,))
        return F.cross_entropy(logits, y), logits

    def step(x, y):
        both = func.grad_and_value(loss, has_aux=True)
        grads, (losses, logits) = func.vmap(both, (0, 0, None, None))(
            weights, buffers, x, y
        )
        for name, grad in grads.items():
            weights[name].sub_(grad, alpha=0.1)
        return losses, logits.softmax(-1).mean(0)

    make = lambda: (w.values(5, 4), w.ids(5) % 3)  # noqa: E731
    yield from stepped(w, step, make, lambda: weights)


@trial(TRIALS)
def gradients_of_each_clipped(w):
    """Private descent: each sample's gradient clipped, noise on their sum."""
    model = w.model(lambda: smooth(4, 6, 3))
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss(weights, x, y):
        logits = func.functional_call(model, weights, (x[None],))
        return F.cross_entropy(logits, y[None])

    def step(x, y):
        grads = func.vmap(func.grad(loss), (None, 0, 0))(weights, x, y)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(
            dim=0
        )
        share = (1.0 / (norms + 1e-6)).clamp(max=1.0)
        for name, g in grads.items():
            total = torch.einsum("n...,n->...", g, share)
            noise = 0.1 * torch.randn_like(total)
            weights[name].sub_(0.1 * (total + noise) / x.shape[0])
        return norms

    make = lambda: (w.values(5, 4), w.ids(5) % 3)  # noqa: E731
    yield from stepped(w, step, make, lambda: weights)


@trial(TRIALS)
def kernels_of_tangents(w):
    """Jacobians of all outputs for two batches, contracted."""
    model = w.model(lambda: smooth(3, 5, 2))
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def outputs(weights, x):
        return func.functional_call(model, weights, (x[None],))[0]

    def fn(one, two):
        jacobian = func.vmap(func.jacrev(outputs), (None, 0))
        left, right = jacobian(weights, one), jacobian(weights, two)
        return sum(
            torch.einsum("nif,mjf->nmij", left[k].flatten(2), right[k].flatten(2))
            for k in weights
        )

    yield from called(w, fn, lambda: (w.values(3, 3), w.values(2, 3)), last=None)


@trial(TRIALS)
def newton_by_a_hessian(w):
    """The whole Hessian of a small problem, forward over back."""

    def energy(x):
        return ((x[1:] - x[:-1] ** 2) ** 2).sum() * 5 + ((1 - x[:-1]) ** 2).sum()

    def fn(x):
        for _ in range(2):
            hessian = func.hessian(energy)(x)
            hessian = hessian + 3 * torch.eye(len(x), device=x.device)
            x = x - torch.linalg.solve_ex(hessian, func.grad(energy)(x))[0]
        return x, energy(x)

    yield from called(w, fn, lambda: (w.values(4),))
