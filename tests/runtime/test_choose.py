"""Which device a runtime runs on, where there is a GPU and where there is none."""

from __future__ import annotations

import logging
import sys

import pytest

import sapwood as sw
from sapwood.driver import cuda
from sapwood.driver.cuda import bindings
from sapwood.driver.emulated import Emulated
from sapwood.events import Fallback
from sapwood.runtime import core


class _Gpu:
    """A GPU that can be opened and closed."""

    def __init__(self, ordinal):
        self.abilities, self.ordinal, self.closed = Emulated().abilities, ordinal, False

    def close(self):
        self.closed = True


def _none(ordinal):
    raise sw.NoDevice("open", 100, "NO_DEVICE", f"GPU {ordinal} is not there")


@pytest.fixture
def chosen(monkeypatch):
    """Return what chooses, with a maker of GPUs, and the events it gave.

    Nobody has imported torch, whichever tests ran before.
    """
    monkeypatch.delitem(sys.modules, "torch", raising=False)

    def chosen(name, gpu, *, cupy=True):
        events = []
        monkeypatch.setattr(cuda, "Cuda", gpu)
        monkeypatch.setattr(core, "find_spec", lambda _: object() if cupy else None)
        monkeypatch.setattr(core, "_said", set())
        settings = sw.knobs.current()
        return core.choose(name, settings, events.append), events

    return chosen


def test_the_first_gpu_is_the_best(chosen):
    """None is the first GPU, where there is one, without a word."""
    found, events = chosen(None, _Gpu)
    assert (type(found), found.ordinal, events) == (_Gpu, 0, [])


def test_without_a_gpu_it_is_the_emulated_device(chosen, caplog, monkeypatch):
    """The reason is an event; a user of NVIDIA's driver gets a line, once a process."""
    for here in (False, True):
        monkeypatch.setattr(bindings, "is_driver_here", lambda here=here: here)
        with caplog.at_level(logging.WARNING, "sapwood"):
            found, events = chosen(None, _none)
        assert type(found) is Emulated
        assert events == [Fallback("GPU 0 is not there")]
        told = [record.message.count("GPU 0") for record in caplog.records]
        assert told == [1] * here


def test_a_gpu_without_cupy_is_none(chosen):
    """The GPU is closed again, and the reason names what to install."""
    opened = []

    def gpu(ordinal):
        opened.append(_Gpu(ordinal))
        return opened[-1]

    found, events = chosen(None, gpu, cupy=False)
    assert type(found) is Emulated
    assert [each.closed for each in opened] == [True]
    assert "pip install cupy-cuda13x" in events[0].reason


@pytest.mark.parametrize(
    ("name", "ordinal"), [("cuda", 0), ("cuda:0", 0), ("cuda:3", 3)]
)
def test_a_gpu_is_named_by_number(chosen, name, ordinal):
    """``"cuda:N"`` is GPU N, or `NoDevice` with the reason."""
    assert chosen(name, _Gpu)[0].ordinal == ordinal
    with pytest.raises(sw.NoDevice, match=f"GPU {ordinal} is not there"):
        chosen(name, _none)


@pytest.mark.parametrize("name", ["", "cuda:", "cuda:x", "tpu", "emulated:1"])
def test_other_names_are_no_device(chosen, name):
    """A name that means nothing is refused with those that do."""
    with pytest.raises(sw.NoDevice, match='"cuda:0" or "emulated"'):
        chosen(name, _Gpu)
