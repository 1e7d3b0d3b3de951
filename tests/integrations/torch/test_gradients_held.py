"""Gradients of tensors that are no module's: in closures, lists, dicts and objects."""

from __future__ import annotations

import collections
import types

import pytest

torch = pytest.importorskip("torch")
F, optim = torch.nn.functional, torch.optim

pytestmark = pytest.mark.gpu


def _weights(w):
    return [w.values(8, 4).requires_grad_(), w.values(4).requires_grad_()]


def _moved(weights):
    """Step by gradients, and take them away."""
    with torch.no_grad():
        for each in weights:
            each.sub_(0.1 * each.grad)
            each.grad = None


def _zeroed(weights):
    """Step by gradients, and have later ones added to zeros."""
    with torch.no_grad():
        for each in weights:
            each.sub_(each.grad, alpha=0.1)
            each.grad.zero_()


def _summed(weights):
    """Leave gradients, for later ones to be added to."""


STEPS = [_moved, _zeroed, _summed]


def _in_cells(w, step):
    weight, bias = weights = _weights(w)

    def fn(x, y):
        loss = F.mse_loss(x @ weight + bias, y)
        loss.backward()
        step([weight, bias])
        return loss.detach()

    return fn, weights


def _in_a_list(w, step):
    weights = _weights(w)

    def fn(x, y):
        loss = F.mse_loss(x @ weights[0] + weights[1], y)
        loss.backward()
        step(weights)
        return loss.detach()

    return fn, weights


def _in_a_dict(w, step):
    held = dict(zip(("weight", "bias"), _weights(w), strict=True))

    def fn(x, y):
        loss = F.mse_loss(x @ held["weight"] + held["bias"], y)
        loss.backward()
        step(held.values())
        return loss.detach()

    return fn, [*held.values()]


def _in_an_object(w, step):
    weight, bias = weights = _weights(w)
    net = types.SimpleNamespace(weight=weight, bias=bias, last=None)

    def fn(x, y):
        loss = F.mse_loss(x @ net.weight + net.bias, y)
        loss.backward()
        net.last = loss.detach()
        step([net.weight, net.bias])
        return net.last * 2

    return fn, weights


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("make", [_in_cells, _in_a_list, _in_a_dict, _in_an_object])
def test_they_are_left_where_the_plain_function_leaves_them(alike, make, step):
    """Bound, written in place or taken away, and kept by whoever reads them."""

    def program(w):
        fn, weights = make(w, step)
        f, kept = w.graph(fn), []
        for i in range(14):
            kept.append(f(w.values(16, 8), w.values(16, 4)))
            if i == 9:
                weights[0].grad = None
            if i == 11:
                weights[1].grad = torch.ones_like(weights[1])
            kept.append(weights[1].grad)
            yield kept, [each.detach() for each in weights], [x.grad for x in weights]

    # One that is set in between is another one, and is recorded for.
    assert alike(program).count("replays") >= 3


