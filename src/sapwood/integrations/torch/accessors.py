"""How modules and optimizers are looked into: what decides what they compute.

A module's parameters, buffers and submodules, and the attributes that code names; an
optimizer's groups and its state. Gradients are slots: replays bind them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import torch

from sapwood.integrations.torch.scheduling import look_into
from sapwood.integrations.torch.stepping import (
    is_scheduled,
    looked_at,
    parameters_of,
    settings_of,
    steps_live,
)
from sapwood.tree.guards import views
from sapwood.tree.guards.code import functions_of, names_of
from sapwood.tree.guards.frameworks import (
    Borne,
    attributes,
    declare_borne,
    declare_calls,
    declare_front,
    declare_opening,
)
from sapwood.tree.guards.owners import owner_of_class
from sapwood.tree.guards.scope import UNNAMED, Accessor, Openings, Reach
from sapwood.tree.guards.views import EMPTY, View, Way
from sapwood.tree.nests.kinds import by_class

_BOOKS: Final = frozenset(vars(torch.nn.Module())) - {"training"}
"""What a module keeps for itself, and views of its own look into."""

_NOT_RUN: Final = frozenset(
    {"__init__", "__repr__", "__setstate__", "__getstate__", "extra_repr"}
    | {"reset_parameters", "_reset_parameters", "_load_from_state_dict"}
)
_COMPILED: Final = ("torch._dynamo.eval_frame", "OptimizedModule")
"""The class of modules that were compiled, which is not imported before it is used."""

_ROOTS: Final = (torch.nn.Module, object)
_PLAIN: Final = {bool, float, int, str, type(None)}
_HOOKS: Final = (
    *("_forward_pre_hooks", "_forward_hooks"),
    *("_backward_pre_hooks", "_backward_hooks"),
)


def _book(name: str, *, stores: bool = False) -> View:
    """Return the view of a dict that a module keeps, by its attribute's name."""

    def store(module: Any, key: Any, value: Any) -> None:
        module.__dict__[name][key] = None if value is EMPTY else value

    return View(
        name.removeprefix("_"),
        lambda module: module.__dict__[name],
        lambda path, _, key: f"{path}.{key}",
        store if stores else None,
        "length",
        way=Way("__dict__", name),
    )


def _gradients(module: Any) -> Mapping[str, Any]:
    return {
        name: each.grad for name, each in module._parameters.items() if each is not None
    }


def _graded(
    name: str,
    gradients: Callable[[Any], Any],
    label: Callable[[str, Any, Any], str],
    bearers: Callable[[Any], Any],
    way: Way,
) -> View:
    """Return the view of the gradients of parameters, by what has those."""

    def store(owner: Any, key: Any, value: Any) -> None:
        bearers(owner)[key].grad = None if value is EMPTY else value

    return View(
        name, gradients, label, store, way=way, bearers=bearers, attribute="grad"
    )


def _hooks(module: Any) -> Sequence[Any]:
    """Return the hooks of a module, and those of its parameters' gradients."""
    of_parameters = (
        getattr(parameter, name, None)
        for parameter in module._parameters.values()
        for name in ("_backward_hooks", "_post_accumulate_grad_hooks")
    )
    own = (getattr(module, name, None) for name in _HOOKS)
    return [hook for held in (*own, *of_parameters) for hook in (held or {}).values()]


PARAMETERS: Final = _book("_parameters", stores=True)
BUFFERS: Final = _book("_buffers", stores=True)
MODULES: Final = _book("_modules")
GRADIENTS: Final = _graded(
    "gradients",
    _gradients,
    lambda path, _, key: f"{path}.{key}.grad",
    lambda module: module._parameters,
    Way("__dict__", "_parameters", each="grad"),
)
HOOKS: Final = View(
    "hooks", _hooks, lambda path, _, key: f"hook {key} of {path}", None, "length"
)


@by_class
def _names_of(cls: type) -> tuple[frozenset[str], frozenset[str]]:
    """Return what the code of a module's class names, where that is not the user's.

    And what of it the class says itself, and an instance may say anew.
    """
    members = [vars(base) for base in cls.__mro__ if base not in _ROOTS]
    read = (
        names_of(each.__code__).attributes
        for said in members
        for name, member in said.items()
        if name not in _NOT_RUN
        for each in functions_of(member)
    )
    names = frozenset[str]().union(*read)
    said = {name for each in members for name in each if name[:2] != "__"}
    said &= names | {"forward"}
    return names, frozenset(said | {"_compiled_call_impl"})


