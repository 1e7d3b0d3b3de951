"""What is asked of torch in a few nanoseconds is what is asked of it at length."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager

import pytest

pytest.importorskip("torch")

import torch

from sapwood import _fast
from sapwood.integrations.torch.exchange import looks_of_tensors
from sapwood.integrations.torch.modes import _GETTERS, MODES, _witness
from sapwood.tree.guards import Surveyor

# What a tensor looks like.


KINDS = (
    *(ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64)),
    *(ctypes.POINTER(ctypes.c_int64), ctypes.c_int32),
)


@pytest.fixture
def told():
    """Return what C asks, asked from here."""
    found = looks_of_tensors()
    if found is None:
        pytest.skip("this torch has no such functions")
    addresses, inside = found
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    asks = [kind(address) for address in addresses]

    def told(tensor):
        results = [made() for made in KINDS]
        for ask, result in zip(asks, results, strict=True):
            assert ask(id(tensor) + inside, ctypes.addressof(result)) == 0
        data, dims, shape, strides, dtype = results
        lengths = [tuple(each[: dims.value]) for each in (shape, strides)]
        return data.value or 0, *lengths, dtype.value

    return told


def looks(tensor):
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride()


def test_every_kind_of_tensor_tells_where_it_is_and_how_it_looks(told):
    """Views and parameters, empty ones, and those of inference mode."""
    plain = torch.arange(12.0)
    with torch.inference_mode():
        inferred = plain + 1
    for each in (
        plain,
        plain[5:],
        plain.view(3, 4).t()[1:],
        plain.view(1, 3, 4, 1),
        plain.expand(3, 12),
        plain[0],
        torch.nn.Parameter(plain),
        torch.nn.Buffer(plain),
        plain.requires_grad_() * 2,
        inferred,
        torch.empty(0),
        torch.zeros(3, dtype=torch.complex64).conj(),
    ):
        assert told(each)[:3] == looks(each)


def test_every_dtype_is_told_by_a_number_of_its_own(told):
    """Whatever this torch makes tensors of."""
    dtypes = {each for each in vars(torch).values() if isinstance(each, torch.dtype)}
    numbers = {}
    for dtype in dtypes:
        try:
            made = torch.empty(2, dtype=dtype)
        except (NotImplementedError, RuntimeError, TypeError, UserWarning):
            continue
        numbers[dtype] = told(made)[3]
    assert len(numbers) > 10
    assert len({*numbers.values()}) == len(numbers)


def test_what_changes_under_the_same_object_is_told(told):
    """Other data, a larger storage, another tensor's insides, other shapes."""
    mine, other = torch.nn.Parameter(torch.ones(4)), torch.nn.Parameter(torch.ones(5))
    held = [mine.data, other.data]
    mine.data = torch.zeros(4)
    assert told(mine)[:3] == looks(mine) != looks(held[0])
    torch.utils.swap_tensors(mine, other)
    assert told(mine)[:3] == looks(mine) == looks(held[1])
    grown = torch.ones(2, 2)
    before = looks(grown)
    grown.resize_(1 << 20)
    assert told(grown)[:3] == looks(grown) != before
    turned = torch.ones(3, 3)
    before = told(turned)
    turned.data = turned.data.t()
    assert told(turned)[:3] == looks(turned) != before[:3]
    turned.data = turned.data.t()
    assert told(turned) == before
    turned.data = turned.data.view(torch.int32)
    assert told(turned)[:3] == before[:3]
    assert told(turned) != before


# The modes.


@contextmanager
def _set(getter, setter, value):
    before = getter()
    setter(value)
    try:
        yield
    finally:
        setter(before)


def _matmul(name):
    backend = torch.backends.cuda.matmul
    value = not getattr(backend, name)
    return _set(
        lambda: getattr(backend, name), lambda to: setattr(backend, name, to), value
    )


