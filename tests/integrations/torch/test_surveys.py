"""What functions read of torch's objects, and what of it is guarded or bound."""

from __future__ import annotations

import contextlib
import types

import pytest

from sapwood.tree.guards import Surveyor, survey
from sapwood.tree.guards.changes import Added, Assigned, BoundArray
from sapwood.tree.guards.restoring import put_back
from sapwood.tree.record.staging import Swaps

torch = pytest.importorskip("torch")


@pytest.fixture
def nn():
    return torch.nn


@pytest.fixture
def look(integration):
    """Return what surveys a function without arguments."""

    def look(fn):
        return survey(fn, {}, integration)

    return look


@pytest.fixture
def model(nn):
    return nn.Sequential(
        nn.Linear(4, 4), nn.ReLU(), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)
    )


def slots(looked):
    return set(looked.array_slots())


def test_parameters_and_buffers_are_found(look, model):
    """Parameters and buffers of nested modules are slots, by what one would write."""
    found = slots(look(model))
    expected = {name for name, _ in model.named_parameters()}
    expected |= {name for name, _ in model.named_buffers()}
    assert {path.removeprefix("self.") for path in found} == expected
    assert slots(look(lambda: model(1))) == {
        path.replace("self.", "model.") for path in found
    }


def test_a_module_of_the_users_is_read_by_name(look, nn):
    """Attributes that `forward` names are guarded, others are not."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))
            self.scale, self.calls = 2.0, 0

        def forward(self, x):
            return x * self.weight * self.scale

    module = Scaled()
    guards = look(module).guards(lambda _: True)
    assert guards.match() == [module.weight]
    module.calls += 1
    assert guards.match() == [module.weight]
    module.scale = 3.0
    assert guards.match() is None


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.eval(),
        lambda m: setattr(m[3], "p", 0.1),
        lambda m: m.append(torch.nn.ReLU()),
        lambda m: m.__setitem__(1, torch.nn.GELU()),
        lambda m: setattr(m[2], "momentum", 0.3),
        lambda m: m[0].register_parameter("more", torch.nn.Parameter()),
        lambda m: m[0].register_forward_hook(lambda *_: None),
        lambda m: m[1].register_forward_pre_hook(lambda *_: None),
        lambda m: setattr(m[0], "forward", lambda x: x),
        lambda m: setattr(m[0], "bias", None),
    ],
    ids=[
        "eval",
        "rate",
        "longer",
        "other",
        "momentum",
        "parameter",
        "hook",
        "pre-hook",
        "forward",
        "bias",
    ],
)
def test_changes_of_a_module_are_noticed(look, model, change):
    """What a module computes differently after is no longer as it was."""
    looked = look(model)
    guards = looked.guards(lambda _: True)
    for _ in range(12):
        assert guards.match() is not None
    change(model)
    assert guards.match() is None or look(model).key != looked.key


def test_another_parameter_in_its_place_is_found(look, model):
    """A parameter that is replaced by one that looks the same is used instead."""
    guards = look(model).guards(lambda _: True)
    new = torch.nn.Parameter(torch.zeros(4, 4))
    model[0].weight = new
    assert any(each is new for each in guards.match())


@pytest.mark.parametrize(
    "mode",
    [
        lambda: torch.no_grad(),
        lambda: torch.inference_mode(),
        lambda: torch.autocast("cuda", torch.bfloat16),
        lambda: torch.backends.cudnn.flags(benchmark=True),
        lambda: _set(torch.set_default_dtype, torch.float64, torch.get_default_dtype()),
        lambda: _set(torch.use_deterministic_algorithms, True, False),
    ],
    ids=["no_grad", "inference", "autocast", "cudnn", "dtype", "deterministic"],
)
@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
def test_modes_are_guarded(look, mode):
    """A function is another one under another mode, and the mode is named."""
    guards = look(abs).guards(lambda _: True)
    assert guards.match() is not None
    with mode():
        assert guards.match() is None
        assert "torch." in guards.miss()
    assert guards.match() is not None


@contextlib.contextmanager
def _set(change, now, before):
    change(now)
    try:
        yield
    finally:
        change(before)


def test_gradients_are_bound_slots(look, model):
    """What backward leaves on parameters is bound, and can be bound again."""

    def step():
        model(torch.ones(3, 4)).sum().backward()

    before = look(step)
    step()
    changes = [c for c in look(step).changes_since(before) if c.path.endswith("grad")]
    assert len(changes) == len(list(model.parameters()))
    assert all(isinstance(each, BoundArray) for each in changes)
    new = torch.ones(4, 4)
    weight = next(each for each in changes if each.path == "model.0.weight.grad")
    weight.slot.write(new)
    assert model[0].weight.grad is new
    weight.undo()
    assert model[0].weight.grad is None


def test_what_a_module_counts_is_added_to(look, nn):
    """A number and a list of a module's own, and none that code of torch's may read."""

    class Counting(nn.Linear):
        def __init__(self):
            super().__init__(2, 2)
            self.calls, self.log = 0, []

        def forward(self, x):
            self.calls += 1
            self.in_features += 1
            self.log.append(x)
            return super().forward(x)

    model = Counting()
    step = lambda: model(torch.ones(2))  # noqa: E731
    before = look(step)
    step()
    changes = {each.path: each for each in look(step).changes_since(before)}
    assert {path: type(each) for path, each in changes.items()} == {
        "model.calls": Added,
        "model.in_features": Assigned,
        "model.log[0]": Added,
    }
    assert changes["model.calls"].new == 1
    assert changes["model.log[0]"].new is model.log[0]


@pytest.mark.parametrize("how", ["function", "module", "in place", "itself"])
def test_what_is_compiled_counts_by_value(look, nn, how):
    """The compiler guards numbers by itself, and knows of none that listen."""

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return x + 1

    def step():
        model.calls += 1
        return run(torch.ones(2))

    model = Counting()
    run = model.forward if how == "itself" else model
    if how == "function":
        run = torch.compile(lambda x: model(x), backend="eager")
    elif how == "module":
        run = torch.compile(model, backend="eager")
    elif how == "in place":
        model.compile(backend="eager")
    else:
        step = torch.compile(step, backend="eager")
    before = look(step)
    model.calls += 1
    (change,) = look(step).changes_since(before)
    assert type(change) is Assigned


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop"])
def test_optimizers_are_looked_into(look, model, name, capturable):
    """Learning rates are guarded; state that comes is bound, and then is the same."""
    capturable()
    options = {"momentum": 0.9} if name == "SGD" else {"capturable": True}
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, **options)

    def step():
        optimizer.zero_grad()
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()

    before = look(step)
    step()
    changes = look(step).changes_since(before)
    assert changes
    assert all(isinstance(each, BoundArray) for each in changes)
    looked = look(step)
    assert any("optimizer.state" in path for path in slots(looked))
    guards = looked.guards(lambda _: False)
    assert guards.match() is not None
    optimizer.param_groups[0]["lr"] = 0.2
    assert guards.match() is None
    assert "lr" in guards.miss()


def test_what_live_steps_read_is_not_guarded(look, model):
    """Adam counts on the host: its step finds by itself what its settings are."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

    def step():
        optimizer.step()

    def rate():
        optimizer.step()
        return optimizer.param_groups[0]["lr"]

    surveys = look(step), look(rate)
    guards, closer = (each.guards(lambda _: False) for each in surveys)
    optimizer.param_groups[0]["lr"] = 0.2
    assert guards.match() is not None
    assert closer.match() is None
    assert "lr" in str(look(step).changes_since(surveys[0]))
    optimizer.add_param_group({"params": [torch.ones(3, requires_grad=True)]})
    assert guards.match() is None


