"""Segments of one address range, served by two C functions of its own.

For libraries that ask for device memory while they hold a lock: a call into Python
there could wait for a thread that waits for that lock. The addresses must be mapped
beforehand; nothing here touches them.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, fields
from typing import Final, Literal, get_args

from sapwood import _fast
from sapwood.errors import MisuseError
from sapwood.units import Addr, Size, hex_address, size_text

PAGE: Final = Size(2 << 20)

What = Literal["served", "refused", "returned", "stray"]
_WHAT: Final[tuple[What, ...]] = get_args(What)
"""What C counts from 1."""

_WORD: Final = ctypes.c_uint64


class _Entry(ctypes.Structure):
    _fields_ = [(name, _WORD) for name in ("address", "size", "stream", "what")]


@dataclass(frozen=True, slots=True)
class Request:
    """One call of a range's functions; ``stream`` is the caller's raw pointer.

    A ``stray`` is an address given back where no segment begins. A ``refused`` request
    has no address.
    """

    what: What
    address: Addr
    size: Size
    stream: int


@dataclass(frozen=True, slots=True)
class SegmentCounters:
    """What a range has served so far, in requests, and now, in segments and bytes.

    ``wanted`` is the largest request that was refused; ``logged`` counts the requests
    of which the log keeps the first.
    """

    served: int
    refused: int
    returned: int
    strays: int
    held: int
    held_bytes: Size
    peak_bytes: Size
    wanted: Size
    logged: int


class _Counters(ctypes.Structure):
    _fields_ = [(each.name, _WORD) for each in fields(SegmentCounters)]


class Segments:
    """An address range, cut into segments of whole pages by whoever calls `serve`.

    ``serve`` is the address of a C function ``void *(size_t, int device, void
    *stream)`` that returns NULL where nothing fits, ``take_back`` that of a
    ``void (void *, size_t, int device, void *stream)``. Both may be called on any
    thread, under any lock. ``symbols`` are the file that they are in, and their names.
    If it ``shares`` them, they serve whose turn it is.
    """

    def __init__(
        self, library: ctypes.CDLL, slot: int, device: int, base: Addr, size: Size
    ) -> None:
        self._library, self._slot, self._device = library, slot, device
        self.shares: bool = slot >= library.sapwood_slots()
        self.base, self.size = base, size
        number = "shared" if self.shares else f"0x{slot:03X}"
        self.symbols = (
            str(_fast.path("_segments")),
            f"sapwood_serve_{number}",
            f"sapwood_take_back_{number}",
        )
        self.serve, self.take_back = (
            ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
            for name in self.symbols[1:]
        )
        self.closed = False

    def begin(self) -> None:
        """Have the shared functions serve the range's device from here, until `rest`.

        One range at a time: whoever calls sees to that. Raises `MisuseError` for a
        range that has functions of its own.
        """
        self._check_open()
        if not self.shares:
            raise MisuseError(
                f"the range at {hex_address(self.base)} has functions of its own. Open "
                "one with shares=True"
            )
        self._library.sapwood_turn(self._device, self._slot, True)

    def rest(self) -> None:
        """Have the shared functions serve from here no more."""
        self._library.sapwood_turn(self._device, self._slot, False)

    def counters(self) -> SegmentCounters:
        """Return what was served so far, and what is out now."""
        self._check_open()
        now = _Counters()
        self._library.sapwood_count(self._slot, ctypes.byref(now))
        return SegmentCounters(*(getattr(now, of[0]) for of in _Counters._fields_))

    def log(self, start: int = 0) -> tuple[Request, ...]:
        """Return the requests from number ``start`` on, in their order."""
        count = self.counters().logged - start
        if count <= 0:
            return ()
        entries = (_Entry * count)()
        found = self._library.sapwood_read_log(self._slot, start, count, entries)
        return tuple(
            Request(_WHAT[entry.what - 1], entry.address, entry.size, entry.stream)
            for entry in entries[:found]
        )

    def settle(self) -> None:
        """Let all streams have what was given back; its work is over by now."""
        self._check_open()
        self._library.sapwood_settle(self._slot)

    def reset(self) -> None:
        """Begin anew, counters and log too; the work of all segments is over by now.

        Raises `MisuseError` while segments are out.
        """
        self._check_open()
        self._refuse_held(self._library.sapwood_reset(self._slot))

    def close(self) -> None:
        """End the range; its functions then serve nothing, until another one has them.

        Closing again does nothing. Raises `MisuseError` while segments are out.
        """
        if not self.closed:
            self._refuse_held(self._library.sapwood_close(self._slot))
            self.closed = True

    def _refuse_held(self, held: int) -> None:
        if held:
            raise MisuseError(
                f"{held} segments of the range at {hex_address(self.base)} are still "
                "out. Drop what was allocated from them, and have its library give "
                "cached memory back (torch.cuda.empty_cache())"
            )

    def _check_open(self) -> None:
        if self.closed:
            raise MisuseError(
                f"the range at {hex_address(self.base)} is closed. Open another one"
            )

    def __repr__(self) -> str:
        return f"<Segments {hex_address(self.base)}, {size_text(self.size)}>"


def open_segments(
    base: Addr,
    size: Size,
    *,
    device: int = 0,
    page: Size = PAGE,
    reuse: bool = True,
    log: int = 4096,
    shares: bool = False,
) -> Segments:
    """Return ``[base, base + size)`` as a range that C functions serve segments of.

    Segments are whole pages at multiples of ``page``; requests for another ``device``
    are refused. With ``reuse``, what was given back goes to requests of its stream,
    and to others after `Segments.settle`; without, every segment has addresses of its
    own. The first ``log`` requests are kept. One that ``shares`` its functions with all
    others that do is served from between `Segments.begin` and `Segments.rest`; of those
    there may be any number. Raises `MisuseError` for a range that is not whole pages,
    where the C was not built, and where 1024 ranges of the other kind are open.
    """
    _check_pages(base, size, page)
    library = _declared(_fast.segments())
    if shares and not 0 <= device < library.sapwood_devices():
        raise MisuseError(
            f"GPU {device} has no turns: there are {library.sapwood_devices()} GPUs at "
            "most whose ranges share functions. Leave shares=True out"
        )
    pages = size // page
    slot = library.sapwood_open(base, page, pages, device, reuse, log, shares)
    if slot == -1:
        raise MisuseError(
            f"{library.sapwood_slots()} ranges of segments are open. Close some of them"
        )
    if slot < 0:
        raise MemoryError(
            f"the host has no memory for the tables of {size // page} pages and "
            f"{log} requests. Open a smaller range, or keep fewer requests"
        )
    return Segments(library, slot, device, base, size)


def _check_pages(base: Addr, size: Size, page: Size) -> None:
    whole = page > 0 < base and not base % page and not size % page
    if not whole or not 0 < size // page < 1 << 32:
        raise MisuseError(
            f"[{hex_address(base)}, {hex_address(base + size)}) is not some whole "
            f"pages of {size_text(page)}. Align both ends"
        )


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    """Return the library, told what its functions take and return."""
    number, size, address = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
    for name, result, arguments in (
        ("open", number, (_WORD, size, size, number, number, size, number)),
        ("turn", None, (number, number, number)),
        ("slots", number, ()),
        ("devices", number, ()),
        ("count", None, (number, address)),
        ("read_log", size, (number, size, size, address)),
        ("settle", None, (number,)),
        ("reset", _WORD, (number,)),
        ("close", _WORD, (number,)),
    ):
        function = getattr(library, f"sapwood_{name}")
        function.restype, function.argtypes = result, arguments
    return library
