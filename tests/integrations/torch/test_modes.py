"""The modes that eager regions are called in, and those that no replay sets."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from functools import partial

import pytest

torch = pytest.importorskip("torch")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

SET = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cuda", dtype=torch.bfloat16),
}
STRANGE = {
    'is_autocast_enabled("cpu")': lambda: torch.autocast("cpu"),
    "torch's function modes": lambda: torch.device("cpu"),
}


@contextmanager
def _einsum_left_to_right():
    if not torch.backends.opt_einsum.is_available():
        pytest.skip("there is no opt_einsum, and so nothing to choose")
    with torch.backends.opt_einsum.flags(enabled=False):
        yield


SWITCHES = {
    "cudnn_sdp_enabled": lambda: _switched(
        torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp
    ),
    "fp16_bf16_reduction": lambda: _switched(
        torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed,
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp,
    ),
    "allow_fp16_accumulation": lambda: _switched(
        lambda: torch.backends.cuda.matmul.allow_fp16_accumulation,
        partial(setattr, torch.backends.cuda.matmul, "allow_fp16_accumulation"),
    ),
    "fill_uninitialized_memory": lambda: _switched(
        lambda: torch.utils.deterministic.fill_uninitialized_memory,
        partial(setattr, torch.utils.deterministic, "fill_uninitialized_memory"),
    ),
    "sdp_priority_order": lambda: sdpa_kernel(
        [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True
    ),
    "preferred_blas_library()": lambda: _preferred(
        torch.backends.cuda.preferred_blas_library, "cublaslt"
    ),
    "mha.get_fastpath_enabled()": lambda: _switched(
        torch.backends.mha.get_fastpath_enabled,
        torch.backends.mha.set_fastpath_enabled,
    ),
    "opt_einsum.enabled": _einsum_left_to_right,
    "modes": lambda: torch.device("cpu"),
}


@contextmanager
def _switched(getter, setter):
    before = getter()
    setter(not before)
    try:
        yield
    finally:
        setter(before)


@contextmanager
def _preferred(prefer, name):
    if not torch.backends.cuda.is_built():
        pytest.skip("this torch has no library to prefer")
    before = prefer()
    prefer(name)
    try:
        yield
    finally:
        prefer(before)


@pytest.fixture
def now():
    """Return what gives the modes of the moment, for keys and as guards ask."""
    from sapwood.integrations.torch import modes

    modes.notice_settings()
    return modes.MODES.now, lambda: [get() for get in modes._GETTERS.values()]


@pytest.mark.parametrize("switch", SWITCHES)
def test_what_decides_between_kernels_is_guarded(now, switch):
    """It is another value for keys and guards within, and the very one behind it."""
    named, asked = now
    before, guarded = named(), asked()
    for _ in range(2):
        with SWITCHES[switch]():
            within = named()
            again = asked()
            assert all(one is other for one, other in zip(again, asked(), strict=True))
        differs = [each for each in before if within[each] != before[each]]
        assert any(switch in each for each in differs)
        assert any(one is not other for one, other in zip(again, guarded, strict=True))
        assert named() == before
        assert all(one is other for one, other in zip(guarded, asked(), strict=True))


class Counting(TorchDispatchMode):
    """Counts operations, and passes them on."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        del types
        self.count += 1
        return func(*args, **(kwargs or {}))


class CountingFunctions(TorchFunctionMode):
    """Counts functions, and passes them on."""

    count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        del types
        self.count += 1
        return func(*args, **(kwargs or {}))


TOOLS = {
    "operations": Counting,
    "functions": CountingFunctions,
    "flops": lambda: FlopCounterMode(display=False),
}


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_that_is_told_of_operations_is_known(now, tool):
    """Guards fail each time under it, also within a default device, and after it."""
    from sapwood.integrations.torch.modes import is_told_of_operations

    _, asked = now
    seen = set()
    for around in nullcontext(), torch.device("cpu"):
        with around:
            assert not is_told_of_operations()
            with TOOLS[tool]():
                assert is_told_of_operations()
                seen |= {asked()[0], asked()[0]}
            assert not is_told_of_operations()
    assert len(seen) == 4


