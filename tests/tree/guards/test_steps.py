"""Steps say the same in C and in Python, and own what they use while they use it."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections import OrderedDict, defaultdict
from contextlib import suppress
from functools import cached_property, partial
from types import MethodType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood import _fast
from sapwood.tree.guards.checks import CHANGING, CONSTANT, Check, Guard
from sapwood.tree.guards.standard import BY_NAME
from sapwood.tree.guards.steps import Op, Step, Steps, assembled, compiled
from sapwood.tree.guards.views import View, same_path
from tests.support.steps_in_python import in_python


class Thing:
    """Something that can be referred to weakly."""


class Proxy(dict):
    """A dict that is not a plain one."""


@pytest.fixture(params=["C", "Python"])
def made(request):
    """Make a function of steps, on one of the two ways."""
    if request.param == "Python":
        return in_python
    if _fast.native() is None:
        pytest.skip("nothing in C here")
    return compiled


def program(*steps, found=(), latest=()):
    registers = 1 + max(step.at for step in steps)
    return Steps(list(steps), registers, list(found), list(latest))


def asked(op, space, made, **operands):
    """Return what one step after a root says."""
    return made(program(Step(Op.ROOT, 0, 0, lambda: space), Step(op, 0, **operands)))()


def keys_are(keys, space):
    return list(space) == list(keys)


def lacks(names, space):
    return space.keys().isdisjoint(names)


def test_a_root_that_is_gone_ends_it(made):
    """None is no thing, and what is there is returned as it is."""
    thing = Thing()
    look = made(program(Step(Op.ROOT, 0, 0, weakref.ref(thing)), found=[0]))
    assert [each is thing for each in look()] == [True]
    del thing
    assert look() is None


@pytest.mark.parametrize("cls", [dict, OrderedDict, Proxy])
def test_tests_of_a_whole_space(made, cls):
    """Length, keys in their order, and names that are not there, in any mapping."""
    space = cls(a=1, b=2)
    for length in (0, 2, 3):
        found = asked(Op.LENGTH, space, made, of=length)
        assert (found == []) == (length == 2)
    for keys in [("a", "b"), ("b", "a"), ("a",), ("a", "b", "c"), ()]:
        ask = partial(keys_are, keys)
        found = asked(Op.KEYS, space, made, value=keys, ask=ask)
        assert (found == []) == (keys == ("a", "b"))
    for names in [("a",), ("x", "b"), ("x", "y"), ()]:
        ask = partial(lacks, names)
        found = asked(Op.LACKS, space, made, value=names, ask=ask)
        assert (found == []) == lacks(names, space)


def test_the_order_of_an_ordered_dict_is_its_own(made):
    """It may differ from that of the dict below it."""
    space = OrderedDict(a=1, b=2)
    space.move_to_end("a")
    keys = ("b", "a")
    assert asked(Op.KEYS, space, made, value=keys, ask=partial(keys_are, keys)) == []


@pytest.mark.parametrize("space", [{0: "x"}, ["x"], ("x",), Proxy({0: "x"})])
def test_items_and_their_lack(made, space):
    """A key that is not there is none, in every kind of space."""
    root = Step(Op.ROOT, 0, 0, lambda: space)
    assert made(program(root, Step(Op.ITEM, 1, 0, 0), found=[1]))() == ["x"]
    assert made(program(root, Step(Op.ITEM, 1, 0, 7), found=[1]))() is None


def test_a_slot_is_found_wherever_its_entry_moves(made):
    """Looked for again, however often it moves, and missed when it is gone."""
    space = {f"k{number}": number for number in range(9)}
    root, item = Step(Op.ROOT, 0, 0, lambda: space), Step(Op.ITEM, 1, 0, "k3")
    look = made(program(root, item, found=[1]))
    for turn in range(40):
        assert look() == [3 if turn == 0 else turn - 1]
        del space["k3"]
        assert look() is None
        space.pop(f"k{turn % 9}", None)
        space["k3"] = turn
    space.clear()
    assert look() is None


def test_plain_containers_are_their_own_space(made):
    """Others are opened."""
    opened = []
    for thing in ([1], (1,), {0: 1}, defaultdict(int, {0: 1}), Proxy({0: 1})):
        steps = (Step(Op.ROOT, 0, 0, lambda it=thing: it), Step(Op.WHOLE, 1, 0, dict))
        (found,) = made(program(*steps, found=[1]))()
        opened.append(found is not thing)
        assert found == thing
    assert opened == [False, False, False, True, True]


def test_identity_is_not_equality(made):
    """An equal value is another one, and a thing is the same only if it is."""
    space = {"a": 1e300, "b": 1e300, "c": float("1e300")}
    root = Step(Op.ROOT, 0, 0, lambda: space)
    first, second = Step(Op.ITEM, 1, 0, "a"), Step(Op.ITEM, 2, 0, "c")
    assert made(program(root, first, Step(Op.IS, 1, 0, space["a"])))() == []
    assert made(program(root, first, Step(Op.IS, 1, 0, space["c"])))() is None
    assert made(program(root, first, first, Step(Op.SAME, 1, 1)))() == []
    assert made(program(root, first, second, Step(Op.SAME, 2, 1)))() is None
    assert made(program(root, first, first, Step(Op.APART, 1, 0, (1, 1))))() is None
    assert made(program(root, first, second, Step(Op.APART, 1, 0, (1, 2))))() == []


def test_many_things_that_stay_apart(made):
    """However many, and wherever two of them become one."""
    space = [object() for _ in range(700)]
    steps = [Step(Op.ROOT, 0, 0, lambda: space)]
    steps += [Step(Op.ITEM, k + 1, 0, k) for k in range(700)]
    look = made(program(*steps, Step(Op.APART, 1, 0, tuple(range(1, 701)))))
    assert look() == []
    for one, other in ((0, 1), (0, 699), (350, 20)):
        before, space[one] = space[one], space[other]
        assert look() is None
        space[one] = before
        assert look() == []


def test_another_class_is_no_subclass(made):
    """The class itself counts."""
    assert asked(Op.CLASS, Proxy(), made, value=Proxy) == []
    assert asked(Op.CLASS, Proxy(), made, value=dict) is None


@pytest.mark.parametrize("reference", [weakref.ref, lambda thing: lambda: thing])
def test_references_are_followed_and_nothing_is_not_the_gone(made, reference):
    """By weak references and by functions; None was never referred to."""
    thing, other = Thing(), Thing()
    space, latest = {"a": thing}, [reference(thing)]
    root, item = Step(Op.ROOT, 0, 0, lambda: space), Step(Op.ITEM, 1, 0, "a")
    fixed = made(program(root, item, Step(Op.REFERS, 1, 0, reference(thing))))
    moving = made(program(root, item, Step(Op.LATEST, 1, 0), latest=latest))
    assert fixed() == [] == moving()
    space["a"] = other
    assert fixed() is None is moving()
    space["a"] = None
    assert asked(Op.REFERS, space, made, value=lambda: None) is None
    gone = weakref.ref(Thing())
    assert made(program(root, item, Step(Op.REFERS, 1, 0, gone)))() is None


def test_the_latest_references_are_read_by_every_look(made):
    """From the very list that was handed over, which others write."""
    thing, other = Thing(), Thing()
    space, latest = [thing], [weakref.ref(thing)]
    steps = (
        Step(Op.ROOT, 0, 0, lambda: space),
        Step(Op.ITEM, 1, 0, 0),
        Step(Op.LATEST, 1, 0),
    )
    whole = program(*steps, found=[1])
    whole.latest = latest
    look = made(whole)
    assert look() == [thing]
    space[0] = other
    assert look() is None
    latest[0] = weakref.ref(other)
    assert look() == [other]
    latest.clear()
    assert look() is None


@pytest.mark.parametrize(
    "error",
    [AttributeError, KeyError, IndexError, RuntimeError, TypeError, ValueError],
)
def test_what_is_being_written_is_not_told(made, error):
    """Nor what is not there; and no error stays behind."""

    def open_(_):
        raise error("gone")

    assert asked(Op.OPEN, Thing(), made, of=0, value=open_) is None


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, ZeroDivisionError])
def test_other_errors_pass(made, error):
    """Those of openers, and those of a user's keys."""

    def fail(*_):
        raise error("no")

    with pytest.raises(error, match="no"):
        asked(Op.OPEN, Thing(), made, of=0, value=fail)
    for op in (Op.KEYS, Op.LACKS):
        with pytest.raises(error, match="no"):
            asked(op, Proxy(), made, value=(), ask=fail)
    key = type("Key", (), {"__hash__": lambda _: 1, "__eq__": fail})()
    with pytest.raises(error, match="no"):
        asked(Op.ITEM, {1: 2}, made, of=0, value=key)


