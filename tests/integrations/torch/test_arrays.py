"""Tensors as the tree sees them: their looks, and whose memory they are over."""

from __future__ import annotations

import ctypes
import gc
import re
import sys

import pytest

from sapwood.memory.storage import Storage
from sapwood.tree.call.signature import describe
from sapwood.tree.replay.last_call import LastCall
from sapwood.units import Addr, Size

torch = pytest.importorskip("torch")


class Token:
    """What a storage gives back when nobody views it any more."""

    def __init__(self):
        self.count = 0

    def ended(self, _):
        self.count += 1


@pytest.fixture
def over(integration, returns):
    """Return what makes a tensor like another one over a storage of ours."""

    def make(tensor):
        token, memory = Token(), tensor.untyped_storage()
        storage = Storage(
            Addr(memory.data_ptr()), Size(memory.nbytes()), token, returns
        )
        address = Addr(tensor.data_ptr())
        return integration.make(
            integration.look(tensor).layout, storage, address
        ), token

    return make


def drain(returns):
    while returns:
        give_back, what = returns.popleft()
        give_back(what)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(3, 4),
        lambda: torch.randn(4, 3).t(),
        lambda: torch.randn(5, 1).expand(5, 4),
        lambda: torch.randn(3, dtype=torch.complex64).conj(),
        lambda: torch.randn(3, dtype=torch.complex64).conj().imag,
        lambda: torch.zeros(()),
        lambda: torch.arange(7),
        lambda: torch.nn.Parameter(torch.randn(3)),
        lambda: torch.randn(3, requires_grad=True),
    ],
    ids=[
        "dense",
        "transposed",
        "expanded",
        "conjugate",
        "negative",
        "scalar",
        "integers",
        "parameter",
        "wishful",
    ],
)
def test_what_is_made_is_like_its_template(integration, over, make):
    """A tensor made from a template has its layout, values and gradient's wish."""
    tensor = make()
    made, _ = over(tensor)
    assert integration.look(made).layout == integration.look(tensor).layout
    assert torch.equal(made.detach(), tensor.detach())
    assert _packed(integration, made) == _packed(integration, tensor)


def test_a_storage_ends_with_its_last_tensor(integration, over, returns):
    """Views and autograd's own references keep a storage; the last one ends it."""
    weight = torch.ones(8, requires_grad=True)
    tensor = torch.randn(8)
    made, token = over(tensor)
    view = made[2:]
    total = (made * weight).sum()
    assert integration.look(made).storage is integration.look(view).storage
    del made
    drain(returns)
    assert not token.count
    del view
    drain(returns)
    assert not token.count, "autograd has it for its way back"
    total.backward()
    del total
    gc.collect()
    drain(returns)
    assert token.count == 1


def test_views_of_one_storage_are_of_one_of_torchs(integration, returns):
    """Two tensors made over one storage share it for torch, too."""
    memory = torch.zeros(16)
    storage = Storage(Addr(memory.data_ptr()), Size(64), Token(), returns)
    template = integration.look(torch.zeros(4)).layout
    one = integration.make(template, storage, Addr(memory.data_ptr()))
    two = integration.make(template, storage, Addr(memory.data_ptr() + 8))
    one.fill_(5)
    assert two.tolist() == [5, 5, 0, 0]
    assert one.untyped_storage()._cdata == two.untyped_storage()._cdata


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.complex128])
def test_where_a_refused_tensor_lay_is_known(integration, returns, monkeypatch, dtype):
    """By its storage and its place there; only torch built with CUDA refuses one."""
    memory = torch.zeros(24, dtype=dtype)
    size = Size(memory.untyped_storage().nbytes())
    storage = Storage(Addr(memory.data_ptr()), size, Token(), returns)
    whole = integration.make(integration.look(memory).layout, storage, storage.address)
    views = [whole, whole[2:], whole.view(6, 4).t()[1:]]
    before = [integration.look(each).span for each in views]

    def refuse(_):
        raise RuntimeError("refused")

    monkeypatch.setattr(sys.modules[type(integration).__module__], "_where", refuse)
    with pytest.raises(RuntimeError, match="refused"):
        integration.look(whole)
    storage.revoke("a later step() began")
    assert [integration.look(each).span for each in views] == before


