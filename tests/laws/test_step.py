"""Law 12: `step` ends old leases early, aloud; closing with live outputs is legal."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import sapwood as sw
from tests.support.frameworks import on_host

KINDS = {"warm-up": 1, "recording": 2, "replay": 3, "later replay": 6}


def _uses(y, rt):
    """Return ways to use an array, each of which must notice that it is stale."""
    x = rt.array(np.ones(3))
    f = rt.graph(lambda y: y + 1)
    return (
        *(lambda: y + 1, lambda: x + y, lambda: np.asarray(y), lambda: float(y[0])),
        *(lambda: y.sum(), lambda: x.__setitem__(0, y[1]), lambda: f(y)),
        *(lambda: y.__setitem__(0, 1), lambda: np.concatenate([x, y]), lambda: x @ y),
        *(lambda: y.copy(), lambda: y.astype(np.float32), lambda: y[::-1] * 2),
        *(lambda: np.add(x, x, out=y), lambda: y.tolist(), lambda: np.where(x, y, x)),
        lambda: x[y.astype(np.int64)],
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_revoked_output_is_stale(rt, kind):
    """Outputs of warm-up, recording and replay are all revoked by the next step."""
    f, x = rt.graph(lambda x: x * 2), rt.array(np.arange(3.0))
    for _ in range(KINDS[kind]):
        y = f(x)
    view = y.reshape(3, 1)[:2].T
    assert np.asarray(view).tolist() == [[0, 2]]
    with rt.step():
        for use in _uses(y, rt):
            with pytest.raises(sw.StaleOutput) as caught:
                use()
            assert caught.value.why
            assert caught.value.remedy in str(caught.value)
        with pytest.raises(sw.StaleOutput):
            np.asarray(view)
        assert np.asarray(x).tolist() == [0, 1, 2]
        z = f(x)
        assert np.asarray(z).tolist() == [0, 2, 4]
    assert np.asarray(z).tolist() == [0, 2, 4]


def test_a_stale_output_can_be_shown(rt):
    """`repr` and `str` of a stale output say that it is, and do not raise."""
    f, x = rt.graph(lambda x: x * 2), rt.array(np.arange(3.0))
    for _ in range(3):
        y = f(x)
    with rt.step():
        assert "stale" in repr(y)
        assert "stale" in str(y)
        assert y.shape == (3,)


@pytest.mark.every_framework
def test_steps_need_no_variants(rt, framework):
    """``y = f(x)`` with a step per iteration needs one recording."""
    f, x = rt.graph(lambda x: x * 2), rt.array(np.arange(3.0))
    for i in range(20):
        with rt.step():
            y = f(x)
            assert on_host(y).tolist() == [0, 2 * (i + 1), 4 * (i + 1)]
            x += x / (i + 1)
    assert f.stats().recordings <= 1 + framework.settling
    assert f.stats().replays >= 18 - framework.settling


def test_steps_with_everything_kept_by_name(rt):
    """A list of old outputs does no harm to memory: they are revoked."""
    f, x = rt.graph(lambda x: x * 2), rt.array(np.arange(3.0))
    kept = []
    for _ in range(50):
        with rt.step():
            kept.append(f(x))
    assert f.stats().recordings == 1
    assert f.stats().escaped == 0
    with rt.step():
        for y in kept:
            with pytest.raises(sw.StaleOutput):
                y + 1


@pytest.mark.every_framework
@pytest.mark.parametrize("nest", ["array", "view", "list", "dict"])
def test_keep_is_honoured(rt, framework, nest):
    """Arrays in ``keep``, in any nest, and views of them outlive the step."""
    f, x = rt.graph(lambda x: (x * 2, x + 1)), rt.array(np.arange(3.0))
    stale = sw.StaleOutput if framework.xp is np else RuntimeError
    for _ in range(8):
        first, second = f(x)
        expected = (on_host(x) * 2).tolist()
        keep = {
            "array": first,
            "view": first[1:],
            "list": [(first,), None, 3],
            "dict": {"state": {"a": first}, "n": 1},
        }[nest]
        with rt.step(keep=keep):
            assert on_host(first).tolist() == expected
            with pytest.raises(stale, match=r"[Ss]tale"):
                second + 1
            del second
            x += 1
            f(x)
            f(x)
            assert on_host(first).tolist() == expected


@pytest.mark.every_framework
def test_a_state_across_steps(agree):
    """``state = f(state)`` with ``keep=state`` is right over many steps."""

    def program(w):
        f = w.graph(lambda s: {"h": s["h"] * 0.5 + s["c"], "c": s["c"] - s["h"]})
        state = {"h": w.values(4), "c": w.values(4)}
        for _ in range(30):
            with w.step(keep=state):
                state = f(state)
                yield state

    world = agree(program)
    assert world.count("recordings") <= 3
    assert world.count("escaped") == 0


@pytest.mark.every_framework
def test_a_state_through_several_functions(agree):
    """Kept outputs of several functions, temporaries of a third, under steps."""

    def program(w):
        f, g = w.graph(lambda x: x * 2), w.graph(lambda h, s: (h + s, h.sum()))
        loss = w.graph(lambda t: t * 3)
        x, state = w.values(4), w.values(4)
        for _ in range(12):
            with w.step(keep=[state]):
                state, total = g(f(x), state)
                yield loss(total), state

    world = agree(program)
    assert world.count("replays") > 12


@pytest.mark.every_framework
def test_arrays_of_the_user_are_no_outputs(rt, framework):
    """Only outputs of graphed functions are revoked; eager arrays are not."""
    f, x = rt.graph(lambda x: x * 2), rt.array(np.arange(3.0))
    y = f(x)
    eager, copy, same = y + 1, framework.copied(y), rt.graph(lambda x: x)
    del y
    for _ in range(3):
        handed = same(x)
    with rt.step():
        assert handed is x
        shown = [on_host(each).tolist() for each in (x, eager, copy)]
        assert shown == [[0, 1, 2], [1, 3, 5], [0, 2, 4]]


@pytest.mark.every_framework
def test_a_step_without_calls(rt):
    """Steps may be empty, nested, and left by an exception."""
    f, x = rt.graph(lambda x: x * 2), rt.array(np.arange(3.0))
    with rt.step(), rt.step():
        y = f(x)
    with pytest.raises(KeyError), rt.step(keep=y):
        raise KeyError
    assert on_host(y).tolist() == [0, 2, 4]


@pytest.mark.minimal
def test_escaped_outputs_are_revoked_too(rt):
    """A copy that escaped is an output like others."""
    f, x = rt.graph(lambda x: x * 2, max_variants=1), rt.array(np.arange(3.0))
    kept = [f(x) for _ in range(6)]
    assert f.stats().escaped > 0
    with rt.step(keep=kept[3:]):
        for y in kept[:3]:
            with pytest.raises(sw.StaleOutput):
                y + 1
        for y in kept[3:]:
            assert np.asarray(y).tolist() == [0, 2, 4]


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_passed_through_outputs_are_revoked_too(rt):
    """Whether a call was recorded makes no difference to the rules, from a step on."""
    f = rt.graph(lambda x: x * float(str(x[1])))
    with rt.step():
        y = [f(rt.array(np.arange(3.0))) for _ in range(6)]
    with rt.step():
        for each in y:
            with pytest.raises(sw.StaleOutput):
                each + 1


def test_bound_outputs_may_be_kept(rt):
    """A slot's array is revoked with the rest, unless it is kept."""
    holder = {"h": rt.array(np.zeros(3))}

    def fn(x):
        holder["h"] = holder["h"] + x
        return holder["h"].sum()

    f, x = rt.graph(fn), rt.array(np.ones(3))
    for i in range(6):
        with rt.step(keep=holder):
            f(x)
            assert np.asarray(holder["h"]).tolist() == [i + 1] * 3
    with rt.step(), pytest.raises(sw.StaleOutput):
        np.asarray(holder["h"])