def test_settings_that_always_change_are_not_guarded(look, model):
    """A step that a recording could do is done live, where each would need its own."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.step()

    for i in range(5):
        optimizer.param_groups[0]["lr"] = 0.1 / (i + 1)
        guards = look(step).guards(lambda _: False)
        optimizer.param_groups[0]["lr"] = 0.3
        assert (guards.match() is None) is (i < 4)


def test_types_of_torchs_are_no_riddle(look):
    """Dtypes, devices and layouts that a function names are values like others."""
    dtype, device = torch.float32, torch.device("cpu")

    def fn():
        return torch.zeros(3, dtype=dtype, device=device)

    guards = look(fn).guards(lambda _: True)
    assert guards.match() is not None
    dtype = torch.float64
    assert guards.match() is None


def test_what_an_instance_says_instead_of_its_class_is_noticed(look, model):
    """A method that code of a package calls may be one of the instance's own."""
    attention = torch.nn.MultiheadAttention(4, 2)
    for module, name in ((model[1], "forward"), (attention, "merge_masks")):
        guards = look(module).guards(lambda _: True)
        for _ in range(12):
            assert guards.match() is not None
        setattr(module, name, lambda *_: None)
        assert guards.match() is None
        delattr(module, name)
        assert guards.match() is not None


FACTOR = 2.0


