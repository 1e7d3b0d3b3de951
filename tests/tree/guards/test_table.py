"""A table says the same in C and in Python, and owns what it uses while it does."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections import OrderedDict, defaultdict
from contextlib import suppress
from functools import partial
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood import _fast
from sapwood.tree.guards.aliasing import Aliasing
from sapwood.tree.guards.ambient import Ambient
from sapwood.tree.guards.constants import constant_of
from sapwood.tree.guards.table import Get, Row
from sapwood.tree.guards.table import Test as Must
from sapwood.tree.guards.views import BY_NAME, EMPTY


class Thing:
    """Something that can be referred to weakly."""


class Proxy(dict):
    """A dict that is not a plain one."""


class Arrays:
    """Arrays are things that look alike if they have the same looks."""

    @staticmethod
    def is_array(value):
        return type(value) is Thing

    @staticmethod
    def layout(array):
        return getattr(array, "looks", None)


NATIVE = pytest.param(
    "C",
    marks=pytest.mark.skipif(_fast.native() is None, reason="nothing in C here"),
)


@pytest.fixture(params=[NATIVE, "Python"])
def made(request):
    """Make a table that is read on one of the two ways."""
    return partial(table, native=request.param == "C")


def table(*rows, found=(), latest=(), registers=None, native=True):
    """Return guards of these rows."""
    most = 1 + max((row.at for row in rows), default=0)
    parts = SimpleNamespace(
        walk=SimpleNamespace(arrays=Arrays()),
        rows=rows,
        found=found,
        latest=latest if isinstance(latest, list) else [*latest],
        registers=most if registers is None else registers,
        slots=(),
        layouts=(),
        roots=(),
    )
    guards = Ambient(parts, "key", Aliasing())
    if not native:
        guards.native = None
    return guards


def row(get, at=0, of=0, key=None, test=Must.FOUND, value=None, frozen=None, each=""):
    return Row(get, of, key, each, at, test, value, "", frozen)


def root(thing, at=0):
    return row(Get.CALL, at, key=lambda: thing)


def kept(test, at=0, value=None, frozen=None):
    return row(Get.KEPT, at, test=test, value=value, frozen=frozen)


def lacking(names, at=0):
    return kept(Must.LACKS, at, names, frozenset(names))


def asked(test, space, made, **operands):
    """Return what one test of a root says."""
    return made(root(space), kept(test, **operands)).match()


def test_a_root_that_is_gone_ends_it(made):
    """None is no thing, and what is there is returned as it is."""
    thing = Thing()
    guards = made(row(Get.CALL, key=weakref.ref(thing)), found=[0])
    assert [each is thing for each in guards.match()] == [True]
    del thing
    assert guards.match() is None
    assert guards.miss() == "an object that the function reached is gone"


@pytest.mark.parametrize("cls", [dict, OrderedDict, Proxy])
def test_tests_of_a_whole_space(made, cls):
    """Length, keys in their order, and names that are not there, in any mapping."""
    space = cls(a=1, b=2)
    for length in (0, 2, 3):
        found = asked(Must.LENGTH, space, made, value=length)
        assert (found == []) == (length == 2)
    for keys in [("a", "b"), ("b", "a"), ("a",), ("a", "b", "c"), ()]:
        found = asked(Must.KEYS, space, made, value=keys)
        assert (found == []) == (keys == ("a", "b"))
    for names in [("a",), ("x", "b"), ("x", "y"), ()]:
        found = made(root(space), lacking(names)).match()
        assert (found == []) == space.keys().isdisjoint(names)


def test_names_that_a_class_lacks(made):
    """A class shows its dict through a proxy, which is asked as the dict is."""
    cls = type("Named", (), {"a": 1})
    for names in [("a",), ("x", "a"), ("x", "y"), ()]:
        found = made(root(vars(cls)), lacking(names)).match()
        assert (found == []) == ("a" not in names)


def test_the_order_of_an_ordered_dict_is_its_own(made):
    """It may differ from that of the dict below it."""
    space = OrderedDict(a=1, b=2)
    space.move_to_end("a")
    assert asked(Must.KEYS, space, made, value=("b", "a")) == []
    assert asked(Must.KEYS, space, made, value=("a", "b")) is None


def test_keys_that_are_equal_are_as_good(made):
    """Other objects of the same type and bits, and no others."""
    space = {1e300: 1}
    assert asked(Must.KEYS, space, made, value=(float("1e300"),)) == []
    assert asked(Must.KEYS, {1: 1}, made, value=(1.0,)) is None


@pytest.mark.parametrize("space", [{0: "x"}, ["x"], ("x",), Proxy({0: "x"})])
def test_items_and_their_lack(made, space):
    """A key that is not there is none, in every kind of space."""
    assert made(root(space), row(Get.ITEM, 1, 0, 0), found=[1]).match() == ["x"]
    assert made(root(space), row(Get.ITEM, 1, 0, 7), found=[1]).match() is None
    nothing = row(Get.ITEM, 1, 0, 7, Must.IS, EMPTY)
    assert made(root(space), nothing, found=[1]).match() == [EMPTY]


def test_a_slot_is_found_wherever_its_entry_moves(made):
    """Looked for again, however often it moves, and missed when it is gone."""
    space = {f"k{number}": number for number in range(9)}
    guards = made(root(space), row(Get.ITEM, 1, 0, "k3"), found=[1])
    for turn in range(40):
        assert guards.match() == [3 if turn == 0 else turn - 1]
        del space["k3"]
        assert guards.match() is None
        space.pop(f"k{turn % 9}", None)
        space["k3"] = turn
    space.clear()
    assert guards.match() is None


def test_plain_containers_are_their_own_space(made):
    """Others are opened."""
    opened = []
    for thing in ([1], (1,), {0: 1}, defaultdict(int, {0: 1}), Proxy({0: 1})):
        (found,) = made(root(thing), row(Get.WHOLE, 1, 0, dict), found=[1]).match()
        opened.append(found is not thing)
        assert found == thing
    assert opened == [False, False, False, True, True]


def test_a_cell_that_is_empty_holds_nothing(made):
    """It was so when it was read, or it is none that was."""

    def outer(full):
        if full:
            value = 1
        return lambda: value

    for full in (True, False):
        cells = outer(full).__closure__
        for expected in (1, EMPTY):
            each = row(Get.ITEM, 1, 0, 0, Must.IS, expected, None, "cell_contents")
            found = made(root(cells), each).match()
            assert (found == []) == (full == (expected == 1))


def test_identity_is_not_equality(made):
    """An equal value is another one, unless it is a constant that was read."""
    space = {"a": 1e300, "b": 1e300, "c": float("1e300")}
    for key, frozen, same in [("a", 0, True), ("c", 0, False), ("c", 1e300, True)]:
        value = row(Get.ITEM, 1, 0, key, Must.IS, space["a"], constant_of(frozen))
        assert (made(root(space), value).match() == []) is same
    rows = root(space), row(Get.ITEM, 1, 0, "a")
    one, two = row(Get.ITEM, 2, 0, "a"), row(Get.ITEM, 2, 0, "c")
    for other, same in ((one, True), (two, False)):
        known = made(*rows, other, kept(Must.SAME, 2, 1)).match()
        assert (known == []) is same
        apart = made(*rows, other, kept(Must.APART, 1, (1, 2))).match()
        assert (apart is None) is same


@pytest.mark.skipif(_fast.native() is None, reason="nothing in C here")
def test_reading_wants_the_very_objects():
    """Where there are others that are as good, only a match says so."""
    space, thing = {"a": 1e300, "b": Thing()}, Thing()
    value = row(Get.ITEM, 1, 0, "a", Must.IS, space["a"], constant_of(1e300))
    array = row(Get.ITEM, 2, 0, "b", Must.LATEST, 0)
    guards = table(root(space), value, array, found=[2], latest=[weakref.ref(thing)])
    assert guards.read() is None
    assert guards.match() == [space["b"]] == guards.read()
    space["a"] = float("1e300")
    for _ in range(2):
        assert guards.match() == [space["b"]]
        assert guards.read() is None


def test_many_things_that_stay_apart(made):
    """However many, and wherever two of them become one."""
    space = [object() for _ in range(700)]
    rows = [root(space), *(row(Get.ITEM, k + 1, 0, k) for k in range(700))]
    apart = kept(Must.APART, 1, tuple(range(1, 701)))
    guards = made(*rows, apart._replace(path=[str(k) for k in range(700)]))
    assert guards.match() == []
    for one, other in ((0, 1), (0, 699), (350, 20)):
        before, space[one] = space[one], space[other]
        assert guards.match() is None
        first, last = sorted((one, other))
        text = f"{first} and {last} were two objects, are one object"
        assert guards.miss() == text
        space[one] = before
        assert guards.match() == []


def test_another_class_is_no_subclass(made):
    """The class itself counts."""
    assert asked(Must.CLASS, Proxy(), made, value=Proxy) == []
    assert asked(Must.CLASS, Proxy(), made, value=dict) is None
    for cls, same in ((Proxy, True), (dict, False)):
        rows = row(Get.TYPE, 1, 0), row(Get.CALL, 2, 0, lambda cls=cls: cls)
        found = made(root(Proxy()), *rows, kept(Must.SAME, 1, 2)).match()
        assert (found == []) is same


@pytest.mark.parametrize("reference", [weakref.ref, lambda thing: lambda: thing])
def test_references_are_followed_and_nothing_is_not_the_gone(made, reference):
    """By weak references and by functions; None was never referred to."""
    thing, other = Thing(), Thing()
    other.looks = 1
    space, latest = {"a": thing}, [reference(thing)]
    key = {"at": 1, "of": 0, "key": "a"}
    value = row(Get.ITEM, **key, test=Must.REFERS, value=reference(thing))
    fixed = made(root(space), value)
    array = row(Get.ITEM, **key, test=Must.LATEST, value=0)
    moving = made(root(space), array, latest=latest)
    assert fixed.match() == [] == moving.match()
    space["a"] = other
    assert fixed.match() is None is moving.match()
    space["a"] = None
    assert asked(Must.REFERS, None, made, value=lambda: None) is None
    gone = row(Get.ITEM, **key, test=Must.REFERS, value=weakref.ref(Thing()))
    assert made(root(space), gone).match() is None


def test_the_latest_references_are_read_by_every_look(made):
    """From the very list that was handed over, which others write."""
    thing, other = Thing(), Thing()
    thing.looks, other.looks = 1, 2
    space, latest = [thing], [weakref.ref(thing)]
    array = row(Get.ITEM, 1, 0, 0, Must.LATEST, 0)
    guards = made(root(space), array, found=[1], latest=latest)
    assert guards.match() == [thing]
    space[0] = other
    assert guards.match() is None
    latest[0] = weakref.ref(other)
    assert guards.match() == [other]
    latest.clear()
    assert guards.match() is None


@pytest.mark.parametrize("used", [True, False])
def test_an_array_that_looks_so_is_as_good(made, used):
    """Where it is used, that it is another one is counted."""
    thing, other, space = Thing(), Thing(), {}
    array = row(Get.ITEM, 1, 0, "a", Must.LATEST, 0)
    guards = made(
        root(space), array, found=[1] if used else [], latest=[weakref.ref(thing)]
    )
    for k, each in enumerate((thing, other, other, thing)):
        space["a"] = each
        assert guards.match() == ([each] if used else [])
        assert guards.latest[0]() is (each if used else thing)
        assert guards.epoch == (used and (0, 1, 1, 2)[k])
    space["a"] = Thing()
    space["a"].looks = 1
    assert guards.match() is None
    assert guards.latest[0]() is thing


@pytest.mark.parametrize(
    "error",
    [AttributeError, KeyError, IndexError, RuntimeError, TypeError, ValueError],
)
def test_what_is_being_written_is_not_told(made, error):
    """Nor what is not there; and no error stays behind."""

    def open_(_):
        raise error("gone")

    guards = made(root(Thing()), row(Get.OPEN, 1, 0, open_))
    assert guards.match() is None
    assert guards.miss() == "a Thing cannot be looked into as before"
    assert asked(Must.LENGTH, Thing(), made, value=1) is None


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, ZeroDivisionError])
def test_other_errors_pass(made, error):
    """Those of openers, and those of a user's keys."""

    def fail(*_):
        raise error("no")

    with pytest.raises(error, match="no"):
        made(root(Thing()), row(Get.OPEN, 1, 0, fail)).match()
    failing = type("Failing", (dict,), {"keys": fail, "__iter__": fail})()
    for test in (kept(Must.KEYS, value=()), lacking(())):
        with pytest.raises(error, match="no"):
            made(root(failing), test).match()
    key = type("Key", (), {"__hash__": lambda _: 1, "__eq__": fail})()
    with pytest.raises(error, match="no"):
        made(root({1: 2}), row(Get.ITEM, 1, 0, key)).match()


