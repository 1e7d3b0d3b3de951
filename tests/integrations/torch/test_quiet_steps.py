"""A training step that is replayed in C runs none of this library's Python."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import sapwood  # noqa: E402
from sapwood import Runtime  # noqa: E402
from tests.support.rig import fast_replays_at_once  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        sys.version_info[:2] != (3, 12), reason="dicts are watched on CPython 3.12"
    ),
]

OPTIMIZERS = {
    "adamw": lambda ps: torch.optim.AdamW(ps, lr=0.01, capturable=True),
    "sgd with momentum": lambda ps: torch.optim.SGD(ps, lr=0.01, momentum=0.9),
}


def _calls(run):
    """Return the names of the functions in Python that are called meanwhile."""
    called, ours = [], str(Path(sapwood.__file__).parent)

    def told(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(ours):
            called.append(frame.f_code.co_qualname)

    sys.setprofile(told)
    try:
        run()
    finally:
        sys.setprofile(None)
    # What gives a root of the guards is one, and so is the one mode with a name.
    return [x for x in called if not x.endswith(("<lambda>", "_dispatch_modes"))]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("to_none", [True, False])
def test_a_training_step(name, to_none):
    """Gradients are bound, and the loss is made, without a line of it."""
    torch.manual_seed(3)
    layers = torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = OPTIMIZERS[name](model.parameters())

    def step(x, y):
        optimizer.zero_grad(set_to_none=to_none)
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    x, y = torch.randn(8, 16, device="cuda"), torch.randn(8, 4, device="cuda")
    with Runtime(device="cuda:0", arrays="torch") as rt:
        fast_replays_at_once(rt)
        f = rt.graph(step)
        for _ in range(80):
            f(x, y)

        def run():
            for _ in range(20):
                f(x, y)

        before = f.stats().replays
        assert _calls(run) == []
        assert f.stats().replays == before + 20
