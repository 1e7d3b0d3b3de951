"""Law 10: Python writes are noticed; arrays bound to slots are bound by replays too."""

from __future__ import annotations

import collections
import itertools
import random
import re
import types

import numpy as np
import pytest

import sapwood as sw

COUNT = 0
LATEST = None


class Counted:
    total = 0

    def __init__(self, **slots):
        self.n, self.items, self.table, self.seen = 0, [], {"k": 1}, set()
        self.inner = types.SimpleNamespace(depth=0)
        self.counter = collections.Counter()
        self.__dict__.update(slots)


def _global(_, x):
    global COUNT
    COUNT += 1
    return x + 1


def _closure():
    count = 0

    def f(_, x):
        nonlocal count
        count += 1
        return x + 1

    return f


def _statement(code):
    """Return a function that runs ``code`` on an object ``o`` and returns x + 1."""
    scope = {}
    exec(f"def f(o, x):\n    {code}\n    return x + 1", scope)
    return scope["f"]


WRITES = {
    "o.n": ("n", lambda o, x: (setattr(o, "n", o.n + 1), x + 1)[1]),
    "log": ("items", lambda o, x: (o.items.append(3), x + 1)[1]),
    "pop": ("items", lambda o, x: (o.items and o.items.pop(), o.items.extend([1, 2]))),
    "dict item": ("table", _statement("o.table['k'] += 1")),
    "dict key": ("table", _statement("o.table[len(o.table)] = 0")),
    "set": ("seen", _statement("o.seen.add(len(o.seen))")),
    "new attribute": ("fresh", _statement("o.fresh = getattr(o, 'fresh', 0) + 1")),
    "nested": ("depth", _statement("o.inner.depth += 1")),
    "class": ("total", _statement("type(o).total += 1")),
    "counter": ("counter", _statement("o.counter['x'] += 1")),
    "global": ("COUNT", _global),
    "closure": ("count", _closure()),
    "array into list": ("items", lambda o, x: (o.items.append(x), x + 1)[1]),
    "new array into list": ("items", lambda o, x: (o.items.append(x + 2), x + 1)[1]),
    "replaced object": ("inner", lambda o, x: _replace(o, x)),
}


def _replace(o, x):
    o.inner = types.SimpleNamespace(depth=o.inner.depth + 1)
    return x + 1


@pytest.fixture(autouse=True)
def _restore(monkeypatch):
    """Put globals and class attributes back."""
    monkeypatch.setitem(globals(), "COUNT", 0)
    monkeypatch.setitem(globals(), "LATEST", None)
    monkeypatch.setattr(Counted, "total", 0)


@pytest.mark.parametrize("how", ["closed over", "argument", "self"])
@pytest.mark.parametrize("write", WRITES)
def test_a_python_write_is_refused_by_name(rt, write, how):
    """A slot that the function changes is a `CaptureError` that names it."""
    slot, fn = WRITES[write]
    o, x = Counted(), rt.array(np.zeros(2))
    if how == "closed over":
        f, args = rt.graph(lambda x: fn(o, x)), (x,)
    elif how == "argument":
        f, args = rt.graph(lambda o, x: fn(o, x)), (o, x)
    else:
        cls = type("Sub", (Counted,), {"step": rt.graph(lambda self, x: fn(self, x))})
        o = cls()
        f, args = o.step, (x,)
    with pytest.raises(sw.CaptureError, match=re.escape(slot)) as caught:
        for _ in range(2):
            f(*args)
    assert caught.value.remedy
    assert f.stats().replays == 0


@pytest.mark.parametrize("write", WRITES)
def test_a_python_write_passes_through(rt, write):
    """With ``on_unsupported="eager"`` each call writes once, as the plain one does."""
    _, fn = WRITES[write]
    o, p = Counted(), Counted()
    x = rt.array(np.zeros(2))
    f = rt.graph(lambda x: fn(o, x), on_unsupported="eager")
    for _ in range(5):
        f(x)
        if write not in ("global", "closure", "class"):
            fn(p, x)
            assert (o.n, len(o.items), o.table, o.seen, o.inner, o.counter) == (
                (p.n, len(p.items), p.table, p.seen, p.inner, p.counter)
            )
    if write == "global":
        assert COUNT == 5
    assert f.stats().recordings == 0


