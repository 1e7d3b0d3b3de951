"""A region that gives a tensor another shape in place: full graphs, and others."""

from __future__ import annotations

import pytest

import sapwood as sw

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu


def _turns(tensor):
    tensor.t_()


def _resizes(tensor):
    tensor.resize_(2, 2)


def _gives(tensor):
    tensor.data = tensor.data.view(2, 6)


def _gives_others(tensor):
    tensor.data = torch.zeros_like(tensor)


WAYS = [_turns, _resizes, _gives, _gives_others]


def _of_the_call(live):
    def fn(x):
        h = x * 2
        live(x)
        return h.sum() + x

    return fn


def _of_the_function(live):
    def fn(x):
        h = x * 2
        live(h)
        return h + 1

    return fn


def _caught(fn, x):
    with pytest.raises(sw.CaptureError, match="another shape or dtype in place"):
        fn(x)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", [_of_the_call, _of_the_function])
@pytest.mark.parametrize("after", [0, 1, 2, 5])
def test_a_passed_tensor(rt, same, way, program, after):
    """At the first call, at the one that records, or at any replay."""
    calls = [0]

    @sw.eager
    def live(tensor):
        calls[0] += 1
        if calls[0] > after:
            way(tensor)

    f = rt.graph(program(live), fullgraph=True)
    plain = program(lambda _: None)
    for _ in range(after):
        x = torch.randn(3, 4, device="cuda")
        same(f(x), plain(x))
    _caught(f, torch.randn(3, 4, device="cuda"))
    calls[0] = -3
    for _ in range(3):
        x = torch.randn(3, 4, device="cuda")
        same(f(x), plain(x))


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("way", WAYS)
def test_an_argument_that_it_has_by_itself(rt, same, way):
    """It is passed another tensor, and changes the call's."""
    now, wrong = [None], [False]

    @sw.eager
    def live(_):
        if wrong[0]:
            way(now[0])

    def goes_on(x):
        h = x * 2
        live(h)
        return h.sum() + x

    f = rt.graph(goes_on)
    for _ in range(4):
        now[0] = torch.randn(3, 4, device="cuda")
        same(f(now[0]), (now[0] * 2).sum() + now[0])
    wrong[0], host = True, torch.randn(3, 4)
    for _ in range(3):
        shown = []
        for each in f, goes_on:
            now[0] = host.cuda()
            shown.append((each(now[0]), now[0]))
        for one, other in zip(*shown, strict=True):
            same(one, other)


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("late", [False, True])
def test_state_that_the_function_gives_other_memory(rt, same, late):
    """Around a value that it reads, too, where parts work on stand-ins."""

    def made():
        torch.manual_seed(2)
        one, other = (torch.nn.Parameter(torch.randn(3, device="cuda")) for _ in "ab")
        at = torch.zeros(1, dtype=torch.long, device="cuda")

        def moves():
            with torch.no_grad():
                other.data = other.data * 0.9 + one.data * 0.1

        def step(x):
            if not late:
                moves()
            y = other * x
            one.data.add_(x)
            i = int(at)
            at.add_(1).remainder_(2)
            if late:
                moves()
            return y[i:].sum() + other.sum()

        return step, (one, other, at)

    (plain, state), (fn, own) = made(), made()
    f = rt.graph(fn)
    for _ in range(8):
        x = torch.randn(3, device="cuda")
        same(f(x), plain(x))
        same([*own], [*state])