class Scaled(torch.autograd.Function):
    """An operation whose ways there and back are the user's code."""

    rate = 1.0

    @staticmethod
    def forward(_, x):
        return x * FACTOR

    @staticmethod
    def backward(_, grad):
        return grad * FACTOR * Scaled.rate


class Halved(torch.nn.Module):
    def forward(self, x):
        return x * 0.5 * FACTOR


def _hooked(module, hook):
    module.weight.register_hook(hook)
    return module


CALLED = {
    "a function of autograd's": lambda: lambda x: Scaled.apply(x),
    "its bound method": lambda: Scaled.apply,
    "a module made inside": lambda: (
        lambda x: torch.func.functional_call(Halved(), {}, (x,))
    ),
    "a hook of a parameter": lambda: _hooked(
        torch.nn.Linear(3, 3), lambda grad: grad * FACTOR
    ),
}


@pytest.mark.parametrize("called", CALLED)
def test_what_torch_calls_by_itself_is_read(look, monkeypatch, called):
    """Values that the user's code reads there are guarded, though nobody names it."""
    fn = CALLED[called]()
    guards = look(fn).guards(lambda _: True)
    for _ in range(12):
        assert guards.holds()
    monkeypatch.setattr(f"{__name__}.FACTOR", 3.0)
    assert not guards.holds()


@pytest.mark.parametrize("name", ["rate", "forward", "backward"])
def test_members_of_a_function_of_autograds_are_guarded(look, monkeypatch, name):
    """They may be bound anew, as those of any class."""
    fn = CALLED["a function of autograd's"]()
    guards = look(fn).guards(lambda _: True)
    assert guards.holds()
    monkeypatch.setattr(Scaled, name, staticmethod(lambda *_: None))
    assert not guards.holds()


def test_a_module_that_is_compiled_in_place_is_noticed(look, model):
    """What is called from then on is the compiler's, of other kernels."""
    guards = look(model).guards(lambda _: True)
    assert guards.holds()
    model[0].compile(backend="eager")
    assert not guards.holds()


PLACES = {
    "behind decorators": ("rotary_emb", "attention_scaling", 2.0),
    "by another function of its package": ("layers.0.self_attn", "is_causal", False),
}


@pytest.mark.parametrize("place", PLACES)
def test_what_a_module_of_a_package_has_is_guarded(look, place):
    """Its attributes are read by methods as they were written, and by functions."""
    library = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "intermediate_size": 8, "vocab_size": 9}
    config = library.LlamaConfig(num_hidden_layers=1, num_attention_heads=2, **sizes)
    model = library.LlamaModel(config)
    guards = look(model).guards(lambda _: True)
    for _ in range(12):
        assert guards.holds()
    path, name, value = PLACES[place]
    setattr(model.get_submodule(path), name, value)
    assert not guards.holds()


def test_a_step_that_an_optimizer_has_of_its_own_is_noticed(look, model):
    """Schedulers bind such a one, which calls the class's; and it may be another."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.step()

    plain = look(step).guards(lambda _: True)
    torch.optim.lr_scheduler.StepLR(optimizer, 3)
    assert not plain.holds()
    scheduled = look(step).guards(lambda _: True)
    for _ in range(12):
        assert scheduled.holds()
    optimizer.step = lambda: None
    assert not scheduled.holds()


def test_state_that_an_optimizer_comes_to_have_is_noticed(look, model):
    """State that was not there when an optimizer was looked at is a change."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    guards = look(optimizer.step).guards(lambda _: True)
    assert guards.match() is not None
    first = next(model.parameters())
    optimizer.state[first]["momentum_buffer"] = torch.zeros_like(first)
    assert guards.match() is None


