"""Values that a function reads on the host and only passes on decide nothing.

Each function is held against its plain form, with values that never come again: those
that only pass them on are replayed, whatever they may be, and of all others no replay
goes by a value that is another one by now.
"""

from __future__ import annotations

import gc
import math
import random
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest

import sapwood as sw
from sapwood import _fast
from tests.support.rig import CUDA, IN_C, VARIANTS, Rig, fast_replays_at_once

pytestmark = pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")


class Bounds:
    """What functions compare with."""

    def __init__(self):
        self.norm, self.parts = 0.5, 2

    def move(self):
        self.norm = 0.25 if self.norm == 0.5 else 0.5


BOUNDS = Bounds()
ONES = (*VARIANTS, IN_C, pytest.param(CUDA, marks=pytest.mark.gpu))


@pytest.fixture(params=ONES)
def rig(request):
    if request.param == IN_C and _fast.native() is None:
        pytest.skip("nothing in C here")
    made = Rig(request.param)
    if request.param == CUDA:
        fast_replays_at_once(made.runtime)
    yield made
    gc.collect()
    made.finish()


def _alone(x):
    return float((x * 2).sum())


def _item(x):
    return (x * 2).sum().item()


def _beside(x):
    y = x * 2
    return y, float(y.sum()), [y.max().item(), y.min()]


def _named(x):
    y = x * 2
    loss = float(y.sum())
    z = y + 1
    best = z.max().item()
    return {"z": z, "loss": loss, "best": best, "more": (loss, {"again": best})}


def _helped(x):
    def told(y):
        return {"sum": y.sum().item(), "y": y}

    made = told(x * 3)
    return x + 1, made


def _dropped(x):
    y = x * 2
    y.sum().item()
    return y + 1


def _either(x):
    value = float(x.sum())
    y = x * 2 if math.pi > 3 else x * 3
    return y, value


def _several(x):
    y = x * 2
    return y.tolist(), y.reshape(2, 2).tolist(), y + 1


def _around(x):
    """Loops and comprehensions, which do not look at it."""
    value = x.sum().item()
    sums = [x.shape[0] + i for i in range(3)]
    for i in range(2):
        x = x * (i + 1)
    return {"value": value, "sums": sums, "x": x}


def _within(x):
    """What other code there is takes no value apart, and hides none."""
    values = []
    for scale, (add, *_) in ((2, (1, 0)), (3, (2, 0))):
        with nullcontext(scale) as factor:
            x = x * factor + add
        import math as again

        values += [again.floor(2.5)]
    return values, x.sum().item(), x


def _formulas(x, k=3):
    """With constants, arguments that nothing else is bound to, and lengths."""
    value = x.sum().item()
    mean = value / x.shape[0]
    y = x * 2
    return -1 * mean + 0.5, {"percent": 100.0 * value / k}, (y, 1 - value * 2, value)


def _raised(x):
    value = x.sum().item()
    if x.shape == (3,):
        raise ValueError("three")
    return value


def _in_a_context(x):
    with nullcontext(), nullcontext():
        y = x * 2
        loss = y.sum().item()
        found = {"loss": loss, "best": y.max().item(), "y": y}
    return found, [loss]


def _in_a_try(x):
    try:
        y = x * 2
        return {"loss": y.sum().item(), "y": y}
    finally:
        x += 0


PASSING = {
    "in a context": _in_a_context,
    "in a try": _in_a_try,
    "alone": _alone,
    "item": _item,
    "beside others": _beside,
    "by name": _named,
    "dropped": _dropped,
    "either way": _either,
    "lists": _several,
    "around a loop": _around,
    "within others": _within,
    "by formulas": _formulas,
    "or raises": _raised,
}


def _last(x):
    """Of several, the last one, and one of those before."""
    first = value = 0.0
    for _ in range(3):
        x = x * 0.5
        first, value = value, float(x.sum())
    return first, value


def _root(x):
    return math.sqrt(abs(x).sum())


def _whole(x):
    return int((x * 100).sum()), round(x.sum().item(), 1)


def _asked(x):
    value = float(x.sum())
    return (x * 2, value) if value > 2 else (x * 3, value)


def _used(x):
    value = float(x.sum())
    return x * value, value


def _ratio(x):
    value, most = x.sum().item(), x.max().item()
    return value / most, most - value, 2 / (value + 1)