def test_an_optimizer_outside(alike):
    """It steps what it was given, by gradients that replays left."""

    def program(w):
        fn, weights = _in_cells(w, _summed)
        f, optimizer = w.graph(fn), optim.SGD(weights, lr=0.1, momentum=0.9)
        for i in range(12):
            optimizer.zero_grad(set_to_none=i % 6 < 4)
            loss = f(w.values(16, 8), w.values(16, 4))
            optimizer.step()
            yield loss, [each.detach() for each in weights], [x.grad for x in weights]

    assert alike(program).count("replays") >= 5


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_one_that_is_replaced(alike):
    """By another leaf, by what needs no gradient, and by what is no leaf."""

    def program(w):
        net = types.SimpleNamespace(weight=w.values(8, 4).requires_grad_())

        def fn(x):
            loss = (x @ net.weight).square().sum()
            if loss.requires_grad:
                loss.backward()
            return loss.detach()

        f = w.graph(fn)
        for i in range(16):
            if i in {5, 10}:
                net.weight = w.values(8, 4).requires_grad_(i == 5)
            if i > 12:
                leaf = w.values(8, 4).requires_grad_()
                net.weight = leaf * 2
            shown = net.weight.grad if net.weight.is_leaf else leaf.grad
            yield f(w.values(3, 8)), net.weight.detach(), shown
            if net.weight.is_leaf:
                net.weight.grad = None

    assert alike(program).count("replays") >= 3


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("taken", ["never", "by zeros", "outside", "inside"])
def test_those_of_arguments(alike, taken):
    """No slot leads to them: such calls run eagerly, and leave what they leave."""

    def program(w):
        model = torch.nn.Linear(8, 4).cuda()
        given = [w.values(6, 8).requires_grad_() for _ in range(2)]

        def fn(x):
            u = model(x).tanh()
            (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
            if taken == "inside":
                x.grad = None
            loss = slope.square().mean() + u.mean()
            loss.backward()
            return loss.detach()

        f, kept = w.graph(fn), []
        for i in range(18):
            x = given[i % 6 > 3]
            model.zero_grad()
            if taken == "by zeros" and x.grad is not None:
                x.grad.zero_()
            if taken == "outside" and i % 6 == 5:
                x.grad = None
            kept.append(f(x))
            yield kept, [each.grad for each in given]

    alike(program)


def _rotated(w):
    leaves = collections.deque(w.values(4).requires_grad_() for _ in range(3))

    def fn(x):
        loss = (leaves[0] * x).exp().sum()
        loss.backward()
        leaves.rotate(1)
        return loss.detach()

    return fn, lambda: leaves


def _swapped(w):
    pair = types.SimpleNamespace(a=w.values(4).requires_grad_(), b=None)
    pair.b = w.values(4).requires_grad_()

    def fn(x):
        (pair.a * x).sum().backward()
        pair.a, pair.b = pair.b, pair.a
        return x + 1

    return fn, lambda: (pair.a, pair.b)


def _made_anew(w):
    net, base, ever = types.SimpleNamespace(w=None), w.values(4), []

    def fn(x):
        net.w = base.clone().requires_grad_()
        loss = (net.w * x).sin().sum()
        loss.backward()
        return loss.detach()

    def shown():
        ever.append(net.w)
        return ever

    return fn, shown


def _returned_with_its_gradient(w):
    given, base = [], w.values(4)

    def fn(x):
        leaf = base.clone().requires_grad_()
        (leaf * x).sin().sum().backward()
        given[:] = [leaf]
        return leaf, leaf.grad

    return fn, lambda: given


def _taken_by_another(w):
    leaf, net = w.values(4).requires_grad_(), types.SimpleNamespace(v=w.values(4))

    def fn(x):
        if leaf.grad is None:
            leaf.grad = x * 2
            return x + 1
        net.v = net.v * 0.5 + leaf.grad
        leaf.grad = None
        return net.v * x

    return fn, lambda: (leaf, net.v)


def _stepped_by_hooks(w):
    leaves = [w.values(4).requires_grad_() for _ in range(2)]
    told = types.SimpleNamespace(steps=0)

    def hook(leaf):
        told.steps += 1
        with torch.no_grad():
            leaf.sub_(0.1 * leaf.grad)
        leaf.grad = None

    handles = [each.register_post_accumulate_grad_hook(hook) for each in leaves]

    def fn(x):
        loss = ((leaves[0] * x).tanh() * leaves[1]).sum()
        loss.backward()
        return loss.detach()

    def shown():
        if told.steps == 14:
            handles[1].remove()
        return *leaves, told.steps

    return fn, shown


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize(
    "make",
    [
        *(_rotated, _swapped, _made_anew, _returned_with_its_gradient),
        *(_taken_by_another, _stepped_by_hooks),
    ],
)
def test_leaves_that_move_and_what_hooks_do(alike, make):
    """Replayed or not: what each has is what it has without a graph."""

    def program(w):
        fn, shown = make(w)
        f, kept = w.graph(fn), []
        for _ in range(16):
            kept.append(f(w.values(4)))
            found = shown()
            leaves = [x for x in [*found] if isinstance(x, torch.Tensor)]
            told = [(x.detach().clone(), x.grad) for x in leaves if x.is_leaf]
            yield [torch.utils._pytree.tree_map(_detached, kept)], told
            yield [each for each in found if not isinstance(each, torch.Tensor)]

    alike(program)


def _detached(value):
    return value.detach()