def _module(value: Any, reach: Reach) -> Openings:
    cls, inside = type(value), vars(value)
    reach.note(("forward",))
    compiled = (cls.__module__, cls.__qualname__) == _COMPILED
    if compiled or inside.get("_compiled_call_impl") is not None:
        reach.note(used=(UNNAMED,))
    if _hooks(value):
        yield Accessor(HOOKS)
    if compiled:
        # What it was made of is in there; the rest is the compiler's own affair.
        yield Accessor(MODULES)
        return
    users = owner_of_class(cls) == "user"
    if users:
        yield Accessor(views.TYPE)
        wanted = reach.attributes()
        if wanted is None:
            wanted = frozenset(inside)
        yield Accessor(views.ATTRIBUTES, wanted - _BOOKS)
    else:
        named, said = _names_of(cls)
        names = named | reach.names | {"forward"}
        # Functions of its package read what is plain, and are not read themselves.
        names |= {name for name, each in inside.items() if type(each) in _PLAIN}
        present = frozenset(names & inside.keys() - _BOOKS)
        yield Accessor(views.ATTRIBUTES, present | said)
    if users or inside["_parameters"]:
        yield Accessor(PARAMETERS)
        if torch.is_grad_enabled() or reach.dynamic or "grad" in reach.names:
            yield Accessor(GRADIENTS)
    if users or inside["_buffers"]:
        yield Accessor(BUFFERS)
    if users or inside["_modules"]:
        yield Accessor(MODULES)


@lru_cache(maxsize=1 << 16, typed=True)
def _state_key(number: int, name: Any) -> tuple[int, Any]:
    """Return the key of a parameter's state: for the same ones the same object."""
    return number, name


def _state(optimizer: Any) -> Mapping[Any, Any]:
    """Return the state by parameter and name, without tensors that are elsewhere.

    No recording has those: it is told of their use.
    """
    # Not looked up by parameter: a tensor's hash takes longer than all the rest.
    numbers = {id(each): i for i, each in enumerate(parameters_of(optimizer))}
    found: dict[Any, Any] = {}
    for each, inner in optimizer.state.items():
        i = numbers.get(id(each))
        if i is not None:
            place = each.get_device()
            for name, value in inner.items():
                if not isinstance(value, torch.Tensor) or value.get_device() == place:
                    found[_state_key(i, name)] = value
    return found


def _store_state(optimizer: Any, key: Any, value: Any) -> None:
    number, name = key
    views.bind(optimizer.state[parameters_of(optimizer)[number]], name, value)


def _rests(optimizer: Any) -> Iterator[views.Rest]:
    """Yield what the parameters of an optimizer rest on, and their state."""
    groups, state = optimizer.param_groups, optimizer.state
    yield vars(optimizer), ("param_groups", "state")
    yield groups, None
    for group in groups:
        yield group, ("params",)
        yield group["params"], None
    yield state, None
    for inner in state.values():
        yield inner, None


_GROUPS: Final = View(
    "parameter groups",
    lambda optimizer: (looked_at(optimizer).param_groups,),
    lambda path, _, __: f"{path}.param_groups",
    way=Way(rests=lambda optimizer: [(vars(optimizer), ("param_groups",))]),
)
STATE: Final = View(
    "optimizer state",
    _state,
    lambda path, _, key: f"{path}.state[parameter {key[0]}][{key[1]!r}]",
    _store_state,
    "keys",
    way=Way(rests=_rests),
)


def _store_parameter(optimizer: Any, key: int, value: Any) -> None:
    for group in optimizer.param_groups:
        params = group["params"]
        if key < len(params):
            params[key] = value
            return
        key -= len(params)


_STEPPED_BY: Final = View(
    "optimizer parameters",
    parameters_of,
    lambda path, _, key: f"parameter {key} of {path}",
    _store_parameter,
    "length",
)
_SETTINGS: Final = View(
    "optimizer settings",
    lambda optimizer: dict(settings_of(looked_at(optimizer))),
    lambda path, _, key: f"{path}.param_groups[{key[0]}][{key[1]!r}]",
    extent="keys",
    guarded=False,
)
"""What live steps read on every call: only who changes it in a call is noticed."""
_STEPPED: Final = _graded(
    "optimizer gradients",
    lambda optimizer: [each.grad for each in parameters_of(optimizer)],
    lambda path, _, key: f"the gradient of parameter {key} of {path}",
    parameters_of,
    Way(into=parameters_of, rests=_rests, each="grad"),
)


_OPENED: Final = frozenset({"param_groups", "state"})
_LOOKING: Final = _OPENED | {"defaults", "state_dict"}
"""By these names code reads what an optimizer is set to."""


