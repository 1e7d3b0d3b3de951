"""Whom torch asks to wrap what it has compiled: on a CPU, as if that took graphs."""

from __future__ import annotations

import functools
import inspect
import shutil
import threading
import tomllib
import warnings
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import sapwood as sw
from sapwood import MisuseError, NoDevice

torch = pytest.importorskip("torch")
nn = torch.nn

from sapwood.integrations.torch.partition import Partition  # noqa: E402 - it needs torch


def on_a_device(post):
    """Return what wraps the graphs of a CPU as if they were of a first device."""

    @functools.wraps(post)
    def wrap(inputs, graph, *rest):
        graph.device_idxs = graph.device_idxs or {0}
        return post(inputs, graph, *rest)

    return wrap


@pytest.fixture
def taken(monkeypatch, tmp_path):
    """Have Inductor take graphs of a CPU; return what is wrapped, by which thread."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    backend = import_module("sapwood.integrations.torch.backend")
    output_code = import_module("torch._inductor.output_code")
    utils = import_module("torch._inductor.cudagraph_utils")
    for name in ("cudagraph_post_compile", "cudagraph_partition_post_compile"):
        monkeypatch.setattr(output_code, name, on_a_device(getattr(output_code, name)))
    monkeypatch.setattr(
        utils, "check_multiple_devices_or_any_cpu_nodes", lambda *_, **__: None
    )
    monkeypatch.setattr(backend, "_is_ready", lambda *_: True)
    seen, wrapped = [], backend._wrapped

    def noted(options, model, *args, **kwargs):
        kinds = []

        def graphed(_, part, made, hears, *, guarded):
            assert guarded
            assert hears == part.heard
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
    ways = [made["name"].split(", ")[1].split()[0] for *_, made in taken]
    assert ways == ["forward", "backward"]


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
def test_a_backward_of_which_nothing_is_recorded(monkeypatch):
    """Torch would tell its trees of it, and asserts that there are some."""
    output_code = import_module("torch._inductor.output_code")
    told = []
    name = "maybe_handle_backward_generation"
    monkeypatch.setattr(output_code, name, told.append)
    monkeypatch.setattr(import_module("torch._inductor.compile_fx"), "cudagraphify", id)
    with sw.trees():
        output_code.maybe_handle_backward_generation("ours")
    output_code.maybe_handle_backward_generation("another's")
    assert told == ["another's"]


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
    monkeypatch.setattr(backend, "made_runtime", lambda: usual)
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
        graphed = rt.graph(Partition(model, "a partition"))
        run = graphed.__wrapped__.calls(graphed, sizes, lambda: True)
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

    Results lie as they did, and those that share bytes do. What a graph returns of its
    other inputs stays that, and a call that nobody watches copies nothing.
    """
    from sapwood.integrations.torch.watching import Watcher
    from sapwood.tree.watch.session import Session

    def model(inputs):
        given, kept = inputs
        inputs.clear()
        wide = given.add_(1)[:, 1:3]
        return given, wide, wide.t(), kept, None, 3, wide[:, :1].expand(4, 3)

    part = Partition(model, "a partition", writable=[0])
    x, y = torch.zeros(4, 8), torch.ones(4)
    plain = part(x, y)
    assert plain[0] is x
    expected = [each.clone() if torch.is_tensor(each) else each for each in plain]
    x.zero_()
    with Watcher(Session(tolerant=False), adapter_of("cpu").storages_of):
        found = part(x, y)
    memory = [
        each.untyped_storage().data_ptr() for each in found if torch.is_tensor(each)
    ]
    assert len({*memory}) == 2
    assert x.untyped_storage().data_ptr() not in memory
    assert memory[3] == y.untyped_storage().data_ptr()
    for each, was, own in zip(found, plain, expected, strict=True):
        if torch.is_tensor(each):
            assert torch.equal(each, own)
            assert each.stride() == was.stride()
            assert each.storage_offset() == was.storage_offset()
        else:
            assert each == was


