"""Who holds outputs: one lease per storage, which its last array ends, or `revoke`.

No recording that would clobber the pages of a lease is replayed. Outputs on the heap
(of warm-ups, of escapes) hold no pages; `revoke` ends them, too.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from sapwood.driver.streams import Stream
from sapwood.memory.pages import Pages
from sapwood.memory.range import Range
from sapwood.memory.storage import STREAM_EPOCH, Storage
from sapwood.units import Addr, Mask, Size

_rehearsing: ContextVar[bool] = ContextVar("sapwood_rehearsing", default=False)


@contextmanager
def rehearsal() -> Iterator[None]:
    """Return a context in which donation ends no lease, as for `Graphed.warm`."""
    token = _rehearsing.set(True)
    try:
        yield
    finally:
        _rehearsing.reset(token)


class Lease:
    """The token of an output's storage: the right to its pages.

    While it ``rests`` it holds none: nobody has the output, and it is to be made again.
    """

    __slots__ = ("leases", "mask", "range", "rests", "storage")

    def __init__(self, leases: Leases, range_: Range, mask: Mask) -> None:
        self.leases, self.range, self.mask = leases, range_, mask
        self.rests = False
        self.storage: weakref.ref[Storage] | None = None

    def ended(self, streams: tuple[Stream, ...]) -> None:
        self.leases.end(self, streams)


class Leases:
    """All leases of one runtime; used under its lock.

    ``crossing`` counts, for each storage that a call in parts has made, how many calls
    that are not over yet use it: `revoke` leaves those alone.
    """

    def __init__(self, pages: Pages) -> None:
        self.pages = pages
        self._held: dict[Lease, None] = {}
        self._loose: weakref.WeakSet[Storage] = weakref.WeakSet()
        self.crossing: Counter[Storage] = Counter()

    def __len__(self) -> int:
        return len(self._held)

    def begin(self, lease: Lease, storage: Storage) -> None:
        """Hold the pages of an output until its storage is gone."""
        lease.storage = weakref.ref(storage)
        # This order: an interrupt between the two leaves pages live for good, which
        # costs memory. The other order would end a lease that holds none.
        self.pages.hold(lease.mask)
        self._held[lease] = None

    def begin_loose(self, storage: Storage) -> None:
        """Remember an output in ordinary memory, to be revoked with the others."""
        self._loose.add(storage)

    def size(self) -> Size:
        """Return how many bytes the outputs have whose pages are held."""
        return Size(sum(storage.size for storage in self.addresses().values()))

    def addresses(self) -> dict[Addr, Storage]:
        """Return the outputs that are held, by their addresses."""
        return {storage.address: storage for storage in self._storages()}

    def _storages(self) -> list[Storage]:
        held = (each for each in self._held if not each.rests)
        found = [each.storage() for each in held if each.storage is not None]
        return [storage for storage in found if storage is not None]

    def end(self, lease: Lease, streams: tuple[Stream, ...]) -> None:
        """End a lease that nobody holds any more, unless it was revoked before."""
        if lease not in self._held:
            return
        del self._held[lease]
        self._leave(lease, streams)

    def _leave(self, lease: Lease, streams: tuple[Stream, ...]) -> None:
        if not lease.rests:
            # Streams may still be reading: who clobbers the pages next waits for them.
            self.pages.used(streams, lease.mask)
            self.pages.drop(lease.mask)

    def rest(self, storages: Iterable[Storage]) -> None:
        """Have outputs that nobody has hold no pages, till they are woken."""
        for storage in storages:
            lease = storage.token
            if isinstance(lease, Lease) and lease in self._held and not lease.rests:
                self._leave(lease, storage.users())
                lease.rests = True

    def wake(self, storages: Iterable[Storage]) -> None:
        """Have outputs hold their pages again, which nobody else holds by now."""
        for storage in storages:
            lease = storage.token
            if isinstance(lease, Lease) and lease in self._held and lease.rests:
                self.pages.hold(lease.mask)
                lease.rests = False

    def revoke(self, why: str, keep: Container[Storage]) -> None:
        """End all leases but those on the storages to ``keep``."""
        for storage in dict.fromkeys((*self._storages(), *self._loose)):
            if storage not in keep and storage not in self.crossing:
                self.revoke_one(storage, why)

    def cross(self, storages: Iterable[Storage]) -> None:
        """Keep these from `revoke`, for a call that has made them and is not over."""
        self.crossing.update(storages)

    def crossed(self, storages: Iterable[Storage]) -> None:
        """Undo one `cross`: the call is over."""
        self.crossing.subtract(storages)
        self.crossing = +self.crossing

    def donate(self, storage: Storage, function: str) -> None:
        """End the lease of an argument that was donated, unless it is a rehearsal."""
        if not _rehearsing.get():
            storage.remedy = "Use what that call returned, or pass it a copy"
            self.revoke_one(storage, f"it was donated to {function}")

    def revoke_one(self, storage: Storage, why: str) -> None:
        """End the lease on one storage: using it raises `StaleOutput` from now on."""
        storage.revoke(why)
        self.pages.revoked = True
        STREAM_EPOCH.advance()
        self._loose.discard(storage)
        if isinstance(storage.token, Lease):
            self.end(storage.token, storage.users())
