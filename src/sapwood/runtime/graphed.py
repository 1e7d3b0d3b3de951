"""A graphed function: called like the plain one, a method where that is one."""

from __future__ import annotations

import functools
import importlib
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, TypedDict

from sapwood import _fast, knobs
from sapwood._fast.state import CallState
from sapwood.errors import CaptureError, MisuseError
from sapwood.tree.call.options import Options
from sapwood.tree.call.parameters import Parameters, check_kind
from sapwood.tree.call.stats import Stats
from sapwood.tree.choose.skips import Fruitless, warn
from sapwood.tree.replay.compiled import MISS
from sapwood.tree.run.runner import Runner
from sapwood.tree.watch import session

if TYPE_CHECKING:
    from sapwood.runtime.core import Runtime
    from sapwood.tree.run.source import Source

_disabled: ContextVar[bool] = ContextVar("sapwood_disabled", default=False)


@contextmanager
def disabled() -> Iterator[None]:
    """Run every graphed function as its plain function, on this thread or task.

    A context manager: ``with sapwood.disabled():``.
    """
    token = _disabled.set(True)
    try:
        yield
    finally:
        _disabled.reset(token)


def _is_traced() -> bool:
    """Return whether torch's compiler traces the call: then the function is a part."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()


class GraphOptions(TypedDict, total=False):
    """How to graph a function: see `Runtime.graph`, and docs/graph.md."""

    name: str | None
    donate: Sequence[str]
    pinned: Sequence[str]
    max_variants: int | None
    max_recordings: int | None
    fullgraph: bool
    verify: int


def graphed(
    runtime: Callable[[], Runtime],
    fn: Callable[..., Any] | None,
    options: GraphOptions,
    hears: Callable[[str], None] | None = None,
    *,
    guarded: bool = False,
) -> Any:
    """Return a graphed function, or without ``fn`` a decorator that makes one.

    ``hears`` is told, too, of each reason for which calls run eagerly; ``guarded`` is
    as in `Options`. Raises `MisuseError` for wrong options.
    """
    _check_names(options)
    if fn is None:
        return lambda fn: graphed(runtime, fn, options)
    check_kind(fn)
    made = replace(_options(fn, options), hears=hears, guarded=guarded)
    parameters = Parameters(fn)
    parameters.check("donate", made.donate)
    parameters.check("pinned", made.pinned)
    return Graphed(fn, made, runtime)


def _check_names(options: GraphOptions) -> None:
    known = GraphOptions.__annotations__
    for name in options:
        if name not in known:
            close = get_close_matches(name, known, 1)
            close = ["fullgraph"] if name == "on_unsupported" else close
            raise MisuseError(
                f"graph() has no option {name}. "
                f"{f'Did you mean {close[0]}? ' if close else ''}"
                f"The options are {', '.join(known)}"
            )


def _options(fn: Callable[..., Any], options: GraphOptions) -> Options:
    name, verify = options.get("name"), options.get("verify", 0)
    fullgraph = options.get("fullgraph", False)
    if type(fullgraph) is not bool:
        raise MisuseError(
            f"fullgraph={fullgraph!r} is not a bool. Use True to have CaptureError "
            "raised where a call cannot be recorded, or False to run it eagerly"
        )
    if name is not None and not isinstance(name, str):
        raise MisuseError(f"name={name!r} is not text. Use what messages shall say")
    if type(verify) is not int or verify < 0:
        raise MisuseError(
            f"verify={verify!r} is not a count. Use 0, or n for every n-th"
        )
    settings = knobs.current()
    if (variants := options.get("max_variants")) is not None:
        settings = replace(settings, max_variants=variants)
    if (recordings := options.get("max_recordings")) is not None:
        settings = replace(settings, max_recordings=recordings)
    return Options(
        name=name or str(getattr(fn, "__qualname__", type(fn).__qualname__)),
        donate=_names("donate", options.get("donate", ())),
        pinned=_names("pinned", options.get("pinned", ())),
        max_variants=settings.max_variants,
        max_recordings=settings.max_recordings,
        fullgraph=fullgraph,
        verify=verify,
    )


def _names(option: str, given: Any) -> tuple[str, ...]:
    is_one = isinstance(given, str) or not isinstance(given, Iterable)
    names = (given,) if is_one else tuple(given)
    if not all(isinstance(each, str) for each in names):
        raise MisuseError(
            f"{option}={given!r} is no name of an argument, nor several. Pass text, or "
            "a list of it"
        )
    return names


_FLEETING: Final = 64
_TRIED: Final = 4
"""After so many objects, one after another, that were gone before a call of theirs was
replayed, that many times the method of an unknown one is plain, and twice as often each
time that some more are tried in vain: what would record a call takes longer than it."""

_GO_SOON: Final = CaptureError(
    f"{_FLEETING} objects were gone, one after another, before a call of theirs could "
    "be replayed",
    remedy="Keep the objects, or graph a function that takes what is in them",
)
_OF_FUNCTIONS: Final = frozenset(
    {"__closure__", "__code__", "__defaults__", "__globals__", "__kwdefaults__"}
)


class Graphed(CallState):
    """A function whose calls are recorded once and replayed.

    ``runtime`` says on which runtime; it is asked at every call, so that decorating
    makes no device. As a class attribute it binds like a function, and every
    instance has recordings of its own. Where there is C it is called there, and here
    only where no fast replay can be: see `take_calls` in `_fast/call.h`.
    """

    __slots__ = ("__dict__", "__weakref__")

    def __init__(
        self, fn: Callable[..., Any], options: Options, runtime: Callable[[], Runtime]
    ) -> None:
        functools.update_wrapper(self, fn)
        self.__wrapped__ = fn
        self._options, self._runtime = options, runtime
        self._runner: Runner | None = None
        self._fast_replays = self._on = None
        self._met = False
        self._source: Source | None = None
        self._bound: dict[int, tuple[weakref.ref[Any], Graphed]] = {}
        self._fleeting = Fruitless(0, _FLEETING, _TRIED)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if _is_traced() or session.current() is not None or _disabled.get():
            return self._target()()(*args, **kwargs)
        runner = self._runner
        if runner is None or not self._met or self._runtime() is not self._on:
            runner = self.runner((args, kwargs))
        # Most calls of most functions end here.
        for play in runner.fast_replays.players:
            result = play(*args, **kwargs)
            if result is not MISS:
                return result
        return runner.call(args, kwargs)

    def _missed(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.runner((args, kwargs)).call(args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        if _is_traced():
            return functools.partial(self.__wrapped__, instance)
        try:
            known = id(instance) in self._bound or self._options.fullgraph
            if known or self._fleeting.left <= 0:
                return Bound(self, instance)
            self._fleeting.left -= 1
            error = _GO_SOON
        except CaptureError as caught:
            if self._options.fullgraph:
                raise
            error = caught
        warn(self._options, error)
        return types.MethodType(self.__wrapped__, instance)

    def __getattr__(self, name: str) -> Any:
        if name in _OF_FUNCTIONS:
            return getattr(self.__wrapped__, name)
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}"
        )

    def method_of(self, instance: Any) -> Graphed:
        """Return what an object's calls are recorded by.

        Raises `CaptureError` where the object cannot be referred to weakly.
        """
        held = self._bound.get(id(instance))
        if held is not None and held[0]() is instance:
            return held[1]
        key, method = id(instance), types.MethodType(self.__wrapped__, instance)
        try:
            gone = weakref.ref(instance, lambda _: self._lost(key))
        except TypeError:
            raise CaptureError(
                f"{type(instance).__qualname__} has __slots__ without __weakref__, so "
                "that no recordings can be kept for its objects",
                remedy="Add __weakref__ to its __slots__, or say "
                "dataclass(slots=True, weakref_slot=True)",
            ) from None
        bound = _Method(method, self._options, self._runtime)
        self._bound[key] = (gone, bound)
        return bound

    def _lost(self, key: int) -> None:
        """Forget an object that is gone; note whether a call of its was replayed."""
        _, bound = self._bound.pop(key, (None, None))
        runner = None if bound is None else bound._runner  # noqa: SLF001
        if runner is not None and runner.has_replayed():
            self._fleeting = Fruitless(0, _FLEETING, _TRIED)
        elif runner is not None:
            self._fleeting.again()

    def runner(
        self, first: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    ) -> Runner:
        """Return what runs this function on its runtime, which its first call chose."""
        runtime, found = self._runtime(), self._runner
        if found is None or runtime is not self._on or not (self._met or first is None):
            target = self._target()
            on = None if first is None else runtime.beside(target(), *first)
            # Once more, if it could not be told: to ask takes longer than calls.
            met, on = on is not None or found is not None, on or runtime
            if found is None or runtime is not self._on or on is not runtime:
                found = on.runner(target, self._options, self._source)
            self._fast_replays, self._on = found.fast_replays, runtime
            self._runner, self._met = found, met
        return found

    def _target(self) -> Callable[[], Callable[..., Any]]:
        fn = self.__wrapped__
        return lambda: fn

    def warm(self, /, *args: Any, **kwargs: Any) -> None:
        """Warm up and record for such arguments now; arrays are left as they are.

        Does nothing where a call would run the plain function: inside a graphed
        function, and while disabled. Warns where one could not be recorded for its
        arguments, and leaves computed ones that require grad to the calls. Raises what
        a call would raise.
        """
        if session.current() is None and not _disabled.get():
            self.runner((args, kwargs)).warm(args, kwargs)

    def stats(self) -> Stats:
        """Return what has happened to the calls so far."""
        return self.runner().stats()

    def explain(self) -> str:
        """Return, for each recording and each recent miss, what it is and why."""
        return self.runner().explain()

    def __copy__(self) -> Graphed:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Graphed:
        """Graph a copy of what is graphed, without recordings; functions have none."""
        fn = deepcopy(self.__wrapped__, memo)
        if fn is self.__wrapped__:
            return self
        return Graphed(fn, self._options, self._runtime)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Let a function be pickled by its name, as plain ones are.

        One that is not found by it, such as a module's that was graphed by itself, is
        graphed again where it is unpickled, on the default runtime.
        """
        name = str(getattr(self, "__qualname__", ""))
        found: Any = sys.modules.get(str(getattr(self, "__module__", "")))
        for each in name.split("."):
            found = getattr(found, each, None)
        if found is self:
            return name
        runtime = importlib.import_module("sapwood.runtime.default").default_runtime
        return Graphed, (self.__wrapped__, replace(self._options, told=set()), runtime)

    def __repr__(self) -> str:
        return f"<graphed {self._options.name}>"