def test_a_random_constant_is_refused(rt):
    """``random.random()`` that feeds a constant differs between two runs."""
    f, x = rt.graph(lambda x: x * random.random()), rt.array(np.ones(2))
    with pytest.raises(sw.CaptureError) as caught:
        for _ in range(3):
            f(x)
    assert caught.value.where.startswith(__file__)


@pytest.mark.parametrize("draw", [random.random, itertools.count().__next__])
def test_a_changing_plain_result_is_refused(rt, draw):
    """A plain result that differs from run to run would be stale in a replay."""
    x = rt.array(np.ones(2))
    f = rt.graph(lambda x: (x + 1, draw()))
    with pytest.raises(sw.CaptureError):
        for _ in range(3):
            f(x)
    assert f.stats().replays == 0


# Arrays bound to slots.


def _attribute(o, x):
    o.h = x * 2
    return o.h.sum()


def _carried(o, x):
    o.h = o.h * 0.5 + x
    return o.h - 1


def _dict_item(o, x):
    o.table["h"] = x + 1
    return x - 1


def _list_item(o, x):
    o.items[0] = o.items[1] + x
    o.items[1] = x * 1
    return x.sum()


def _lazy(o, x):
    if o.buffer is None:
        o.buffer = x * 0
    o.buffer += x
    return o.buffer * 2


def _lazy_key(o, x):
    if "buffer" not in o.table:
        o.table["buffer"] = x * 0
    o.table["buffer"] += x
    return o.table["buffer"] * 2


def _gradients(o, x):
    for i, p in enumerate(o.params):
        p.grad = x * p.data * i
        p.data -= 0.1 * p.grad
    return sum(p.data for p in o.params)


def _views(o, x):
    y = x * 3
    o.h, o.tail = y, y[1:]
    return y[::-1]


def _the_argument(o, x):
    o.h = x
    return x + 1


def _a_view_of_the_argument(o, x):
    o.h = x[1:]
    x += 1
    return x.sum()


def _global_slot(_, x):
    global LATEST
    LATEST = x + 5
    return x * 1


def _swapped(o, x):
    o.h, o.old = o.h + x, o.h
    return o.old * 1


def _twice(o, x):
    o.h = x + 1
    o.h = o.h * 2
    return o.h


def _made(w):
    params = [
        types.SimpleNamespace(data=w.values(4), grad=None if i else w.values(4))
        for i in range(3)
    ]
    o = Counted(h=w.values(4), old=w.values(4), tail=None, buffer=None, params=params)
    o.items = [w.values(4), w.values(4)]
    return o


def _slots(o):
    return [
        *(o.h, o.old, o.tail, o.buffer, *o.items, *o.table.values(), LATEST),
        *((p.data, p.grad) for p in o.params),
    ]


BINDERS = {
    f.__name__.strip("_"): f
    for f in (
        *(_attribute, _carried, _dict_item, _list_item, _lazy, _lazy_key, _gradients),
        *(_views, _the_argument, _a_view_of_the_argument, _global_slot, _swapped),
        _twice,
    )
}


@pytest.mark.parametrize("how", ["closed over", "argument", "self"])
@pytest.mark.parametrize("binder", BINDERS)
def test_arrays_bound_to_slots_are_rebound(agree, binder, how):
    """After each of 6 calls the slots are eager's, with all old objects kept."""

    def program(w):
        globals()["LATEST"] = None
        fn, o = BINDERS[binder], _made(w)
        f = _graphed(w, fn, o, how)
        x, kept = w.values(4), []
        for _ in range(6):
            out = f(x)
            kept.append([out, *_slots(o)])
            yield out, x, _slots(o)
            x += 1
        yield kept
        globals()["LATEST"] = None

    assert agree(program).count("replays") > 0