def test_what_a_look_found_may_go_while_it_looks(made):
    """An opener that lets everything go leaves the look what it has."""
    space = {"a": Thing(), "b": [Thing()]}
    gone = [weakref.ref(space["a"]), weakref.ref(space["b"][0])]

    def open_(_):
        space.clear()
        gc.collect()
        return [1]

    rows = [
        root(space),
        row(Get.ITEM, 1, 0, "a"),
        row(Get.ITEM, 2, 0, "b"),
        row(Get.ITEM, 2, 2, 0),
        row(Get.OPEN, 3, 1, open_),
    ]
    found = made(*rows, found=[1, 2]).match()
    assert [each() for each in gone] == found
    del found
    assert [each() for each in gone] == [None, None]


def test_a_look_may_look_again(made):
    """From inside an opener, each with registers of its own."""
    depth = []

    def open_(thing):
        depth.append(thing)
        inner = guards.match() if len(depth) < 5 else [0]
        return [1 + inner[0]]

    rows = root(Thing()), row(Get.OPEN, 1, 0, open_), row(Get.ITEM, 2, 1, 0)
    guards = made(*rows, found=[2])
    assert guards.match() == [5]


def everything(thing, space):
    """Return rows with every kind of get and test, which hold, and what they hold."""
    rows = [
        row(Get.CALL, 0, key=weakref.ref(thing)),
        row(Get.ATTRIBUTE, 1, 0, "space"),
        row(Get.WHOLE, 2, 1, dict, Must.LENGTH, len(space)),
        kept(Must.KEYS, 2, tuple(space)),
        lacking(("x", "y"), 2),
        row(Get.ITEM, 3, 2, "a", Must.CLASS, Thing),
        row(Get.ITEM, 3, 2, "a", Must.REFERS, weakref.ref(space["a"])),
        row(Get.ITEM, 3, 2, "a", Must.LATEST, 0),
        row(Get.ITEM, 4, 2, "a", Must.SAME, 3),
        kept(Must.APART, 4, (4, 0, 2)),
        row(Get.OPEN, 5, 1, list),
        row(Get.ITEM, 5, 2, "n", Must.IS, space["n"]),
        row(Get.ITEM, 5, 2, "n", Must.IS, None, constant_of(space["n"]), "real"),
        row(Get.TYPE, 5, 0, test=Must.IS, value=Thing),
    ]
    return rows, [3, 4], [weakref.ref(space["a"])]


