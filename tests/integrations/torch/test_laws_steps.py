"""Steps end old results early, those to keep excepted; closing leaves all readable."""

from __future__ import annotations

import pytest

import sapwood as sw

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

KINDS = {"warm-up": 1, "recording": 2, "replay": 3, "later replay": 6}
USES = {
    "arithmetic": lambda y, _: y + 1,
    "as another's operand": lambda y, x: x + y,
    "on the host": lambda y, _: y.cpu(),
    "one value": lambda y, _: float(y[0]),
    "written": lambda y, _: y.fill_(1),
    "joined": lambda y, x: torch.cat([x, y]),
    "out": lambda y, x: torch.add(x, x, out=y),
    "a view": lambda y, _: y[1:] * 2,
}


def three():
    return torch.arange(3.0, device="cuda")


def told(use, *args):
    """Return what a use says when it is refused, and drop its error."""
    try:
        use(*args)
    except RuntimeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_revoked_output_is_stale(rt, kind, use):
    """Outputs of earlier calls are ended by the next step, however they were made."""
    f, x = rt.graph(lambda x: x * 2), three()
    for _ in range(KINDS[kind]):
        y = f(x)
    with rt.step():
        found = told(USES[use], y, x)
    del y
    assert found.startswith("sapwood.StaleOutput"), found


def test_a_stale_output_is_no_argument(rt):
    """Nor may one be passed to a graphed function."""
    f, g, x = rt.graph(lambda x: x * 2), rt.graph(lambda h: h + 1), three()
    for _ in range(4):
        y = f(x)
        g(y)
    with rt.step():
        found = ""
        try:
            g(y)
        except (sw.StaleOutput, RuntimeError) as error:
            found = str(error)
    del y
    assert "stale" in found.lower(), found


def test_outputs_of_a_closed_runtime_go_on(rt, same):
    """They may be written, and used by eager code, until they are gone."""
    f, x = rt.graph(lambda x: x * 2), torch.randn(1 << 20, device="cuda")
    kept = [f(x) for _ in range(6)]
    rt.close()
    for i in range(6):
        kept[i] += i
    while kept:
        y = kept.pop()
        same(y, x * 2 + len(kept))
