"""What torch's compiler has made, as a watched function runs it.

The kernels that it generates are launched past the dispatcher. So every compiled graph
is told as a whole: what it takes, and what of that it writes. It runs as it is, without
the graphs that torch would record of it by itself. That torch compiles is told, too.

Torch loads its compiler when something asks for it, which takes as long as to load all
else of torch. Who compiles nothing is not to wait for that.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache, lru_cache, partial, wraps
from importlib import import_module
from sys import modules
from types import ModuleType
from typing import Any, Final, NamedTuple, Protocol

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

_COMPILER: Final = "torch._dynamo"
_GRAPHS: Final = "torch._inductor.output_code"
_TREES: Final = "torch._inductor.cudagraph_trees"
_KEPT: Final = "__dynamo_disable"

Function = Callable[..., Any]


class Listener(Protocol):
    """A dispatch mode that is told of compiled graphs as well.

    It ``captures`` where what runs is launched by replays only.
    """

    captures: bool

    def region(self, graph: Any, inputs: Sequence[Any]) -> AbstractContextManager[None]:
        """Return what a compiled graph runs in."""

    def gave(self, results: Any) -> None:
        """Take note of what it returns."""

    def refused(self, what: str, remedy: str) -> None:
        """Take note of what no replay could repeat, and of what to do instead."""

    def compiling(self) -> None:
        """Take note that torch begins to compile; what this raises ends that."""


class _Ear(NamedTuple):
    """Who listens, on which thread, and whether there was no compiler at first."""

    listener: Listener
    thread: int
    early: bool


_lock: Final = threading.Lock()
_listening: Final[list[_Ear]] = []
_replaced: Final[list[Callable[[], None]]] = []
"""What puts back each method that stands back while somebody listens."""


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Tell a mode of the compiled graphs that run under it, and of compiling.

    Not of graphs where nothing had been compiled before: of that, they hear, though
    only when all is over if torch had not even loaded its compiler.
    """
    ear = _Ear(listener, threading.get_ident(), early=_COMPILER not in modules)
    _begin(ear)
    ordinary = True
    try:
        yield
    except BaseException as error:
        ordinary = isinstance(error, Exception)
        raise
    finally:
        _end(ear)
        # What that raises is no word for an interrupt.
        if ordinary and ear.early and _COMPILER in modules and _has_compiled():
            listener.compiling()


def _has_compiled() -> bool:
    """Return whether torch's compiler, which is loaded, has begun to compile anything.

    Much in torch has it loaded that compiles nothing.
    """
    return bool(import_module(f"{_COMPILER}.utils").counters["frames"])


@cache
def _hears() -> Function:
    return _uncompiled(_begun)


def _begun(_: Any) -> None:
    """Tell all whom it concerns that torch compiles."""
    thread, modes = threading.get_ident(), _get_current_dispatch_mode_stack()
    for each in tuple(_listening):
        # Torch takes all modes away before it compiles what comes forward.
        if each.thread == thread or each.listener in modes:
            each.listener.compiling()


def _quietly(name: str) -> ModuleType:
    """Import a module of torch's; what it warns of then is nothing of the caller's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module(name)


def trees_of_torch() -> ModuleType | None:
    """Import torch's graph trees; None where they are not, and cannot be, imported.

    Imported, they leave objects with the thread. Within a backward, autograd drops
    what is left so, twice: memory that Python still uses would be freed.
    """
    found = modules.get(_TREES)
    if found is None and torch._C._current_graph_task_id() < 0:
        return _quietly(_TREES)
    return found


def _begin(ear: _Ear) -> None:
    with _lock:
        if not _replaced and _GRAPHS in modules:
            _replace(modules[_GRAPHS].CompiledFxGraph, "__call__", _told)
            trees = trees_of_torch()
            if trees is not None:
                _replace(trees.CUDAGraphTreeManager, "_run", _without_graphs)
        _listening.append(ear)
        if ear.early:
            return
        handler = torch._dynamo.callback_handler
        # What resets the compiler forgets who wants to be called.
        if _hears() not in handler.start_callbacks:
            handler.register_start_callback(_hears())


def _end(ear: _Ear) -> None:
    with _lock:
        _listening.remove(ear)
        if _listening or _COMPILER not in modules:
            return
        handler = torch._dynamo.callback_handler
        if _hears() in handler.start_callbacks:
            handler.remove_start_callback(_hears())
        while _replaced:
            _replaced.pop()()


def put_off(method: Function) -> None:
    """Have torch not load its compiler only to leave a mode's method uncompiled.

    It makes what does that when the method is called first, and keeps it as an
    attribute. What stands there instead makes way when there is a compiler.
    """
    plain = vars(method).get("__wrapped__")
    if plain is None:
        return

    def call(*args: Any, **kwargs: Any) -> Any:
        if _COMPILER not in modules:
            return plain(*args, **kwargs)
        vars(plain).pop(_KEPT, None)
        return method(*args, **kwargs)

    vars(plain)[_KEPT] = call


def _replace(owner: type, name: str, by: Callable[[Function], Function]) -> None:
    method = getattr(owner, name)
    setattr(owner, name, _wrapped(by, method))
    _replaced.append(partial(setattr, owner, name, method))


@lru_cache(maxsize=8)
def _wrapped(by: Callable[[Function], Function], method: Function) -> Function:
    return _uncompiled(by(method))


def _uncompiled(function: Function) -> Function:
    """Return a function that torch does not compile where it comes to it."""
    made: Function = torch._dynamo.disable(function, reason="it tells of compiled code")
    return made


def listeners() -> list[Listener]:
    """Return who listens to this thread, on which autograd may be for another."""
    modes = _get_current_dispatch_mode_stack()
    return [each.listener for each in tuple(_listening) if each.listener in modes]


def _told(run: Function) -> Function:
    """Return what runs a compiled graph, and tells of it first."""

    @wraps(run)
    def call(graph: Any, inputs: Sequence[Any]) -> Any:
        with ExitStack() as stack:
            told = listeners()
            for listener in told:
                stack.enter_context(listener.region(graph, inputs))
            results = run(graph, inputs)
            for listener in told:
                listener.gave(results)
            return results

    return call


def _without_graphs(run: Function) -> Function:
    """Return what runs compiled code in place of the graph that torch has of it."""

    @wraps(run)
    def call(trees: Any, new_inputs: Any, function_id: Any) -> Any:
        if listeners():
            # As torch itself does with what it cannot record.
            return trees.ids_to_funcs[function_id].model(new_inputs)
        return run(trees, new_inputs, function_id)

    return call
