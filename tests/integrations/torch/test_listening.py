"""What torch's compiler has made is told, where it runs and when it is made."""

from __future__ import annotations

import shutil
import threading
from types import SimpleNamespace

import pytest

from sapwood import CaptureError
from sapwood.tree.guards import survey
from sapwood.tree.watch.session import Session, Unready

torch = pytest.importorskip("torch")
nn = torch.nn

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # what the compiler says of itself


@pytest.fixture
def watch(adapter_of):
    """Return what runs a function while it is watched, and what was told of it."""
    from sapwood.integrations.torch.watching import Watcher

    integration = adapter_of("cpu")

    def run(fn, *args):
        session = Session(tolerant=False)
        with Watcher(session, integration.storages_of) as watcher:
            fn(*args)
        used = {id(storage): use for storage, use in session.used.items()}
        return session, watcher, lambda t: used.get(id(integration.look(t).storage))

    return run


@pytest.fixture
def generated():
    """Skip where there is nothing to generate kernels for the CPU with."""
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler here")
    torch._dynamo.reset()


@pytest.fixture
def graph():
    """Return a compiled graph of the device that has no memory."""
    return SimpleNamespace(
        device_types={"meta"}, mutated_input_idxs={0}, cache_key="a graph"
    )


@pytest.fixture
def meta(adapter_of):
    """Return a watcher of tensors without memory, and its session."""
    from sapwood.integrations.torch.watching import Watcher

    integration, session = adapter_of("meta"), Session(tolerant=False)
    with Watcher(session, integration.storages_of) as watcher:
        yield watcher, session, lambda tensor: integration.look(tensor).storage