@pytest.mark.parametrize("taken", range(1, 15))
def test_references_are_counted_exactly(made, taken):
    """As many as before, and no memory more, whether all rows hold or one does not."""
    thing, value = Thing(), 1e300
    space = thing.space = {"a": Thing(), "n": value}
    (rows, found, latest), expected = everything(thing, space), [space["a"]] * 2
    if taken < len(rows):
        rows[taken:] = [kept(Must.CLASS, 0, int)]
        found, expected = [], None
    guards = made(*rows, found=found, latest=latest, registers=6)
    assert guards.match() == expected
    held = [thing, space, space["a"], value, latest, *latest, guards, EMPTY]
    held += [part for each in rows for part in (each.key, each.value, each.frozen)]
    held = [each for each in held if each is not None and type(each) is not int]
    before, blocks = list(map(sys.getrefcount, held)), sys.getallocatedblocks()
    for _ in range(3_000):
        guards.match()
    assert list(map(sys.getrefcount, held)) == before
    assert abs(sys.getallocatedblocks() - blocks) < 1000


def test_errors_leave_nothing_behind(made):
    """Neither those that are swallowed nor those that pass."""
    thing = Thing()
    for error in (AttributeError("a"), ZeroDivisionError("b")):

        def fail(_, error=error):
            raise error.with_traceback(None)

        guards = made(root(thing), row(Get.OPEN, 1, 0, fail))
        before = sys.getrefcount(thing)
        for _ in range(1000):
            with suppress(ZeroDivisionError):
                assert guards.match() is None
        error.__traceback__ = error.__context__ = None
        assert sys.getrefcount(thing) == before


