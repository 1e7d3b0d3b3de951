"""What torch's dispatcher tells of a function, on a device that has no memory."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from sapwood import CaptureError
from sapwood.errors import DriverError
from sapwood.tree.watch.session import Session, entered

torch = pytest.importorskip("torch")


OUTSIDE = torch.ones(4, 4)
"""A tensor that no function here has made."""


@pytest.fixture
def watch(adapter_of):
    """Return what runs a function while it is watched, and what was told of it."""
    from sapwood.integrations.torch.watching import Watcher

    integrations = {kind: adapter_of(kind) for kind in ("meta", "cpu")}

    def run(fn, *args, kind="meta", tolerant=False, moments=None):
        integration = integrations[kind]
        session = Session(tolerant=tolerant)
        watcher = Watcher(session, integration.storages_of, moments=moments)
        with watcher:
            fn(*args)
        return session, watcher, integration

    return run


@pytest.fixture
def x():
    return torch.zeros(4, 4, device="meta")


def test_uses_and_writes_are_told(watch, x):
    """Every storage that an operation takes is told, and whether it is written."""
    out, other = torch.zeros_like(x), torch.zeros_like(x)

    def fn():
        torch.add(x, 1, out=out)
        torch._foreach_mul_([other[1:]], 2)
        return x.t() @ x

    session, _, integration = watch(fn)
    told = {id(s): use.writes for s, use in session.used.items()}
    assert told[id(integration.look(x).storage)] is False
    assert told[id(integration.look(out).storage)] is True
    assert told[id(integration.look(other).storage)] is True
    assert all(__file__ in use.where for use in session.used.values())


def test_backward_is_seen(watch, x):
    """Operations of autograd are told like others, and that there were some."""
    weight = torch.zeros(4, 4, device="meta", requires_grad=True)

    def forward():
        return (x @ weight).sum()

    ahead, watcher, _ = watch(forward)
    assert not watcher.went_back
    back, watcher, integration = watch(lambda: forward().backward())
    assert watcher.went_back
    assert len(back.ops) > len(ahead.ops)
    assert integration.look(weight).storage in back.used


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_operations_made_of_others_are_told_as_those(watch, x, mode):
    """In inference mode, too, where torch gives them to modes as they are."""
    host = torch.arange(4)

    def fn():
        x.type_as(torch.zeros(1, dtype=torch.float64, device="meta"))
        host.to(x)
        torch.nn.functional.linear(x, x)
        return (x @ x).reshape(2, 8)

    def made():
        with mode():
            return fn()

    session, _, _ = watch(made, tolerant=True)
    told = [name for name, _ in session.ops]
    parts = ["zeros", "_to_copy", "_to_copy", "t", "mm", "mm", "view"]
    assert told == [f"aten.{each}.default" for each in parts]


def test_products_with_parameters_are_the_same_in_each_mode(watch):
    """Torch decides by what requires grad how it multiplies, and rounds so."""
    layer = torch.nn.Linear(6, 32)
    x = torch.zeros(5, 6).unsqueeze(0).expand(8, 5, 6)

    def told(mode):
        with mode():
            session, _, _ = watch(lambda: layer(x), kind="cpu", tolerant=True)
        return [name for name, _ in session.ops]

    plain = told(torch.enable_grad)
    assert "aten.bmm.default" not in plain
    assert told(torch.no_grad) == told(torch.inference_mode) == plain


READS = {
    "x.item()": lambda x: (x.sum().item(), bool(x[0, 0] > 1), int(x[0, 1])),
    "torch.equal": lambda x: torch.equal(x, x + 0),
    "torch.masked_select": lambda x: x.masked_select(x > 1),
    "torch.nonzero": lambda x: x.nonzero(),
    "torch.unique": lambda x: x.unique(return_inverse=True, return_counts=True),
    "x[mask]": lambda x: x[x > 1],
    "torch._linalg_eigh": lambda x: torch.linalg.eigh(x + x.T),
    "torch._linalg_svd": lambda x: torch.linalg.svd(x, full_matrices=False),
    "torch.linalg_matrix_exp": lambda x: torch.linalg.matrix_exp(x * 0.1),
    "torch.histc": lambda x: torch.histc(x, 4),
}


@pytest.mark.parametrize("name", READS)
def test_what_no_capture_takes_is_a_region(adapter_of, name):
    """It gives what it gives eagerly, is passed the tensors, and writes nothing."""
    from sapwood.integrations.torch.watching import Watcher

    ran, x = [], torch.arange(16.0).view(4, 4) % 5

    def between(part, args, kwargs):
        assert all(map(torch.is_tensor, args))
        ran.append((part.name, part.writes, part(*args, **kwargs)))
        return ran[-1][-1]

    session = Session(tolerant=True, splits=True)
    session.between = between
    with entered(session), Watcher(session, adapter_of("cpu").storages_of):
        found = READS[name](x)
    expected = READS[name](x)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert {(each, writes) for each, writes, _ in ran} == {(name, False)}
    # Of what has any shape, the values are told: on a GPU the shape is.
    leaves = torch.utils._pytree.tree_leaves([result for *_, result in ran])
    gives = "linalg" in name or name == "torch.histc"
    assert any(map(torch.is_tensor, leaves)) == gives
    assert session.unrecordable is None


def test_a_histogram_whose_bounds_are_known_is_captured(adapter_of):
    """As models of several experts count with; where it looks for them, it waits."""
    from sapwood.integrations.torch.watching import Watcher

    x, session = torch.arange(16.0), Session(tolerant=True, splits=True)
    session.between = lambda *_: pytest.fail("it is read as a region")
    with entered(session), Watcher(session, adapter_of("cpu").storages_of):
        torch.histc(x, 4, 0, 16)
        torch.histc(x, 4, -1)
    assert session.unrecordable is None


def test_what_is_read_is_no_part_of_autograd(adapter_of):
    """Its gradient is sent back by what the function has, not through a region."""
    from sapwood.integrations.torch.watching import Watcher

    x, found = (torch.arange(16.0).view(4, 4) % 5).requires_grad_(), []

    def between(part, args, kwargs):
        assert not any(each.requires_grad for each in args)
        return part(*args, **kwargs)

    def back():
        torch.linalg.matrix_exp(x * 0.1).masked_select(x > 1).sum().backward()
        found.append(x.grad)
        x.grad = None

    session = Session(tolerant=True, splits=True)
    session.between = between
    with entered(session), Watcher(session, adapter_of("cpu").storages_of):
        back()
    back()
    assert torch.equal(*found)


def test_autograd_goes_back_by_masks_as_they_were(adapter_of):
    """No region can run in a backward pass: none is asked for there."""
    from sapwood.integrations.torch.watching import Watcher

    x, found, ran = torch.arange(16.0).view(4, 4).requires_grad_(), [], []

    def between(part, args, kwargs):
        assert torch._C._current_graph_task_id() < 0
        ran.append(part.name)
        return part(*args, **kwargs)

    def back():
        y, mask = x * 2, x > 3
        parts = y[mask].square().sum(), y[:, x[0] > 1].sum(), y[mask].sin().sum()
        y = y.clone()
        y[y < 2] = parts[0]
        (y.sum() + sum(parts)).backward()
        found.append(x.grad)
        x.grad = None

    session = Session(tolerant=True, splits=True)
    session.between = between
    with entered(session), Watcher(session, adapter_of("cpu").storages_of):
        back()
    back()
    assert torch.equal(*found)
    assert ran == ["x[mask]"] * 4
    assert session.unrecordable is None


def _multiplied(x):
    return x.prod(1).sin().sum() + x.prod()


def _accumulated_in_a_view(x):
    y, z = (x * 1).t(), (x * 1)[0]
    y.cumprod_(0)
    z.cumprod_(0)
    return (y * y.detach().flip(0)).sum() + z.sum()


def _accumulated(x):
    return (x.cumprod(1).square() + (x * 1).cumprod_(0)).sum()


@pytest.mark.parametrize("fn", [_multiplied, _accumulated, _accumulated_in_a_view])
@pytest.mark.parametrize("zeros", [0, 1, 3])
@pytest.mark.parametrize("twice", [False, True])
def test_gradients_of_products_are_as_ever(watch, fn, zeros, twice):
    """Torch has another formula for those where a mode is told, with other bits."""
    torch.manual_seed(4)
    x, found = torch.rand(9, 9) + 0.5, []
    x.view(-1)[:zeros] = 0
    x.requires_grad_()

    def back():
        total = fn(x)
        (grad,) = torch.autograd.grad(total, x, create_graph=twice)
        if twice:
            (grad,) = torch.autograd.grad(grad.square().sum(), x)
        found.append(grad)

    session, *_ = watch(back, kind="cpu", tolerant=True)
    back()
    assert "has other bits" in str(session.unrecordable)
    # Gradients of gradients are summed in another order.
    close = {} if twice else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(*found, **close)


PUTS = {
    "a number": lambda x: x.__setitem__(x > 1, 7),
    "a value": lambda x: x.__setitem__(x > 1, x.sum()),
    "columns": lambda x: x.__setitem__((slice(None), x[0] > 1), 7),
    "rows": lambda x: x.__setitem__(x[0] > 1, 7),
    "an element": lambda x: x.__setitem__((x[0] > 1, torch.tensor([1])), 7),
    "added": lambda x: x.index_put_((x[0] > 1,), x[1] * 1, accumulate=True),
    "several": lambda x: x.__setitem__(x > 1, x[x > 1].flip(0)),
    "anew": lambda x: x.copy_(x.t().index_put((x > 1,), torch.tensor(2))),
    "another dtype": lambda x: x.__setitem__(x > 1, torch.tensor(2)),
    "where none is": lambda x: x.__setitem__(x > 99, 7),
    "out": lambda x: torch.ops.aten.index.Tensor_out(
        x.clone(), [x > 99], out=x.flatten()[:0]
    ),
    "none behind": lambda x: torch.ops.aten.index_put_(
        x, [x[0] > 1, None], torch.tensor(7.0)
    ),
    "with a scalar": lambda x: x.__setitem__(torch.tensor(True), 7),
}


@pytest.mark.parametrize("name", PUTS)
def test_what_is_put_where_a_mask_says_is_as_ever(watch, name):
    """Where it is done step by step, too."""
    found = []

    def fn():
        x = torch.arange(16.0).view(4, 4) % 5
        PUTS[name](x)
        found.append(x)

    watch(fn, kind="cpu", tolerant=True)
    fn()
    assert torch.equal(*found)


def test_no_mask_of_another_size_puts(watch):
    """It raises what it raises eagerly."""

    def fn():
        with pytest.raises(IndexError, match="shape of the mask"):
            torch.zeros(4, 4)[torch.ones(3, dtype=torch.bool)] = 7
        with pytest.raises(RuntimeError, match="shape mismatch"):
            torch.zeros(4, 4)[torch.ones(4, dtype=torch.bool)] = torch.zeros(3)

    watch(fn, kind="cpu", tolerant=True)


NORMS = {
    "told": lambda x, m, v, t: t and torch.batch_norm_update_stats(x, m, v, 0.1),
    "native": lambda x, m, v, t: torch.native_batch_norm(
        x, None, None, m, v, t, 0.1, 1e-5
    ),
    "functional": lambda x, m, v, t: torch.nn.functional.batch_norm(
        x, m, v, training=t
    ),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("training", [False, True])
def test_running_statistics_are_written_in_training(watch, name, training):
    """Whatever schemas say of it."""
    x, mean, var = torch.rand(5, 3), torch.zeros(3), torch.ones(3)
    fn = NORMS[name]
    session, _, integration = watch(lambda: fn(x, mean, var, training), kind="cpu")
    if not session.used:
        return
    for each in (mean, var):
        assert session.used[integration.look(each).storage].writes == training
    assert not session.used[integration.look(x).storage].writes


def test_a_text_is_no_region(adapter_of):
    """Nobody would see it where a replay goes by the values."""
    from sapwood.integrations.torch.watching import Watcher

    x, session = torch.arange(3.0), Session(tolerant=True, splits=True)
    session.between = lambda *_: pytest.fail("it is read as a region")
    with entered(session), Watcher(session, adapter_of("cpu").storages_of):
        text = str(x), f"{x.sum():.1f}"
    assert text == (str(x), "3.0")
    assert "on the host" in session.unrecordable.what


PRODUCTS = {
    "bilinear": lambda x: torch.nn.functional.bilinear(x, x, torch.ones(2, 4, 4)),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "gru": torch.nn.GRU(4, 4),
    "in a linear one": lambda x: torch.nn.functional.linear(x @ x, x),
    "matrix power": lambda x: torch.linalg.matrix_power(x, 3),
    "off within": lambda x: torch.autocast("cpu", enabled=False)(PRODUCTS["einsum"])(x),
    "tensordot": lambda x: torch.tensordot(x, x, 1),
    "vmap": torch.vmap(lambda x: torch.outer(x, x) @ x),
}


@pytest.mark.parametrize("mode", ["enable_grad", "no_grad", "inference_mode"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_autocast_takes_part_in_what_is_watched(watch, name, mode):
    """In what operations are made of, too, where modes are told of the whole."""
    fn, found = PRODUCTS[name], []
    torch.manual_seed(5)
    x = torch.randn(4, 4)
    with getattr(torch, mode)(), torch.autocast("cpu", torch.bfloat16):
        expected = fn(x)
        watch(lambda: found.append(fn(x)), kind="cpu", tolerant=True)
    pairs = [*zip(found[0], expected, strict=True)] if name == "gru" else []
    for got, wanted in pairs or [(found[0], expected)]:
        assert got.dtype == wanted.dtype
        assert torch.equal(got, wanted)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_zeros_that_autograd_makes_are_no_memory(watch):
    """Derivatives of derivatives have such: they lie nowhere."""
    x, found = torch.ones(4), []

    def fn():
        found.append(torch.func.hessian(lambda x: (x[1:] * x[:-1] ** 2).sum())(x))

    session, _, integration = watch(fn, kind="cpu")
    fn()
    assert torch.equal(*found)
    assert integration.look(x).storage in session.used


def test_recording_a_stream_is_no_operation(watch, x):
    """It neither uses nor writes a tensor, whatever its schema says."""
    stream = torch.Stream(stream_id=7, device_index=0, device_type=1)

    def fn():
        with pytest.raises(NotImplementedError):
            x.record_stream(stream)

    session, _, _ = watch(fn)
    assert (session.ops, session.used) == ([], {})


def test_a_higher_order_operator_is_refused_by_name(watch):
    """It runs functions of its own: it does so, as it does where nobody watches."""
    prims = pytest.importorskip("torch._prims.rng_prims")
    seen, y = [], torch.rand(3)

    def fn():
        state = torch.get_rng_state()
        seen.append(prims.run_with_rng_state(state, torch.ops.aten.add.Tensor, y, y))

    session, *_ = watch(fn, kind="cpu", tolerant=True)
    assert torch.equal(seen[0], y + y)
    said = "the operator run_with_rng_state runs functions of its own at"
    assert said in str(session.unrecordable)


def test_digests_tell_operations_apart(watch, x):
    """The same operations have the same digests; others, or other numbers, have not."""
    digests = [
        watch(fn)[0].digests()
        for fn in (
            lambda: x + 1,
            lambda: x + 1,
            lambda: x + 2,
            lambda: x - 1,
            lambda: x[1:] + 1,
            lambda: torch.empty(3, device="meta"),
            lambda: torch.empty(4, device="meta"),
        )
    ]
    assert digests[0] == digests[1]
    assert len(set(digests)) == len(digests) - 1


def test_what_lies_elsewhere_is_told_alike(watch, x, monkeypatch):
    """A storage does not say what is in it, which the device would be asked for."""

    def asked(_):
        raise AssertionError

    monkeypatch.setattr(torch.UntypedStorage, "__repr__", asked)

    def fn():
        torch.empty(0, device="meta").set_(torch.zeros_like(x).untyped_storage())

    first, second = (watch(fn)[0].digests() for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (lambda x: x.sum().item(), "on the host"),
        (lambda x: x.nonzero(), "on the host"),
        (lambda x: x[x > 0], "on the host"),
        (lambda x: x.masked_select(x > 0), "on the host"),
        (lambda x: x.cpu(), "on the host"),
        (lambda x: torch.zeros(4, 4).copy_(x), "on the host"),
        (lambda x: bool((x > 0).any()), "on the host"),
        (lambda x: torch.unique(x), "on the host"),
        (lambda x: x + OUTSIDE.to("meta"), "host data"),
        (lambda x: x.copy_(OUTSIDE), "host data"),
        (lambda x: x[OUTSIDE[0].long()], "used on the device"),
        (lambda x: x + torch.rand(4).to("meta"), "host data"),
        (lambda x: x.copy_(torch.zeros(4).uniform_()), "host data"),
        (lambda x: x.copy_(torch.zeros(4).copy_(OUTSIDE[0])), "host data"),
        (
            lambda x: torch._cudnn_rnn_flatten_weight(
                [x, x], 2, 4, 2, 4, 0, 1, False, False
            ),
            "flatten_parameters",
        ),
    ],
    ids=[
        "item",
        "nonzero",
        "mask",
        "masked_select",
        "cpu",
        "copy",
        "bool",
        "unique",
        "to",
        "copy_",
        "index",
        "random",
        "random in place",
        "written from outside",
        "flattened",
    ],
)
def test_what_no_replay_repeats_is_refused(watch, x, fn, text):
    """What needs the host, or brings its data, is refused at its line, before it is."""
    with pytest.raises(CaptureError, match=text) as caught:
        watch(fn, x)
    assert __file__ in str(caught.value)


@pytest.mark.parametrize("name", ["prod", "cumprod"])
@pytest.mark.parametrize("back", [False, True])
def test_gradients_that_have_other_bits_are_refused(watch, back, name):
    """Of products along a dimension, which torch computes otherwise while watched."""
    x = torch.rand(4, 5, device="meta", requires_grad=True)

    def product(x):
        with torch.set_grad_enabled(back):
            return getattr(x, name)(-1)

    if back:
        with pytest.raises(CaptureError, match=rf"the gradient of {name}\(\) has"):
            watch(product, x)
    else:
        watch(product, x)


def test_cpu_tensors_from_outside_are_refused(watch, x):
    """The value of a CPU tensor would be baked in; one made inside is a constant."""
    outside = torch.tensor(2.0)
    with pytest.raises(CaptureError, match="used on the device"):
        watch(lambda: x * outside)
    with pytest.raises(CaptureError, match="capturable=True"):
        watch(lambda: outside.add_(1))
    session, _, _ = watch(lambda: x * torch.tensor(2.0))
    assert session.unrecordable is None


CONSTANTS = {
    "to": lambda x, n: x + torch.full((4,), n).to("meta"),
    "cast": lambda x, n: x + torch.arange(4).add(n).to("meta", torch.float64),
    "copy_": lambda x, n: x.copy_(torch.full((4, 4), n)),
    "number": lambda x, n: x * torch.tensor(n),
    "index": lambda x, n: x[torch.tensor([n, 0]).long()],
    "index_put_": lambda x, n: x.index_put_((torch.tensor([n]).long(),), x[0]),
    "where": lambda x, n: torch.where(x > 0, torch.tensor(n), x),
    "written before": lambda x, n: x.copy_(torch.zeros(4).fill_(n)),
}
"""What brings plain values, in tensors that the function itself makes."""


@pytest.mark.parametrize("how", CONSTANTS)
def test_plain_values_in_tensors_are_constants(watch, x, how):
    """They may enter the device, and the same operation of other values is another."""
    fn = CONSTANTS[how]
    digests = [watch(fn, x, n)[0].digests() for n in (1.0, 1.0, 2.0)]
    assert digests[0] == digests[1] != digests[2]


class Bringing:
    """Brings nothing, and remembers what it is to bring."""

    def __init__(self):
        self.brought = []

    def __call__(self, _, host):
        assert host.device.type == "cpu"
        self.brought.append(host.clone())
        return host.to("meta")


@pytest.fixture
def bringing(adapter_of):
    """Return what runs a function as in a capture, and what was brought meanwhile."""
    from sapwood.integrations.torch.watching import Watcher

    def run(fn, *args):
        session, bring = Session(tolerant=False), Bringing()
        with Watcher(session, adapter_of("meta").storages_of, int, None, bring):
            result = fn(*args)
        return bring.brought, result, session

    return run


BROUGHT = {
    "to": torch.full((4,), 2.0),
    "cast": torch.arange(4).add(2).double(),
    "copy_": torch.full((4, 4), 2.0),
    "index": torch.tensor([2, 0]),
    "index_put_": torch.tensor([2]),
    "where": torch.tensor(2.0),
    "written before": torch.full((4,), 2.0),
}


@pytest.mark.parametrize("how", CONSTANTS)
def test_a_capture_brings_constants(bringing, watch, x, how):
    """As the operation would have them on the device; it is told of as eagerly."""
    brought, result, session = bringing(CONSTANTS[how], x, 2.0)
    expected = BROUGHT.get(how)
    if expected is None:
        assert brought == []
    else:
        (found,) = brought
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    eager = CONSTANTS[how](x, 2.0)
    assert (result.shape, result.dtype) == (eager.shape, eager.dtype)
    assert session.digests() == watch(CONSTANTS[how], x, 2.0)[0].digests()


def test_nothing_is_brought_that_stays_on_the_host(bringing, x):
    """Operations of the host alone run as they do, and so do those of the device."""

    def fn(x):
        table = torch.arange(8)[torch.tensor([1, 2])]
        other = torch.where(table > 1, table, torch.tensor(0)).to(torch.float32)
        torch.empty(2).copy_(other)
        return x.to(torch.float64).copy_(x)[x.long()]

    brought, _, _ = bringing(fn, x)
    assert brought == []


def test_a_brought_tensor_lies_as_the_one_on_the_host(bringing):
    """Its strides are those that torch gives a copy."""
    brought, result, _ = bringing(lambda: torch.zeros(3, 4).t().to("meta"))
    assert brought[0].stride() == result.stride() == (1, 4)


@pytest.fixture
def holding(adapter_of):
    """Return what runs a function while it is watched that tensors are guarded for."""
    from sapwood.integrations.torch.watching import Watcher

    def run(fn, *guarded):
        holds = lambda value: any(value is each for each in guarded)  # noqa: E731
        session = Session(tolerant=False, holds=holds)
        with Watcher(session, adapter_of("meta").storages_of):
            fn()
        return session.digests()

    return run


def test_small_guarded_tensors_are_constants(holding, x):
    """So is what is computed of them; no large ones, which are known by identity."""
    table, large = torch.arange(4.0), torch.zeros(1 << 15)
    before = holding(lambda: x + table[1:2].mul(2).to("meta"), table)
    assert before == holding(lambda: x + table[1:2].mul(2).to("meta"), table)
    table.add_(1)
    assert before != holding(lambda: x + table[1:2].mul(2).to("meta"), table)
    for fn, guarded in (
        (lambda: x + table.to("meta"), x),
        (lambda: x + large[:4].to("meta"), large),
    ):
        with pytest.raises(CaptureError, match="host data"):
            holding(fn, guarded)


def test_a_write_to_a_guarded_tensor_is_refused(holding):
    """No replay would repeat it."""
    table = torch.arange(4.0)
    with pytest.raises(CaptureError, match="is written"):
        holding(lambda: (table + 1, table.add_(1)), table)


class Wrapped(torch.Tensor):
    """A tensor that is made of another, and has no memory of its own."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device
        )

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        inner = [each.inner if isinstance(each, cls) else each for each in args]
        return func(*inner, **kwargs or {})


