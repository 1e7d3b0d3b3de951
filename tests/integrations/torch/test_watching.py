"""What torch's dispatcher tells of a function, on a device that has no memory."""

from __future__ import annotations

import pytest

from sapwood import CaptureError
from sapwood.tree.session import Session

torch = pytest.importorskip("torch")


@pytest.fixture
def watch(adapter_of):
    """Return what runs a function while it is watched, and what was told of it."""
    from sapwood.integrations.torch.watching import Watcher

    adapter = adapter_of("meta")

    def run(fn, *args, tolerant=False):
        session = Session(tolerant=tolerant)
        watcher = Watcher(session, adapter.storages_of)
        with watcher:
            fn(*args)
        return session, watcher, adapter

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

    session, _, adapter = watch(fn)
    told = {id(s): use.writes for s, use in session.used.items()}
    assert told[id(adapter.storage(x))] is False
    assert told[id(adapter.storage(out))] is True
    assert told[id(adapter.storage(other))] is True
    assert all(__file__ in use.where for use in session.used.values())


def test_backward_is_seen(watch, x):
    """Operations of autograd are told like others, and that there were some."""
    weight = torch.zeros(4, 4, device="meta", requires_grad=True)

    def forward():
        return (x @ weight).sum()

    ahead, watcher, _ = watch(forward)
    assert not watcher.went_back
    back, watcher, adapter = watch(lambda: forward().backward())
    assert watcher.went_back
    assert len(back.ops) > len(ahead.ops)
    assert adapter.storage(weight) in back.used


def test_recording_a_stream_is_no_operation(watch, x):
    """It neither uses nor writes a tensor, whatever its schema says."""
    stream = torch.Stream(stream_id=7, device_index=0, device_type=1)

    def fn():
        with pytest.raises(NotImplementedError):
            x.record_stream(stream)

    session, _, _ = watch(fn)
    assert (session.ops, session.used) == ([], {})


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
        (lambda x: x + torch.ones(4).to("meta"), "host data"),
        (lambda x: x.copy_(torch.ones(4, 4)), "host data"),
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
    ],
)
def test_what_no_replay_repeats_is_refused(watch, x, fn, text):
    """What needs the host, or brings its data, is refused at its line, before it is."""
    with pytest.raises(CaptureError, match=text) as caught:
        watch(fn, x)
    assert __file__ in str(caught.value)


def test_cpu_tensors_from_outside_are_refused(watch, x):
    """The value of a CPU tensor would be baked in; one made inside is a constant."""
    outside = torch.tensor(2.0)
    with pytest.raises(CaptureError, match="used on the device"):
        watch(lambda: x * outside)
    with pytest.raises(CaptureError, match="capturable=True"):
        watch(lambda: outside.add_(1))
    session, _, _ = watch(lambda: x * torch.tensor(2.0))
    assert session.unrecordable is None


def test_a_tolerant_session_goes_on(watch, x):
    """Where that is asked for, what cannot be recorded is noted and done."""
    session, _, _ = watch(lambda: x.copy_(torch.ones(4, 4)), tolerant=True)
    assert "host data" in str(session.unrecordable)