def _graphed(w, fn, o, how):
    if how == "closed over":
        return w.graph(lambda x: fn(o, x))
    if how == "argument":
        f = w.graph(lambda state, x: _on_dict(fn, state, x))
        return lambda x: f(vars(o), x)
    cls = type("Sub", (Counted,), {"step": w.graph(lambda self, x: fn(self, x))})
    o.__class__ = cls
    return o.step


def _on_dict(fn, state, x):
    view = Counted()
    view.__dict__ = state
    return fn(view, x)


@pytest.mark.parametrize("binder", BINDERS)
def test_slots_are_rebound_with_new_arguments(agree, binder):
    """The same with an argument that moves, and nothing kept."""

    def program(w):
        globals()["LATEST"] = None
        fn, o = BINDERS[binder], _made(w)
        f = w.graph(lambda x: fn(o, x))
        for i in range(10):
            out = f(w.values(4))
            if i % 3 == 2:
                yield out, _slots(o)
        globals()["LATEST"] = None

    agree(program)


def test_a_slot_that_was_replaced_between_calls(agree):
    """What others bind to the slot meanwhile is overwritten, as eager does."""

    def program(w):
        o = Counted(h=w.values(4))
        f = w.graph(lambda x: _attribute(o, x))
        x = w.values(4)
        for i in range(12):
            if i % 4 == 3:
                o.h = w.values(4)
            yield f(x), o.h

    agree(program)


def test_an_allocation_that_survives_without_a_slot(rt):
    """What lives on where nobody can name it is refused, with its size and line."""

    def keeper():
        held = yield
        while True:
            held = yield held

    keep = keeper()
    next(keep)

    def f(x):
        keep.send(x * 2)  # the line
        return x + 1

    g, x = rt.graph(f), rt.array(np.zeros(100))
    with pytest.raises(sw.CaptureError, match="800 B") as caught:
        for _ in range(3):
            g(x)
    assert caught.value.where.startswith(__file__)
    line = int(caught.value.where.rsplit(":", 1)[1])
    assert line == f.__code__.co_firstlineno + 1
    keep.close()


def test_temporaries_in_cycles_are_no_survivors(same):
    """An array that only a garbage cycle holds is not a survivor."""

    def f(x):
        y = x * 2
        cycle = [y]
        cycle.append(cycle)
        return y.sum()

    same(f, lambda w: (w.values(4),))


def test_a_slot_that_is_restored_is_no_write(same):
    """A flag that the function sets and resets is as it was."""
    state = types.SimpleNamespace(depth=0, tmp=None)

    def f(x):
        state.depth += 1
        state.tmp = x * 2
        try:
            return state.tmp * state.depth
        finally:
            state.depth -= 1
            state.tmp = None

    same(f, lambda w: (w.values(4),))


def test_local_containers_are_no_slots(same):
    """Lists and dicts that the function makes for itself are its own business."""

    def f(x):
        log, table = [], collections.defaultdict(list)
        for i in range(3):
            log.append(x * i)
            table[i % 2].append(log[-1])
        return table[0][0] + log[1], dict(table)

    same(f, lambda w: (w.values(4),))


def test_bound_outputs_are_safe_when_kept(rt):
    """Objects taken from a slot keep their values however long they are held."""
    o = Counted(h=None)
    f = rt.graph(lambda x: _attribute(o, x))
    x, kept = rt.array(np.zeros(4)), []
    for i in range(60):
        f(x)
        kept.append(o.h)
        x += 1
        assert np.asarray(kept[i // 2]).tolist() == [i // 2 * 2.0] * 4
    for i, h in enumerate(kept):
        assert np.asarray(h).tolist() == [i * 2.0] * 4
    assert f.stats().recordings <= 5