@pytest.mark.every_framework
@pytest.mark.parametrize("calls", [1, 2, 5, 9])
def test_closing_with_live_outputs(rig, framework, calls):
    """Outputs stay readable after `close`, and give their memory back at the end."""
    rt = rig.runtime
    f, x = rt.graph(lambda x: (x * 2, x[1:], x.sum())), rt.array(np.arange(300.0))
    kept = [f(x) for _ in range(calls)]
    rt.close()
    rt.close()
    assert rt.closed
    # Where a framework has memory of its own, this takes what was given back.
    junk = [x * 3 for _ in range(20)] if framework.xp is not np else []
    for double, tail, total in kept:
        assert on_host(double).tobytes() == (np.arange(300.0) * 2).tobytes()
        assert on_host(tail).tobytes() == np.arange(1.0, 300.0).tobytes()
        assert float(total) == np.arange(300.0).sum()
    del junk
    with pytest.raises(sw.MisuseError, match="closed"):
        f(x)
    with pytest.raises(sw.MisuseError, match="closed"), rt.step():
        pass
    del kept, double, tail, total, x
    gc.collect()
    rig.check_leaks()


def test_a_runtime_is_a_context_manager(make_rig):
    """Leaving the block closes; closing twice does nothing."""
    rig = make_rig()
    with rig.runtime as rt:
        f = rt.graph(lambda x: x + 1)
        y = [f(rt.array(np.zeros(2))) for _ in range(3)][-1]
    assert rt.closed
    assert np.asarray(y).tolist() == [1, 1]
    rt.close()
