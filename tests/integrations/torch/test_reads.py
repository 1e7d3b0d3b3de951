"""What functions read on the host decides what follows; each way has its recording."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu
CALLS = 18


def _loop(x):
    """Halve until nothing is large."""
    n = 0
    while (x > 1).any():
        x, n = x / 2, n + 1
    return x, n


def _raises(x):
    """Raise by a value, and catch it."""
    try:
        [None, None][int(x[0] > 1) * 2]
        return x + 1, None
    except IndexError as error:
        return x - 1, error.args


def _in_modes(x):
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        y = torch.outer(x, x) @ x
        return y * 2 if y.sum() > 20 else y


READS = {
    "if": lambda x: x + 1 if x.sum() > 4 else x * 2,
    "both": lambda x: (x > 1).sum() > 1 and x.sum() < 9,
    "item": lambda x: (x * x[1].item(), x[1].item()),
    "float": lambda x: x * float(x[0]),
    "complex": lambda x: x * complex(x[0]).real,
    "index": lambda x: x[: int(x.argmax()) + 1] * 2,
    "tolist": lambda x: (x * len(x.tolist()), x.tolist()),
    "numpy": lambda x: x + float(x.cpu().numpy()[1]),
    "back": lambda x: x + x.cpu().cumsum(0).to(x.device),
    "to another dtype": lambda x: x.to("cpu", torch.float64).sum().item(),
    "equal": lambda x: -x if torch.equal(x, x.abs()) else x,
    "allclose": lambda x: x * torch.allclose(x, x * 0 + 1),
    "nonzero": lambda x: x[(x - 1).nonzero()[:, 0]] * 3,
    "mask": lambda x: x[x > -1] * 2,
    "masked_select": lambda x: x.masked_select(x > 1).sum(),
    "unique": lambda x: torch.unique((x / 2).round(), return_inverse=True),
    "repeat_interleave": lambda x: x.repeat_interleave((x + 2).int()),
    "parts": lambda x: [each + 1 for each in x.split(1 + int(x[0] > 1))],
    "max": lambda x: max(x[0], x[1]) + x,
    "range": lambda x: sum((x for _ in range(int(x.argmax()))), x),
    "loop": _loop,
    "raises": _raises,
    "in modes": _in_modes,
}


@pytest.mark.parametrize("read", READS)
def test_what_is_read_decides(alike, read):
    """Each call goes its own way; all three are replayed in the end."""
    fn = READS[read]

    def program(w):
        f, kept = w.graph(fn), []
        for i in range(CALLS):
            kept.append(f(torch.tensor([3.0, 1.0, 2.0], device="cuda") - i % 3))
            yield kept[-3:]
        yield kept

    assert alike(program).count("replays") >= CALLS - 10


def _put(change):
    def fn(x):
        y = x.clone()
        change(y)
        return y

    return fn


def _trained(x):
    w = torch.ones_like(x, requires_grad=True)
    y = w * x
    y[y > 1] = y[y < 1].sum()
    y.masked_fill_(y > 2, y.detach()[0] * 1)
    (y.square().sum() + x.sum()).backward()
    return w.grad


def _mined(x):
    """As contrastive losses do: a mask is asked once, and gone back by."""
    w = (x + 1).requires_grad_()
    apart = ~torch.eye(3, dtype=torch.bool, device=x.device)
    near = torch.outer(w, w)[apart].view(3, 2)
    far = near[near.detach() > 6]
    (near.sin().sum() + far.square().sum()).backward()
    return w.grad


PUTS = {
    "a number": _put(lambda y: y.__setitem__(y > 1, -torch.inf)),
    "a value": _put(lambda y: y.__setitem__(y > 1, y[0] * 1)),
    "one in a list": _put(lambda y: y.__setitem__(y > 1, y[:1] * 1)),
    "of columns": _put(lambda y: y.view(1, 3, 1).__setitem__((slice(None), y > 1), 5)),
    "of rows": _put(lambda y: y.view(3, 1).__setitem__(y > 1, y[0] * 1)),
    "anew": lambda x: x.index_put((x > 1,), x[2]),
    "filled": lambda x: x.masked_fill(x > 1, x.min()),
    "filled and broadcast": lambda x: x.masked_fill((x > 1)[:, None], x.min()),
    "filled with one of its own": _put(lambda y: y.masked_fill_(y > 1, y[1])),
    "filled in place": _put(lambda y: y.masked_fill_(y > 1, y[1] * 1)),
    "counted": _put(lambda y: y[1:].add_((y > 1).sum()).__setitem__(y[1:] > 4, 0)),
}


@pytest.mark.parametrize("put", PUTS)
def test_one_value_goes_where_a_mask_says(alike, put):
    """How many elements there are, nobody need know: there is one recording."""

    def program(w):
        f = w.graph(PUTS[put])
        for i in range(CALLS):
            yield f(torch.tensor([3.0, 1.0, 2.0], device="cuda") - i % 3)

    world = alike(program)
    assert world.count("recordings") == 1
    assert world.count("replays") == CALLS - 2


SEVERAL = {
    "as many": _put(lambda y: y.__setitem__(y > 1, y[y > 1] * 3)),
    "in place": _put(lambda y: y[y > 1].add_(y.max())),
    "at two": _put(lambda y: y.view(3, 1).__setitem__((y > 1, y[:1].long() * 0), 2)),
    "added": _put(lambda y: y.index_put_((y > 1,), y[0] * 1, accumulate=True)),
    "where none is": _put(lambda y: y.__setitem__(y > 9, y[y > 9])),
    "in training": _trained,
    "twice in training": _mined,
}


@pytest.mark.parametrize("put", SEVERAL)
def test_what_is_read_and_written(alike, put):
    """Where a mask decides what is written, each count of elements has its way."""

    def program(w):
        f = w.graph(SEVERAL[put])
        for i in range(CALLS):
            yield f(torch.tensor([3.0, 1.0, 2.0], device="cuda") - i % 3)

    assert alike(program).count("replays") >= CALLS - 10


@pytest.mark.parametrize("value", [[1.0, 2.0], [1.0, 2.0, 3.0, 4.0]])
def test_too_few_values_raise_as_ever(rt, value):
    """Two in turn: the function is as eager ones, also when it goes on."""
    x = torch.tensor([3.0, 1.0, 2.0], device="cuda")

    def fn(x):
        y = x.clone()
        y[y > 0] = torch.zeros(len(value), device="cuda")
        return y

    f = rt.graph(fn)
    for _ in range(4):
        with pytest.raises(RuntimeError, match="shape mismatch"):
            fn(x)
        with pytest.raises(RuntimeError, match="shape mismatch"):
            f(x)


def test_a_text_is_for_somebody(alike, capsys):
    """A function that prints a tensor runs eagerly, and prints each time."""

    def shown(x):
        print(x, f"{x.sum()}")  # noqa: T201 - what is tested
        return x * 2

    def program(w):
        f = w.graph(shown)
        for i in range(4):
            yield f(torch.full((2,), float(i % 2), device="cuda"))

    with pytest.warns(Warning, match="runs eagerly: a value is needed on the host"):
        alike(program)
    assert len(capsys.readouterr().out.splitlines()) == 8


def test_what_is_always_new_runs_eagerly(alike):
    """It is said once, with the line."""

    def program(w):
        f = w.graph(lambda x: x * x.sum().item())
        for i in range(60):
            yield f(torch.full((2,), float(i), device="cuda"))

    with pytest.warns(Warning, match="x.item()") as told:
        alike(program)
    assert len(told) == 1


def test_steps_that_look_at_their_loss(alike):
    """What is read between forward and backward decides how it goes on."""

    def program(w):
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

        @w.graph
        def step(x):
            optimizer.zero_grad(set_to_none=True)
            loss = (model(x) - x).square().mean()
            if loss > 2:
                loss = loss.log()
            loss.backward()
            optimizer.step()
            return loss.detach()

        for i in range(CALLS):
            yield step(w.values(8, 4) * (1 + i % 3)), [*model.parameters()]

    assert alike(program).count("replays") >= CALLS // 3


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("reads", [False, True])
def test_what_is_drawn_on_the_host_is_drawn_once(alike, reads):
    """Also where an optimizer raises in captures alone, and the call is begun again."""

    def program(w):
        torch.manual_seed(3)
        model, losses = torch.nn.Linear(4, 4).cuda(), []
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

        @w.graph
        def step(x):
            rows = torch.randperm(8)[:4].tolist()
            loss = model(x[rows]).square().mean()
            if reads and loss > 100:
                return None
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            return loss.detach()

        for _ in range(8):
            yield step(w.values(8, 4)), [*model.parameters()], losses[-1:]
            yield len(losses), torch.rand(1)

    alike(program)


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_steps_that_are_scaled(alike):
    """A scaler that looks for overflows finds those that it finds eagerly."""

    def program(w):
        model = torch.nn.Linear(4, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)

        @w.graph
        def step(x):
            optimizer.zero_grad(set_to_none=False)
            with torch.autocast("cuda", torch.float16):
                loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            return loss.detach()

        for i in range(CALLS):
            x = w.values(8, 4) * (1e30 if i % 5 == 4 else 1)
            yield step(x), [*model.parameters()]

    assert alike(program).count("replays") >= CALLS // 3


def test_what_inference_mode_makes_is_known_by_it(rt):
    """In replays, kept or not, and where a call goes a way for the first time."""
    torch.manual_seed(10)
    weight = torch.randn(12, 12, device="cuda")

    @torch.inference_mode()
    def generate(start, noise):
        tokens, ends = start[:, None], torch.zeros_like(start, dtype=torch.bool)
        for step in noise:
            following = (weight[tokens[:, -1]] + step).argmax(-1)
            following = torch.where(ends, 3, following)
            tokens = torch.cat([tokens, following[:, None]], 1)
            ends |= following == 3
            if ends.all():
                break
        return tokens

    f, kept, expected = rt.graph(generate), [], []
    for turn in range(60):
        torch.manual_seed(turn % 9)
        start = torch.randint(4, 12, (2,), device="cuda")
        noise = torch.randn(8, 2, 12, device="cuda")
        kept.append(f(start, noise))
        expected.append(generate(start, noise))
        assert f(start, noise).is_inference()
    for mine, theirs in zip(kept, expected, strict=True):
        assert mine.is_inference()
        assert torch.equal(mine, theirs)
    assert f.stats().replays >= 20
