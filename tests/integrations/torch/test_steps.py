"""Steps of optimizers as eager regions, on the host: what one does later, and alone."""

from __future__ import annotations

import copy

import pytest

from sapwood.tree.watch.session import Session, entered

torch = pytest.importorskip("torch")
stepping = pytest.importorskip("sapwood.integrations.torch.stepping")
optim = torch.optim


@pytest.fixture(autouse=True)
def noticed():
    stepping.notice_steps()


MADE = {
    "Adam": lambda p: optim.Adam(p, lr=1e-2),
    "AdamW, one by one": lambda p: optim.AdamW(p, lr=1e-2, foreach=False),
    "AdamW, fused": lambda p: optim.AdamW(p, lr=1e-2, fused=True),
    "Adagrad": lambda p: optim.Adagrad(p, lr=1e-2),
    "Adafactor": lambda p: optim.Adafactor(p, lr=1e-2),
    "RMSprop": lambda p: optim.RMSprop(p, lr=1e-2, momentum=0.9),
    "two groups": lambda p: optim.AdamW(
        [{"params": p[:1], "lr": 0.1}, {"params": p[1:], "weight_decay": 0.3}]
    ),
}


def _weights(seed=0):
    torch.manual_seed(seed)
    return [torch.randn(4, 3, requires_grad=True), torch.randn(3, requires_grad=True)]


def _grade(weights, seed):
    torch.manual_seed(seed)
    for each in weights:
        each.grad = torch.randn_like(each)


def _told(optimizer):
    weights = stepping.parameters_of(optimizer)
    state = [dict(optimizer.state[each]) for each in weights]
    return repr([*map(torch.Tensor.tolist, weights)]), repr(state)


def _stepped(optimizer, own=None, before=bool):
    """Step where a function is watched; return the region, and what it was passed."""
    met = []

    def between(part, args, kwargs):
        met.append((part, args))
        assert not kwargs
        return part(*args)

    stepping.looked_at(optimizer)
    session = Session(tolerant=True, splits=True)
    session.between = between
    with entered(session):
        before()
        optimizer.step(*([] if own is None else [own]))
    return met


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_a_region_does_what_the_step_does(make):
    """When it is met, and when it is called again: with gradients that it is passed."""
    weights, others = _weights(), _weights()
    mine, plain = make(weights), make(others)
    for seed in range(3):
        _grade(weights, seed)
        _grade(others, seed)
        ((part, _),) = _stepped(mine)
        plain.step()
        assert _told(mine) == _told(plain)
        assert part.writes
        assert not part.sees
    held = part.held()
    for seed in range(3, 6):
        _grade(weights, seed)
        gradients = [each.grad for each in weights]
        _grade(others, seed)
        for each in weights:
            each.grad = None
        held()(*weights, *gradients, None, None)
        plain.step()
        assert _told(mine) == _told(plain)
        assert [each.grad for each in weights] == [None, None]
    del part, mine
    assert held() is None


def test_what_a_scaler_sets_is_passed():
    """It is there while the function runs, and no more in replays."""
    weights, others = _weights(), _weights()
    mine, plain = (optim.Adam(each, lr=0.1, fused=True) for each in (weights, others))
    for seed in range(4):
        _grade(weights, seed)
        _grade(others, seed)
        scaling = torch.tensor(4.0 * (seed + 1)), torch.tensor(float(seed == 2))
        for each in (mine, plain) if seed < 2 else (plain,):
            each.grad_scale, each.found_inf = scaling
        if seed < 2:
            ((part, passed),) = _stepped(mine)
            assert passed[-2:] == scaling
            del mine.grad_scale, mine.found_inf
        else:
            gradients = [each.grad for each in weights]
            part(*weights, *gradients, *scaling)
        plain.step()
        assert _told(mine) == _told(plain)
        assert not hasattr(mine, "grad_scale")
        assert not hasattr(mine, "found_inf")


def test_what_it_raises_leaves_gradients_bound():
    weights = _weights()
    mine = optim.AdamW(weights, lr=0.1)
    mine.param_groups[0]["weight_decay"] = "much"
    _grade(weights, 1)
    gradients = [each.grad for each in weights]
    groups = [each["params"] for each in mine.param_groups]
    with pytest.raises(TypeError):
        _stepped(mine)
    (group,) = mine.param_groups
    assert group["params"] is groups[0]
    assert [each.grad for each in weights] == gradients


@pytest.mark.parametrize(
    "make",
    [
        lambda p: optim.SGD(p, lr=0.1),
        lambda p: optim.LBFGS(p),
        lambda p: optim.Adam(p, differentiable=True),
        lambda p: _hooked(optim.Adam(p)),
        lambda p: _Own(p),
    ],
    ids=["SGD", "LBFGS", "differentiable", "hooked", "its own"],
)
def test_steps_that_are_no_regions(make):
    weights = _weights()
    mine = make(weights)
    _grade(weights, 1)
    closure = (lambda: weights[0].sum()) if isinstance(mine, optim.LBFGS) else None
    if not isinstance(mine, optim.Adam) or mine.defaults["differentiable"] is False:
        assert _stepped(mine, closure) == []
    assert not stepping.steps_live(mine)


def _hooked(optimizer):
    optimizer.register_step_pre_hook(lambda *_: None)
    return optimizer


class _Own(optim.Adam):
    def step(self, closure=None):
        for each in self.param_groups[0]["params"]:
            each.data.add_(1)
        return closure


def test_a_closure_makes_it_none():
    weights = _weights()
    mine = optim.Adam(weights)
    _grade(weights, 1)
    assert _stepped(mine, lambda: weights[0].sum()) == []


def test_what_the_function_sets_is_not_left_to_the_step():
    """It would be taken back by the time of a replay."""
    weights = _weights()
    mine = optim.Adam(weights)
    _grade(weights, 1)
    assert _stepped(mine, before=lambda: mine.param_groups[0].update(lr=0.5)) == []
    assert len(_stepped(mine)) == 1


def test_nobody_watches():
    """Elsewhere a step is what it was, and copies of optimizers are, too."""
    weights, others = _weights(), _weights()
    mine, plain = optim.AdamW(weights), optim.AdamW(others)
    for seed in range(3):
        _grade(weights, seed)
        _grade(others, seed)
        mine.step()
        _stepped(plain)
    assert _told(mine) == _told(plain)
    assert copy.deepcopy(mine.state_dict()).keys() == plain.state_dict().keys()


@pytest.mark.filterwarnings("ignore")
def test_compiled_steps_are_one_graph():
    """Compilers are not led into what is noticed."""
    weights, graphs = _weights(), []
    mine = optim.AdamW(weights, lr=1e-2)
    _grade(weights, 1)

    def keep(graph, _):
        graphs.append(graph)
        return graph.forward

    step = torch.compile(mine.step, backend=keep)
    step()
    step()
    assert len(graphs) == 1
