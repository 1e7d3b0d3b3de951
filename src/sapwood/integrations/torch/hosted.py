"""Calls that are passed tensors of the CPU, which the function brings to the device.

``batch.to(device)`` in a training step: each call's tensors are brought there in front
of it, and are what a recording takes in their place. A capture has stand-ins for them,
which can do nothing but that: what else is done with one, no replay would do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import local
from types import MappingProxyType
from typing import Any, Final

import torch

from sapwood.errors import MisuseError
from sapwood.integrations.torch.asking import capturing
from sapwood.integrations.torch.operations import has_bytes
from sapwood.tree.nests.containers import flatten, unflatten
from sapwood.tree.watch import session
from sapwood.tree.watch.capturer import Graph

_aten: Final[Any] = torch.ops.aten
_REMEDY: Final = (
    "Pass it on the device, or do no more with it than x.to(device), which changes no "
    "dtype, x.cuda(), or y.copy_(x)"
)
_FEW: Final = 8
"""So many calls in which nothing is saved, and it is not tried any more."""
_MOST: Final = 1 << 30
"""So many bytes are brought for one call: of more, it may be that few are used."""


class _Now(local):
    """What this thread's call is passed, and what each tensor was brought to, when."""

    given: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
    brought: Mapping[int, tuple[Any, int]] = MappingProxyType({})


_now: Final = _Now()


def copied(
    packet: Any, args: Sequence[Any], given: Mapping[str, Any], of: Callable[..., Any]
) -> Callable[[], Any] | None:
    """Return what does a copy to a device, of what was brought there already.

    ``of`` gives that, or None, for the tensor that is copied. None for what is no such
    copy, or another dtype's, which torch makes on the host.
    """
    if packet is _aten.copy_:
        own = of(args[1])
        if own is None or args[0].dtype is not own.dtype:
            return None
        there = args[0].device.type == own.device.type
        return (lambda: args[0].copy_(own)) if there else None
    if packet is not _aten._to_copy or (own := of(args[0])) is None:
        return None
    wanted, dtype = given.get("device"), given.get("dtype")
    kept = given.get("memory_format") in (None, torch.preserve_format)
    there = wanted is not None and torch.device(wanted).type == own.device.type
    same = dtype is None or dtype is own.dtype
    return own.clone if there and same and kept else None


def own_of(value: Any) -> Any:
    """Return what a tensor of the call in progress was brought to, or None.

    One that was written to since is another one there.
    """
    own, version = _now.brought.get(id(value), (None, 0))
    return own if own is None or value._version == version else None


class _StandIn(torch.Tensor):  # type: ignore[misc]
    """A tensor of the CPU without values, in a capture."""

    own: Any
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def of(own: Any) -> _StandIn:
        """Return what stands for a tensor that was brought to the device."""
        made: _StandIn = torch.Tensor._make_wrapper_subclass(
            _StandIn, own.shape, strides=own.stride(), dtype=own.dtype, device="cpu"
        )
        made.own = own
        return made

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, _: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Copy it to the device; raise `CaptureError` for all else."""
        own: Callable[[Any], Any] = lambda x: x.own if type(x) is cls else None  # noqa: E731
        copy = copied(func.overloadpacket, args, kwargs or {}, own)
        if copy is not None:
            return copy()
        raise _refused(func.overloadpacket.__name__)


def _refused(what: str) -> Exception:
    watching = session.current()
    said = f"a tensor of the CPU that is passed is used on the host ({what})"
    if watching is not None:
        watching.refuse(said, _REMEDY)
    return RuntimeError(said)


class Hosted:
    """A function of tensors on the device, for one of tensors on the host.

    Those are the leaves at such ``places``.
    """

    def __init__(
        self, fn: Callable[..., Any], places: Sequence[int], calls: HostedCalls
    ) -> None:
        self.__wrapped__, self._places, self._calls = fn, places, calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function with what the call was passed, or what stands for it."""
        watching = session.current()
        if watching is None:
            self._calls.plain += 1
            given, named = _now.given
            return self.__wrapped__(*given, **named)
        leaves, structure = flatten((args, kwargs), torch.is_tensor)
        owns = [leaves[i] for i in self._places]
        if capturing():
            watching.stands_in = True
            for i, own in zip(self._places, owns, strict=True):
                leaves[i] = _StandIn.of(own)
            result = self._run(owns, leaves, unflatten(structure, leaves))
            if any(type(x) is _StandIn for x in flatten(result, torch.is_tensor)[0]):
                raise _refused("it is returned")
            return result
        before, form = flatten(_now.given, torch.is_tensor)
        result = self._run(owns, before, _now.given)
        after, now = flatten(_now.given, torch.is_tensor)
        if form != now or [*map(id, before)] != [*map(id, after)]:
            watching.refuse(
                "a list, dict or dataclass that is passed with a tensor of the CPU in "
                "it is changed",
                "Make a new one: batch = {k: v.to(device) for k, v in batch.items()}",
            )
        return result

    def _run(self, owns: Sequence[Any], leaves: Sequence[Any], given: Any) -> Any:
        args, kwargs = given
        hosts = [leaves[i] for i in self._places]
        there = zip(hosts, owns, strict=True)
        with _entered(brought={id(x): (own, x._version) for x, own in there}):
            return self.__wrapped__(*args, **kwargs)


@contextmanager
def _entered(**now: Any) -> Iterator[None]:
    before = {name: getattr(_now, name) for name in now}
    vars(_now).update(now)
    try:
        yield
    finally:
        vars(_now).update(before)


class HostedCalls:
    """Calls of a function that is passed tensors of the CPU.

    ``target`` gives it, and ``graph`` graphs functions; ``place`` is the device.
    ``plain`` are the calls that the function ran as it is, with nothing saved.
    """

    def __init__(
        self, target: Callable[[], Callable[..., Any]], graph: Graph, place: Any
    ) -> None:
        self._target, self._graph, self._place = target, graph, place
        self._functions: dict[tuple[int, ...], Callable[..., Any]] = {}
        self.calls = self.plain = 0

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any] | None:
        """Return the result of a call, alone; None where it is none of these."""
        if self.plain > max(_FEW, self.calls // 2):
            return None
        try:
            leaves, structure = flatten((args, kwargs), torch.is_tensor)
        except MisuseError:
            return None  # it has no end, for example
        places = tuple(i for i, each in enumerate(leaves) if _is_on_host(each))
        hosts = [leaves[i] for i in places]
        if not places or not all(map(_is_plain, hosts)):
            return None
        if len({*map(id, hosts)}) < len(hosts):
            return None  # stand-ins would not be one object
        if sum(each.nbytes for each in hosts) > _MOST:
            return None
        try:
            for i in places:
                leaves[i] = leaves[i].to(self._place)
        except torch.OutOfMemoryError:
            return None  # the function may bring less
        given, named = unflatten(structure, leaves)
        self.calls += 1
        with _entered(given=(args, kwargs)):
            return (self._function(places)(*given, **named),)

    def _function(self, places: tuple[int, ...]) -> Callable[..., Any]:
        if places not in self._functions:
            target = self._target
            self._functions[places] = self._graph(
                lambda: Hosted(target(), places, self), back=False
            )
        return self._functions[places]


def _is_on_host(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"


def _is_plain(tensor: Any) -> bool:
    """Return whether a tensor on the device says the same of itself."""
    plain = type(tensor) is torch.Tensor and has_bytes(tensor)
    lazy = tensor.requires_grad or tensor.is_conj() or tensor.is_neg()
    return plain and not lazy and tensor.is_contiguous() and not tensor.is_inference()
