"""What torch's functions read on the host, and only pass on, decides nothing."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

pytestmark = pytest.mark.gpu


def _item(x):
    return (x * 2).sum().item()


def _number(x):
    y = x * 2
    return y, float(y.sum()), int(y.argmax()), complex(y.sum())


def _lists(x):
    y = x * 2
    return {"all": y.tolist(), "rows": y.reshape(2, -1).argmax(1).tolist(), "y": y + 1}


def _half(x):
    y = x.to(torch.bfloat16)
    return y.sum().item(), y.max().tolist(), (y > 0).sum().item()


class Scored(torch.nn.Module):
    """Returns numbers from within a call of torch's own code."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 4)

    def forward(self, x):
        made = self.inner(x)
        return {"made": made.detach(), "score": made.sum().item()}


FUNCTIONS = {"item": _item, "number": _number, "lists": _lists, "half": _half}


@pytest.mark.parametrize("fn", FUNCTIONS.values(), ids=FUNCTIONS)
def test_what_is_passed_on_is_replayed(alike, replayed, fn):
    def program(w):
        f = w.graph(fn)
        for _ in range(16):
            yield f(w.values(8))

    replayed(alike(program), 12)


def test_what_modules_pass_on(alike, replayed, cuda):
    """Torch's own code around a module's passes it on as well."""

    def program(w):
        f = w.graph(cuda(Scored()))
        for _ in range(16):
            with torch.no_grad():
                yield f(w.values(2, 8))

    replayed(alike(program), 12)


def test_what_is_computed_with_decides(alike):
    """Numbers that go back to the device, and questions, are right."""

    def program(w):
        def fn(x):
            scale = x.abs().max().item()
            total = x.sum().item()
            if total > 1:
                x = x + 1
            return x / scale, total

        f = w.graph(fn)
        for i in range(24):
            x = w.values(8) if i % 3 else torch.ones(8, device="cuda")
            yield f(x)

    alike(program)


def test_an_evaluation(alike, replayed, network):
    def program(w):
        model = network().eval()

        @torch.no_grad()
        def evaluate(x, y):
            made = model(x)
            loss = F.mse_loss(made, y)
            right = (made.argmax(-1) == y.argmax(-1)).sum()
            return loss.item(), right.item(), made.argmax(-1).tolist()

        f = w.graph(evaluate)
        for _ in range(16):
            yield f(w.values(8, 16), w.values(8, 4))

    replayed(alike(program), 12)