@pytest.mark.parametrize("grad", [True, False])
def test_a_model_surveyed_again_is_as_if_walked_anew(integration, model, grad):
    """Whatever is done to a model, a survey is what a walk would find."""
    optimizer = torch.optim.Adam(model.parameters())

    def step(x, states):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        return states

    surveyor = Surveyor(lambda: step, integration)
    was, then = None, None
    with torch.set_grad_enabled(grad):
        for change in _CHANGES:
            for turn in range(4):
                if turn == 2:
                    change(model, optimizer)
                arguments = {"x": torch.ones(2, 4), "states": [torch.ones(turn)]}
                found = surveyor.survey(arguments)
                fresh = survey(step, arguments, integration)
                assert found.key == fresh.key
                assert found.arrays() == fresh.arrays()
                assert fresh.changes_since(found) == ()
                assert found.changes_since(fresh) == ()
                if was is not None:
                    now = [each.text for each in found.changes_since(was)]
                    assert now == [each.text for each in fresh.changes_since(then)]
                was, then = (found, fresh) if turn == 1 else (None, None)


def _step(model, optimizer):
    for each in model.parameters():
        each.grad = torch.ones_like(each)
    optimizer.step()


def _shape(model, _):
    model[0].weight.data = torch.ones(5, 5)


_CHANGES = [
    lambda _, __: None,
    _step,
    _step,
    lambda _, optimizer: optimizer.zero_grad(),
    lambda m, _: m.eval(),
    lambda m, _: setattr(m[3], "p", 0.1),
    lambda m, _: m.append(torch.nn.ReLU()),
    lambda m, _: m.__setitem__(1, torch.nn.GELU()),
    lambda m, _: setattr(m[2], "momentum", float("0.3")),
    lambda m, _: m[0].register_parameter("more", torch.nn.Parameter(torch.ones(2))),
    lambda m, _: m[0].register_forward_hook(lambda *_: None),
    lambda m, _: m[1].register_forward_pre_hook(lambda *_: None),
    lambda m, _: setattr(m[0], "forward", lambda x: x),
    lambda m, _: m[1].register_buffer("some", torch.ones(3)),
    lambda m, _: m[0].weight.requires_grad_(requires_grad=False),
    lambda m, _: m[0].weight.t_(),
    _shape,
    lambda m, _: setattr(m[0], "note", 1),
    lambda m, _: setattr(m[0], "bias", None),
    lambda m, _: setattr(m[0], "__class__", torch.nn.Identity),
    lambda _, optimizer: optimizer.param_groups[0].__setitem__("lr", 0.5),
    lambda _, optimizer: optimizer.state.clear(),
    lambda _, __: torch.set_grad_enabled(mode=not torch.is_grad_enabled()),
]


# Kernels of Triton's.


class JITFunction:
    """A kernel, as Triton has them: it keeps what it has compiled."""

    __module__ = "triton.runtime.jit"

    def __init__(self, fn):
        self.fn, self.made, self.__globals__ = fn, {}, globals()

    def __getitem__(self, grid):
        return lambda *given: self.made.setdefault(len(given), given)


class Heuristics(JITFunction):
    """What chooses a kernel's constants by functions of the user's."""

    __module__ = "triton.runtime.autotuner"

    def __init__(self, fn, values):
        super().__init__(fn)
        self.values = values


def test_what_a_kernel_keeps_is_its_own_affair(look):
    """Launching one changes nothing that counts; another one in its place does."""
    kernels = {"scale": JITFunction(None)}
    kernel = JITFunction(None)

    def fn():
        kernel[1](2)
        return kernels["scale"][1](2)

    before = look(fn)
    fn()
    assert list(look(fn).changes_since(before)) == []
    guards = before.guards(lambda _: True)
    assert guards.match() is not None
    kernels["scale"] = JITFunction(None)
    assert guards.match() is None


def test_what_chooses_for_a_kernel_is_looked_into(look):
    """Functions of the user's that a kernel's launches ask are read like others."""
    wide = [False]
    kernel = Heuristics(JITFunction(None), {"block": lambda _: 2 if wide[0] else 1})

    def fn():
        return kernel[1](2)

    guards = look(fn).guards(lambda _: True)
    assert guards.match() is not None
    wide[0] = True
    assert guards.match() is None