class Passing(TorchDispatchMode):
    """A mode that lets everything pass."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class _Generator(torch.Generator):
    """A generator that says that it is of the device that has no memory."""

    @property
    def device(self):
        return torch.device("meta")

    def get_offset(self):
        return 0


# What runs.


@pytest.mark.usefixtures("generated")
@pytest.mark.deep
def test_a_compiled_graph_is_one_operation(watch):
    """What it takes is told, and what it writes, at the line that it came from."""
    linear, cache = nn.Linear(8, 8), torch.zeros(4, 8)
    place = torch.tensor([1])

    @torch.compile
    def step(x):
        cache.index_copy_(0, place, linear(x))
        return cache.sum(1)

    x = torch.randn(1, 8)
    with torch.no_grad():
        first, _, _ = watch(step, x)
        again, _, used = watch(step, x)
    assert first.prepares
    assert not again.prepares
    assert [name for name, _ in again.ops] == ["compiled graph"]
    assert again.digests() == first.digests()
    assert again.code == first.code
    assert used(cache).writes
    assert __file__ in used(cache).where
    for each in (x, place, linear.weight, linear.bias):
        assert not used(each).writes


@pytest.mark.usefixtures("generated")
@pytest.mark.deep
def test_compiled_training_is_told(watch):
    """Backward is a compiled graph, too; what is between and behind them is seen."""
    linear = nn.Linear(8, 8)

    @torch.compile
    def loss(x):
        return nn.functional.gelu(linear(x)).sum()

    def step(x):
        loss(x * 2).backward()

    x = torch.randn(3, 8)
    watch(step, x)
    session, watcher, used = watch(step, x)
    names = [name for name, _ in session.ops]
    assert watcher.went_back
    assert not session.prepares
    assert names.count("compiled graph") == len(session.code) == 2
    assert names[0] == "aten.mul.Tensor"
    assert "aten.add_.Tensor" in names
    assert used(linear.weight.grad).writes
    assert not used(linear.weight).writes


def test_a_compiled_step_goes_back(watch):
    """Where backward is compiled by a compiled function, nobody waits for ever."""
    torch._dynamo.reset()
    linear = nn.Linear(8, 8)

    @torch.compile(backend="aot_eager")
    def step(x):
        linear.zero_grad()
        linear(x).sum().backward()

    x = torch.randn(3, 8)
    first, *_, last, again = (watch(step, x)[0] for _ in range(4))
    assert first.prepares
    assert not last.prepares
    assert last.digests() == again.digests()


def test_modes_of_other_threads_leave_compiled_code_alone(watch):
    """A mode that ends there while one of ours is on is no reason to compile again."""
    began, goes_on = threading.Event(), threading.Event()

    def elsewhere():
        with Passing():
            began.set()
            goes_on.wait()

    def meanwhile():
        goes_on.set()
        thread.join()

    thread = threading.Thread(target=elsewhere)
    thread.start()
    began.wait()
    watch(meanwhile)
    torch._dynamo.reset()
    double, x = torch.compile(lambda x: x * 2, backend="aot_eager"), torch.randn(3)
    compiled = torch._dynamo.utils.counters["stats"]
    double(x)
    before = compiled["unique_graphs"]
    for _ in range(3):
        session, _, _ = watch(double, x)
        assert not session.prepares
    assert compiled["unique_graphs"] == before


@pytest.mark.usefixtures("generated")
def test_others_are_not_told(watch):
    """A compiled graph on a thread that is not watched is no part of the function."""
    double = torch.compile(lambda x: x * 2)
    x, other = torch.randn(3), torch.randn(3)
    double(x)

    def step(x):
        thread = threading.Thread(target=double, args=(other,))
        thread.start()
        thread.join()
        return double(x)

    session, _, used = watch(step, x)
    assert len(session.ops) == 1
    assert used(other) is None
    assert used(x) is not None


@pytest.mark.usefixtures("generated")
def test_torch_is_left_as_it_was(watch):
    """What runs compiled graphs is only another while somebody watches."""
    from torch._inductor.cudagraph_trees import CUDAGraphTreeManager
    from torch._inductor.output_code import CompiledFxGraph

    methods = lambda: (CompiledFxGraph.__call__, CUDAGraphTreeManager._run)  # noqa: E731
    before, inside = methods(), []
    watch(lambda: watch(lambda: inside.append(methods())))
    with pytest.raises(ZeroDivisionError):
        watch(lambda: 1 // 0)
    assert methods() == before
    assert all(a is not b for a, b in zip(inside[0], before, strict=True))
    assert not torch._dynamo.callback_handler.start_callbacks


@pytest.mark.usefixtures("generated")
def test_torch_records_no_graphs_inside_of_ours(watch):
    """Where torch would record or replay a graph of its own, its code runs instead."""
    from torch._inductor.cudagraph_trees import CUDAGraphTreeManager

    model = SimpleNamespace(model=lambda inputs: [2 * each for each in inputs])
    trees, found = SimpleNamespace(ids_to_funcs={7: model}), []
    watch(lambda: found.append(CUDAGraphTreeManager._run(trees, [1, 2], 7)))
    assert found == [[2, 4]]


# What no replay repeats.


@pytest.mark.parametrize("given", [torch.ones(())], ids=["tensor"])
def test_what_a_compiled_graph_takes_is_refused(meta, graph, given):
    """It may take no CPU tensor from outside."""
    watcher, session, _ = meta
    text = "a CPU tensor .* is used on the device"
    with pytest.raises(CaptureError, match=text), watcher.region(graph, [given]):
        pass
    assert not session.used


def test_a_capture_knows_the_generators_of_warm_ups(adapter_of, graph):
    """It would be refused by torch, which would spoil the capture, to draw from one."""
    from sapwood.integrations.torch.watching import Watcher

    integration, session = adapter_of("meta"), Session(tolerant=False)
    known, late = _Generator(), _Generator()
    watcher = Watcher(session, integration.storages_of)
    with watcher, watcher.region(graph, [known]):
        pass
    with Watcher(session, integration.storages_of, int) as watcher:
        with watcher.region(graph, [known]):
            pass
        with (
            pytest.raises(CaptureError, match="a generator that it makes itself"),
            watcher.region(graph, [late]),
        ):
            pass


def test_numbers_tell_compiled_graphs_apart(meta, graph):
    """A number that a compiled graph takes is baked in, and so it is compared."""
    watcher, session, storage = meta
    x = torch.zeros(4, device="meta")
    for number in (3, 3, 4):
        with watcher.region(graph, [x, number]):
            x + 1
    _, first, second, third = session.digests()
    assert first == second != third
    assert session.used[storage(x)].writes


def test_in_a_compiled_graph_refusals_have_its_line(meta, graph):
    """What is refused inside of generated code, is refused where that is called."""
    watcher, _, _ = meta
    x = torch.zeros(4, device="meta")
    names = {"torch": torch, "x": x}
    code = compile("x.nonzero()", "/tmp/generated.py", "exec")
    with (
        pytest.raises(CaptureError, match="on the host") as caught,
        watcher.region(graph, [x]),
    ):
        exec(code, names)
    assert __file__ in str(caught.value)


def test_what_tunes_itself_is_not_refused(meta, graph):
    """What code does that was compiled just now, it may do once."""
    watcher, session, _ = meta
    x = torch.zeros(4, device="meta")
    watcher.compiling()
    with watcher.region(graph, [x]):
        torch.ops.aten.lift_fresh(x)
    assert session.unrecordable is None
    with pytest.raises(CaptureError, match="host data"):
        torch.ops.aten.lift_fresh(x)


# What compiles.


def test_nothing_is_compiled_in_a_capture(adapter_of):
    """A capture that torch begins to compile in ends; outside, it compiles as ever."""
    from sapwood.integrations.torch.watching import Watcher

    torch._dynamo.reset()
    double = torch.compile(lambda x: x * 2, backend="eager")
    x, session = torch.ones(3), Session(tolerant=False)
    with (
        pytest.raises(Exception, match="compiles"),
        Watcher(session, adapter_of("cuda").storages_of, int),
    ):
        double(x)
    assert type(session.unrecordable) is type(session.unrecordable.anew()) is Unready
    assert __file__ in session.unrecordable.where
    assert torch.equal(double(x), x * 2)


@pytest.mark.deep
def test_what_others_compile_is_theirs(watch):
    """That another thread compiles says nothing of the function that is watched."""
    torch._dynamo.reset()
    double = torch.compile(lambda x: x * 2, backend="eager")

    def step():
        thread = threading.Thread(target=double, args=(torch.ones(3),))
        thread.start()
        thread.join()

    session, _, _ = watch(step)
    assert not session.prepares


def test_the_compiler_may_be_reset(watch):
    """A compiler that is reset inside of a watched function forgets who listens."""
    session, _, _ = watch(torch._dynamo.reset)
    assert not session.prepares


_EARLY = """
import sys
from collections import deque
from types import SimpleNamespace
import torch
from sapwood.integrations.torch.integration import TorchIntegration
from sapwood.integrations.torch.watching import Watcher
from sapwood.tree.guards import Surveyor
from sapwood.tree.watch.session import Session