def test_guards_that_refer_to_themselves_are_collected(made):
    """The collector of cycles sees what the rows hold."""
    thing = Thing()
    thing.guards = made(row(Get.CALL, key=partial(getattr, thing, "guards")))
    gone = weakref.ref(thing)
    assert thing.guards.match() == []
    del thing
    gc.collect()
    assert gone() is None


def test_guards_that_are_dropped_leave_nothing(made):
    """However many are made; none waits for the collector of cycles."""
    rows = [root(Thing())]
    made(*rows)
    gc.collect()
    blocks = sys.getallocatedblocks()
    gc.disable()
    try:
        for _ in range(300):
            made(*rows)
        assert sys.getallocatedblocks() - blocks < 100
    finally:
        gc.enable()


def test_looks_while_another_thread_writes(made, request):
    """Each finds what is there at some moment, or nothing."""
    interval = sys.getswitchinterval()
    request.addfinalizer(partial(sys.setswitchinterval, interval))
    sys.setswitchinterval(1e-6)
    space, turns = {"a": Thing()}, []
    rows = [
        root(space),
        row(Get.ITEM, 1, 0, "a", Must.CLASS, Thing),
        row(Get.OPEN, 2, 1, lambda thing: [thing]),
    ]
    guards = made(*rows, found=[1])

    def write():
        for turn in range(3000):
            space["b"] = space.pop("a")
            space["a"] = Thing()
            del space["b"]
            turns.append(turn)

    writer = threading.Thread(target=write)
    writer.start()
    found = []
    while len(turns) < 3000:
        found.append(guards.match())
    writer.join()
    found.append(guards.match())
    assert {type(each[0]) for each in found if each} == {Thing}