class Config:
    """One way to make a kernel; a function of the user's may go before it."""

    __module__ = "triton.runtime.autotuner"

    def __init__(self, kwargs, pre_hook=None):
        self.kwargs, self.pre_hook = kwargs, pre_hook


class Autotuner(JITFunction):
    """What chooses among ways to make a kernel, and remembers what it has chosen."""

    __module__ = "triton.runtime.autotuner"

    def __init__(self, fn, configs):
        super().__init__(fn)
        self.configs, self.pre_hook, self.post_hook = configs, None, None


@pytest.mark.parametrize(
    "change",
    [
        lambda kernel, _: kernel.configs[0].kwargs.update(block=2),
        lambda kernel, _: kernel.configs.pop(0),
        lambda _, wide: wide.append(True),
    ],
    ids=["kwargs", "configs", "hook"],
)
def test_what_is_tuned_is_looked_into(look, change):
    """How a kernel is made is the user's to say, and so is what goes before it."""
    wide = []
    configs = [Config({"block": 1}, lambda _: len(wide)), Config({"block": 4})]
    kernel = Autotuner(JITFunction(None), configs)

    def fn():
        return kernel[1](2)

    before = look(fn)
    fn()
    assert list(look(fn).changes_since(before)) == []
    guards = before.guards(lambda _: True)
    assert guards.match() is not None
    change(kernel, wide)
    assert guards.match() is None


HOLDERS = ["a cell", "a list", "a dict", "an attribute"]


def holding(how, tensor):
    """Return a function that steps by a tensor's gradient, and what it is held by."""
    if how == "a cell":
        return lambda: (tensor.sum().backward(), tensor.grad), "tensor"
    held = {"a list": [tensor], "a dict": {"w": tensor}}.get(how)
    if held is not None:
        key = 0 if how == "a list" else "w"
        return lambda: (held[key].sum().backward(), held[key].grad), f"held[{key!r}]"
    owner = types.SimpleNamespace(w=tensor)
    return lambda: (owner.w.sum().backward(), owner.w.grad), "owner.w"


@pytest.mark.parametrize("how", HOLDERS)
def test_gradients_of_tensors_that_no_module_has(look, how):
    """They are slots: bound, where they are new, and taken away."""
    tensor = torch.ones(3, requires_grad=True)
    fn, path = holding(how, tensor)
    before = look(fn)
    assert slots(before) == {path}
    fn()
    after, gradient = look(fn), tensor.grad
    assert slots(after) == {path, f"{path}.grad"}
    (change,) = after.changes_since(before)
    assert isinstance(change, BoundArray)
    assert change.path == f"{path}.grad"
    change.undo()
    assert tensor.grad is None
    change.slot.write(gradient)
    assert tensor.grad is gradient
    tensor.grad = None
    (change,) = look(fn).changes_since(after)
    assert change.old is gradient


def test_gradients_that_nobody_sends(look):
    """Where nothing goes back, and of what gets none, there is no slot."""
    tensor = torch.ones(3, requires_grad=True)
    assert slots(look(lambda: tensor.grad)) == {"tensor"}
    inner = tensor * 2
    tensor.grad = inner.detach()
    assert slots(look(lambda: inner.backward())) == {"inner"}


def test_gradients_of_tensors_are_guarded(look):
    """One that is there by now, or is another one, is another call's."""
    tensor = torch.ones(3, requires_grad=True)
    fn = lambda: tensor.sum().backward()  # noqa: E731
    ambient = look(fn).guards(lambda _: True)
    assert ambient.match() is not None
    tensor.grad = torch.zeros(3)
    assert ambient.match() is None
    assert "tensor.grad was None" in ambient.miss()
    later = look(fn).guards(lambda _: True)
    for _ in range(20):
        assert [each.data_ptr() for each in later.match()] == [
            tensor.data_ptr(),
            tensor.grad.data_ptr(),
        ]
    tensor.grad = None
    assert later.match() is None