CHANGES = {
    "is_grad_enabled()": torch.no_grad,
    'is_autocast_enabled("cuda")': lambda: _set(
        lambda: torch.is_autocast_enabled("cuda"),
        lambda on: torch.set_autocast_enabled("cuda", on),
        True,
    ),
    "is_autocast_cache_enabled()": lambda: _set(
        torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled, False
    ),
    "get_default_dtype()": lambda: _set(
        torch.get_default_dtype, torch.set_default_dtype, torch.float64
    ),
    "backends.cuda.matmul.allow_tf32": lambda: _matmul("allow_tf32"),
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction": lambda: _matmul(
        "allow_fp16_reduced_precision_reduction"
    ),
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction": lambda: _matmul(
        "allow_bf16_reduced_precision_reduction"
    ),
    "are_deterministic_algorithms_enabled()": lambda: _set(
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
        True,
    ),
    "is_deterministic_algorithms_warn_only_enabled()": lambda: _set(
        torch.is_deterministic_algorithms_warn_only_enabled,
        lambda to: torch.use_deterministic_algorithms(mode=False, warn_only=to),
        True,
    ),
}


@pytest.fixture
def witness():
    """Return torch's guard of its state."""
    made = _witness()
    if made is None:
        pytest.skip("this torch has no such guard")
    return made


def test_all_that_a_witness_speaks_of_is_changed_here(witness):
    """There is a change below for each of its modes, and each is a mode."""
    assert witness.keys == CHANGES.keys()
    assert witness.keys <= _GETTERS.keys()


@pytest.mark.parametrize("mode", CHANGES)
def test_a_mode_that_changes_is_seen(witness, mode):
    """Whether it is seen to be as it was again is torch's affair."""
    before = MODES.now()[mode]
    with CHANGES[mode]():
        assert MODES.now()[mode] != before
        assert not witness.holds()
    assert MODES.now()[mode] == before


def test_other_threads_have_modes_of_their_own(witness):
    """A witness speaks of the thread that asks."""
    with torch.no_grad():
        inside = _witness()
    assert witness.holds()
    assert not inside.holds()


def _precisions():
    """Return what torch takes for each kind of operation, by its newer names."""
    ask = torch._C._get_fp32_precision_getter
    return [ask("cuda", op) for op in ("matmul", "conv", "rnn")]


PRECISE = {
    "matmul": torch.backends.cuda.matmul,
    "conv": torch.backends.cudnn.conv,
    "all": torch.backends.cudnn,
}


@pytest.mark.parametrize("which", PRECISE)
def test_precision_by_its_newer_names_is_a_mode(integration, which):
    """Torch refuses to say it by the older ones then; it is guarded all the same.

    What is said of all operations counts for those of which nothing else is.
    """
    owner = PRECISE[which]
    weight, before = torch.ones(3), owner.fp32_precision

    def fn(x):
        return x * weight

    surveyor = Surveyor(lambda: fn, integration)

    def guards():
        return surveyor.survey({"x": torch.ones(3)}).guards(lambda _: True)

    try:
        seen, precise = [], []
        for precision in ("ieee", "tf32"):
            owner.fp32_precision = precision
            precise.append(_precisions())
            seen.append(guards())
            for _ in range(20):
                assert seen[-1].match() is not None
        differ = precise[0] != precise[1]
        assert differ or which == "all"
        assert (seen[0].match() is None) is differ
    finally:
        owner.fp32_precision = before


# Guards that see more than counts.


@pytest.fixture
def threads():
    """Restore how many threads torch has."""
    before = torch.get_num_threads()
    yield before
    torch.set_num_threads(before)


@pytest.mark.skipif(_fast.native() is None, reason="nothing in C here")
def test_what_does_not_count_is_soon_forgotten(integration, threads):
    """How many threads there are is no mode: guards hold, and are quick again soon."""
    weight = torch.ones(3)

    def f(x):
        return x * weight

    surveyor = Surveyor(lambda: f, integration)
    ambient = surveyor.survey({"x": torch.ones(3)}).guards(lambda _: True)
    for _ in range(20):
        assert ambient.match() is not None
    assert ambient.program.read() is not None
    torch.set_num_threads(threads + 1)
    for _ in range(20):
        (found,) = ambient.match()
        assert found is weight
    assert ambient.program.read() is not None
    with torch.no_grad():
        assert ambient.program.read() is None
        assert ambient.match() is None
