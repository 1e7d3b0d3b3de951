"""What a function writes in Python, and no replay would, is refused by name."""

from __future__ import annotations

import collections
import random
import re
import threading
import time
import types

import pytest

import sapwood as sw

torch = pytest.importorskip("torch")
nn = torch.nn

pytestmark = pytest.mark.gpu

COUNT = 0


class Counted:
    total = 0

    def __init__(self):
        self.n, self.items, self.table, self.seen = 0, [], {"k": 1}, set()
        self.inner = types.SimpleNamespace(depth=0)


@pytest.fixture(autouse=True)
def _restore(monkeypatch):
    """Put globals and class attributes back."""
    monkeypatch.setitem(globals(), "COUNT", 0)
    monkeypatch.setattr(Counted, "total", 0)


def _global(_, x):
    global COUNT  # noqa: PLW0603 - what is tested
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
    "attribute": ("n", _statement("o.n += 1")),
    "log": ("items", _statement("o.items.append(3)")),
    "dict item": ("table", _statement("o.table['k'] += 1")),
    "set": ("seen", _statement("o.seen.add(len(o.seen))")),
    "new attribute": ("fresh", _statement("o.fresh = getattr(o, 'fresh', 0) + 1")),
    "nested": ("depth", _statement("o.inner.depth += 1")),
    "class": ("total", _statement("type(o).total += 1")),
    "global": ("COUNT", _global),
    "closure": ("count", _closure()),
    "tensor into list": ("items", _statement("o.items.append(x)")),
    "new tensor into list": ("items", _statement("o.items.append(x + 2)")),
}


@pytest.mark.parametrize("how", ["closed over", "argument"])
@pytest.mark.parametrize("write", WRITES)
def test_a_python_write_is_refused_by_name(rt, write, how):
    """A slot that the function changes is a `CaptureError` that names it."""
    slot, fn = WRITES[write]
    o, x = Counted(), torch.zeros(2, device="cuda")
    if how == "closed over":
        f, args = rt.graph(lambda x: fn(o, x), fullgraph=True), (x,)
    else:
        f, args = rt.graph(lambda o, x: fn(o, x), fullgraph=True), (o, x)
    with pytest.raises(sw.CaptureError, match=re.escape(slot)) as caught:
        for _ in range(2):
            f(*args)
    assert caught.value.remedy
    assert f.stats().replays == 0


def test_a_module_that_counts_is_refused_by_name(rt):
    """So is one in an attribute of a module."""

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls, self.log = 0, collections.deque()

        def forward(self, x):
            self.calls += 1
            return x + 1

    f, x = rt.graph(Counting(), fullgraph=True), torch.zeros(2, device="cuda")
    with pytest.raises(sw.CaptureError, match=r"self\.calls"):
        for _ in range(2):
            f(x)


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("write", WRITES)
def test_a_python_write_passes_through(rt, same, write):
    """Unless ``fullgraph=True`` each call writes once, as the plain one does."""
    _, fn = WRITES[write]
    o, p, x = Counted(), Counted(), torch.zeros(2, device="cuda")
    f = rt.graph(lambda x: fn(o, x))
    for _ in range(5):
        same(f(x), x + 1)
        if write not in ("global", "closure", "class"):
            fn(p, x)
            assert (o.n, len(o.items), o.table) == (p.n, len(p.items), p.table)
            assert (o.seen, o.inner) == (p.seen, p.inner)
    if write == "global":
        assert COUNT == 5
    assert f.stats().recordings == 0


@pytest.mark.parametrize("draw", [random.random, time.perf_counter_ns])
@pytest.mark.parametrize("where", ["constant", "result"])
def test_a_value_that_changes_by_itself_is_refused(rt, draw, where):
    """A number that no guard sees may be neither baked in nor returned."""
    x = torch.ones(2, device="cuda")
    if where == "constant":
        f = rt.graph(lambda x: x * draw(), fullgraph=True)
    else:
        f = rt.graph(lambda x: (x + 1, draw()), fullgraph=True)
    with pytest.raises(sw.CaptureError):
        for _ in range(3):
            f(x)
    assert f.stats().replays == 0


def test_an_allocation_that_survives_without_a_slot(rt, same):
    """What lives on where nobody can name it is refused, with its size."""
    keep = threading.Thread()

    def f(x):
        keep.held = x * 2
        return x + 1

    g, x = (
        rt.graph(f, fullgraph=True),
        torch.zeros(128, device="cuda", dtype=torch.float64),
    )
    with pytest.raises(sw.CaptureError, match="1 KiB"):
        for _ in range(3):
            g(x)
    del keep.held
    h = rt.graph(lambda x: x + 3, fullgraph=True)
    for _ in range(4):
        same(h(x), x + 3)


def test_what_holds_nothing_at_the_end_is_no_survivor(alike):
    """Garbage in a cycle, slots that are restored, and local containers are free."""
    state = types.SimpleNamespace(depth=0, tmp=None)

    def fn(x):
        y, table = x * 2, collections.defaultdict(list)
        cycle = [y]
        cycle.append(cycle)
        state.depth += 1
        state.tmp = x * 3
        try:
            table[0].append(state.tmp * state.depth)
            return y.sum(), dict(table)
        finally:
            state.depth -= 1
            state.tmp = None

    def program(w):
        f, x = w.graph(fn), w.values(4)
        for _ in range(6):
            yield f(x)

    assert alike(program).count("replays") == 4


def test_memory_given_to_a_tensor_is_taken_back(rt):
    """A tensor that the function gave other memory has its own when it is refused."""
    weight, x = torch.ones(64, device="cuda"), torch.ones(64, device="cuda")

    def fn(x):
        weight.data = x * 2
        return x + 1

    f, refused = rt.graph(fn, fullgraph=True), ""
    f(x)
    before = weight.data
    try:
        f(x)
    except sw.CaptureError as error:
        refused = str(error)
    there = weight.data_ptr() == before.data_ptr()
    # Nothing may read what is there now.
    weight.data = before
    assert there or not refused, refused
