"""Functions of tensors that ask which of them are one object."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu


class Remembers(torch.nn.Module):
    """A module that does less for the input that it was given last."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.register_buffer("hits", torch.zeros(()))
        self.last = None

    def forward(self, x):
        """Return the same for one input, and note how it came to be."""
        if x is self.last:
            self.hits += 1
            return self.linear(x)
        return self.linear(x) + 1


def test_an_input_that_a_module_knows(alike):
    """Set by others, now and then, while most calls are replayed at once."""

    def program(w):
        torch.manual_seed(3)
        module = Remembers().cuda()
        f = w.graph(lambda x: module(x))
        with torch.no_grad():
            given = [w.values(4, 8) for _ in range(3)]
            for last in (None, 0, 1, None, 2):
                module.last = None if last is None else given[last]
                for i in range(24):
                    yield f(given[i % 3]), module.hits
                for _ in range(8):
                    yield f(w.values(4, 8)), module.hits

    world = alike(program)
    assert world.count("replays") > 60


def test_tied_weights(alike):
    """A function that counts a weight once, however often it comes by it."""

    def program(w):
        torch.manual_seed(3)
        layers = [torch.nn.Linear(8, 8).cuda() for _ in range(3)]

        def norm(x):
            seen = []
            for layer in layers:
                if not any(layer.weight is each for each in seen):
                    seen.append(layer.weight)
            return x + sum(each.square().sum() for each in seen)

        f = w.graph(norm)
        with torch.no_grad():
            for tied in (False, True, False):
                first = layers[0].weight
                other = torch.nn.Parameter(layers[2].weight.detach().clone())
                layers[2].weight = first if tied else other
                for _ in range(12):
                    yield f(w.values(4))
                # The same memory, in another tensor.
                layers[1].weight = torch.nn.Parameter(first.detach())
                for _ in range(6):
                    yield f(w.values(4))

    alike(program)


def test_a_training_step_that_asks(alike):
    """With gradients that every call binds anew."""

    def program(w):
        torch.manual_seed(3)
        module = Remembers().cuda()
        adamw = torch.optim.AdamW(module.parameters(), lr=0.01, capturable=True)

        def step(x):
            adamw.zero_grad(set_to_none=True)
            loss = module(x).square().mean()
            loss.backward()
            adamw.step()
            return loss.detach()

        f = w.graph(step)
        for last in (False, True, False):
            x = w.values(4, 8)
            module.last = x if last else None
            for _ in range(12):
                yield f(x), [p.grad for p in module.parameters()], module.hits

    alike(program)