@pytest.fixture
def partitions(monkeypatch):
    """Have Inductor split graphs of a CPU as those of a device; return what splits."""
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler here")
    scheduler = import_module("torch._inductor.scheduler")
    should, node = scheduler.Scheduler.should_partition, scheduler.BaseSchedulerNode

    def as_on_a_device(self, *args, **kwargs):
        with monkeypatch.context() as patched:
            patched.setattr(node, "is_gpu", lambda _: True)
            return should(self, *args, **kwargs)

    monkeypatch.setattr(scheduler.Scheduler, "should_partition", as_on_a_device)
    monkeypatch.setitem(PATCHES, "graph_partition", value=True)
    if not hasattr(torch.ops.sapwood_tests, "splits"):
        tags = (torch.Tag.cudagraph_unsafe,)

        @torch.library.custom_op("sapwood_tests::splits", mutates_args=(), tags=tags)
        def splits(x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        splits.register_fake(torch.empty_like)
        splits.register_autograd(lambda _, g: torch.ops.sapwood_tests.splits(g))

        @torch.library.custom_op("sapwood_tests::wide", mutates_args=())
        def wide(x: torch.Tensor) -> torch.Tensor:
            out = x.new_zeros(x.shape[0], 16)[:, :8]
            return out.copy_(x)

        wide.register_fake(lambda x: x.new_empty_strided(x.shape, (16, 1)))
    return torch.ops.sapwood_tests


@pytest.fixture
def watched(monkeypatch):
    """Return a context in which partitions are told of."""
    partition = import_module("sapwood.integrations.torch.partition")

    @contextmanager
    def watched():
        listener = SimpleNamespace(
            captures=False, region=lambda *_: nullcontext(), gave=lambda _: None
        )
        with monkeypatch.context() as patched:
            patched.setattr(partition, "listeners", lambda: [listener])
            yield

    return watched


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("trees", [False, True], ids=["backend", "trees"])
def test_a_slice_is_saved_and_passed_on(taken, partitions, watched, trees):
    """What a partition does not free, it returns; the next knows how it lies."""

    def fn(x, y):
        return (partitions.splits((x * y).sin()) * x).relu()

    def called():
        torch.manual_seed(0)
        x = torch.randn(8, 16)[:, :8].requires_grad_()
        y = torch.randn(8, 8).requires_grad_()
        out = f(x, y)
        out.sum().backward()
        return out.detach(), x.grad, y.grad

    torch.compiler.reset()
    if trees:
        options = {**PATCHES, "triton.cudagraphs": True}
        with sw.trees():
            f = torch.compile(fn, options=options)
            expected = called()
    else:
        f = compiled(fn)
        expected = called()
    with watched():
        found = called()
    assert len(taken) >= 3
    assert all(map(torch.equal, found, expected))


@pytest.mark.filterwarnings("ignore")
@torch.no_grad()
def test_an_intermediate_that_is_not_dense_is_passed_on(taken, partitions, watched):
    """Over several partitions, with the strides that it was made with."""

    def fn(x):
        a = partitions.wide(x)
        b = partitions.splits(x + 1)
        return (a * partitions.splits((a + b).sin())).relu()

    torch.compiler.reset()
    f, x = compiled(fn), torch.randn(8, 8)
    expected = f(x)
    with watched():
        assert torch.equal(f(x), expected)
    assert len(taken) >= 2
    names = [made["name"] for *_, made in taken]
    assert len({*names}) == len(names)


@pytest.mark.usefixtures("taken")
@pytest.mark.filterwarnings("ignore")
def test_inputs_are_aligned_as_they_were(monkeypatch):
    """A view that is not, is copied, and written back: compiled code loads at once."""
    compile_fx = import_module("torch._inductor.compile_fx")
    backend = import_module("sapwood.integrations.torch.backend")
    monkeypatch.setattr(
        compile_fx, "get_input_idxs_to_check", lambda given, _: range(len(given))
    )
    seen, wrapped = [], backend._wrapped

    def noted(options, model, *args, **kwargs):
        def told(inputs):
            seen.append([each.data_ptr() % 16 for each in inputs])
            return model(inputs)

        return wrapped(options, told, *args, **kwargs)

    monkeypatch.setattr(backend, "_wrapped", noted)

    def fn(x, y):
        x.add_(y)
        return x * 2

    torch.compiler.reset()
    f, y = compiled(fn), torch.ones(1024)
    base = torch.zeros(1028)
    assert torch.equal(f(torch.zeros(1024), y), y * 2)
    assert torch.equal(f(base[1:1025], y), y * 2)
    assert torch.equal(base[1:1025], y)
    assert [base[0], *base[1025:]] == [0, 0, 0, 0]
    assert seen == [[0, 0], [0, 0]]


def test_what_a_partition_reads_to_tune_itself_is_no_reason(adapter_of):
    """Its first run may measure kernels, and look at the host; later ones may not."""
    from sapwood.integrations.torch.watching import Watcher
    from sapwood.tree.watch.session import Session

    reads = [True, False, True]

    def model(inputs):
        x = inputs.pop()
        return [x * (x.sum().item() if reads.pop(0) else 2)]

    def watched(part):
        session = Session(tolerant=False)
        with Watcher(session, adapter_of("cpu").storages_of):
            part(torch.ones(4))
        return session

    part = Partition(model, "a partition")
    assert watched(part).prepares, "that warm-up shows not what later calls do"
    assert not watched(part).prepares
    with pytest.raises(sw.CaptureError, match="a value is needed on the host"):
        watched(part)


@contextmanager
def counted_skips():
    """Give how many skips torch's counters got in the block, once it is over."""
    counters, found = import_module("torch._dynamo.utils").counters["inductor"], []
    before = counters["cudagraph_skips"]
    yield found
    found.append(counters["cudagraph_skips"] - before)


def test_torch_counts_and_logs_each_reason_once(caplog):
    """For each partition: in the log that ``TORCH_LOGS=cudagraphs`` shows."""
    backend = import_module("sapwood.integrations.torch.backend")
    log = import_module("sapwood.integrations.torch.partition")._log

    def model(inputs):
        return [inputs.pop() * 2]

    with sw.Runtime("emulated") as rt:
        part = Partition(model, "a partition of the host's")
        call = backend.graphed(lambda: rt, part, {}, part.heard)
        run = part.calls(call, None, lambda: True)
        log.addHandler(caplog.handler)
        log.setLevel("DEBUG")
        try:
            with (
                counted_skips() as skips,
                warnings.catch_warnings(record=True) as warned,
            ):
                warnings.simplefilter("always")
                for i in range(8):
                    found = run([np.full(2, float(i))])  # nobody records that
                    assert np.array_equal(found[0], [2.0 * i] * 2)
        finally:
            log.removeHandler(caplog.handler)
            log.setLevel("NOTSET")
    said = {each for each in caplog.messages if each.startswith("Not recording")}
    assert skips == [len(said)]
    assert [each.category for each in warned] == [sw.GraphSkipWarning] * len(said)
    assert len(said) == 1
    assert "a partition of the host's: " in said.pop()


@pytest.mark.parametrize("asked", [False, True])
def test_torch_can_have_a_skip_be_an_error(asked, monkeypatch):
    """By ``triton.cudagraph_or_error``."""
    backend = import_module("sapwood.integrations.torch.backend")
    seen = []
    monkeypatch.setattr(backend, "graphed", lambda *args, **_: seen.append(args[2]))
    config = import_module("torch._inductor.config")
    with config.patch({"triton.cudagraph_or_error": asked}):
        backend._wrapped({}, lambda _: None, donates=False, device_index=0)
    assert [each["fullgraph"] for each in seen] == [asked]


@pytest.mark.parametrize("fullgraph", [False, True])
def test_without_a_runtime_it_runs_as_compiled(monkeypatch, fullgraph):
    """And says why, once; its inputs are as they were where that is an error."""
    backend = import_module("sapwood.integrations.torch.backend")
    monkeypatch.setattr(backend, "_skipping", {})

    def none(_):
        raise NoDevice("Runtime", 100, "NO_DEVICE", "no driver is here")

    monkeypatch.setattr(backend, "_runtime", none)
    options = {"fullgraph": fullgraph}
    inputs = [torch.ones(3)]

    def part():
        return backend._wrapped(
            options, lambda given: [given.pop() * 2], donates=False, device_index=0
        )

    if fullgraph:
        with pytest.raises(NoDevice, match="no driver is here"):
            part()(inputs)
        assert len(inputs) == 1
        return
    run = part()
    with (
        counted_skips() as skips,
        pytest.warns(sw.GraphSkipWarning, match="no driver is here"),
    ):
        run(inputs)
    assert inputs == []
    assert skips == [1]
    for each in (run, part()):  # which say no more of it
        assert torch.equal(each([torch.ones(3)])[0], torch.full((3,), 2.0))


def test_values_of_options_are_looked_at_when_they_are_given():
    """And not when somebody else compiles something."""
    with pytest.raises(MisuseError, match="fullgraph=1 is not a bool"):
        sw.install_trees(fullgraph=1)
    assert not import_module("sapwood.integrations.torch.backend")._installed
    options = {"triton.cudagraphs": False}
    with pytest.raises(Exception, match=r"cudagraphs=False, and this backend"):
        compiled(lambda x: x + 1, **options)(torch.ones(3))