@pytest.mark.gpu
@pytest.mark.parametrize("tool", TOOLS)
def test_tools_are_told_of_every_call(rt, tool):
    """They count what they count of the plain function; other calls are replays."""
    weight = torch.randn(8, 8, device="cuda")

    def fn(x):
        return (x @ weight).relu() + 1

    f, counts = rt.graph(fn), []
    for ours in (fn, f):
        for number in range(12):
            tools = TOOLS[tool]()
            with tools if number in {1, 3, 5} else nullcontext():
                y = ours(torch.full((4, 8), float(number), device="cuda"))
            counted = tools.count if hasattr(tools, "count") else _flops(tools)
            counts.append((counted, y.tolist()))
    assert counts[:12] == counts[12:]
    assert f.stats().replays >= 1


def _flops(tools):
    return tools.get_total_flops()


@pytest.mark.gpu
def test_a_default_device_is_guarded(rt):
    """What is made without naming a device is made on the one that is set."""

    def fn(x):
        one = torch.ones(())
        return x + one, one.device.type

    f, x = rt.graph(fn), torch.ones(3, device="cuda")
    for _ in range(3):
        for device in ("cpu", "cuda"):
            with torch.device(device):
                for _ in range(3):
                    assert f(x)[1] == device
        assert f(x)[1] == "cpu"
    assert f.stats().replays >= 6


@pytest.fixture
def prevailing():
    """Return the class, which is there where torch is."""
    from sapwood.integrations.torch.modes import Prevailing

    return Prevailing


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", SET)
def test_what_contexts_set(prevailing, mode):
    """They are in the modes of the moment; in those, they change nothing."""
    outer = prevailing()
    with SET[mode]():
        inner = prevailing()
        asked = torch.is_grad_enabled(), torch.is_autocast_enabled("cuda")
    assert inner.strange(outer) is None
    with inner():
        assert (torch.is_grad_enabled(), torch.is_autocast_enabled("cuda")) == asked
        with inner():
            assert prevailing().strange(inner) is None
    with outer():
        assert torch.is_grad_enabled()


@pytest.mark.parametrize("name", STRANGE)
def test_what_no_context_sets(prevailing, name):
    """It is named where it differs, in both directions."""
    outer = prevailing()
    with STRANGE[name]():
        inner = prevailing()
        assert inner.strange(inner) is None
    assert inner.strange(outer) == outer.strange(inner) == name


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", STRANGE)
def test_an_eager_region_under_such_modes(rt, name):
    """It is refused by the mode's name; around the function it is as ever."""
    import sapwood as sw

    note = sw.eager(lambda _: None)

    def fn(x):
        h = x * 2
        with STRANGE[name]():
            note(h)
        return h + 1

    f, x = rt.graph(fn, fullgraph=True), torch.ones(4, device="cuda")
    with pytest.raises(sw.CaptureError, match="no replay does") as caught:
        for _ in range(3):
            f(x)
    assert name in str(caught.value)
    total = sw.eager(lambda h: h.sum())
    g = rt.graph(lambda x: total(x * 2) + 1, fullgraph=True)
    with STRANGE[name]():
        for _ in range(4):
            assert g(x).tolist() == 9
    assert g.stats().replays > 0


HOOKS = {
    "of all modules": lambda _: torch.nn.modules.module.register_module_forward_hook(
        lambda _, __, y: y * 2
    ),
    "of all modules, before": lambda _: (
        torch.nn.modules.module.register_module_forward_pre_hook(lambda _, __: None)
    ),
    "of a module": lambda m: m.register_forward_hook(lambda _, __, y: y * 2),
    "of a parameter": lambda m: m.weight.register_hook(lambda grad: grad * 2),
    "of a gradient": lambda m: m.weight.register_post_accumulate_grad_hook(
        lambda p: p.grad.mul_(2)
    ),
}


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_that_goes_is_noticed_as_one_that_comes(adapter_of, hook):
    """Whatever it is of: what was recorded with it, or without it, is not replayed."""
    from sapwood.integrations.torch.modes import notice_settings
    from sapwood.tree.guards import Surveyor

    notice_settings()
    module = torch.nn.Linear(3, 3)

    def step(x):
        loss = module(x).sum()
        loss.backward()
        return loss.detach()

    surveyor = Surveyor(lambda: step, adapter_of("cpu"))

    def guards():
        return surveyor.survey({"x": torch.ones(2, 3)}).guards(lambda _: True)

    without = guards()
    assert without.holds()
    handle = HOOKS[hook](module)
    with_it = guards()
    assert not without.holds()
    for _ in range(12):
        assert with_it.holds()
    handle.remove()
    assert not with_it.holds()
    assert guards().holds()
