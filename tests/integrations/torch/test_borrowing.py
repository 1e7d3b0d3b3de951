"""Torch's `record_stream`, taken up on the way to a device; without a GPU.

Torch has no `record_stream` for the CPU: what comes through to it is refused there.
"""

from __future__ import annotations

import gc
from functools import partial

import pytest

from sapwood.memory.storage import Storage
from sapwood.units import Addr, Size
from tests.support.threads import in_threads

torch = pytest.importorskip("torch")

LENGTH = 8


class Token:
    """What a storage gives back: with the streams that may be using it."""

    def __init__(self):
        self.users = []

    def ended(self, streams):
        self.users.append(streams)


@pytest.fixture
def borrowing():
    """Have torch's operator taken up, while a test runs."""
    from sapwood.integrations.torch import storages as borrowing

    library = borrowing.notice_stream_uses()
    yield borrowing
    library._destroy()
    borrowing.notice_stream_uses.cache_clear()


@pytest.fixture
def stream(borrowing):
    """Return a stream of torch's that no device has."""
    assert borrowing.notice_stream_uses.cache_info().currsize
    return torch.Stream(stream_id=7, device_index=0, device_type=1)


@pytest.fixture
def told(integration):
    """Return what the adapter was told of streams."""
    told = []

    def stream_of(theirs):
        told.append(theirs)
        return str(theirs.stream_id)

    integration.storages_of.stream_of = stream_of
    return told


@pytest.fixture
def over(integration, returns, told):
    """Return what makes a tensor over a storage of ours, which takes the place of one.

    The bytes stay torch's, for as long as the test runs.
    """
    memories = []

    def make(like, **options):
        memory = like.untyped_storage()
        memories.append(memory)
        token = Token()
        storage = Storage(
            Addr(memory.data_ptr()), Size(memory.nbytes()), token, returns, **options
        )
        made = integration.make(
            integration.look(like).layout, storage, Addr(like.data_ptr())
        )
        return made, storage, token

    assert told == []
    return make


def drain(returns):
    gc.collect()
    while returns:
        give_back, what = returns.popleft()
        give_back(what)


@pytest.mark.parametrize("mode", ["plain", "no_grad", "inference_mode"])
@pytest.mark.parametrize(
    "view",
    [
        lambda y: y,
        lambda y: y[3:],
        lambda y: y.detach().view(2, -1),
        lambda y: y.data,
        lambda y: torch.empty(0).set_(y.untyped_storage()),
        lambda y: y.requires_grad_() * 1 if y.is_inference() else y.requires_grad_(),
        lambda y: torch.nn.Parameter(y, requires_grad=not y.is_inference()),
    ],
    ids=["itself", "part", "shape", "data", "set_", "wishful", "parameter"],
)
def test_a_stream_becomes_a_user(over, stream, returns, mode, view):
    """Whichever view is recorded, in whatever mode, the stream is one of the last."""
    modes = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}
    y, storage, token = over(torch.randn(LENGTH))
    with modes.get(mode, torch.enable_grad)():
        part = view(y)
        if part.untyped_storage()._cdata != y.untyped_storage()._cdata:
            pytest.skip("is no view here")
        for _ in range(3):
            assert part.record_stream(stream) is None
    assert storage.stream_uses == ("7",)
    del y, part, storage
    drain(returns)
    assert token.users == [("7",)]


def test_tensors_made_in_inference_mode(over, stream):
    """They have no key of autograd, inside of the mode and outside."""
    with torch.inference_mode():
        y, storage, _ = over(torch.randn(LENGTH))
        inside = y[1:]
        inside.record_stream(stream)
    assert storage.stream_uses == ("7",)
    inside.record_stream(torch.Stream(stream_id=8, device_index=0, device_type=1))
    assert storage.stream_uses == ("7", "8")


@pytest.mark.parametrize(
    "view", [torch.conj, lambda y: y.conj().imag], ids=["conjugate", "negative"]
)
def test_views_that_torch_would_materialise(over, stream, view):
    """A conjugate and a negative view are recorded as what they view."""
    y, storage, _ = over(torch.randn(LENGTH, dtype=torch.complex64))
    view(y).record_stream(stream)
    assert storage.stream_uses == ("7",)


def test_dispatch_modes_see_it_still(over, stream):
    """One that passes on what it sees is no way around it."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Passing(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    seen = []
    y, storage, _ = over(torch.randn(LENGTH))
    with Passing():
        y.record_stream(stream)
    assert seen == [torch.ops.aten.record_stream.default]
    assert storage.stream_uses == ("7",)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(LENGTH),
        lambda: torch.randn(LENGTH, requires_grad=True)[1:],
        lambda: torch.randn(LENGTH).to_sparse(),
    ],
    ids=["dense", "wishful", "sparse"],
)
def test_what_is_torchs_goes_on_to_torch(integration, stream, told, make):
    """Known to an adapter or not: the error is torch's, who has nothing for the CPU."""
    tensor = make()
    if not tensor.is_sparse:
        integration.look(tensor)
    with pytest.raises(NotImplementedError, match="record_stream"):
        tensor.record_stream(stream)
    assert told == []


def test_what_is_captured_is_no_use(over, stream, told):
    """Nor is one of no bytes."""
    y, storage, _ = over(torch.randn(LENGTH), captured=True)
    none, nothing, _ = over(torch.randn(0))
    for each in (y, none):
        each.record_stream(stream)
    assert (storage.stream_uses, nothing.stream_uses, told) == ((), (), [])


def test_what_is_refused_is_told(integration, over, stream):
    """An error of this library's comes out of torch's dispatcher as it is."""
    from sapwood import MisuseError

    def refuse(theirs):
        raise MisuseError(f"{theirs} is elsewhere")

    y, storage, _ = over(torch.randn(LENGTH))
    integration.storages_of.stream_of = refuse
    with pytest.raises(MisuseError, match="elsewhere"):
        y.record_stream(stream)
    assert storage.stream_uses == ()


def test_streams_of_another_device(borrowing, stream):
    """They are refused by name, and so are all once torch has no stream here."""
    from sapwood import MisuseError
    from sapwood.integrations.torch.streams import TorchFramework

    framework = TorchFramework(torch.device("cuda", 1))
    with pytest.raises(MisuseError, match="new runtime"):
        framework.stream_of(stream)
    framework._opened = None, None
    with pytest.raises(MisuseError, match=r"on cuda:1 .* stream of cuda:0"):
        framework.stream_of(stream)
    assert borrowing.use_on(torch.zeros(3), stream) is False


def test_threads_record_at_once(over, borrowing):
    """Whoever records at the same time, all streams are users then."""
    y, storage, _ = over(torch.randn(LENGTH))
    assert borrowing.use_on(y[2:], torch.Stream(0, 0, 1))

    def record(first):
        for k in range(first, first + 50):
            y.record_stream(torch.Stream(stream_id=k, device_index=0, device_type=1))

    in_threads(*(partial(record, 50 * k) for k in range(4)))
    assert set(storage.stream_uses) == {str(k) for k in range(200)}


def test_bytes_outlive_whoever_lent_them(adapter_of, returns):
    """A tensor alone keeps its storage: nothing else needs to know it any more."""
    integration, token, memory = adapter_of("cpu"), Token(), torch.randn(LENGTH)
    storage = Storage(Addr(memory.data_ptr()), Size(4 * LENGTH), token, returns)
    y = integration.make(integration.look(memory).layout, storage, storage.address)
    part = y[1:]
    del integration, storage, y
    drain(returns)
    assert token.users == []
    del part
    drain(returns)
    assert token.users == [()]
