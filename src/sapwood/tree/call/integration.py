"""What the tree asks of a framework: one `Integration` per framework.

Only an adapter sees the framework's arrays. Several may serve one call.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from operator import call, is_
from sys import getrefcount
from typing import Any, Final, NamedTuple, Protocol, Self
from weakref import ref

from sapwood.driver.streams import Stream
from sapwood.memory.storage import Storage
from sapwood.units import Addr

Array = Any
"""A framework's array; nobody but its adapter looks inside."""


class Layout(Hashable, Protocol):
    """Everything that tells two arrays apart but their addresses: a tuple.

    Shape, strides, dtype, whether the array is aligned, and whether it may be written.
    """

    @property
    def extent(self) -> tuple[int, int]:
        """The bytes that the elements lie in, from the first element's."""

    def packed(self, data: bytes) -> bytes:
        """Return the bytes of all elements in C order, of those they lie in."""

    def __iter__(self) -> Iterator[Any]: ...


class Look(NamedTuple):
    """What an array looks like, whose memory it is, and where its first element is."""

    layout: Layout
    storage: Storage
    address: Addr

    @property
    def low(self) -> Addr:
        """Where the bytes of the array begin."""
        return Addr(self.address + self.layout.extent[0])

    @property
    def span(self) -> tuple[Addr, Addr]:
        """The half-open byte interval that all elements lie in."""
        low, high = self.layout.extent
        return Addr(self.address + low), Addr(self.address + high)

    def checked(self) -> Self:
        """Return this. Raises `StaleOutput` where the memory was revoked."""
        if self.storage.stale is not None:
            self.storage.check()
        return self


Made = tuple[int, Any, Addr]
"""An array to be made: over which of the storages, its layout, and where."""


class Kept:
    """Storages that are kept, and what makes arrays over them.

    ``held`` are the objects that arrays refer to while they live: the storages, or
    what a framework has in their place, and ``had`` says which of them the ``makers``,
    one of each array, have as well. Other uses, which ``count`` tells of each of the
    ``numbers``, may be watched.
    """

    __slots__ = ("count", "held", "makers", "numbers", "others", "storages", "uses")

    def __init__(
        self,
        storages: Sequence[Storage],
        held: Sequence[Any],
        makers: Sequence[Callable[[], Any]],
        had: Sequence[int],
        count: Callable[[int], int] = int,
        numbers: Sequence[int] = (),
    ) -> None:
        self.storages, self.held, self.makers = storages, held, makers
        self.count, self.numbers = count, numbers
        # How many references there are while no array lives. It is computed from how
        # they are held, and not read with getrefcount here: a stray reference, such as
        # a frame's, would be counted as one that stays. When it ends, a user's array
        # would go unseen, and its bytes be overwritten.
        self.uses = [1 + had.count(k) for k in range(len(held))]
        self.others = [*map(count, numbers)]

    def is_only(self, stream: Stream) -> bool:
        """Return whether this stream alone has used the storages, and all are valid."""
        return all(
            storage.writer is stream
            and not storage.readers
            and storage.stale is None
            and all(other is stream for other in storage.stream_uses)
            for storage in self.storages
        )

    def is_idle(self) -> bool:
        """Return whether nobody else has any of the storages."""
        uses = [counted - _COUNTING for counted in map(getrefcount, self.held)]
        return uses == self.uses and [*map(self.count, self.numbers)] == self.others


_COUNTING: Final = next(map(getrefcount, [object()])) - 1
"""References that counting makes itself."""


class Probe(Protocol):
    """Says of arrays, again and again, whether they look as some did, and where.

    ``lows`` is where the bytes of those began.
    """

    @property
    def lows(self) -> Sequence[Addr]: ...

    def __call__(self, arrays: Sequence[Any], /) -> Sequence[Addr] | None:
        """Return where as many arrays begin; None where one has another layout.

        ``lows`` itself where they are the same objects, and where they were. Values
        that are no arrays have another layout. May raise `StaleOutput`.
        """


