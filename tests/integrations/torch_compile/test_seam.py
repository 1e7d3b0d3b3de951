"""Whom torch asks to wrap what it has compiled: on a CPU, as if that took graphs."""

from __future__ import annotations

import functools
import inspect
import threading
import tomllib
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import sapwood as sw
from sapwood import MisuseError

torch = pytest.importorskip("torch")
nn = torch.nn

from sapwood.integrations.torch.partition import Partition  # noqa: E402 - it needs torch


@pytest.fixture
def taken(monkeypatch, tmp_path):
    """Have Inductor take graphs of a CPU; return what is wrapped, by which thread."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    backend = import_module("sapwood.integrations.torch.backend")
    output_code = import_module("torch._inductor.output_code")
    utils = import_module("torch._inductor.cudagraph_utils")
    post = output_code.cudagraph_post_compile

    @functools.wraps(post)
    def on_a_device(inputs, graph, *rest):
        graph.device_idxs = graph.device_idxs or {0}
        return post(inputs, graph, *rest)

    monkeypatch.setattr(output_code, "cudagraph_post_compile", on_a_device)
    monkeypatch.setattr(
        utils, "check_multiple_devices_or_any_cpu_nodes", lambda *_, **__: None
    )
    seen, wrapped = [], backend._wrapped

    def noted(options, model, *args, **kwargs):
        kinds = []

        def graphed(_, part, made):
            assert isinstance(part, Partition)
            kinds.append((part.mutated_input_idxs, made))
            return part

        with monkeypatch.context() as patched:
            patched.setattr(backend, "graphed", graphed)
            run = wrapped(options, model, *args, **kwargs)
        seen.append((threading.current_thread(), kwargs["is_backward"], *kinds[0]))
        return run

    monkeypatch.setattr(backend, "_wrapped", noted)
    return seen


PATCHES = {"graph_partition": False}


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.line, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(self.line(x)).relu()


def trained(f, model):
    """Return what one step gives, and its gradients."""
    torch.manual_seed(5)
    model.zero_grad()
    y = f(torch.randn(3, 4))
    y.square().sum().backward()
    return y, [each.grad for each in model.parameters()]


def compiled(model, **options):
    """Compile a model with the backend."""
    backend = import_module("sapwood.integrations.torch.backend").backend
    return torch.compile(model, backend=backend, options={**PATCHES, **options})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("hits", [False, True], ids=["miss", "hit"])
def test_forward_and_backward_are_ours(taken, hits, monkeypatch):
    """What is compiled, and what a cache has: the same partitions."""
    monkeypatch.setattr(import_module("torch._inductor.config"), "fx_graph_cache", hits)
    counters = import_module("torch._dynamo.utils").counters
    for again in range(1 + hits):
        torch.compiler.reset()
        taken.clear()
        counters.clear()
        model, plain = Norm(), Norm()
        f = compiled(model, max_recordings=5)
        for _ in range(3):
            expected = trained(plain, plain)
            for found, each in zip(trained(f, model)[1], expected[1], strict=True):
                torch.testing.assert_close(found, each)
        assert counters["aot_autograd"]["autograd_cache_hit"] == again
    assert [back for _, back, _, _ in taken] == [False, True]
    assert [len(mutated) for _, _, mutated, _ in taken] == [3, 0]
    assert {made["max_recordings"] for *_, made in taken} == {5}
    assert [made["name"].split(", ")[1] for *_, made in taken] == [
        "forward",
        "backward",
    ]


@pytest.mark.filterwarnings("ignore")
def test_a_backward_that_is_compiled_elsewhere(taken):
    """Autograd compiles it when it comes to it, on whatever thread."""
    torch.compiler.reset()
    model = Norm()
    f = compiled(model)
    loss = f(torch.randn(3, 4)).sum()
    assert len(taken) == 1
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    assert [(by, back) for by, back, _, _ in taken[1:]] == [(thread, True)]
    assert model.line.weight.grad is not None


@pytest.mark.filterwarnings("ignore")
def test_others_are_torchs(taken, monkeypatch):
    """What is compiled for another backend is wrapped by torch, outside of a block."""
    compile_fx = import_module("torch._inductor.compile_fx")
    torch.compiler.reset()
    compiled(lambda x: x + 1)(torch.ones(3))
    assert len(taken) == 1
    asked = []

    def theirs(model, *_, **__):
        asked.append(model)
        return model

    monkeypatch.setattr(compile_fx.cudagraphify, "_theirs", theirs)
    options = {**PATCHES, "triton.cudagraphs": True}
    torch.compile(lambda x: x + 2, options=options)(torch.ones(3))
    assert (len(taken), len(asked)) == (1, 1)
    with sw.trees(max_variants=2):
        torch.compile(lambda x: x + 3, options=options)(torch.ones(3))
    assert (len(taken), len(asked)) == (2, 1)
    assert taken[-1][-1]["max_variants"] == 2
    torch.compile(lambda x: x + 4, options=options)(torch.ones(3))
    assert (len(taken), len(asked)) == (2, 2)


@pytest.mark.filterwarnings("ignore")
def test_options_that_there_are_not():
    """They are named, with those that there are."""
    with pytest.raises(MisuseError, match=r"no option size. .* max_recordings"):
        sw.install_trees(size=3)
    with pytest.raises(Exception, match=r"has sizes, which is an option neither"):
        compiled(lambda x: x + 1, sizes=3)(torch.ones(3))


def test_what_is_installed_is_undone_by_itself():
    """In whatever order: each undoes its own."""
    backend = import_module("sapwood.integrations.torch.backend")
    one, two = sw.install_trees(), sw.install_trees()
    one()
    assert len(backend._installed) == 1
    two()
    two()
    assert not backend._installed


def test_torch_finds_the_backend_by_its_name():
    """Once installed: what the package announces takes what torch gives."""
    path = Path(__file__).parents[3] / "pyproject.toml"
    points = tomllib.loads(path.read_text())["project"]["entry-points"]
    module, _, name = points["torch_dynamo_backends"]["sapwood"].partition(":")
    found = getattr(import_module(module), name)
    assert list(inspect.signature(found).parameters)[2:] == ["mode", "options"]


@pytest.mark.parametrize("ordinal", [0, 1])
def test_each_device_has_one_runtime(monkeypatch, ordinal):
    """The default one, where its tensors are there; a closed one is replaced."""
    backend = import_module("sapwood.integrations.torch.backend")
    made = []

    class Made:
        arrays, closed = "torch", False
        abilities = SimpleNamespace(kind="cuda", ordinal=0)

        def __init__(self, *args, **kwargs):
            made.append((args, kwargs))

        def close(self):
            self.closed = True

    usual = Made("usual")
    monkeypatch.setattr(backend, "default_runtime", lambda: usual)
    monkeypatch.setattr(backend, "Runtime", Made)
    monkeypatch.setattr(backend, "_runtimes", {})
    monkeypatch.setattr(backend, "atexit", SimpleNamespace(register=lambda _: None))
    first = backend._runtime(ordinal)
    assert (first is usual) == (ordinal == 0)
    assert backend._runtime(ordinal) is first
    first.close()
    usual = Made("later")
    later = backend._runtime(ordinal)
    assert later is not first
    assert not later.closed
    assert (later is usual) == (ordinal == 0)
    expected = [(("cuda:1",), {"arrays": "torch"})] * 2 * ordinal
    assert [each for each in made if each[1]] == expected


@pytest.mark.parametrize("sizes", [None, frozenset({3})])
def test_a_partition_is_called_with_a_list(sizes):
    """It is emptied, so that a replay may write over what only the caller had in it.

    Integers are a part of the signature; others than those of ``sizes`` are not
    recorded. Nothing is guarded: not what the compiled code reads besides.
    """
    read = {"factor": 2.0}

    def model(inputs):
        x, count, w = inputs
        inputs.clear()
        return np.tanh(x @ w) * count * read["factor"], None, count

    with sw.Runtime("emulated") as rt:
        graphed = rt.graph(Partition(model, "a partition", frozenset(), frozenset()))
        run = graphed.__wrapped__.calls(graphed, sizes)
        w = rt.array(np.eye(4))
        for i, count in enumerate((3, 4) * 8):
            host = np.full((2, 4), float(i))
            inputs = [rt.array(host), count, w]
            found = run(inputs)
            assert inputs == []
            assert np.array_equal(np.asarray(found[0]), np.tanh(host) * count * 2.0)
            assert found[1:] == (None, count)
        stats = graphed.stats()
        assert stats.recordings == (2 if sizes is None else 1)
        assert stats.replays + stats.recordings + stats.warmups == 16 // (
            1 + bool(sizes)
        )
        read["factor"] = 5.0
        found = run([rt.array(np.ones((2, 4))), 3, w])
        assert np.array_equal(np.asarray(found[0]), np.tanh(np.ones((2, 4))) * 3 * 2.0)


def test_results_in_memory_of_inputs_are_apart(adapter_of):
    """A partition writes over an input that nobody needs: a replay copies its inputs.

    What a graph returns of its own inputs stays that, and a call that nobody watches
    copies nothing.
    """
    from sapwood.integrations.torch.watching import Watcher
    from sapwood.tree.watch.session import Session

    def model(inputs):
        given, kept = inputs
        inputs.clear()
        return given.add_(1), given[1:], kept, None, 3

    part = Partition(model, "a partition", frozenset(), frozenset({0}))
    x, y = torch.zeros(4), torch.ones(4)
    plain = part(x, y)
    assert plain[0] is x
    with Watcher(Session(tolerant=False), adapter_of("cpu").storages_of):
        found = part(x, y)
    memory = [each.untyped_storage().data_ptr() for each in found[:3]]
    assert x.untyped_storage().data_ptr() not in memory
    assert memory[2] == y.untyped_storage().data_ptr()
    assert found[3:] == [None, 3]
    assert torch.equal(found[0], torch.full((4,), 2.0))
    assert torch.equal(found[1], torch.full((3,), 2.0))