class _Method(Graphed):
    """A graphed function bound to an instance, which it does not keep alive."""

    def __init__(
        self, method: types.MethodType, options: Options, runtime: Callable[[], Runtime]
    ) -> None:
        self._method = weakref.WeakMethod(method)
        super().__init__(method.__func__, options, runtime)

    def _alive(self) -> Callable[..., Any]:
        method = self._method()
        if method is None:
            raise MisuseError(
                f"the object that {self._options.name} is a method of is gone. Keep "
                "it alive while its method is in use"
            )
        return method

    def _target(self) -> Callable[[], Callable[..., Any]]:
        return self._alive


def _take_calls() -> None:
    native, told = _fast.native(), getattr(session.current, "__self__", None)
    if native is not None:
        for cls in (Graphed, _Method):
            # Its `missed` is its own, for C to call.
            native.take_calls(cls, told, _disabled, Graphed._missed)  # noqa: SLF001


_take_calls()


class Bound:
    """A graphed method of one object, which it keeps alive as a method does.

    It is equal to another of the same function and object, has the function's
    attributes, and is made like a method, as `weakref.WeakMethod` does.
    """

    __slots__ = ("__func__", "__self__", "_method")

    def __init__(self, of: Graphed, instance: Any) -> None:
        self.__func__, self.__self__ = of, instance
        self._method = of.method_of(instance)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Bound):
            return NotImplemented
        return self.__func__ is other.__func__ and self.__self__ is other.__self__

    def __hash__(self) -> int:
        return hash((id(self.__self__), self.__func__))

    def __getattr__(self, name: str) -> Any:
        if name in self.__slots__:  # it was not initialised
            raise AttributeError(name)
        return getattr(self.__func__, name)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._method(*args, **kwargs)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The plain method."""
        return types.MethodType(self._method.__wrapped__, self.__self__)

    def runner(self) -> Runner:
        """Return what runs this method on its runtime."""
        return self._method.runner()

    def warm(self, /, *args: Any, **kwargs: Any) -> None:
        """Warm up and record for such arguments now; arrays are left as they are."""
        self._method.warm(*args, **kwargs)

    def stats(self) -> Stats:
        """Return what has happened to this object's calls so far."""
        return self._method.stats()

    def explain(self) -> str:
        """Return, for each recording and each recent miss, what it is and why."""
        return self._method.explain()

    def __copy__(self) -> Bound:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Graphed | Bound:
        """Return the method of a copy of the object."""
        of = self.__func__
        found: Graphed | Bound = of.__get__(deepcopy(self.__self__, memo))
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        method: Any = self._method
        return getattr, (self.__self__, method.__name__)

    def __repr__(self) -> str:
        return f"{self._method!r} of {self.__self__!r}"
