"""Which arguments belong to which parameter, and what a user would call them."""

from __future__ import annotations

import functools
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace

import pytest

from sapwood.errors import MisuseError
from sapwood.tree.call.parameters import Parameters, check_kind
from sapwood.tree.call.signature import describe


def _train(params, batch, *rest, scale=1.0, **others):
    return params, batch, rest, scale, others


def _gen():
    yield 1


async def _coroutine():
    return 1


async def _agen():
    yield 1


@pytest.fixture
def names(integration):
    """Return what names the array arguments of a call."""

    def names(fn, *args, **kwargs):
        return Parameters(fn).names(describe(args, kwargs, integration))

    return names


@pytest.mark.parametrize("fn", [_gen, _coroutine, _agen, functools.partial(_gen)])
def test_functions_whose_body_waits_are_refused(fn):
    """Calling them runs nothing that could be recorded."""
    with pytest.raises(MisuseError, match="Graph a plain function"):
        check_kind(fn)


def _held():
    yield 1


@pytest.mark.parametrize("made", [contextmanager(_held), asynccontextmanager(_agen)])
def test_context_managers_are_refused(made):
    """Of their bodies nothing runs before the block; what runs in it may be graphed."""
    name = made.__qualname__
    with pytest.raises(MisuseError, match=rf"{name} is made by @contextmanager.*Graph"):
        check_kind(made)
    with pytest.raises(MisuseError, match="Mark plain functions"):
        check_kind(made, "Mark")


class _Class:
    @staticmethod
    def static():
        return 1

    @classmethod
    def of(cls):
        return 1

    @property
    def held(self):
        return 1

    @functools.cached_property
    def once(self):
        return 1


@pytest.mark.parametrize("name", ["static", "of", "held", "once"])
def test_what_binds_in_its_own_way_goes_above(name):
    """The name is the function's, and the order of the decorators is told."""
    found = vars(_Class)[name]
    kind = type(found).__name__
    with pytest.raises(
        MisuseError, match=rf"_Class\.{name} is a {kind}.*@{kind} above"
    ):
        check_kind(found)


def test_refusals_are_of_what_was_to_be_done():
    """Who marks a function is not told to graph another."""
    for wrong in (3, _gen):
        with pytest.raises(MisuseError, match="Mark a"):
            check_kind(wrong, "Mark")


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {}, "missing a required argument: 'params'"),
        ((1,), {}, "missing a required argument: 'batch'"),
        ((1, 2), {"batch": 3}, "multiple values for argument 'batch'"),
    ],
)
def test_a_call_that_does_not_fit_is_the_functions(args, kwargs, said):
    """TypeError as the call would raise, with the name that messages use."""
    with pytest.raises(TypeError, match=rf"^_train: {said}$"):
        Parameters(_train).bind(args, kwargs)
    with pytest.raises(TypeError, match=rf"^mine: {said}$"):
        Parameters(_train, "mine").bind(args, kwargs)


def test_only_what_can_be_called_is_graphed():
    """Anything else is refused; what can be called is not."""
    with pytest.raises(MisuseError, match="3 is not callable"):
        check_kind(3)
    check_kind(_train)
    check_kind(functools.partial(_train, 1))
    check_kind(dict)


def test_arrays_are_named_as_the_function_names_them(names, make_array):
    """By parameter, and the way into it; extra ones by their number or keyword."""
    x = [make_array(0x1000 * (i + 1)) for i in range(6)]
    found = names(
        _train, {"w": x[0], "b": [x[1]]}, x[2], 1.0, x[3], scale=x[4], bias=(x[5],)
    )
    assert found == [
        "params['w']",
        "params['b'][0]",
        "batch",
        "rest[1]",
        "scale",
        "bias[0]",
    ]


def test_a_function_without_signature_has_numbered_arguments(names, make_array):
    """And so have arguments that no parameter takes."""
    x, y = make_array(0x1000), make_array(0x2000)
    assert names(type("Odd", (), {"__signature__": 3})(), x, [y]) == [
        "args[0]",
        "args[1][0]",
    ]
    assert names(lambda a: a, x, y) == ["a", "args[1]"]


def _named(x, /, **more):
    return x, more


def test_arguments_are_bound_as_the_call_binds_them():
    """Wrong ones raise what the call would raise; the gathered come one by one."""
    bound = Parameters(_train).bind((1, 2, 3), {"bias": 4, "rest[0]": 5})
    assert bound == {
        "params": 1,
        "batch": 2,
        "rest[0]": 3,
        "bias": 4,
        "others['rest[0]']": 5,
    }
    assert Parameters(_named).bind((1,), {"x": 2}) == {"x": 1, "more['x']": 2}
    with pytest.raises(TypeError, match="batch"):
        Parameters(_train).bind((1,), {})


def test_without_signature_arguments_are_bound_by_number():
    """So that slots in them can still be found."""
    odd = Parameters(type("Odd", (), {"__signature__": 3})())
    assert odd.bind((1, 2), {"k": 3}) == {"args[0]": 1, "args[1]": 2, "k": 3}


def test_options_name_parameters():
    """A name that is none is refused, with the names there are."""
    Parameters(_train).check("donate", ["params", "rest"])
    with pytest.raises(MisuseError, match=r"donate='parms'.*params, batch, rest"):
        Parameters(_train).check("donate", ["parms"])
    with pytest.raises(MisuseError, match="parameters are none"):
        Parameters(lambda: None).check("pinned", ["x"])


def _alike(x, xy, y, *, scale):
    return x, xy, y, scale


def test_a_parameter_holds_all_that_is_under_its_name(make_array, integration):
    """Items and attributes of it, and nothing that only begins alike."""
    x = [make_array(0x1000 * (i + 1)) for i in range(6)]
    args = [x[0], {"a": x[1]}, SimpleNamespace(w=x[2])], x[3], (x[4],)
    call = describe(args, {"scale": x[5]}, integration)
    parameters = Parameters(_alike)
    assert parameters.declared(call, ["x"]) == {0, 1, 2}
    assert parameters.declared(call, ["xy", "y"]) == {3, 4}
    assert parameters.declared(call, ["scale"]) == {5}
    assert parameters.declared(call, []) == frozenset()