def test_what_a_look_found_may_go_while_it_looks(made):
    """An opener that lets everything go leaves the look what it has."""
    space = {"a": Thing(), "b": [Thing()]}
    gone = [weakref.ref(space["a"]), weakref.ref(space["b"][0])]

    def open_(_):
        space.clear()
        gc.collect()
        return [1]

    steps = [
        Step(Op.ROOT, 0, 0, lambda: space),
        Step(Op.ITEM, 1, 0, "a"),
        Step(Op.ITEM, 2, 0, "b"),
        Step(Op.ITEM, 2, 2, 0),
        Step(Op.OPEN, 3, 1, open_),
    ]
    found = made(program(*steps, found=[1, 2]))()
    assert [each() for each in gone] == found
    del found
    assert [each() for each in gone] == [None, None]


def test_a_look_may_look_again(made):
    """From inside an opener, each with registers of its own."""
    depth = []

    def open_(thing):
        depth.append(thing)
        inner = look() if len(depth) < 5 else [0]
        return [1 + inner[0]]

    thing = Thing()
    steps = [
        Step(Op.ROOT, 0, 0, lambda: thing),
        Step(Op.OPEN, 1, 0, open_),
        Step(Op.ITEM, 2, 1, 0),
    ]
    look = made(program(*steps, found=[2]))
    assert look() == [5]


