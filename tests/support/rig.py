"""What fixtures are made of: a runtime behind every layer, poisoned, leak-checked.

A `Rig` is one runtime on one device, with all layers between them, so that a test can
count calls, make them fail, and see at the end that everything was given back. Its
variants differ in when work runs, and in what memory that nobody holds looks like.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, sleep
from typing import Any, Final, TypeVar, cast

from sapwood.driver.cuda import Cuda
from sapwood.driver.emulated import Emulated
from sapwood.driver.layers import Checked, Faulty, Layer, Recorded
from sapwood.errors import InternalError, SapwoodError
from sapwood.memory.pages import page_numbers
from sapwood.runtime.core import Runtime
from sapwood.units import Addr, Size
from tests.support.inexact import Inexact
from tests.support.lending import Lending, lend
from tests.support.relink import relink

__all__ = [
    "CUDA",
    "INEXACT",
    "IN_C",
    "VARIANTS",
    "Rig",
    "fast_replays_at_once",
    "poison_idle",
]

R = TypeVar("R")

VARIANTS: Final = ("restored", "latest", "random:1", "poisoned")
"""What every law runs on: a schedule each, recordings restored, idle memory poisoned.

The first and the last run work at once.
"""

INEXACT: Final = "inexact"
"""The variant of a rig whose device cannot tell addresses from numbers."""

IN_C: Final = "latest, in C"
"""The variant of a rig whose fast replays are played in C, as on a GPU."""

CUDA: Final = "cuda"
"""The variant of a rig on the first GPU, for those who have one."""

_TOTAL: Final = Size(1 << 28)
_PAGE: Final = Size(1 << 16)
_LATE: Final = 2.0
"""Seconds after which what a thread holds counts as a leak."""


class _Gone(Layer):
    """What is left of a device that is there no more: its calls do nothing."""

    def around(self, name: str, call: Callable[..., R], args: tuple[Any, ...]) -> R:
        del name, call, args
        nothing: Any = None
        return cast("R", nothing)


class Rig:
    """A runtime on an emulated device of ``total`` bytes, in pages of ``page``.

    ``variant`` is one of `VARIANTS`, or `INEXACT`, `IN_C`, or `CUDA`, which has a size
    of its own. From the runtime down: ``recorded``, ``faulty``,
    ``checked``, ``device``; poisoning passes the first two by. ``keep_calls`` has
    ``recorded`` remember calls with their arguments. ``arrays`` on a GPU are CuPy's,
    if not said otherwise. ``finished``: `finish` was called.
    """

    def __init__(
        self,
        variant: str,
        *,
        total: Size = _TOTAL,
        page: Size = _PAGE,
        memory_limit: int | None = None,
        keep_calls: bool = False,
        arrays: str | None = None,
    ) -> None:
        at_once = {"poisoned", "restored", INEXACT}
        schedule = "earliest" if variant in at_once else variant
        schedule = "latest" if variant == IN_C else schedule
        self.variant = variant
        self.finished = False
        self.device: Cuda | Emulated
        if variant == CUDA:
            self.device = Cuda()
        else:
            self.device = Emulated(total, page, schedule)
        inexact = variant == INEXACT
        self.checked = Checked(Inexact(self.device) if inexact else self.device)
        self.faulty = Faulty(self.checked)
        self.recorded = Recorded(self.faulty, keep=keep_calls)
        if variant == CUDA and arrays is None:
            arrays = "cupy"
        self.lending = Lending(self.recorded) if variant == IN_C else None
        self.runtime = Runtime(
            device=self.lending or self.recorded,
            memory_limit=memory_limit,
            arrays=arrays,
        )
        if self.lending is not None:
            lend(self.runtime)
        if variant == "poisoned":
            poison_idle(self.runtime, self.checked)
        if variant != "restored":
            fast_replays_at_once(self.runtime)
        self.relinked = relink(self.runtime) if variant == "restored" else Counter()

    def finish(self) -> None:
        """Close the runtime and the device, when the test has dropped its arrays.

        Raises `InternalError` where anything was not given back, `DriverError` where
        work had failed and nobody was told. Done once, it is done.
        """
        if self.finished:
            return
        self.finished = True
        self.faulty.plan = ()
        if not self.runtime.closed:
            self.runtime.synchronize()
        self.runtime.close()
        gc.collect()
        if self.variant == CUDA:
            self._wait_for_threads()
        self.check_leaks()
        self.device.close()

    def _wait_for_threads(self) -> None:
        """Wait, but not for long, until other threads have let go of their arrays.

        Autograd's lets go of a graph some time after ``backward`` has returned.
        """
        end = monotonic() + _LATE
        while any(self.device.live_handles().values()) and monotonic() < end:
            sleep(0.01)
            gc.collect()  # what they held may hold itself

    def abandon(self) -> None:
        """Give everything back by force, after a test that failed.

        Arrays that its traceback keeps may be dropped later, to no effect.
        """
        with suppress(SapwoodError):
            self.runtime.close()
        self.recorded.driver = _Gone(self.device)
        self.device.close()

    def check_leaks(self) -> None:
        """Raise `InternalError` if the driver is not as it was when it was opened."""
        held = {kind: n for kind, n in self.device.live_handles().items() if n}
        info = self.device.memory_info()
        # Others use the GPU's memory, too.
        if self.variant != CUDA and info.free != info.total:
            held["bytes"] = info.total - info.free
        if held or self.checked.leaks():
            raise InternalError(
                f"after close everything is given back, but these are held: {held}",
                {"device": held, "checked": self.checked.leaks()},
            )


def fast_replays_at_once(runtime: Runtime) -> None:
    """Have recordings played in C from their first replays on, where C can."""
    runtime._recordings.fast_from = 1


def poison_idle(runtime: Runtime, checked: Checked) -> None:
    """Have every page that no lease holds overwritten before each call.

    Whatever a recording expects there from an earlier one, it then finds destroyed.
    ``checked`` is the layer that the runtime's driver calls go through.
    """
    recordings = runtime._recordings

    def poison() -> None:
        live, page = recordings.device.pages.live, checked.abilities.page
        spans = {
            number: Addr(address + i * page)
            for range_ in recordings.ranges()
            for address, extent in range_.mappings()
            for i, number in enumerate(page_numbers(extent.mask))
            if not live >> number & 1
        }
        checked.poison((address, page) for address in spans.values())

    recordings.before_call = poison
