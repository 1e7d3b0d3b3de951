"""Tensors as the tree sees them: their looks, and whose memory they are over."""

from __future__ import annotations

import gc
import sys

import pytest

from sapwood.memory.storage import Storage
from sapwood.tree.call.signature import describe
from sapwood.tree.replay.last_call import Memo
from sapwood.units import Addr, Size

torch = pytest.importorskip("torch")


class Token:
    """What a storage gives back when nobody views it any more."""

    def __init__(self):
        self.count = 0

    def ended(self, _):
        self.count += 1


@pytest.fixture
def over(adapter, returns):
    """Return what makes a tensor like another one over a storage of ours."""

    def make(tensor):
        token, memory = Token(), tensor.untyped_storage()
        storage = Storage(
            Addr(memory.data_ptr()), Size(memory.nbytes()), token, returns
        )
        address = Addr(tensor.data_ptr())
        return adapter.make(adapter.template(tensor), storage, address), token

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
def test_what_is_made_is_like_its_template(adapter, over, make):
    """A tensor made from a template has its layout, values and gradient's wish."""
    tensor = make()
    made, _ = over(tensor)
    assert adapter.layout(made) == adapter.layout(tensor)
    assert torch.equal(made.detach(), tensor.detach())
    assert adapter.bits(made) == adapter.bits(tensor)


def test_a_storage_ends_with_its_last_tensor(adapter, over, returns):
    """Views and autograd's own references keep a storage; the last one ends it."""
    weight = torch.ones(8, requires_grad=True)
    tensor = torch.randn(8)
    made, token = over(tensor)
    view = made[2:]
    total = (made * weight).sum()
    assert adapter.storage(made) is adapter.storage(view)
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


def test_views_of_one_storage_are_of_one_of_torchs(adapter, returns):
    """Two tensors made over one storage share it for torch, too."""
    memory = torch.zeros(16)
    storage = Storage(Addr(memory.data_ptr()), Size(64), Token(), returns)
    template = adapter.template(torch.zeros(4))
    one = adapter.make(template, storage, Addr(memory.data_ptr()))
    two = adapter.make(template, storage, Addr(memory.data_ptr() + 8))
    one.fill_(5)
    assert two.tolist() == [5, 5, 0, 0]
    assert one.untyped_storage()._cdata == two.untyped_storage()._cdata


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.complex128])
def test_where_a_refused_tensor_lay_is_known(adapter, returns, monkeypatch, dtype):
    """By its storage and its place there; only torch built with CUDA refuses one."""
    memory = torch.zeros(24, dtype=dtype)
    size = Size(memory.untyped_storage().nbytes())
    storage = Storage(Addr(memory.data_ptr()), size, Token(), returns)
    whole = adapter.make(adapter.template(memory), storage, storage.address)
    views = [whole, whole[2:], whole.view(6, 4).t()[1:]]
    before = [adapter.span(each) for each in views]

    def refuse(_):
        raise RuntimeError("refused")

    monkeypatch.setattr(sys.modules[type(adapter).__module__], "_where", refuse)
    with pytest.raises(RuntimeError, match="refused"):
        adapter.span(whole)
    storage.revoke("a later step() began")
    assert [adapter.span(each) for each in views] == before


def test_nothing_is_remembered_of_what_is_gone(adapter):
    """Looking at tensors of torch's own leaves nothing behind when they go."""
    kept = torch.randn(3)
    first = adapter.storage(kept)
    for _ in range(100):
        adapter.look(torch.randn(5))
    assert len(adapter.storages_of) == 1
    assert adapter.storage(kept[1:]) is first


def test_layouts_tell_tensors_apart(adapter):
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
    assert len({adapter.layout(each) for each in several}) == len(several)
    assert adapter.layout(base) == adapter.layout(base.clone())


def test_marks_show_what_changes_in_place(adapter):
    """A tensor that is given other memory, or frozen, is marked otherwise."""
    weight = torch.nn.Parameter(torch.randn(3))
    before = adapter.marks([weight])
    assert adapter.marks([weight]) == before
    weight.requires_grad_(requires_grad=False)
    assert adapter.marks([weight]) != before
    weight.requires_grad_()
    weight.data = torch.randn(3)
    assert adapter.marks([weight]) != before


def test_refusals_say_what_to_do(adapter_of):
    """What is no plain tensor of the device is refused, with a remedy."""
    adapter = adapter_of("meta")
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
        assert not adapter.is_array(value)
        assert remedy in adapter.refusal(value)
    assert adapter.is_array(meta)
    assert adapter.refusal(3.0) is None
    with pytest.raises(TypeError, match="detach"):
        adapter.look(meta.requires_grad_() * 2)


@pytest.mark.parametrize("inference", [False, True])
def test_a_call_is_known_by_its_tensors_looks_of_now(torch, adapter, inference):
    """Writing in place changes nothing; the same object turned over is another call."""
    with torch.inference_mode(inference):
        x = torch.zeros(3, 3).as_strided((2, 3), (3, 1))
    memo = Memo.of(describe((x,), {}, adapter), adapter)
    assert memo.recognise((x,), {}) is not None
    with torch.inference_mode(inference):
        x.add_(1.0)
        assert memo.recognise((x,), {}) is not None
        x.t_()
        assert memo.recognise((x,), {}) is None
        x.t_()
        assert memo.recognise((x,), {}) is not None
    assert memo.recognise((1.0,), {}) is None


def test_bits_are_those_of_any_layout(adapter):
    """The bytes of a tensor in C order can be had, whatever its strides are."""
    for tensor in (torch.ones(4)[::2][:1], torch.ones(3, 4)[:, :1][:1], torch.ones(())):
        assert adapter.bits(tensor) == bytes(tensor.clone().numpy().tobytes())