def jagged(x):
    """Return a nested tensor over the rows of one, in Python."""
    ends = torch.zeros(3, dtype=torch.int64, device="meta")
    return torch.nested.nested_tensor_from_jagged(x, ends, min_seqlen=1, max_seqlen=4)


def test_parameters_are_told_like_other_tensors(watch, x):
    """They are of a class of their own, which leaves it to torch what happens."""
    weight = torch.nn.Parameter(x)
    session, _, integration = watch(lambda: weight.data.clone())
    assert integration.look(weight).storage in session.used


@pytest.mark.parametrize("wrap", [Wrapped, jagged])
def test_tensors_made_of_others_use_those(watch, x, wrap):
    """What they are made of is used when they are, not when they are made."""
    uses = []

    def fn():
        wrapped = wrap(x)
        del uses[:]
        return wrapped * 2

    watch(
        fn, moments=SimpleNamespace(passed=lambda used: uses.extend(s for s, _ in used))
    )
    _, _, integration = watch(lambda: None)
    assert integration.look(x).storage in uses


def sparse(x):
    places = torch.zeros(1, 4, dtype=torch.int64)
    return torch.sparse_coo_tensor(places, x, (9, 4), check_invariants=False).to_dense()


def nested(x):
    mask = torch.ones(1, 4, dtype=torch.bool)
    return torch._nested_tensor_from_mask(x[None], mask) * 2


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("fn", [sparse, nested])
def test_tensors_without_a_storage_are_refused(watch, fn):
    """Sparse ones, and nested ones; who is tolerant goes on with them."""
    x = torch.zeros(4, 4)
    with pytest.raises(CaptureError, match="sparse or nested"):
        watch(fn, x, kind="cpu")
    session, _, _ = watch(fn, x, kind="cpu", tolerant=True)
    assert "sparse or nested" in str(session.unrecordable)


