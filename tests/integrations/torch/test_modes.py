"""The modes that live parts are called in, and those that no replay sets."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


SET = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cuda", dtype=torch.bfloat16),
}
STRANGE = {
    'is_autocast_enabled("cpu")': lambda: torch.autocast("cpu"),
    "torch's function modes": lambda: torch.device("cpu"),
}


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
def test_a_live_part_under_such_modes(rt, name):
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