def _optimizer(value: Any, reach: Reach) -> Openings:
    if owner_of_class(type(value)) == "user":
        yield Accessor(views.TYPE)
        wanted = reach.attributes()
        if wanted is not None:
            yield Accessor(views.ATTRIBUTES, wanted - _OPENED)
    else:
        # Schedulers bind another `step`, for example.
        said = (name for name in reach.names if hasattr(type(value), name))
        yield Accessor(views.ATTRIBUTES, frozenset(said) - _OPENED)
    looks_closer = reach.dynamic or not _LOOKING.isdisjoint(reach.names)
    if steps_live(value) and not looks_closer:
        yield Accessor(_STEPPED_BY)
        if not is_scheduled(looked_at(value)):
            yield Accessor(_SETTINGS)
    else:
        yield Accessor(_GROUPS)
        yield Accessor(STATE)
    yield Accessor(_STEPPED)


def _nothing(_: Any, __: Reach) -> Openings:
    return iter(())


def _seed(generator: Any) -> tuple[object, ...]:
    """Return the seed of a device's generator; those of the host are not followed.

    Replays draw from it as eager calls do, and so move it; but they seed none.
    """
    return () if generator.device.type == "cpu" else (generator.initial_seed(),)


_SET: Final = View(
    "set", _seed, lambda path, _, __: f"the state of {path}", guarded=False
)


def _gets_gradients(tensor: Any, reach: Reach) -> bool:
    named = torch.is_grad_enabled() or reach.dynamic or "grad" in reach.names
    return bool(named and tensor.requires_grad and tensor.is_leaf)


def _borne(name: str) -> Borne:
    def read(tensor: Any) -> Any:
        leaf = isinstance(tensor, torch.Tensor) and tensor.is_leaf
        return getattr(tensor, name) if leaf else EMPTY

    return Borne(name, read)


declare_borne(
    torch.Tensor,
    _gets_gradients,
    _borne("grad"),
    _borne("_backward_hooks"),
    _borne("_post_accumulate_grad_hooks"),
)

for _plain in (
    *(torch.Tensor, torch.dtype, torch.device, torch.layout, torch.memory_format),
):
    declare_opening(_plain, _nothing)
declare_opening(torch.Generator, lambda _, __: iter([Accessor(_SET)]))
declare_calls(torch.nn.Module, frozenset({"forward"}))
declare_calls(
    torch.autograd.Function,
    frozenset({"backward", "forward", "jvp", "setup_context", "vjp", "vmap"}),
)
declare_front("_torchdynamo_orig_callable")
declare_opening(torch.nn.Module, _module)
declare_opening(torch.optim.Optimizer, _optimizer)
declare_opening(torch.optim.lr_scheduler.LRScheduler, look_into)


# A kernel is what it was when it was compiled, and Triton refuses one whose globals are
# others by then. Around it there is what the user's own functions decide.
_TRITON: Final = (
    ("jit", "JITFunction", _nothing),
    ("autotuner", "Autotuner", attributes("configs", "fn", "pre_hook", "post_hook")),
    ("autotuner", "Config", attributes("kwargs", "pre_hook")),
    ("autotuner", "Heuristics", attributes("fn", "values")),
)
for _module_name, _name, _opened in _TRITON:
    declare_opening((f"triton.runtime.{_module_name}", _name), _opened)


def _context(*decide: str) -> Callable[[Any, Reach], Openings]:
    """Return how to look into contexts: at what decides, not at what was before.

    That they write where they are entered, and read where they are left.
    """
    names = frozenset(decide)

    def opened(value: Any, reach: Reach) -> Openings:
        wanted = names
        if owner_of_class(type(value)) == "user":
            yield Accessor(views.TYPE)
            wanted = (reach.attributes() or frozenset(vars(value))) - _BEFORE | names
        yield Accessor(views.ATTRIBUTES, wanted)

    return opened


_BEFORE: Final = frozenset(
    {"prev", "prev_cache_enabled", "prev_fastdtype", "_inference_mode_context"}
    | {"record", "_cupti_monitor_external_id"}
)
_AUTOCAST: Final = ("device", "fast_dtype", "custom_backend_name", "_enabled")
for _kind, _decide in (
    (torch.autocast, (*_AUTOCAST, "_cache_enabled")),
    (torch.no_grad, ()),
    (torch.enable_grad, ()),
    (torch.set_grad_enabled, ("mode",)),
    (torch.inference_mode, ("mode",)),
    (torch.profiler.record_function, ("name", "args", "run_callbacks_on_exit")),
):
    declare_opening(_kind, _context(*_decide))