def _of_others(x, n=2):
    """With numbers that hang on another value, or on what else is bound by then."""
    most = x.max().item()
    n = n + most
    scale = most
    value = x.sum().item()
    found = [value * scale, value + n, value * BOOK[0] if BOOK else value]
    n = 3
    return found, value * n


def _of_closed(x, n=2):
    def later():
        nonlocal n
        n += x.shape[0]

    value = x.sum().item()
    later()
    return value * n, x + 1


def _powers(x):
    value = x.sum().item()
    return value**2, value // 1, value % 1, divmod(value, 1)


def _shown(x):
    value = float(x.sum())
    return f"{value:.2f}", x + 1


def _added(x):
    total = 0.0
    for _ in range(3):
        x = x * 0.5
        total += float(x.sum())
    return x, total


def _looked(x):
    value = float(x.sum())
    return x * 2, min(locals()), dict(locals())["value"]


def _closed(x):
    value = float(x.sum())

    def later():
        return value * 2

    return x + 1, later()


def _kept(x):
    made = {"value": float(x.sum())}
    BOOK.append(made)
    return x * 2, made


def _changed(x):
    made = [float(x.sum())]
    made.append(made[0] * 2)
    return made, x + 1


def _yielded(x):
    def values():
        yield float(x.sum())
        yield x * 2

    return tuple(values())


def _tried(x):
    value = 0.0
    try:
        value = float(x.sum())
        math.sqrt(math.pi - 3)
    except ValueError:
        return x, value
    return x * 2, value


def _compared(x):
    values = [x.sum().item(), x.max().item()]
    return max(values), x * 2


def _called_back(x):
    """What calls a function may do more with what it gives, unseen."""
    found = next(iter(lambda: float(x.max() - 0.75), 0.0), -1.0)
    return found, x + 1


def _rebound(x):
    value = float(x.sum())
    for _ in range(x.shape[0] - 3):
        value = x.max().item()
    return value, x + 1


exec(
    "def _shadowed(x):\n    return float(x.sum()), x + 1",
    shadowed := {"float": math.sqrt},
)
BOOK = []


def _in_a_handler(x):
    value = x[0].item()
    try:
        scale = {}["missing"]
    except KeyError:
        x = x + value
        scale = 1.0
    return x * scale


def _told_in_a_handler(x):
    value = x[0].item()
    try:
        return {"value": {}["missing"]}
    except KeyError:
        return {"value": str(value), "x": x * 2}


class _Suppressing:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return True


def _behind_what_suppresses(x):
    value = x[0].item()
    with _Suppressing():
        return x * {}["missing"]
    return x * value


DECIDING = {
    "in a handler": _in_a_handler,
    "told in a handler": _told_in_a_handler,
    "behind what suppresses": _behind_what_suppresses,
    "the last": _last,
    "a root": _root,
    "whole numbers": _whole,
    "used": _used,
    "as text": _shown,
    "a ratio": _ratio,
    "of others": _of_others,
    "of what is closed over": _of_closed,
    "powers": _powers,
    "added": _added,
    "looked at": _looked,
    "in a closure": _closed,
    "kept": _kept,
    "changed": _changed,
    "yielded": _yielded,
    "tried": _tried,
    "compared": _compared,
    "rebound": _rebound,
    "by a helper": _helped,
    "by a callback": _called_back,
    "shadowed": shadowed["_shadowed"],
}


def _near(x, tol=0.5):
    value = x.max().item()
    return (x * 2, value) if value > tol else (x * 3, value)


def _halved(x, tol=0.1):
    """As solvers do: until what is left is small."""
    left, count = 1.0, 0
    while left > tol:
        x = x * 0.5
        left = float(x.max())
        count += 1
    return x, left, count


def _gated(x):
    value = x.sum().item()
    if not value:
        return x
    y = x * 2 if 0.25 < value / len(x) <= 0.75 else x * 3
    best = y.max().item()
    if best == 7.5:
        y = y * 0
    return y, {"best": best, "big": best > 1}


def _negated(x):
    value = x.max().item()
    low = not value > 0.5
    if low:
        return x * 2, value
    return x * 3, None


def _guarded(x, parts=0):
    """What it asks on another way would be an error."""
    norm, rows = x.sum().item(), x.tolist()
    if parts and norm / parts > 0.5:
        return x * 3, norm
    if parts and rows > 2:
        return x * 4, norm
    return (x, norm) if norm > 1.5 else (x * 2, norm)


def _unsized(x, parts=0):
    """What it asks on another way would be an error, too: there is no such length."""
    norm = x.sum().item()
    if parts and norm > x.shape[3]:
        return x * 3, norm / x.shape[2]
    return (x, norm) if norm > 1.5 else (x * 2, norm)


