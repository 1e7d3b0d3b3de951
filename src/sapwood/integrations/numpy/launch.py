"""The one way by which work on arrays reaches the device.

`launch` checks operands, orders the stream after their other uses, tells the session
in progress, and gives one kernel to the driver. `made` does so into new arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sapwood.driver.api import KernelOp
from sapwood.errors import MisuseError
from sapwood.integrations.numpy.bodies import together
from sapwood.integrations.numpy.faced import A, Faced
from sapwood.integrations.numpy.kernels import IMAGE, results
from sapwood.integrations.numpy.layout import check_dtype
from sapwood.integrations.numpy.packing import constants, pack
from sapwood.integrations.strided import Layout
from sapwood.memory.device import Device
from sapwood.tree.watch import session
from sapwood.units import Size


def launch(name: str, outs: Sequence[Faced], args: Sequence[Any]) -> None:
    """Run kernel ``name`` on the current stream, writing ``outs``.

    Raises `MisuseError` for operands of different devices, `StaleOutput` for revoked
    ones, and `ValueError` where an output is read-only.
    """
    ins = list(arrays_in(args))
    device = (ins[0] if ins else outs[0]).device
    for array in (*outs, *ins):
        if array.device is not device:
            raise MisuseError(
                f"numpy.{name.partition(':')[2] or name} got arrays of different "
                "devices; bring them to one with rt.array(numpy.asarray(x))"
            )
        array.storage.check()
    _check_writeable(outs)
    params = pack((*outs, *args), len(outs))
    function = device.function(IMAGE, name)
    watching = session.current()
    if watching is not None:
        watching.op(name, constants(params))
    stream = device.stream()
    for array in ins:
        array.storage.order_read(stream)
    for array in outs:
        array.storage.order_write(stream)
    device.driver.launch(KernelOp(function, params), stream.handle)


def _check_writeable(outs: Sequence[Faced]) -> None:
    if any(not out.layout.kind for out in outs):
        raise ValueError("the destination is read-only; write to a copy of it")


def needless(name: str, out: Faced, args: Sequence[Any]) -> None:
    """Tell the session of a kernel that is not run: here it would change nothing."""
    _check_writeable((out,))
    watching = session.current()
    if watching is not None:
        watching.needless(name, constants(pack((out, *args), 1)), out.span)


def arrays_in(values: Sequence[Any]) -> Iterator[Faced]:
    """Yield the device arrays among ``values`` and the tuples and slices in it."""
    for value in values:
        if isinstance(value, Faced):
            yield value
        elif type(value) is tuple:
            yield from arrays_in(value)
        elif isinstance(value, slice):
            yield from arrays_in((value.start, value.stop, value.step))


def empty(kind: type[A], device: Device, layout: Layout) -> A:
    """Return a new array of that layout, its elements undefined.

    Raises `TypeError` for a dtype that device arrays cannot have.
    """
    check_dtype(np.dtype(layout.dtype))
    low, high = layout.extent
    storage = device.allocate(Size(high - low))
    return kind(storage, device, layout, storage.address - low)


def made(
    like: A, name: str, args: Sequence[Any], given: Sequence[A | None] = (None,)
) -> tuple[A, ...]:
    """Run kernel ``name`` and return its outputs, new where ``given`` has None.

    Raises what NumPy raises for such shapes and dtypes, before anything has run.
    """
    return _made(like, name, args, given)[0]


def given_as(like: A, name: str, args: Sequence[Any], out: A | None) -> Any:
    """Run kernel ``name`` and return its outputs as NumPy's function does."""
    return together(*_made(like, name, args, (out,)))


def _made(
    like: A, name: str, args: Sequence[Any], given: Sequence[A | None]
) -> tuple[tuple[A, ...], type | None]:
    layouts, kind = results(name, pack((tuple(given), *args), bare=True))
    outs = tuple(
        empty(type(like), like.device, layout) if out is None else out
        for out, layout in zip((*given, *(None,) * len(layouts)), layouts, strict=False)
    )
    launch(name, outs, args)
    return outs, kind


def mutate(name: str, target: Faced, args: Sequence[Any]) -> None:
    """Run kernel ``name``, which writes into ``target``."""
    results(name, pack(((target,), *args), bare=True))
    launch(name, (target,), args)
