"""Prints what surveys of a module cost, and what is asked of all its tensors.

Run by path, with ``PYTHONPATH=src``.
"""

from __future__ import annotations

import timeit
from collections import deque
from types import SimpleNamespace

import torch

from sapwood.integrations.torch.capture import TorchOwner
from sapwood.integrations.torch.integration import TorchIntegration
from sapwood.tree.call.signature import look
from sapwood.tree.guards import Surveyor, survey
from sapwood.tree.record.recorder import used_by


def _microseconds(call, number=300) -> float:
    return min(timeit.repeat(call, number=number, repeat=7)) / number * 1e6


def _recording(surveyor, arguments):
    """Do what a recording does with its three surveys, of which none was kept."""
    first = surveyor.survey(arguments)
    first.key, first.array_slots(), first.arrays()
    before, after = surveyor.survey(arguments), surveyor.survey(arguments)
    after.changes_since(before)
    before.guards(lambda _: True)


def _held(tensors):
    owner = object.__new__(TorchOwner)
    owner._held = ()
    with owner.holding(tensors):
        owner._moved()


def main() -> None:
    """Print a table in microseconds."""
    device = SimpleNamespace(returns=deque())
    integration = TorchIntegration(device, torch.device("cpu"))
    layer = torch.nn.TransformerEncoderLayer(64, 4, 64, batch_first=True)
    norm = torch.nn.LayerNorm(64)
    model = torch.nn.TransformerEncoder(layer, 4, norm).eval()
    tensors, arguments = list(model.parameters()), {"src": torch.ones(2, 3, 64)}
    surveyor = Surveyor(lambda: model, integration)
    kept = [surveyor.survey(arguments) for _ in range(5)][-1]
    guards = kept.guards(lambda _: True)
    rows = {
        "a walk": _microseconds(lambda: survey(model, arguments, integration), 9),
        "a survey": _microseconds(lambda: surveyor.survey(arguments)),
    }
    del kept
    rows["a survey where none is kept"] = _microseconds(
        lambda: surveyor.survey(arguments)
    )
    rows["a recording's surveys"] = _microseconds(
        lambda: _recording(surveyor, arguments)
    )
    found, spans = (
        look(tensors, integration),
        [integration.look(x).span for x in tensors],
    )
    probe = integration.probe(tensors)
    used = used_by(spans, (), integration)
    rows |= {
        f"{name} of {len(tensors)} tensors": _microseconds(call)
        for name, call in {
            "a probe": lambda: integration.probe(tensors),
            "probing": lambda: probe(tensors),
            "looks": lambda: [*map(integration.look, tensors)],
            "look": lambda: look(tensors, integration),
            "places": lambda: found.places(integration),
            "uses": lambda: [*map(used, tensors)],
            "holding": lambda: _held(tensors),
        }.items()
    }
    for name, cost in rows.items():
        print(f"{name:40} {cost:8.2f} us")  # noqa: T201 - that is its purpose
    assert guards.match() is not None


if __name__ == "__main__":
    main()