WORDS = st.sampled_from(["a", "b", "c", "d", "e"])
VALUES = st.sampled_from([0, 1.5, "text", None])


@given(st.lists(st.tuples(WORDS, VALUES | st.just(...)), max_size=12), st.data())
def test_both_ways_say_the_same(changes, data):
    """About a dict that is changed at random, whatever is asked of it."""
    if _fast.native() is None:
        pytest.skip("nothing in C here")
    space = {"a": 0, "b": 1.5, "c": "text"}
    keys = tuple(data.draw(st.lists(WORDS, unique=True, max_size=4)))
    expected, key = data.draw(VALUES), data.draw(WORDS)
    tried = [
        kept(Must.LENGTH, 0, len(keys)),
        kept(Must.KEYS, 0, keys),
        lacking(keys),
        row(Get.ITEM, 1, 0, key, Must.IS, expected, constant_of(expected)),
    ]
    both = [
        [
            table(root(space), each, found=[each.at], native=native)
            for native in (True, False)
        ]
        for each in tried
    ]
    for word, value in [("a", 0), *changes]:
        if value is ...:
            space.pop(word, None)
        else:
            space[word] = value
        for mine, theirs in both:
            assert mine.match() == theirs.match()


@pytest.mark.skipif(_fast.native() is None, reason="nothing in C here")
def test_registers_that_are_none_are_refused():
    """Rows that name others cannot be read."""
    for each in (kept(Must.SAME, 0, 5), row(Get.ITEM, 0, 3), kept(Must.APART, 0, (4,))):
        with pytest.raises(ValueError, match="no register"):
            table(each, registers=1)
    with pytest.raises(ValueError, match="no register"):
        table(found=[1], registers=1)


def test_values_that_may_change_are_asked_every_time(guard):
    """No identity tells whether they have."""
    data = bytearray(b"abc")
    guards = guard(lambda x: x * data[0])
    for native in {guards.native, None}:
        guards.native = native
        for _ in range(3):
            assert guards.match() == []
        data[0] = 0
        assert guards.match() is None
        data[:] = b"abc"


def walked(way, thing):
    if way.attributes:
        return [getattr(thing, name) for name in way.attributes]
    if not way.attribute:
        return thing
    space = getattr(thing, way.attribute)
    space = space[way.item] if way.item else space
    return [getattr(slot, way.each) for slot in space] if way.each else space


def closing(over):
    return lambda: over


@pytest.mark.parametrize(
    ("name", "thing"),
    [
        ("__doc__", walked),
        ("__module__", Thing),
        ("__name__", Thing),
        ("__qualname__", walked),
        ("attributes", Thing()),
        ("bases", Proxy),
        ("cells", closing([1])),
        ("dict", {"a": 1}),
        ("function", walked),
        ("globals", walked),
        ("list", [1, 2]),
        ("loaded", sys.modules),
        ("module", sys),
        ("tuple", (1, 2)),
        ("variables", Thing),
    ],
)
def test_ways_say_what_is_opened(name, thing):
    """For every view of the walk's that has one."""
    view = BY_NAME[name]
    opened, way = view.open(thing), walked(view.way, thing)
    kind = list if isinstance(way, list) else dict
    assert opened is way or kind(opened) == kind(way)


def test_every_way_is_tried_here():
    """The list above leaves none out."""
    tried = test_ways_say_what_is_opened.pytestmark[0].args[1]
    ways = {name for name, view in BY_NAME.items() if view.way is not None}
    assert {name for name, _ in tried} == ways
