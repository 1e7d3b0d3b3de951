"""Tensors of the CPU as arguments, which a function brings to the device."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch")
F, optim = torch.nn.functional, torch.optim

pytestmark = [
    pytest.mark.gpu,
    # Torch's own, where it imports parts of itself.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
SKIPS = pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
CALLS = 10


def _host(w, *shape, pinned=False):
    made = w.values(*shape).cpu()
    return made.pin_memory() if pinned else made


@dataclasses.dataclass
class Batch:
    x: object
    y: object


@pytest.mark.parametrize("how", ["a dict", "a dataclass", "pinned", "two arguments"])
def test_a_training_step(alike, network, replayed, how):
    """Another batch in each call."""

    def program(w):
        model = network()
        optimizer = optim.AdamW(model.parameters(), lr=1e-2)

        def train(x, y):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        def of_dict(batch):
            batch = {name: each.to("cuda") for name, each in batch.items()}
            return train(batch["x"], batch["y"])

        def of_dataclass(batch):
            return train(batch.x.cuda(), batch.y.to(torch.device("cuda")))

        def of_two(x, y):
            return train(x.to("cuda", non_blocking=True), y.to("cuda"))

        steps = {"a dict": of_dict, "a dataclass": of_dataclass}
        f, losses = w.graph(steps.get(how, of_two)), []
        for _ in range(CALLS):
            x, y = (_host(w, 8, n, pinned=how == "pinned") for n in (16, 4))
            made = {"a dict": [{"x": x, "y": y}], "a dataclass": [Batch(x, y)]}
            losses.append(f(*made.get(how, [x, y])))
            yield losses, [*model.parameters()]
            x.zero_()  # a loader fills it again

    replayed(alike(program), 4)


FITTING = {
    "twice": lambda x, y: x.to("cuda").add_(1) * x.cuda() + y,
    "into": lambda x, y: y.clone().copy_(x) * 2,
    "shapes": lambda x, y: x.to(y.device)[: len(x) // 2].reshape(-1) * x.shape[1],
    "the same type": lambda x, y: x.to("cuda", x.dtype) - y,
    "dropped": lambda x, y: y * x.dim(),
}


@pytest.mark.parametrize("fn", FITTING.values(), ids=FITTING)
def test_what_is_brought_as_it_is(alike, replayed, fn):
    def program(w):
        f, kept = w.graph(fn), []
        for _ in range(CALLS):
            kept.append(f(_host(w, 4, 6), w.values(4, 6)))
            yield kept

    replayed(alike(program), 4)


def _written(x, y):
    x.add_(1)
    return x.to("cuda") + y


def _long(x, y):
    total = 0.0
    for row in x:
        total = total + row.to("cuda")
    return total + y[0]


USING = {
    "read": lambda x, y: y * x.max().item(),
    "listed": lambda x, y: y * x.tolist()[0][0],
    "of numpy": lambda x, y: y * float(np.asarray(x).sum()),
    "numpy": lambda x, y: y + torch.from_numpy(x.numpy() * 2).to("cuda"),
    "asked": lambda x, y: y * 2 if x[0, 0] > 0 else y * 3,
    "as text": lambda x, y: (y * 2, str(x)),
    "computed": lambda x, y: (x * 2).to("cuda") + y,
    "another type": lambda x, y: x.to("cuda", torch.float16) + y,
    "and then moved": lambda x, y: x.double().cuda() + y,
    "a part": lambda x, y: x[1:].to("cuda") + y[1:],
    "rows": _long,
    "returned": lambda x, y: (x, x.to("cuda") + y),
    "written": _written,
    "used there": lambda x, y: y + x[0, 0],
    "pinned": lambda x, y: x.pin_memory().to("cuda", non_blocking=True) + y,
    "of a kind": lambda x, y: (x.to("cuda") + y, type(x) is torch.Tensor, x.is_cuda),
}


@SKIPS
@pytest.mark.parametrize("fn", USING.values(), ids=USING)
def test_whatever_else_is_done_is_right(alike, fn):
    def program(w):
        f, kept = w.graph(fn), []
        for _ in range(CALLS):
            x = _host(w, 4, 6)
            kept.append(f(x, w.values(4, 6)))
            yield kept, x

    alike(program)


@SKIPS
def test_calls_of_all_kinds(alike):
    """On the host or not, of other shapes and types, lazy, transposed, one for two."""

    def program(w):
        f = w.graph(lambda x, y=None: x.to("cuda") * (2 if y is None else y.to("cuda")))
        for _ in range(5):
            x, z = _host(w, 4, 6), _host(w, 3, 3)
            yield f(x), f(x, x), f(x.cuda(), x), f(x, y=x.cuda()), f(z, z.T)
            yield f(x.double()), f(z.to(torch.complex64).conj()), f(x.T), f(x[:0])
            yield f(x.requires_grad_()).detach(), f(z, z.clone()), f(z[0])

    assert alike(program).count("replays") >= 6


@SKIPS
def test_a_batch_that_is_changed(alike):
    """It is the caller's own that holds what the function puts there."""

    def program(w):
        @w.graph
        def fn(batch):
            batch["x"] = batch["x"].to("cuda")
            return batch["x"] * 2

        for _ in range(CALLS):
            batch = {"x": _host(w, 4, 6)}
            yield fn(batch), batch, batch["x"].is_cuda

    alike(program)


def test_forwards_that_need_no_gradient(alike, network, replayed):
    def program(w):
        model = network()

        @w.graph
        @torch.no_grad()
        def predict(x, scale):
            return model(x.to("cuda")).softmax(-1) * scale

        for _ in range(CALLS):
            yield predict(_host(w, 8, 16), 2.0)

    replayed(alike(program), 4)
