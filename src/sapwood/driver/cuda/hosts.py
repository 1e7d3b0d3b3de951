"""Host functions: Python calls that CUDA makes, in stream order, on threads of its own.

One that raises fails its device for good, as a kernel that breaks off would: whoever
gives it work, or waits for it, is told. A call inside a graph lives as long as the
graph, what was made of it, and all launches of that.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from typing import Any

from sapwood.driver.cuda.bindings import Library, unsupported
from sapwood.driver.results import Refusal, Result


@dataclass(frozen=True, slots=True)
class _Call:
    """A function that CUDA may call, and whom its failure fails."""

    run: Callable[[], None]
    owner: Hosts
    once: bool


# CUDA knows a call by its token, and may ask for it when its device is long garbage:
# so neither the calls nor what CUDA jumps to belong to a device.
_calls: dict[int, _Call] = {}
_tokens = count(1)


def _run(token: int) -> None:
    call = _calls[token]
    if call.once:
        del _calls[token]
    try:
        call.run()
    except BaseException as error:  # noqa: BLE001 -- told to whoever waits
        call.owner.fail(error)


def _forget(token: int) -> None:
    del _calls[token]


_signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_enter_run, _enter_forget = _signature(_run), _signature(_forget)


class Hosts:
    """The host functions of one device."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._run = _entry(library, _enter_run)
        self._forget = _entry(library, _enter_forget)
        self._failure: BaseException | None = None
        self._told = False
        self._retired: list[int] = []

    def check(self) -> None:
        """Refuse to go on after a host function has raised.

        What is no ordinary error, as Ctrl-C, is raised itself the first time.
        """
        error = self._failure
        if error is None:
            return
        if not isinstance(error, Exception) and not self._told:
            self._told = True
            raise error
        raise Result.LAUNCH_FAILED.refusal(
            f"a host function raised {type(error).__name__}: {error}. What came after "
            "it is lost: open the device anew"
        ) from error

    def fail(self, error: BaseException) -> None:
        """Remember the first failure."""
        if self._failure is None:
            self._failure = error

    def launch(self, call: Callable[[], None], stream: Any) -> None:
        """Give a stream, which is not capturing, a function to call once."""
        token = self._new(call, once=True)
        cu = self._library.cu
        try:
            self._library(cu.cuLaunchHostFunc, stream, self._run, token)
        except Refusal:
            del _calls[token]
            raise

    def params_in(self, graph: Any, call: Callable[[], None]) -> Any:
        """Return the parameters of a node that calls ``call``; the graph keeps it."""
        token = self._new(call, once=False)
        library, cu = self._library, self._library.cu
        asynchronous = cu.CUuserObject_flags.CU_USER_OBJECT_NO_DESTRUCTOR_SYNC
        create = cu.cuUserObjectCreate
        try:
            kept = library(create, token, self._forget, 1, asynchronous)
        except Refusal:
            del _calls[token]
            raise
        try:
            move = cu.CUuserObjectRetain_flags.CU_GRAPH_USER_OBJECT_MOVE
            library(cu.cuGraphRetainUserObject, graph, kept, 1, move)
        except Refusal:
            library(cu.cuUserObjectRelease, kept, 1)
            raise
        return self._params(token)

    def params_until_retired(self, call: Callable[[], None]) -> tuple[Any, int]:
        """Return the parameters of a node that calls ``call``, and what to retire."""
        token = self._new(call, once=False)
        return self._params(token), token

    def retire(self, tokens: Iterable[int]) -> None:
        """Forget calls when all work given to the device so far is done."""
        self._retired += tokens

    def retired(self) -> tuple[int, ...]:
        """Return what is retired now, for `forget` once the device was waited for."""
        return tuple(self._retired)

    def forget(self, tokens: Iterable[int]) -> None:
        """Forget retired calls."""
        for token in tokens:
            self._retired.remove(token)
            del _calls[token]

    def call_of(self, params: Any) -> Callable[[], None]:
        """Return what a node with these parameters calls."""
        if int(params.fn) != int(self._run):
            raise unsupported(
                "a host function of another library was captured: keep it out of the "
                "capture"
            )
        return _calls[int(params.userData)].run

    def _new(self, call: Callable[[], None], *, once: bool) -> int:
        token = next(_tokens)
        _calls[token] = _Call(call, self, once)
        return token

    def _params(self, token: int) -> Any:
        params = self._library.cu.CUDA_HOST_NODE_PARAMS()
        params.fn = self._run
        params.userData = token
        return params


def _entry(library: Library, function: Any) -> Any:
    return library.cu.CUhostFn(ctypes.cast(function, ctypes.c_void_p).value)