adapter = TorchIntegration(SimpleNamespace(returns=deque()), torch.device("cpu"))
doubles = []

def watched(fn):
    session = Session(tolerant=False)
    with Watcher(session, adapter.storages_of):
        fn()
    return session

def plain():
    return torch.ones(3, device="cpu") + 1

def compiles():
    plain()
    if not doubles:
        doubles.append(torch.compile(lambda x: x * 2, backend="eager"))
    return plain(), doubles[0](torch.ones(3)), plain()

surveyor = Surveyor(lambda: plain, adapter)
for _ in range(3):
    surveyor.survey({}).guards(lambda _: True)
    first = watched(plain)
assert not {"torch._dynamo", "sympy"} & {*sys.modules}, "it is loaded"
assert not first.prepares and len(first.ops) == 2
early, late = watched(compiles), watched(compiles)
assert "torch._dynamo" in sys.modules
assert early.prepares and not late.prepares
assert [name for name, _ in late.ops][:2] == [name for name, _ in first.ops]
assert watched(plain).digests() == first.digests()

# What runs in a frame that is left alone is compiled, watched or not.
@torch.compiler.disable(recursive=False)
def alone(x):
    return (x + 1).relu()

partly = torch.compile(lambda x: alone(x * 2) + 1, backend="eager")
frames = torch._dynamo.utils.counters["frames"]

def compiled(run):
    before = frames["total"]
    run(lambda: partly(torch.ones(3)))
    return frames["total"] - before

for run in (watched, watched, lambda fn: fn()):
    compiled(run)