def test_sparse_tensors_elsewhere_are_not_asked_where_they_lie(watch, x):
    """They have no memory of their own, and may be what a function makes itself."""
    session, _, _ = watch(lambda: (x + 1, sparse(torch.zeros(4, 4))))
    assert session.unrecordable is None


def test_a_tolerant_session_goes_on(watch, x):
    """Where that is asked for, what cannot be recorded is noted and done."""
    session, _, _ = watch(lambda: x.copy_(OUTSIDE), tolerant=True)
    assert "host data" in str(session.unrecordable)


@pytest.fixture(scope="module")
def seeded():
    """Return an operation that gives a CPU tensor beside what it makes of one."""
    library = torch.library.Library("sapwood_watching", "DEF")
    library.define("seeded(Tensor x) -> (Tensor, Tensor)")
    library.impl("seeded", lambda x: (x + 1, torch.tensor(7)), "Meta")
    yield torch.ops.sapwood_watching.seeded
    library._destroy()


def test_what_an_operation_gives_on_the_cpu_is_its_own(adapter_of, watch, seeded, x):
    """As attention's seeds in a warm-up; in a capture it would be baked in."""
    from sapwood.integrations.torch.watching import Watcher

    def fn():
        y, seed = seeded(x)
        return y * seed

    session, _, _ = watch(fn)
    assert session.unrecordable is None
    capture = Session(tolerant=False)
    with (
        pytest.raises(CaptureError, match="used on the device"),
        Watcher(capture, adapter_of("meta").storages_of, int),
    ):
        fn()