def _limited(x, most=BOUNDS):
    norm = x.sum().item()
    if norm > most.norm * 4 / most.parts:
        x = x * 0.5
    return x, norm * most.parts


ASKING = {
    "near": _near,
    "halved": _halved,
    "gated": _gated,
    "guarded": _guarded,
    "negated": _negated,
    "limited": _limited,
    "asked": _asked,
}


@pytest.mark.parametrize("fn", ASKING.values(), ids=ASKING)
def test_what_is_asked_decides_by_the_answer(rig, fn):
    """The value may be a new one in each call."""
    draw = random.Random(11)
    assert _alike(rig, fn, 60, draw.random) >= 20


def _moved(x, most=BOUNDS):
    """What it is compared with changes meanwhile."""
    value = x.max().item()
    most.move()
    found = x * 2 if value > most.norm else x * 3
    most.move()
    return found, value


def _last_of(x):
    """Which value is returned hangs on another one."""
    first, second = x.max().item(), x.min().item()
    if first > 0.75:
        return x * 2, first
    return x * 2, second


def _stopped(x):
    value = 0.0
    for _ in range(4):
        x = x * 0.5
        value = float(x.max())
        if value < 0.25:
            break
    return x, value


def _never(x):
    value = x.max().item()
    if value is None or value in (0.5, 1.0):
        return x * 2, value
    return x * 3, value


def _chained(x):
    value = x.max().item()
    y = x * 2 if 0.2 < value < 0.6 else x * 3
    return y, value or 1.0, value and 2.0


def _shadowing(x):
    def len(_):  # noqa: A001 - that is what is tested
        return 3 if BOOK else 2

    value = x.max().item()
    return value * len(x), x * 2 if value > len(x) / 4 else x * 3


for _each in (_moved, _last_of, _stopped, _never, _chained, _unsized, _shadowing):
    DECIDING[_each.__name__] = _each


class Books:
    """Lists that a function keeps what it reads in."""

    def __init__(self):
        self.losses, self.history = [], {"max": [], "mean": [], "n": 0}
        self.steps, self.total = 0, 0.0
        self.other = Other()

    def note(self, value):
        self.losses.append(value)


class Other:
    def __init__(self):
        self.losses = []


def _appends(books, x):
    books.steps += 1
    books.losses.append(float(x.sum()))
    books.history["max"].append(x.max().item())
    return x * 2


def _appends_and_returns(books, x):
    y = x * 2
    value = y.sum().item()
    books.losses.append(value)
    books.losses.append(y.max().item())
    return y, value


def _appends_arrays(books, x):
    y = x * 2
    books.losses.append(y.sum())
    books.history["mean"].append(y.mean().item())
    return y


def _appends_lists(books, x):
    values = (x * 2).tolist()
    books.losses.append(values)
    return values


def _of_one_name(books, x):
    y = x * 2
    books.losses.append(y.sum().item())
    books.other.losses.append(y.max().item())
    return y


def _constants_beside(books, x):
    y = x * 2
    books.losses.append(2.0)
    books.losses.append(y.sum().item())
    books.losses.append(2.0)
    return y


def _by_a_method(books, x):
    books.note(float(x.sum()))
    return x * 2


def _by_a_name(books, x):
    losses = books.losses
    losses.append(float(x.sum()))
    return x * 2


def _mixed(books, x):
    y = x * 2
    books.losses.append(y.sum().item())
    books.losses.append(y)
    return y


def _of_its_own(books, x):
    mine = []
    mine.append(float(x.sum()))
    books.losses.append(len(mine))
    return x * 2, mine


def _counted(books, x):
    books.losses.append(float(x.sum()))
    return x * len(books.losses)


def _computed(books, x):
    books.losses.append(float(x.sum()) * 2)
    return x * 2


def _adds(books, x):
    books.steps += (x > 0.5).sum().item()
    books.history["n"] += int((x > 0.25).sum())
    return x * 2


def _adds_twice(books, x):
    books.steps += (x > 0.5).sum().item()
    books.steps += 2
    return x * 2


def _adds_floats(books, x):
    books.total += float(x.sum())
    return x * 2


def _appends_dicts(books, x):
    """As logs of metrics are kept: with some of the values a constant, or an array."""
    y = x * 2
    books.losses.append({"sum": y.sum().item(), "n": 4, "max": (y.max().item(), y)})
    books.history["mean"].append({"mean": float(y.mean()), "again": y.max().item()})
    return y