assert compiled(watched) == compiled(lambda fn: fn())
print("done")
"""


@pytest.mark.deep
def test_the_compiler_is_not_loaded_for_nothing(new_process):
    """Who compiles nothing need not wait for it; who begins to, inside, is heard of.

    From then on it is told to leave alone what watches.
    """
    assert new_process(_EARLY) == "done\n"


@pytest.mark.parametrize(
    ("error", "compiles", "expected"),
    [
        (ValueError, True, Unready),
        (ValueError, False, ValueError),
        (KeyboardInterrupt, True, KeyboardInterrupt),
    ],
)
def test_who_hears_late_hides_no_interrupt(
    adapter_of, monkeypatch, error, compiles, expected
):
    """That a capture is in vain is said in place of errors, but not of that.

    It is not where the compiler was loaded, and has compiled nothing.
    """
    from sapwood.integrations.torch import compiled, watching

    loaded = {}
    monkeypatch.setattr(compiled, "modules", loaded)
    frames = {"total": 1} if compiles else {}
    monkeypatch.setitem(torch._dynamo.utils.counters, "frames", frames)
    session = Session(tolerant=False)
    watcher = watching.Watcher(session, adapter_of("cuda").storages_of, int)

    def step():
        with watcher:
            loaded["torch._dynamo"] = torch._dynamo
            raise error

    with pytest.raises(expected) as caught:
        step()
    assert (session.unrecordable is None) == (expected is error)
    assert error in (type(caught.value), type(caught.value.__context__))


# What is reached.


class _Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.scale = nn.Linear(4, 4), 3.0
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x):
        return self.linear(x) * self.scale + self.shift


@pytest.mark.parametrize("way", ["itself", "in a closure", "by method"])
def test_a_compiled_module_is_read_as_the_module(integration, way):
    """What it was made of is read, and nothing of what the compiler keeps."""
    torch._dynamo.reset()
    module, x = _Scaled(), torch.randn(2, 4)
    compiled = torch.compile(module, backend="aot_eager")
    if way == "by method":
        module.compile(backend="aot_eager")
        compiled = module
    fn = compiled if way == "itself" else lambda x: compiled(x)

    def look():
        return survey(fn, {"x": x}, integration)

    with torch.no_grad():
        before = look()
        fn(x)
        after = look()
        assert not after.changes_since(before)
        assert after.key == before.key
        reached = [path.rpartition(".")[2] for path in before.array_slots()]
        assert sorted(reached) == ["bias", "shift", "weight"]
        module.scale = 4.0
        assert look().key != before.key


@pytest.mark.parametrize("way", ["itself", "in a closure"])
def test_a_compiled_function_is_read_as_the_function(integration, way):
    """It, and a function that calls it, read what the plain one reads."""
    torch._dynamo.reset()
    weight, x, scale = torch.ones(4), torch.randn(2, 4), 2.0

    def plain(x):
        return x * weight * scale

    compiled = torch.compile(plain, backend="aot_eager")
    fn = compiled if way == "itself" else lambda x: compiled(x)

    def look():
        return survey(fn, {"x": x}, integration)

    before = look()
    fn(x)
    assert not look().changes_since(before)
    assert list(before.array_slots().values()) == [weight]
    scale = 3.0
    assert look().key != before.key


def test_who_forgets_that_others_listen_does_not_forget_who_comes_after(adapter_of):
    """What resets the compiler takes away all that it calls, of every watcher."""
    from sapwood.integrations.torch.watching import Watcher

    storages, session = adapter_of("cpu").storages_of, Session(tolerant=False)
    with Watcher(Session(tolerant=False), storages):
        torch._dynamo.reset()
        with Watcher(session, storages):
            torch.compile(lambda x: x * 2, backend="eager")(torch.ones(3))
    assert session.prepares


_STRICT = """
import sys, warnings
from collections import deque
from types import SimpleNamespace
import torch
from sapwood.integrations.torch.integration import TorchIntegration
from sapwood.integrations.torch.watching import Watcher
from sapwood.tree.watch.session import Session
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch._inductor.output_code

assert "torch._inductor.cudagraph_trees" not in sys.modules
warnings.simplefilter("error")
adapter = TorchIntegration(SimpleNamespace(returns=deque()), torch.device("cpu"))
with Watcher(Session(tolerant=False), adapter.storages_of):
    torch.ones(3) + 1
print("done")
"""


@pytest.mark.deep
def test_what_torch_warns_of_while_it_is_loaded_is_no_error_of_the_users(new_process):
    """Where warnings are errors, a call that is watched does not end in torch's own."""
    assert new_process(_STRICT) == "done\n"


IN_A_BACKWARD = """
import sys
import torch
import torch._inductor.output_code
from types import SimpleNamespace
from sapwood.integrations.torch.compiled import listening

class Back(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        with listening(SimpleNamespace(compiling=lambda: None)):
            print("torch._inductor.cudagraph_trees" in sys.modules)
        return grad * 2

x = torch.ones(3, requires_grad=True)
Back.apply(x).sum().backward()
with listening(SimpleNamespace(compiling=lambda: None)):
    print("torch._inductor.cudagraph_trees" in sys.modules)
"""


def test_torchs_trees_are_not_imported_in_a_backward(new_process):
    """What they leave with the thread, autograd drops then, and memory goes twice."""
    assert new_process(IN_A_BACKWARD).split() == ["False", "True"]