# Work that is launched past the dispatcher.


@pytest.fixture
def captured(adapter_of):
    """Return what runs a function with a count of what it captures, and how much.

    An operation launches two. The function is given what launches one more, past the
    dispatcher, and what a compiled graph runs in.
    """
    from sapwood.integrations.torch.watching import Watcher

    integration = adapter_of("meta")

    class Launching(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            count[0] += 2
            return func(*args, **kwargs or {})

    count = [5]

    def launch():
        count[0] += 1

    def run(fn, *, tell=lambda count: count, raises=None):
        session = Session(tolerant=False)
        watcher = Watcher(session, integration.storages_of, lambda: tell(count[0]))
        with raises or nullcontext(), Launching(), watcher:
            fn(launch, watcher.region)
        return session.untold

    return run


def test_what_operations_launch_is_told(captured, x):
    """Nothing else is there, whatever was captured before."""
    assert captured(lambda *_: x + 1) == 0
    assert captured(lambda *_: (x.t() @ x).add_(1)) == 0


@pytest.mark.parametrize("where", [0, 1, 2])
def test_what_is_launched_past_operations_is_untold(captured, x, where):
    """Before, between and behind them."""

    def fn(launch, _):
        for k in range(3):
            if k == where:
                launch()
                launch()
            if k < 2:
                x.add(1)

    assert captured(fn) == 2


def test_what_an_operation_that_fails_launches_does_not_hide_others(captured, x):
    """A function may go on after an error."""

    def fn(launch, _):
        with pytest.raises(RuntimeError):
            x + torch.zeros(3, device="meta")
        launch()
        return x + 1

    assert captured(fn) >= 1


def test_what_is_launched_before_an_exception_is_untold(captured, x):
    """What a function has done until then is launched once, and may write arguments."""

    def fn(launch, _):
        x.add(1)
        launch()
        raise ValueError("the function's")

    assert captured(fn, raises=pytest.raises(ValueError, match="the function's")) == 1


def test_an_exception_passes_where_nothing_can_be_counted(captured, x):
    """A capture that is spoilt says so at its end; else it says so there and then."""
    spoilt = []

    def tell(count):
        if spoilt:
            raise DriverError("count", 901, "STREAM_CAPTURE_INVALIDATED", "spoilt")
        return count

    def fn(*_):
        x.add(1)
        spoilt.append(True)
        raise ValueError("the function's")

    captured(fn, tell=tell, raises=pytest.raises(ValueError, match="the function's"))
    spoilt.clear()
    raises = pytest.raises(DriverError, match="spoilt")
    captured(lambda *_: spoilt.append(True), tell=tell, raises=raises)


def test_what_a_compiled_graph_launches_is_told(captured, x):
    """It is one operation, and what it takes is told, however deep graphs are."""
    graph = SimpleNamespace(device_types={"meta"}, cache_key="k", mutated_input_idxs=())

    def fn(launch, region):
        with region(graph, [x]):
            launch()
            with region(graph, [x]):
                launch()
            x.add(1)
            launch()
        x.add(1)

    assert captured(fn) == 0
    assert captured(lambda launch, r: (launch(), fn(launch, r), launch())) == 2


class Following:
    """Moments that follow some storages; they lend copies in the place of tensors."""

    def __init__(self, *followed):
        self.followed, self.seen = followed, []

    def passed(self, uses):
        self.seen.append(sorted(writes for _, writes in uses))

    def lend(self, storages, tensor):
        return tensor.clone() if storages.of(tensor) in self.followed else tensor


def test_compiled_graphs_are_lent_what_they_only_read(adapter_of, x):
    """They use that until they let go of it, and all else until they are over."""
    from sapwood.integrations.torch.watching import Watcher

    integration = adapter_of("meta")
    graph = SimpleNamespace(
        device_types={"meta"}, cache_key="k", mutated_input_idxs=(1,)
    )
    read, written, other = x, torch.zeros_like(x), torch.zeros_like(x)
    followed = Following(
        integration.look(read).storage, integration.look(written).storage
    )
    session, inputs = Session(tolerant=False), [read, written, other, 3]
    with Watcher(session, integration.storages_of, int, followed) as watcher:
        with watcher.region(graph, inputs):
            assert inputs[0] is not read
            assert inputs[1] is written
            assert inputs[2] is other
            inputs.clear()
        seen = followed.seen[-1]
        given = (read, other)
        with watcher.region(graph, given):
            assert given[0] is read
    assert seen == [False, True]
    assert len(session.used) == 3
    assert followed.seen[-1] == [False, True]