class LayoutProbe:
    """Compares layouts, but for the same objects that a test finds ``steady``.

    That tells of the same objects whether they have been given another layout, or
    other memory; without any, they cannot. In another ``mode`` than it was made in no
    array is as it was.
    """

    __slots__ = (
        *("_integration", "_layouts", "_made_in", "_mode", "_references", "_steady"),
        "lows",
    )

    def __init__(
        self,
        integration: Integration,
        arrays: Sequence[Array],
        steady: Callable[[Sequence[Array]], bool] | None = None,
        mode: Callable[[], bool] = bool,
    ) -> None:
        looks = [*map(integration.look, arrays)]
        self._integration, self._steady = integration, steady
        self._mode, self._made_in = mode, mode()
        self._layouts = [look.layout for look in looks]
        self._references = [*map(ref, arrays)]
        self.lows: Sequence[Addr] = [look.low for look in looks]

    def __call__(self, arrays: Sequence[Any], /) -> Sequence[Addr] | None:
        """Return where arrays begin, as a `Probe` does."""
        references = self._references
        if len(references) != len(arrays) or self._mode() != self._made_in:
            return None
        same = all(map(is_, map(call, references), arrays))
        # Of an array that is gone, a reference gives what may be passed in its place.
        same = same and not any(each is None for each in arrays)
        if same and (self._steady is None or self._steady(arrays)):
            return self.lows
        if not all(map(self._integration.is_array, arrays)):
            return None
        looks = [self._integration.look(array).checked() for array in arrays]
        if [look.layout for look in looks] != self._layouts:
            return None
        lows = [look.low for look in looks]
        return self.lows if same and lows == self.lows else lows


def _unkept(layout: Any) -> Any:
    raise ValueError(f"{layout} describes an array: none is kept in files here")


def _unkept_kernel(name: str, params: bytes) -> None:
    del params
    raise ValueError(f"{name} is a framework's own kernel: none is kept in files")


class Files(NamedTuple):
    """How a framework's arrays and kernels are kept in files, for other processes.

    ``dump`` gives a layout as plain values, and ``load`` the layout that was dumped:
    for anything else it raises `ValueError`, `TypeError` or `OverflowError`.
    ``check_op`` raises `ValueError` where a kernel would not take parameters like
    these: addresses in them are not looked at, nor what is there.
    """

    dump: Callable[[Layout], Any] = _unkept
    load: Callable[[Any], Layout] = _unkept
    check_op: Callable[[str, bytes], None] = _unkept_kernel


class Integration(Protocol):
    """One framework's arrays, as the tree needs them.

    What is written out here holds for frameworks that have nothing to say of it.
    """

    files: Files = Files()

    def is_array(self, value: object) -> bool:
        """Return whether ``value`` is a device array of this framework."""

    def surroundings(self) -> Iterable[tuple[str, object]]:
        """Return what every function reads of the framework, by its path."""
        return ()

    def refuse(self, value: object) -> None:
        """Raise where a value may not be an argument: `TypeError` or `MisuseError`.

        Such as a host array, or an array of another runtime.
        """

    def look(self, array: Array) -> Look:
        """Return what an array looks like, and where; also of one that is stale."""

    def probe(self, arrays: Sequence[Array]) -> Probe:
        """Return what says of arrays whether they look as these, and where they are."""

    def probe_guarded(self, arrays: Sequence[Array]) -> Probe:
        """Return the same of arguments; others have guarded what takes long to tell."""
        return self.probe(arrays)

    def versions(self, arrays: Sequence[Array]) -> list[tuple[Any, int]] | None:
        """Return, of each array, its place and how often it was written.

        None where nobody counts that.
        """
        del arrays
        return None

    def make(self, layout: Any, storage: Storage, address: Addr) -> Array:
        """Return a fresh array of that layout, at ``address`` in ``storage``."""

    def keep(self, storages: Sequence[Storage], arrays: Sequence[Made]) -> Kept:
        """Return new storages kept, to make these arrays over them again and again."""
        makers = [
            partial(self.make, layout, storages[k], address)
            for k, layout, address in arrays
        ]
        return Kept(storages, storages, makers, [k for k, *_ in arrays])

    def is_bare(self, array: Array) -> bool:
        """Return whether an array is no more than its bytes, and how they are viewed.

        Then another one like it can stand in for it.
        """
        del array
        return True


def text_of(array: Array) -> str:
    """Return what an array is, briefly: ``float32[64, 10]``."""
    return f"{str(array.dtype).removeprefix('torch.')}{list(array.shape)}"


def reach(
    shape: Sequence[int], strides: Sequence[int], itemsize: int
) -> tuple[int, int]:
    """Return the bytes ``[lo, hi)`` of all elements, from the first one's."""
    if 0 in shape:
        return 0, 0
    steps = [(n - 1) * step for n, step in zip(shape, strides, strict=True)]
    low = sum(step for step in steps if step < 0)
    return low, sum(step for step in steps if step > 0) + itemsize


def host_array(array: Any) -> str:
    """Say why a host array may not be an argument: a copy of it would go unseen."""
    return (
        f"a host array of {text_of(array)} is an argument of a graphed function. Bring "
        "it to the device with rt.array(...) first"
    )


def foreign_tensor(instead: str) -> str:
    """Say why a tensor of torch may not be an argument among other arrays."""
    return f"a tensor of torch is an argument, and this runtime has others. {instead}"