def test_nothing_is_remembered_of_what_is_gone(integration):
    """Looking at tensors of torch's own leaves nothing behind when they go."""
    kept = torch.randn(3)
    first = integration.look(kept).storage
    for _ in range(100):
        integration.look(torch.randn(5))
    assert len(integration.storages_of) == 1
    assert integration.look(kept[1:]).storage is first


def test_layouts_tell_tensors_apart(integration):
    """Whatever decides what a kernel does, or autograd, is in the layout."""
    base = torch.zeros(8, 8)
    several = [
        base,
        base.t(),
        base[1:, 1:],
        base.view(-1)[1:].view(-1)[:56].view(7, 8),
        base.double(),
        base.clone().requires_grad_(),
        torch.nn.Parameter(base.clone()),
        base.to(torch.complex64),
        base.to(torch.complex64).conj(),
        base.view(4, 16),
    ]
    assert len({integration.look(each).layout for each in several}) == len(several)
    assert integration.look(base).layout == integration.look(base.clone()).layout


def test_versions_show_what_changes_in_place(integration):
    """A tensor that is given other memory, frozen, or written, has another version."""
    weight = torch.nn.Parameter(torch.randn(3))
    before = integration.versions([weight])
    assert integration.versions([weight]) == before
    weight.requires_grad_(requires_grad=False)
    assert integration.versions([weight]) != before
    weight.requires_grad_()
    weight.data = torch.randn(3)
    assert integration.versions([weight]) != before


def test_refusals_say_what_to_do(adapter_of):
    """What is no plain tensor of the device is refused, with a remedy."""
    integration = adapter_of("meta")
    meta = torch.zeros(3, device="meta")

    class Tagged(torch.Tensor):
        pass

    for value, remedy in (
        (torch.zeros(3), 'x.to("meta")'),
        (torch.zeros(()), "x.item()"),
        (meta.as_subclass(Tagged), "as_subclass"),
        (torch.zeros(3).numpy(), "rt.array"),
        (torch.zeros(3).to_sparse(), "to_dense"),
    ):
        assert not integration.is_array(value)
        with pytest.raises(TypeError, match=re.escape(remedy)):
            integration.refuse(value)
    assert integration.is_array(meta)
    integration.refuse(meta)
    integration.refuse(3.0)
    with pytest.raises(TypeError, match="detach"):
        integration.refuse(meta.requires_grad_() * 2)


@pytest.mark.parametrize("inference", [False, True])
def test_a_call_is_known_by_its_tensors_looks_of_now(torch, integration, inference):
    """Writing in place changes nothing; the same object turned over is another call."""
    with torch.inference_mode(inference):
        x = torch.zeros(3, 3).as_strided((2, 3), (3, 1))
        last_call = LastCall.of(describe((x,), {}, integration), integration)
        assert last_call.recognise((x,), {}) is not None
    with torch.inference_mode(inference):
        x.add_(1.0)
        assert last_call.recognise((x,), {}) is not None
        x.t_()
        assert last_call.recognise((x,), {}) is None
        x.t_()
        assert last_call.recognise((x,), {}) is not None
        assert last_call.recognise((1.0,), {}) is None


def _packed(integration, tensor):
    """Return the bytes of a tensor, of what lies where it does."""
    low, high = integration.look(tensor).layout.extent
    memory = ctypes.string_at(tensor.data_ptr() + low, high - low)
    return integration.look(tensor).layout.packed(memory)


def test_bits_are_those_of_any_layout(integration):
    """The bytes of a tensor in C order can be had, whatever its strides are."""
    for tensor in (torch.ones(4)[::2][:1], torch.ones(3, 4)[:, :1][:1], torch.ones(())):
        assert _packed(integration, tensor) == tensor.clone().numpy().tobytes()