def _adds_and_returns(books, x):
    value = (x > 0.5).sum().item()
    books.steps += value
    return value, x + 1


def _adds_formulas(books, x):
    value = x.sum().item()
    books.total += value * x.shape[0]
    books.total += value / 2
    books.losses.append({"mean": value / x.shape[0], "n": 4})
    return x * 2


def _adds_and_uses(books, x):
    books.steps += (x > 0.5).sum().item()
    return x * books.steps


def _appends_in_a_context(books, x):
    y = x * 2
    with nullcontext():
        books.losses.append(y.sum().item())
        books.total += y.max().item()
        books.history["max"].append((y.max().item(), 3))
    return y


APPENDING = {
    "in a context": _appends_in_a_context,
    "adds": _adds,
    "adds floats": _adds_floats,
    "appends dicts": _appends_dicts,
    "by formulas": _adds_formulas,
    "computed": _computed,
    "adds and returns": _adds_and_returns,
    "appends": _appends,
    "and returns": _appends_and_returns,
    "beside arrays": _appends_arrays,
    "mixed": _mixed,
}
WRITING = {
    **APPENDING,
    "lists": _appends_lists,
    "of one name": _of_one_name,
    "constants beside": _constants_beside,
    "by a method": _by_a_method,
    "by a name": _by_a_name,
    "of its own": _of_its_own,
    "counted": _counted,
    "adds twice": _adds_twice,
    "adds and uses": _adds_and_uses,
}


def _bytes(value):
    if isinstance(value, (tuple, list)):
        return [type(value), *map(_bytes, value)]
    if isinstance(value, dict):
        return [dict, *((key, _bytes(each)) for key, each in value.items())]
    if value is None or isinstance(value, (int, str)):
        return value
    if isinstance(value, float):
        return float, value.hex()
    return np.array(value.get() if hasattr(value, "get") else value).tobytes()


def _alike(rig, fn, calls, draw):
    """Return how many of these calls were replays, each as the plain one."""
    rt, held = rig.runtime, []
    f = rt.graph(fn)
    for _ in range(calls):
        values = np.array([draw() for _ in range(4)])
        held.append((f(rt.array(values)), fn(rt.array(values))))
        for result, expected in held:
            assert _bytes(result) == _bytes(expected)
        del held[: len(held) - random.Random(7).choice([0, 1, 3])]
    return f.stats().replays


@pytest.mark.parametrize("fn", PASSING.values(), ids=PASSING)
def test_what_is_passed_on_is_replayed(rig, fn):
    draw = random.Random(3)
    assert _alike(rig, fn, 40, draw.random) >= 36


def _told(books):
    kept = books.losses, books.history, books.other.losses, books.steps
    return _bytes((*kept, books.total))


@pytest.mark.parametrize("fn", WRITING.values(), ids=WRITING)
@pytest.mark.parametrize("constant", [0, 12])
def test_what_is_appended(rig, fn, constant):
    """Lists hold what the plain function's hold, after each call, in that order."""
    rt, draw = rig.runtime, random.Random(9)
    mine, theirs = Books(), Books()
    f, held = rt.graph(partial(fn, mine)), []
    for turn in range(50):
        values = [0.25] * 4 if turn < constant else [draw.random() for _ in range(4)]
        x = np.array(values)
        held.append((f(rt.array(x)), fn(theirs, rt.array(x))))
        for result, expected in held[-3:]:
            assert _bytes(result) == _bytes(expected)
        assert _told(mine) == _told(theirs)
        if turn == 30:
            for books in (mine, theirs):
                books.losses.clear()
                books.history["max"] = []
    # Of a sum of nothing, nobody can tell what was added.
    least = {_adds: 0, _adds_and_returns: 0} if constant else {}
    if fn in APPENDING.values():
        assert f.stats().replays >= least.get(fn, 40)


@pytest.mark.parametrize("fn", DECIDING.values(), ids=DECIDING)
def test_what_may_decide_is_right(rig, fn):
    draw = random.Random(5)
    _alike(rig, fn, 30, draw.random)
    # The same ones for long enough to be recorded, and then others.
    first = iter([0.25] * 40)
    draws = lambda: next(first, None) or draw.choice([0.25, 0.5, 0.75])  # noqa: E731
    _alike(rig, fn, 60, draws)
    BOOK.clear()


