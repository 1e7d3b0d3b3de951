"""An eager region: inside a graphed function it runs on every call, never recorded."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from sapwood.tree.call.parameters import check_kind
from sapwood.tree.nests.containers import weakly
from sapwood.tree.watch import session


def eager(fn: Callable[..., Any]) -> Any:
    """Return ``fn`` as an eager region: functions that call it are recorded around it.

    What a graphed function does before it and after it is replayed; ``fn`` itself runs
    in between, on every call, and may read values on the host. It returns None, a nest
    of arrays, of the same shapes and dtypes each time, or plain values (bool, int,
    float, complex, str, bytes, NumPy's numbers, and tuples of these and of arrays):
    what follows is recorded once for each value that comes again. Elsewhere it is
    ``fn``.
    Raises `MisuseError` for a generator, coroutine or asynchronous function.
    """
    check_kind(fn, "Mark")
    watching = session.current()
    if watching is not None:
        watching.refuse(
            "an eager region is made inside a graphed function, and replays would call "
            "that of the first call",
            "Put @sapwood.eager on a function outside, and pass it what it needs",
        )
    return Eager(fn)


class Eager:
    """A function that runs live between the recorded parts of others.

    As a class attribute it binds like a function.
    """

    writes = sees = True
    shown = None

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn)
        # What it reads is its own affair: nobody is to look through it.
        del vars(self)["__wrapped__"]
        self.name = str(getattr(fn, "__qualname__", type(fn).__qualname__))
        self.runs = fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        watching = session.current()
        if watching is not None:
            return watching.live(self, args, kwargs)
        elsewhere = session.served()
        if elsewhere is not None:
            elsewhere.refuse(
                f"the eager region {self.name} is called on another thread than the "
                "function, such as autograd's in backward()",
                "Call it before or behind backward(), not in a hook or checkpoint",
            )
        return self.runs(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Eager | _Method:
        return self if instance is None else _Method(self, instance)

    def held(self) -> Callable[[], Callable[..., Any] | None]:
        """Return a weak reference to this."""
        return weakref.ref(self)

    def __repr__(self) -> str:
        return f"<eager region {self.name}>"


class _Method(Eager):
    """An eager region bound to an object, which it keeps alive as a method does."""

    def __init__(self, part: Eager, instance: Any) -> None:
        self.__self__, self._part = instance, part
        self.name, self.runs = part.name, functools.partial(part.runs, instance)

    def __get__(self, instance: Any, owner: type | None = None) -> _Method:
        return self

    def held(self) -> Callable[[], Callable[..., Any] | None]:
        """Return what binds the eager region anew, while its object is alive."""
        part, instance = self._part.held(), weakly(self.__self__)

        def bound() -> Callable[..., Any] | None:
            function, owner = part(), instance()
            if function is None or owner is None:
                return None
            return functools.partial(function, owner)

        return bound

    def __repr__(self) -> str:
        return f"{self._part!r} of {self.__self__!r}"
