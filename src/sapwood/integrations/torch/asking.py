"""What sessions are told of that is no operation of torch's.

Who asks whether a capture is on does other work in one: libraries leave out what waits
for the device, for example. And random generators are set, which no replay would do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, Final, TypeAlias

import torch
from torch.utils import checkpoint

from sapwood.tree.watch.session import served

SEEDED: Final = (
    (
        "a random generator is set inside, or its state is read (manual_seed, "
        "get_rng_state, checkpoint), which no replay would repeat"
    ),
    "Do so outside the graphed function; give checkpoint(…) preserve_rng_state=False",
)

_States: TypeAlias = tuple[list[int], list[torch.Tensor]]

_Place: TypeAlias = tuple[int, int]
"""The seed of a generator, and how far on it is."""

_drawn_from: Final[dict[torch.Generator, tuple[int, _Place]]] = {}
"""Generators of users that functions drew from last, by which thread, and from where.

Captures of that thread know them: torch refuses a draw from any other in there. Before
2.12, nothing refers to one weakly.
"""
_KNOWN: Final = 64
_lock: Final = threading.Lock()

_swaps: Final = threading.local()

_NAME: Final = "_cuda_isCurrentStreamCapturing"
capturing: Final[Callable[[], bool]] = getattr(torch._C, _NAME)
"""Returns whether this thread's current stream is capturing; nobody is told."""


@cache
def notice_askers() -> None:
    """Have sessions told of everybody who asks or sets a state, from now on.

    Names that code has bound to torch's functions still lead here: those look this one
    up when they are called.
    """
    asked = _noticing_of(getattr(torch.cuda.graphs, _NAME))
    for module in (torch._C, torch.cuda.graphs):
        setattr(module, _NAME, asked)
    stream: Any = torch.cuda.Stream
    if hasattr(stream, "is_capturing"):
        stream.is_capturing = _noticing_of(stream.is_capturing)
    torch.cuda.random._lazy_call = _refusing(torch.cuda.random._lazy_call)
    checkpoint.get_device_states = _reading(checkpoint.get_device_states)
    checkpoint.set_device_states = _setting(checkpoint.set_device_states)
    torch.cuda.default_generators = _Generators(torch.cuda.default_generators)


def generator_of(place: torch.device) -> torch.Generator:
    """Return the default generator of a GPU; nobody is told."""
    return tuple.__getitem__(torch.cuda.default_generators, place.index)


def draws_from(generator: torch.Generator, thread: int) -> None:
    """Note, before it does, that a function of a thread draws from a generator."""
    if _is_usual(generator):
        return
    with _lock:
        by, first = _drawn_from.pop(generator, (None, None))
        if by != thread or first is None:
            first = place_in(generator)
        if len(_drawn_from) == _KNOWN:
            del _drawn_from[next(iter(_drawn_from))]
        _drawn_from[generator] = thread, first


def is_known(generator: torch.Generator, thread: int) -> bool:
    """Return whether captures of a thread know a generator."""
    return _is_usual(generator) or _drawn_from.get(generator, (None,))[0] == thread


def _is_usual(generator: torch.Generator) -> bool:
    # Torch makes another object of one that it names itself, as layers of cuDNN do.
    usual = tuple.__iter__(torch.cuda.default_generators)
    return any(each._cdata == generator._cdata for each in usual)


def generators_of(place: torch.device) -> list[torch.Generator]:
    """Return what functions of this thread draw from on a GPU; first its default."""
    return [generator_of(place), *_own(place)]


def _own(place: torch.device) -> dict[torch.Generator, _Place]:
    """Return this thread's generators but the default one, and where each was first."""
    with _lock:
        known = list(_drawn_from.items())
    # One that is made for "cuda" has no number, and draws on any device.
    here, me = (place.index, None), threading.get_ident()
    return {
        generator: first
        for generator, (thread, first) in known
        if thread == me and generator.device.index in here
    }


def place_in(generator: torch.Generator) -> _Place:
    """Return the seed of a GPU's generator, and how far on it is."""
    return generator.initial_seed(), generator.get_offset()


def rewind(generator: torch.Generator, seed: int, offset: int) -> None:
    """Set the seed and the offset of a GPU's generator, which are all its state.

    Setting either makes cuDNN's dropout begin anew, even where it is as it was: so it
    is not set then.
    """
    if place_in(generator) != (seed, offset):
        generator.manual_seed(seed)
        generator.set_offset(offset)


def kept_generators(place: torch.device) -> Callable[[], None]:
    """Return what rewinds the generators of this thread to where they are now."""
    return partial(_put_back, place, {g: place_in(g) for g in generators_of(place)})


def _put_back(place: torch.device, before: dict[torch.Generator, _Place]) -> None:
    # One that was drawn from first since then goes back to before its first draw.
    for generator, (seed, offset) in (_own(place) | before).items():
        rewind(generator, seed, offset)


@contextmanager
def swapping() -> Iterator[None]:
    """Let torch put another generator in the default one's place, and back."""
    _swaps.on = True
    try:
        yield
    finally:
        _swaps.on = False


def _noticing_of(ask: Callable[..., bool]) -> Callable[..., bool]:
    def asked(*args: Any) -> bool:
        session = served()
        if session is None:
            return ask(*args)
        session.asked()
        return session.as_captured or ask(*args)

    return asked


def _refusing(call: Callable[..., None]) -> Callable[..., None]:
    """Return what torch has all states of its generators set by."""

    def called(*args: Any, **kwargs: Any) -> None:
        _refuse_seeds()
        call(*args, **kwargs)

    return called


def _reading(read: Callable[..., _States]) -> Callable[..., _States]:
    """Return what checkpoints read the states of generators by.

    No capture knows them. Where nothing draws from one until it is set back, that does
    nothing: a warm-up shows it.
    """

    def states(*args: Any) -> _States:
        return ([], []) if served() is not None and capturing() else read(*args)

    return states


def _setting(set_back: Callable[..., None]) -> Callable[..., None]:
    """Return what checkpoints set the states back by, before they run a part again."""

    def set_states(devices: Any, states: Any, **options: Any) -> None:
        session = served()
        for device, state in zip(devices, states, strict=True) if session else ():
            known = generator_of(torch.device("cuda", device)).get_state()
            if session is not None and bytes(known.numpy()) != bytes(state.numpy()):
                session.refuse(*SEEDED)
        set_back(devices, states, **options)

    return set_states


class _Generators(tuple[torch.Generator, ...]):
    """The GPUs' default generators, which captures are not to come by.

    Their methods cannot be replaced. While a capture is on, torch lets `manual_seed`
    pass that sets the seed which is set, and does nothing: a replay would draw other
    numbers.
    """

    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        _refuse_seeds()
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[torch.Generator]:
        _refuse_seeds()
        return super().__iter__()


def _refuse_seeds() -> None:
    session = None if getattr(_swaps, "on", False) else served()
    # A compiler sets states back in a warm-up; whether the function does it each time,
    # the capture shows.
    if session is not None and not session.rehearses:
        session.refuse(*SEEDED)