def test_a_look_within_another_leaves_it_its_registers(made):
    """Also where what it came to is known from looks before."""
    thing, inner = Thing(), []

    def look_again(_):
        if not inner:
            inner.append(None)
            inner.append(look())
        return ["b"]

    steps = [
        Step(Op.ROOT, 0, 0, lambda: thing),
        Step(Op.OPEN, 1, 0, lambda _: ["a"]),
        Step(Op.OPEN, 2, 0, look_again),
        Step(Op.ITEM, 3, 1, 0),
        Step(Op.ITEM, 4, 2, 0),
    ]
    look = made(program(*steps, found=[3, 4]))
    for _ in range(40):
        assert look() == ["a", "b"]
        assert inner == [None, ["a", "b"]]
        inner.clear()


def everything(thing, space):
    """Return a program with every kind of step that passes."""
    names, keys = ("x", "y"), tuple(space)
    root = Step(Op.ROOT, 0, 0, weakref.ref(thing))
    return program(
        root,
        Step(Op.ATTRIBUTE, 1, 0, "space"),
        Step(Op.WHOLE, 2, 1, dict),
        Step(Op.LENGTH, 2, len(space)),
        Step(Op.KEYS, 2, 0, keys, partial(keys_are, keys)),
        Step(Op.LACKS, 2, 0, names, partial(lacks, names)),
        Step(Op.ITEM, 3, 2, "a"),
        Step(Op.CLASS, 3, 0, Thing),
        Step(Op.REFERS, 3, 0, weakref.ref(space["a"])),
        Step(Op.LATEST, 3, 0),
        Step(Op.ITEM, 4, 2, "a"),
        Step(Op.SAME, 4, 3),
        Step(Op.APART, 4, 0, (4, 0, 2)),
        Step(Op.OPEN, 5, 1, list),
        Step(Op.ITEM, 5, 2, "n"),
        Step(Op.IS, 5, 0, space["n"]),
        found=[3, 4],
        latest=[weakref.ref(space["a"])],
    )


@pytest.mark.parametrize("taken", range(1, 17))
def test_references_are_counted_exactly(made, taken):
    """As many as before, and no memory more, whether all steps pass or one does not."""
    thing, value = Thing(), 1e300
    space = thing.space = {"a": Thing(), "n": value}
    whole, expected = everything(thing, space), [space["a"]] * 2
    if taken < len(whole.steps):
        whole.steps[taken:] = [Step(Op.CLASS, 0, 0, int)]
        whole.found, expected = [], None
    look = made(whole)
    assert look() == expected
    held = [thing, space, space["a"], value, whole.latest, *whole.latest]
    held += [each for step in whole.steps for each in (step.value, step.ask)]
    held = [each for each in held if each is not None]
    before, blocks = list(map(sys.getrefcount, held)), sys.getallocatedblocks()
    for _ in range(10_000):
        look()
    assert list(map(sys.getrefcount, held)) == before
    assert abs(sys.getallocatedblocks() - blocks) < 100


def test_answers_are_not_kept(made):
    """What is asked of a space that is no plain dict may say so with any object."""
    space, answer = Proxy(), [1]
    root, before = Step(Op.ROOT, 0, 0, lambda: space), sys.getrefcount(answer)
    for op in (Op.KEYS, Op.LACKS):
        look = made(program(root, Step(op, 0, 0, (), lambda _: answer)))
        assert [look() for _ in range(100)] == [[]] * 100
    assert sys.getrefcount(answer) == before