def test_values_that_are_alike_by_chance(rig):
    """A constant of the function may be what it has read, and is no such value."""

    def fn(x):
        return 1.0, float(x.sum()), [0, x.sum().item()]

    rt, f = rig.runtime, rig.runtime.graph(fn)
    for turn in range(40):
        value = 1.0 if turn < 8 else float(turn)
        found = f(rt.array(np.array([value])))
        assert found == (1.0, value, [0, value])
    assert f.stats().replays >= 30


def test_nothing_that_is_passed_on_is_shared(rig):
    """Each call has lists of its own."""

    def fn(x):
        y = x * 2
        return y.tolist(), {"max": [y.max().item()]}

    rt, f = rig.runtime, rig.runtime.graph(fn)
    for turn in range(12):
        values, more = f(rt.array(np.array([1.0, turn])))
        assert values == [2.0, 2.0 * turn]
        assert more == {"max": [max(2.0, 2.0 * turn)]}
        values.append("mine")
        more["max"].append("mine")
        more["other"] = 1
    assert f.stats().replays >= 8


def test_c_plays_around_what_is_passed_on(rig):
    """With nothing saved or copied but what is returned."""
    rt = rig.runtime
    f, x = rt.graph(_named), rt.array(np.arange(4.0))
    for _ in range(40):
        f(x)
    launches = rig.lending.launches if rig.lending else 0
    before = f.stats().replays
    for turn in range(200):
        x[...] = rt.array(np.arange(4.0) + turn)
        assert f(x)["loss"] == 12.0 + 8 * turn
    assert f.stats().replays - before == 200
    if rig.lending is not None:
        assert rig.lending.launches - launches >= 3 * 190


def test_nothing_is_saved_for_what_is_passed_on(rig):
    """No call can go another way behind it: what it has written stays."""
    rt = rig.runtime
    total, x = rt.array(np.zeros(4)), rt.array(np.ones(4))

    def fn(x):
        total[...] = total + x
        return total.sum().item()

    f = rt.graph(fn)
    assert [f(x) for _ in range(8)] == [4.0 * (i + 1) for i in range(8)]
    rig.recorded.reset()
    assert [f(x) for _ in range(8)] == [4.0 * (i + 9) for i in range(8)]
    assert "copy" not in rig.recorded.counts()
    assert f.stats().replays >= 12


class Meter:
    """Appends as lists do, and more."""

    def __init__(self):
        self.meter, self.best = [], 0.0

    def append(self, value):
        self.meter.append(value)
        self.best = max(self.best, value)


def test_what_appends_and_does_more(rig):
    """A method of that name is no list's."""
    rt = rig.runtime
    mine, theirs = Meter(), Meter()

    def fn(books, x):
        books.meter.append(float(x.sum()))
        return x * 2

    def outer(meter):
        return type("Books", (), {"meter": meter})()

    pair = outer(mine), outer(theirs)
    f, draw = rt.graph(partial(fn, pair[0])), random.Random(4)
    for turn in range(30):
        x = np.full(4, 1.0 if turn < 10 else draw.random() * 4)
        f(rt.array(x))
        fn(pair[1], rt.array(x))
        assert (mine.meter, mine.best) == (theirs.meter, theirs.best)


def test_few_values_in_a_list_of_its_own(rig):
    """Where it cannot be told where a value goes, it decides, as others do."""

    def fn(x):
        found = []
        found.append(int((x > 0).sum()))
        holder = Books()
        holder.losses.append(x.argmax().item())
        return x * 2, found, holder.losses

    rt = rig.runtime
    f = rt.graph(fn)
    for turn in range(60):
        x = np.array([1.0, 2.0 + turn, -1.0, 0.5])
        y, found, best = f(rt.array(x))
        assert (found, best) == ([3], [1])
        assert _bytes(y) == _bytes(rt.array(x) * 2)
    assert f.stats().replays >= 40


def test_with_the_full_graph_nothing_is_read(rig):
    f = rig.runtime.graph(_alone, fullgraph=True)
    with pytest.raises(sw.CaptureError, match="on the host"):
        f(rig.runtime.array(np.ones(4)))


def _index(x):
    y = x * 2
    try:
        return y, int(y[0])
    except (OverflowError, ValueError):
        return y, "no number"


def _index_alone(x):
    return int((x * 2)[0])


def _index_behind(total, x):
    """Write first: what eager has written by the error, replays have, too."""
    total[...] = total + 1
    last = int(x[0])
    total[...] = total * 2
    return last