@pytest.mark.parametrize("how", HOLDERS)
def test_gradients_are_put_back(look, how):
    """As they were, and those alone: what got one by other ways keeps it."""
    tensor = torch.ones(3, requires_grad=True)
    fn, _ = holding(how, tensor)
    before = look(fn)
    fn()
    put_back(before)
    assert tensor.grad is None
    fn()
    gradient, with_one = tensor.grad, look(fn)
    tensor.grad = None
    put_back(with_one)
    assert tensor.grad is gradient


def test_gradients_of_what_has_moved(look):
    """It is bound to no slot; where it is what it was, nothing has changed."""
    leaves = [torch.ones(3, requires_grad=True) for _ in range(3)]

    def fn():
        leaves[0].sum().backward()
        leaves.append(leaves.pop(0))

    before = look(fn)
    fn()
    changes = look(fn).changes_since(before)
    assert any("moved or made" in each.text for each in changes)
    assert not any(
        isinstance(each, BoundArray) and "grad" in each.path for each in changes
    )
    before = look(fn)
    leaves.append(leaves.pop(0))
    assert not any("grad" in each.path for each in look(fn).changes_since(before))


def test_hooks_of_tensors_are_guarded(look):
    """Those of leaves, and what they read."""
    leaf, rate = torch.ones(3, requires_grad=True), [0.5]
    fn = lambda: leaf.sum().backward()  # noqa: E731
    key = look(fn).key
    handle = leaf.register_hook(lambda grad: grad * rate[0])
    with_hook = look(fn).key
    assert with_hook != key
    rate[0] = 2.0
    assert look(fn).key != with_hook
    handle.remove()
    leaf.register_post_accumulate_grad_hook(lambda _: rate.clear())
    assert look(fn).key not in (key, with_hook)


@pytest.mark.parametrize("how", [*HOLDERS, "a module"])
def test_what_stands_in_for_a_gradient_goes_from_where_it_was_put(look, how):
    """Also where the function has put another leaf in the place of that one."""
    leaf, other = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    gradient, own = torch.ones(3), torch.zeros(3)
    leaf.grad = gradient
    if how == "a module":
        holder = torch.nn.Linear(3, 1, bias=False)
        holder.weight = leaf
        fn = lambda: holder(torch.ones(3)).backward()  # noqa: E731
        swap = lambda: setattr(holder, "weight", other)  # noqa: E731
    else:
        fn, _ = holding(how, leaf)
        cells = {
            name: cell.cell_contents
            for name, cell in zip(fn.__code__.co_freevars, fn.__closure__, strict=True)
        }
        held = cells.get("held") or cells.get("owner")

        def swap():
            if how == "an attribute":
                held.w = other
            elif how != "a cell":
                held["w" if how == "a dict" else 0] = other
            else:
                at = fn.__code__.co_freevars.index("tensor")
                fn.__closure__[at].cell_contents = other

    (slot,) = [s for s, x in look(fn).slots_of_arrays() if x is gradient]
    swaps = Swaps()
    swaps.enter([(slot, own, gradient)], {})
    assert leaf.grad is own
    swap()
    swaps.leave({})
    assert leaf.grad is gradient
    assert other.grad is None


def test_gradients_of_what_a_module_merely_has(look, nn):
    """Leaves in its attributes, and in lists there, that are no parameters."""

    class Latent(nn.Module):
        def __init__(self):
            super().__init__()
            self.code = torch.ones(2, requires_grad=True)
            self.others = [torch.ones(2, requires_grad=True)]

        def forward(self):
            (self.code * self.others[0]).sum().backward()

    model = Latent()
    before = look(model)
    model()
    changes = look(model).changes_since(before)
    assert {each.path for each in changes if isinstance(each, BoundArray)} == {
        "self.code.grad",
        "self.others[0].grad",
    }


@pytest.mark.parametrize("through", ["a module", "an optimizer"])
def test_what_is_a_slot_already_is_no_other_one(look, model, through):
    """A list of a module's parameters beside it: each gradient is bound once."""
    params = list(model.parameters())
    owner = model if through == "a module" else torch.optim.SGD(params, lr=0.1)

    def step():
        owner.zero_grad()
        sum(each.sum() for each in params).backward()

    before = look(step)
    step()
    changes = look(step).changes_since(before)
    bound = [each.path for each in changes if isinstance(each, BoundArray)]
    assert len(bound) == len(params)
    assert not any(path.startswith("params") for path in bound)