def test_errors_leave_nothing_behind(made):
    """Neither those that are swallowed nor those that pass."""
    thing = Thing()
    for error in (AttributeError("a"), ValueError("b")):

        def fail(_, error=error):
            raise error.with_traceback(None)

        steps = (Step(Op.ROOT, 0, 0, lambda: thing), Step(Op.OPEN, 1, 0, fail))
        look, before = made(program(*steps)), sys.getrefcount(thing)
        for _ in range(1000):
            with suppress(ValueError):
                assert look() is None
        error.__traceback__ = error.__context__ = None
        assert sys.getrefcount(thing) == before


def test_a_function_that_refers_to_itself_is_collected(made):
    """The collector of cycles sees what the steps hold."""
    thing = Thing()
    thing.look = made(program(Step(Op.ROOT, 0, 0, partial(getattr, thing, "look"))))
    gone = weakref.ref(thing)
    assert thing.look() == []
    del thing
    gc.collect()
    assert gone() is None


def test_functions_that_are_dropped_leave_nothing(made):
    """However many are made."""
    whole = program(Step(Op.ROOT, 0, 0, Thing))
    made(whole)
    gc.collect()
    blocks = sys.getallocatedblocks()
    for _ in range(300):
        made(whole)
    gc.collect()
    assert sys.getallocatedblocks() - blocks < 100


def test_looks_while_another_thread_writes(made, request):
    """Each finds what is there at some moment, or nothing."""
    interval = sys.getswitchinterval()
    request.addfinalizer(partial(sys.setswitchinterval, interval))
    sys.setswitchinterval(1e-6)
    space, turns = {"a": Thing()}, []
    steps = [
        Step(Op.ROOT, 0, 0, lambda: space),
        Step(Op.ITEM, 1, 0, "a"),
        Step(Op.CLASS, 1, 0, Thing),
        Step(Op.OPEN, 2, 1, lambda thing: [thing]),
    ]
    look = made(program(*steps, found=[1]))

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
        found.append(look())
    writer.join()
    found.append(look())
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
    expected = data.draw(VALUES)
    root = Step(Op.ROOT, 0, 0, lambda: space)
    key = data.draw(WORDS)
    tried = [
        Step(Op.LENGTH, 0, len(keys)),
        Step(Op.KEYS, 0, 0, keys, partial(keys_are, keys)),
        Step(Op.LACKS, 0, 0, keys, partial(lacks, keys)),
        Step(Op.IS, 1, 0, expected),
    ]
    item = Step(Op.ITEM, 1, 0, key)
    programs = [
        program(root, *([item] if step.at else []), step, found=[step.at])
        for step in tried
    ]
    looks = [(compiled(each), in_python(each)) for each in programs]
    for word, value in [("a", 0), *changes]:
        if value is ...:
            space.pop(word, None)
        else:
            space[word] = value
        for mine, theirs in looks:
            assert mine() == theirs()


def test_registers_that_are_none_are_refused():
    """Steps that name others cannot be made a function of."""
    if _fast.native() is None:
        pytest.skip("nothing in C here")
    for step in (Step(Op.SAME, 0, 5), Step(Op.IS, -1), Step(Op.ROOT, 3)):
        with pytest.raises(ValueError, match="no register"):
            compiled(Steps([step], 1))
    with pytest.raises(ValueError, match="no register"):
        compiled(Steps([], 1, [1]))


def test_values_that_may_change_take_more_than_steps():
    """No identity tells whether they have."""
    guard = Guard("a", "a", CONSTANT, CHANGING, None, "", None)
    check = Check(0, View("made", dict, same_path), None, (guard,))
    assert assembled([dict], [check]) is None


def test_where_the_c_was_not_built_python_runs(monkeypatch):
    """Nothing is raised, and what is built by then is used."""
    whole = program(Step(Op.ROOT, 0, 0, Thing))
    with monkeypatch.context() as patch:
        patch.setattr(_fast, "native", lambda: None)
        assert [compiled(whole), compiled(whole)] == [None, None]
    assert (compiled(whole) is None) == (_fast.native() is None)


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
        ("bound", [].append),
        ("cached", cached_property(walked)),
        ("cells", closing([1])),
        ("dict", {"a": 1}),
        ("function", walked),
        ("globals", walked),
        ("inner", staticmethod(walked)),
        ("list", [1, 2]),
        ("loaded", sys.modules),
        ("module", sys),
        ("partial", partial(walked, 1, thing=2)),
        ("property", property(walked)),
        ("self", MethodType(walked, 1)),
        ("tuple", (1, 2)),
        ("variables", Thing),
        ("wrapped", staticmethod(walked)),
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