@pytest.mark.parametrize("how", ["caught", "alone", "behind"])
def test_what_is_no_int_raises_where_the_function_reads_it(rig, how):
    """Of NaN and infinity: the error is the function's, to be caught there."""
    rt = rig.runtime
    totals = [rt.array(np.ones(4)) for _ in range(2)]
    fn = {"caught": _index, "alone": _index_alone, "behind": _index_behind}[how]
    graphed, runs = rt.graph(fn), []
    for value in (*range(12), math.nan, 3, math.inf, math.nan, *range(8)):
        x, told = rt.array(np.full(4, float(value))), []
        for run, total in zip((fn, graphed), totals, strict=True):
            given = (total, x) if how == "behind" else (x,)
            try:
                told.append(_bytes(run(*given)))
            except (OverflowError, ValueError) as error:
                told.append(repr(error))
            runs.append(_bytes(total))
        assert told[0] == told[1]
        assert runs[-2] == runs[-1]
    assert graphed.stats().replays >= 12


class Lasting:
    """Gets new containers, whose leaves are other values in each call."""

    def __init__(self):
        self.last, self.frames, self.log, self.marks = {}, [], [], []


def _binds_new(o, x):
    y = x * 2
    loss, best = y.sum().item(), y.max().item()
    o.last = {"loss": loss, "best": best, "n": 8, "rate": 0.1}
    return y


def _binds_arrays(o, x):
    y = x * 2
    if y.sum() > 0:
        o.frames = [y + 1, y + 2, y + 3]
    return y


def _binds_values(o, x):
    o.last = (x * 2).tolist()
    return x + 1


def _side_by_side(rig, fn, inputs, renew=lambda *_: None):
    """Hold calls, and what they leave, against the plain ones; return the replays.

    Before each call ``renew`` changes the state of both.
    """
    rt, mine, theirs = rig.runtime, Lasting(), Lasting()
    f = rt.graph(partial(fn, mine))
    for i, x in enumerate(map(np.array, inputs)):
        for state in (mine, theirs):
            renew(state, i)
        assert _bytes(f(rt.array(x))) == _bytes(fn(theirs, rt.array(x)))
        assert _bytes([*vars(mine).values()]) == _bytes([*vars(theirs).values()])
    return f.stats().replays


def _steady_then_new(first, steady, calls):
    """Return the inputs of calls: first the same one, then others each time."""
    draw = random.Random(5)
    new = ([draw.random() for _ in first] for _ in range(calls - steady))
    return [*[first] * steady, *new]


@pytest.mark.parametrize("fn", [_binds_new, _binds_arrays, _binds_values])
def test_new_containers_beside_reads(rig, fn):
    """Of three leaves and more, each is at its place, also in the recording call."""
    inputs = _steady_then_new([1.0, 2.0, 3.0, 4.0], 8, 14)
    assert _side_by_side(rig, fn, inputs) >= 4


def _crossed(o, x):
    first, second = x[0].item(), x[1].item()
    o.log.append(second)
    o.log.append(first)
    return x * 2


def _in_two_lists(o, x):
    o.marks.append({"value": x[0].item()})
    o.log.append({"value": x[1].item()})
    return x * 2


def _in_pairs(o, x):
    first, second = x[0].item(), x[1].item()
    o.log.append([second, first])
    o.log.append([first, second])
    return x * 2


@pytest.mark.parametrize("fn", [_crossed, _in_two_lists, _in_pairs])
def test_values_that_are_equal_while_recorded(rig, fn):
    """It is not known then which went where: what is replayed later is right."""
    _side_by_side(rig, fn, _steady_then_new([0.0, 0.0], 4, 24))
    assert _side_by_side(rig, fn, _steady_then_new([0.0, 1.0], 4, 24)) >= 12


def _first_of_log(o, x):
    o.log.append(x[0].item())
    return x * o.log[0]


def _first_of_frames(o, x):
    o.frames.append(x * 1)
    return o.frames[0] + 0


def _first_mark(o, x):
    o.marks.append(3.0)
    return x * o.marks[0]


def _emptied_mostly(state, i):
    if i not in {9, 10}:
        state.log, state.frames = [], []
        state.marks = [] if i < 11 else [7.0]


@pytest.mark.parametrize("fn", [_first_of_log, _first_of_frames, _first_mark])
def test_an_item_of_what_is_appended_to_is_read(rig, fn):
    """It may be the one that was appended, or one that somebody puts there."""
    _side_by_side(rig, fn, _steady_then_new([1.0] * 4, 5, 14), _emptied_mostly)
