"""When work runs: at once, at the last moment, or at random moments.

Work given to a queue becomes an item after the item before it; waiting for an event
makes an item that is also after the event's. Draining runs what the waited-for items
depend on and nothing else, so that a missing wait shows. Nothing recurses, and items
that are done let go of what they depended on.

A failure belongs to its item and to all items after it; it is reported when somebody
gives work to, or waits for, such an item.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from itertools import count
from time import perf_counter
from typing import TypeVar

from sapwood.driver.results import Refusal, Result
from sapwood.errors import MisuseError

T = TypeVar("T")
Work = Callable[[], None]

_BURST = 4
"""At each submission a random schedule runs fewer items than this."""


class Item:
    """One piece of work and what it comes after."""

    __slots__ = ("after", "done", "error", "number", "time", "work")

    def __init__(self, number: int, work: Work | None, after: Iterable[Item]) -> None:
        self.number, self.work = number, work
        self.done = False
        self.error: Refusal | None = None
        self.time = 0.0
        self.after = tuple([each for each in after if each.error or not each.done])

    def run(self) -> None:
        """Run the work, unless something before it failed."""
        before, self.after = self.after, ()
        work, self.work = self.work, None
        self.error = next((each.error for each in before if each.error), None)
        try:
            if self.error is None and work is not None:
                work()
        except BaseException as error:
            self.error = _failure(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self.time = perf_counter()
            self.done = True


def _failure(error: BaseException) -> Refusal:
    """Return what to report for an exception that work raised."""
    if isinstance(error, Refusal):
        return Refusal(error.result, error.explanation)
    refusal = Result.LAUNCH_FAILED.refusal(
        f"a kernel or host function raised {type(error).__name__}: {error}. Its work "
        "is lost, and all that its stream was given since: mend it, and make a new "
        "runtime"
    )
    refusal.__cause__ = error
    return refusal


class Queue:
    """Items in order; ``tail`` is the last one, if any matters still."""

    __slots__ = ("closed", "pending", "tail")

    def __init__(self) -> None:
        self.closed = False
        self.tail: Item | None = None
        self.pending: deque[Item] = deque()

    @property
    def error(self) -> Refusal | None:
        """What failed in the queue's order."""
        return None if self.tail is None else self.tail.error


class Schedule:
    """A choice of when items run, over the queues of one device.

    This one runs nothing until somebody waits, and then the newest first where it may.
    """

    reorders = False
    """Ask `order` anew for each launch of a graph."""

    def __init__(self) -> None:
        self.queues: list[Queue] = []
        self._numbers = count()

    def open(self) -> Queue:
        """Return a new queue."""
        queue = Queue()
        self.queues.append(queue)
        return queue

    def close(self, queue: Queue) -> None:
        """Take no more work; what was given before still runs."""
        queue.closed = True
        if queue.tail is None or queue.tail.done:
            self.queues.remove(queue)

    def drain_all(self) -> Refusal | None:
        """Run everything; return what failed, if anything did."""
        self.drain([each.tail for each in self.queues[::-1] if each.tail is not None])
        failed = next((each.error for each in self.queues if each.error), None)
        self.queues = [each for each in self.queues if not each.closed]
        return failed

    def submit(self, queue: Queue, work: Work) -> None:
        """Give work to a queue."""
        self._append(queue, work, ())

    def mark(self, queue: Queue) -> Item:
        """Return an item that is done when all work given to the queue is."""
        return self._append(queue, None, ())

    def follow(self, queue: Queue, item: Item) -> None:
        """Order further work of the queue after ``item``."""
        if item.error or not item.done:
            self._append(queue, None, (item,))

    def drain(self, items: Iterable[Item]) -> None:
        """Run what these items depend on, and them."""
        before: dict[Item, list[Item]] = {}
        found = [each for each in items if not each.done]
        while found:
            item = found.pop()
            if item not in before:
                before[item] = [each for each in item.after if not each.done]
                found.extend(before[item])
        for item in _arranged(before, lambda of: self._pick([i.number for i in of])):
            item.run()

    def progress(self) -> None:
        """Run something, perhaps: somebody is polling."""

    def order(self, before: Sequence[Sequence[int]]) -> Sequence[int]:
        """Return an order of graph nodes, given what each comes after."""
        return tuple(_arranged(dict(enumerate(before)), self._pick))

    def _append(self, queue: Queue, work: Work | None, after: tuple[Item, ...]) -> Item:
        tail = () if queue.tail is None else (queue.tail,)
        item = queue.tail = Item(next(self._numbers), work, (*tail, *after))
        return item

    def _pick(self, ready: Sequence[int]) -> int:
        """Return the index of the number whose turn it is."""
        return ready.index(max(ready))


class _Earliest(Schedule):
    """Runs everything when it is submitted; so nothing ever has to wait."""

    def order(self, before: Sequence[Sequence[int]]) -> Sequence[int]:
        return range(len(before))

    def _append(self, queue: Queue, work: Work | None, after: tuple[Item, ...]) -> Item:
        item = super()._append(queue, work, after)
        item.run()
        return item


class _Random(Schedule):
    """Runs a random number of random items at each submission, by a seed."""

    reorders = True

    def __init__(self, seed: int) -> None:
        import random

        super().__init__()
        self._random = random.Random(seed)  # noqa: S311 (to be repeatable)

    def progress(self) -> None:
        for _ in range(self._random.randrange(_BURST)):
            ready = [queue for queue in self.queues if _is_ready(queue)]
            if not ready:
                return
            ready[self._random.randrange(len(ready))].pending.popleft().run()

    def _append(self, queue: Queue, work: Work | None, after: tuple[Item, ...]) -> Item:
        item = super()._append(queue, work, after)
        queue.pending.append(item)
        self.progress()
        return item

    def _pick(self, ready: Sequence[int]) -> int:
        return self._random.randrange(len(ready))


def _is_ready(queue: Queue) -> bool:
    pending = queue.pending
    while pending and pending[0].done:
        pending.popleft()
    return bool(pending) and all(each.done for each in pending[0].after)


def _arranged(
    before: Mapping[T, Sequence[T]], pick: Callable[[Sequence[T]], int]
) -> Iterator[T]:
    """Yield everything after what comes before it, choosing by ``pick``."""
    sorter = TopologicalSorter(before)
    sorter.prepare()
    ready = list(sorter.get_ready())
    while ready:
        each = ready.pop(pick(ready))
        yield each
        sorter.done(each)
        ready += sorter.get_ready()


def schedule_named(name: str) -> Schedule:
    """Return the schedule ``"earliest"``, ``"latest"`` or ``"random:<seed>"``."""
    kind, _, seed = name.partition(":")
    if name == "earliest":
        return _Earliest()
    if name == "latest":
        return Schedule()
    if kind == "random" and seed.isdigit():
        return _Random(int(seed))
    raise MisuseError(
        f"there is no schedule {name!r}: choose earliest, latest or random:<seed>"
    )


FIRST_HANDLE = 3
"""Handles begin behind the numbers of default streams."""
