"""The emulated device: real virtual memory, queues of work, and kernels in Python.

It is stricter than hardware: wrong addresses, handles and captures are errors, fresh
memory is poisoned, and the schedule decides when work runs. Kernels run under the
device's lock, on the thread that lets them. A failure of work is reported as a GPU
does, by the next call that gives work to, or waits for, what comes after it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from itertools import count
from typing import Any, TypeVar

from sapwood.driver.api import Abilities
from sapwood.driver.emulated.flow import Flow
from sapwood.driver.emulated.memory import Memory
from sapwood.driver.emulated.physical import Physical
from sapwood.driver.emulated.schedules import FIRST_HANDLE, schedule_named
from sapwood.driver.emulated.window import WINDOW
from sapwood.driver.emulated.work import Work
from sapwood.driver.facade import Device
from sapwood.driver.results import Refusal, Result
from sapwood.errors import MisuseError
from sapwood.uncollected import uncollected
from sapwood.units import Size

R = TypeVar("R")

_TOTAL = Size(4 << 30)
_PAGE = Size(2 << 20)


class Emulated(Device):
    """A device made of this process's memory and Python functions.

    ``total`` is its physical memory and ``page`` the granule, in bytes. ``schedule``
    is ``"earliest"`` (work runs when it is submitted), ``"latest"`` (when somebody
    waits for it) or ``"random:<seed>"``. Not for use in a forked child. Raises
    `MisuseError` for a page or schedule that cannot be, `DriverError` where the
    system gives no memory.
    """

    def __init__(
        self, total: Size = _TOTAL, page: Size = _PAGE, schedule: str = "earliest"
    ) -> None:
        smallest = os.sysconf("SC_PAGE_SIZE")
        if page <= 0 or page % smallest:
            raise MisuseError(
                f"a page of {page} bytes cannot be mapped: choose a multiple of "
                f"{smallest}"
            )
        order, handles = schedule_named(schedule), count(FIRST_HANDLE)
        self._lock = threading.RLock()
        try:
            self._memory = memory = Memory(Physical(total), WINDOW, page, handles)
        except Refusal as refusal:
            raise refusal.error("open") from refusal.__cause__
        self._flow = flow = Flow(order, handles)
        work = Work(memory, flow, self._call_host, handles)
        abilities = Abilities("emulated", "emulated", page, exact_addresses=True)
        super().__init__(abilities, memory, flow, work, work, work)

    def around(self, name: str, call: Callable[..., R], args: tuple[Any, ...]) -> R:
        """Make a call: one at a time, its refusals named after it."""
        with self._lock:
            if self._barred is not None:
                raise self._barred.error(name)
            try:
                # A device in C has no finaliser run inside a call.
                return uncollected(object(), call, *args)
            except Refusal as refusal:
                raise refusal.error(name) from refusal.__cause__
            except OSError as error:
                raise Result.OUT_OF_MEMORY.refusal(
                    "the system gives no more memory or addresses "
                    f"({error.strerror}): give some back, or raise vm.max_map_count or "
                    "`ulimit -v`"
                ).error(name) from error

    def close(self) -> None:
        """Give all memory back to the system; closing again does nothing."""
        with self._lock:
            if self._barred is None:
                self._bar("the device was closed: open another one")
                self._memory.close()

    def orphan(self) -> None:
        """Refuse all further calls: this is a forked child, and not its device."""
        self._lock = threading.RLock()  # the old one may be held by a lost thread
        super().orphan()

    def open_foreign_stream(self) -> int:
        """Return the raw number of a new stream, as if another library had made it."""
        return self.around("open_foreign_stream", self._flow.open_foreign, ())

    def close_foreign_stream(self, raw: int) -> None:
        """End what `open_foreign_stream` gave; raises `DriverError` while adopted."""
        self.around("close_foreign_stream", self._flow.close_foreign, (raw,))

    def _call_host(self, call: Callable[[], None]) -> None:
        self._barred = Result.NOT_PERMITTED.refusal(
            "a host function runs, which may make no device call"
        )
        try:
            call()
        finally:
            self._barred = None
