"""Every operation of torch's own database of them, and its gradient, call after call.

Of those that differ from run to run by themselves nothing can be said.
"""

from __future__ import annotations

import sys
import warnings
from functools import cache, partial
from types import ModuleType
from unittest import TestCase

import pytest

from sapwood import GraphSkipWarning

torch = pytest.importorskip("torch")
from torch.utils._pytree import tree_flatten, tree_map  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),
]

CALLS, PARTS = 4, 32
UNSET = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty"}
UNSET |= {"new_empty_strided"}
UNSTEADY = {"nn.functional.conv_transpose3d"}
"""What differs from itself in one run of some; so does `addbmm_`, which reads, where it
broadcasts, what it has just made room for."""


@cache
def _database():
    """Return torch's operations; its tests use a package that need not be there."""
    other, there = ModuleType("expecttest"), "expecttest" in sys.modules
    other.TestCase = TestCase
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sys.modules.setdefault("expecttest", other)
        from torch.testing._internal.common_methods_invocations import op_db
    if not there:
        del sys.modules["expecttest"]
    # Torch's tests may not set flags for good; others here do.
    torch.backends.__allow_nonbracketed_mutation_flag = True
    return [op for op in op_db if op.name not in UNSET]


def _tensors(nest):
    return [x for x in tree_flatten(nest)[0] if isinstance(x, torch.Tensor)]


def _dense(x):
    return x.to_dense() if x.layout is not torch.strided else x.resolve_neg()


def _bits(nest):
    """Return what a nest of tensors is, to the last bit."""
    found = []
    for x in _tensors(nest):
        flat = _dense(x.detach()).resolve_conj().cpu().reshape(-1).contiguous()
        data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        found.append((x.dtype, x.shape, data))
    return found


def _program(op, then, *, back):
    """Return a function of one sample that goes on to its gradients."""

    def fn(given):
        first, args, named = given
        result = op(first, *args, **named)
        result = then(result) if then else result
        found = _tensors(result)
        if back:
            ends = [x for x in found if x.requires_grad]
            leaves = [x for x in _tensors(given) if x.requires_grad]
            ones = [torch.ones_like(x) for x in ends]
            if ends and leaves:
                found += torch.autograd.grad(ends, leaves, ones, allow_unused=True)
        return [x if x is None else x.detach() for x in found]

    return fn


def _calls(fn, sample, *, back):
    """Return what calls give, and leave of new arguments; or what they raise."""

    def anew(x):
        if not isinstance(x, torch.Tensor):
            return x
        return x.detach().clone().requires_grad_(back and x.requires_grad)

    torch.manual_seed(0)
    seen = []
    for _ in range(CALLS):
        given = tree_map(anew, (sample.input, sample.args, sample.kwargs))
        try:
            seen.append((_bits(fn(given)), _bits(given)))
        except Exception as error:  # noqa: BLE001 - it is what is compared
            seen.append((type(error), str(error)))
    return seen


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("way", ["forward", "backward", "in place"])
def test_operations(rt, part, way):
    """Replays, and calls that are skipped, are as eager ones."""
    back = way == "backward"
    for op in _database()[part::PARTS]:
        if (way, op.name) == ("in place", "addbmm") or op.name in UNSTEADY:
            continue
        variant = op.inplace_variant if way == "in place" else op
        differentiable = op.supports_autograd or not back
        is_there = variant and differentiable
        if not (is_there and op.supports_dtype(torch.float32, "cuda")):
            continue
        samples = [*op.sample_inputs("cuda", torch.float32, requires_grad=back)]
        for sample in samples[:: max(1, len(samples) // 2)][:2]:
            fn = _program(variant, sample.output_process_fn_grad, back=back)
            expected, plain = _calls(fn, sample, back=back), partial(_calls, fn, sample)
            if plain(back=back) != expected:
                continue
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                f = rt.graph(fn)
                found = _calls(f, sample, back=back)
            if found != expected and any(plain(back=back) != expected for _ in "12345"):
                continue
            assert found == expected, op.formatted_name
            skips = [x for x in told if issubclass(x.category, GraphSkipWarning)]
            raises = isinstance(expected[0][0], type)
            assert f.stats().replays or skips or raises, (
                op.formatted_name,
                f.explain(),
            )
