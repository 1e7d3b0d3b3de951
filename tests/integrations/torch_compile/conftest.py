"""Programs compiled by Inductor, with recordings and without any graphs."""

from __future__ import annotations

import gc
import warnings

import pytest


class Compiled:
    """Where a program runs: ``compile`` is `torch.compile` with one backend."""

    def __init__(self, torch, rt, how):
        self.torch, self.rt, self.how = torch, rt, how

    def compile(self, fn=None, **options):
        """Compile a function or module; without one, return a decorator."""
        if fn is None:
            return lambda fn: self.compile(fn, **options)
        return self.torch.compile(fn, **self.how, **options)

    def values(self, *shape, **options):
        """Return new values, the same in each world."""
        return self.torch.randn(*shape, device="cuda", **options)

    def stats(self):
        """Return what has happened to all partitions that are alive."""
        return self.rt.stats()


@pytest.fixture(autouse=True)
def fresh(torch):
    """Have nothing compiled by other tests, and nothing cached on disk by them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the compiler says of itself
        config = pytest.importorskip("torch._inductor.config")
        torch._dynamo.reset()
        with config.patch(fx_graph_cache=False):
            yield
        torch._dynamo.reset()
    gc.collect()


@pytest.fixture
def ours(rt, monkeypatch):
    """Return the backend, whose recordings a leak-checked runtime has."""
    from sapwood.integrations.torch import backend

    monkeypatch.setattr(backend, "_runtime", lambda _: rt)
    return backend.backend


@pytest.fixture
def alike(rt, ours, torch, bits, monkeypatch):
    """Return what runs a program in both worlds, and gives that of recordings.

    A program is a generator function. It gets a `Compiled`, and yields what must be
    the same bit for bit as without graphs: the same compiled code, where nobody wraps
    it. Other options would have Inductor write, and tune, other code.
    """
    from sapwood.integrations.torch import backend
    from sapwood.integrations.torch.partition import Partition

    def plainly(_, model, static_input_idxs=(), *, mutated_input_idxs=(), **__):
        static, mutated = static_input_idxs, mutated_input_idxs
        return Partition(model, "plain", static=static, mutated=mutated).run

    def run(program, options):
        torch._dynamo.reset()
        torch.manual_seed(11)
        world = Compiled(torch, rt, {"backend": ours, **options})
        seen, told = [], None
        for shown in program(world):
            seen.append(bits(shown))
            del shown
            told = world.stats()  # of what is alive
        gc.collect()
        return seen, told

    def alike(program, **options):
        # What it tunes by measuring is not the same each time that it compiles.
        given = {"options": {"deterministic": True, **options}}
        with monkeypatch.context() as patched:
            patched.setattr(backend, "_wrapped", plainly)
            expected, told = run(program, given)
        assert expected, "a program yields something"
        assert not told.warmups
        found, told = run(program, given)
        assert len(found) == len(expected)
        for i, pair in enumerate(zip(found, expected, strict=True)):
            assert pair[0] == pair[1], f"what is yielded as number {i} differs"
        return told

    return alike


@pytest.fixture
def ops(torch):
    """Return the operators at which Inductor splits a graph."""
    del torch  # they need it
    from tests.integrations.torch_compile.partitions import operators

    return operators()
