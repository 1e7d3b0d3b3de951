"""Several stores as one: memory, a folder, and what machines share.

The nearest is asked and told at once. The others are asked on threads, until a
deadline, and told in the background; one that keeps failing is left alone for a while.
So a tier that is slow or dead costs a call a miss, and at most the deadline.
"""

from __future__ import annotations

import atexit
import errno
import logging
import math
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Event, Lock, Thread
from typing import Any, Final, Self
from weakref import WeakSet

from sapwood import knobs
from sapwood.errors import MisuseError, StoreError, words
from sapwood.persist.api import Item, Store, check_name
from sapwood.persist.disk import opened
from sapwood.persist.flight import RENEWED, Lease
from sapwood.persist.key import BLOB

_FAILURES: Final = 3
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0
"""A tier that failed so often in a row is left alone for so many seconds."""

_UNWELL: Final = frozenset({"errors", "late"})
_UNTRIED: Final = frozenset({"dropped", "skipped"})


@dataclass(eq=False, slots=True)
class _Job:
    """What a tier is to do for a name until some time, and what it answers.

    ``kind``: how it is counted where all is well. ``value``: what is put. ``then`` gets
    an answer, also a late one.
    """

    kind: str
    work: Callable[[], Any]
    name: str = ""
    value: bytes | None = None
    until: float = math.inf
    then: Callable[[Any], None] | None = None
    answer: Any = None
    is_answered: bool = False
    is_counted: bool = False
    done: Event = field(default_factory=Event)


class _Line:
    """Jobs that are run one after the other, on a thread that ends with the last."""

    def __init__(self, run: Callable[[_Job], None], most: int) -> None:
        self._run, self._most = run, most
        self._jobs: deque[_Job] = deque()
        self._lock = Lock()
        self._thread: Thread | None = None

    def forked(self) -> None:
        """Take note that this is a child: the thread, and who has the lock, is not."""
        self._lock, self._thread = Lock(), None

    def add(self, job: _Job) -> bool:
        """Have a job run some time, if not too many wait; return whether it will be."""
        with self._lock:
            if len(self._jobs) >= self._most:
                return False
            self._jobs.append(job)
            if self._thread is None or not self._thread.is_alive():
                self._thread = Thread(target=self._run_all, daemon=True)
                with suppress(RuntimeError):  # the process ends, or has too many
                    self._thread.start()
            return True

    def last(self, name: str | None = None) -> _Job | None:
        """Return the last job that is not done, of those for ``name`` or of all."""
        with self._lock:
            for job in reversed(self._jobs):
                if name in {None, job.name}:
                    return job
        return None

    def _run_all(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._thread = None
                    return
                job = self._jobs[0]
            self._run(job)
            with self._lock:
                self._jobs.popleft()
            job.done.set()


class _Far:
    """A tier that may be slow or dead: ``store``, asked on a thread, told on another.

    ``tally`` counts what became of each question and each write.
    """

    def __init__(self, store: Store, pending: int) -> None:
        self.store = store
        self.tally: Counter[str] = Counter()
        self._asked = _Line(self._run, pending)
        self.told = _Line(self._run, pending)
        self._lock = Lock()
        self._failures, self._pause, self._until = 0, _FIRST_PAUSE, 0.0

    def forked(self) -> None:
        """Take note that this is a child."""
        self._lock = Lock()
        self._asked.forked()
        self.told.forked()

    def get(
        self, name: str, until: float, then: Callable[[Any], None]
    ) -> tuple[Any, bool]:
        """Return a value, or None, and whether the store has said so in time."""
        waits = self.told.last(name)
        if waits is not None:
            return waits.value, True
        job = _Job("", partial(self.store.get, name), name, None, until, then)
        return self.ask(job), job.is_answered

    def ask(self, job: _Job) -> Any:
        """Return the answer to a question, or None: none, an error, or late."""
        if not _left(job.until) or not self._may_try():
            self._count(job, "skipped")
        elif not self._asked.add(job) or not job.done.wait(_left(job.until)):
            self._count(job, "late", "no answer in time")
        return job.answer

    def tell(self, name: str, value: bytes | None) -> _Job | None:
        """Have a value put, or the name deleted; None where too much waits."""
        job = _Job("deletes", partial(self.store.delete, name), name)
        if value is not None:
            job = _Job("puts", partial(self.store.put, name, value), name, value)
        if self.told.add(job):
            return job
        self._count(job, "dropped")
        return None

    def _run(self, job: _Job) -> None:
        is_write = job.until == math.inf
        if time.monotonic() > job.until or (is_write and not self._may_try()):
            self._count(job, "dropped")
            return
        why = ""
        try:
            job.answer, job.is_answered = job.work(), True
            outcome = job.kind or ("misses" if job.answer is None else "hits")
            if job.then is not None and job.answer is not None:
                job.then(job.answer)
        except Exception as error:  # noqa: BLE001 - stores are of any kind
            outcome, why = _outcome(error), words(error)
        self._count(job, outcome, why)

    def _may_try(self) -> bool:
        """Return whether it is not left alone; once after a pause, which is renewed."""
        with self._lock:
            now = time.monotonic()
            if self._failures < _FAILURES:
                return True
            if now < self._until:
                return False
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            self._until = now + self._pause
            return True

    def _count(self, job: _Job, outcome: str, why: str = "") -> None:
        """Count a job once, however many know how it went; begin or end a pause."""
        with self._lock:
            if job.is_counted:
                return
            job.is_counted = True
            self.tally[outcome] += 1
            if outcome in _UNWELL:
                self._failures += 1
            elif outcome not in _UNTRIED:
                self._failures, self._pause = 0, _FIRST_PAUSE
            if outcome not in _UNWELL or self._failures != _FAILURES:
                return
            self._until = time.monotonic() + self._pause
        where = getattr(self.store, "path", type(self.store).__name__)
        said = f"{where} is left alone for a while: {why}"
        logging.getLogger("sapwood").warning("%s", said)


@dataclass(eq=False)
class _Question:
    """A name that is asked for; not ``fresh`` once it was put or deleted since."""

    name: str
    fresh: bool = True


class Tiers:
    """Keeps values in several stores, the nearest first; a path is a folder's.

    What one has is put into those nearer, also where it comes too late for its call.
    ``deadline``: seconds that a call waits for all stores but the first. ``pending``:
    how many values may wait to be put into each of them; what is more is dropped.
    `put` raises only where no store is left to take a value, `get` and `scan` what the
    first raises, and `get` of a blob where not all have answered. A folder in it holds
    what others have put into the stores behind it, and is to be trusted no more than
    they are.
    """

    def __init__(
        self,
        *stores: Store | str | os.PathLike[str],
        deadline: float = 0.5,
        pending: int = 64,
    ) -> None:
        are_numbers = type(deadline) in {int, float} and type(pending) is int
        if not (stores and are_numbers and 0 < deadline < math.inf and pending >= 1):
            raise MisuseError(
                f"{len(stores)} stores, deadline={deadline!r} and pending={pending!r} "
                "make no tiers. Pass a store or more, some seconds, and 1 or more"
            )
        limit = knobs.current().store_limit
        self.stores = tuple(opened(each, limit) for each in stores)
        self.deadline = deadline
        self._near = self.stores[0]
        self._far = [_Far(store, pending) for store in self.stores[1:]]
        self._questions: WeakSet[_Question] = WeakSet()
        self._lock = Lock()
        _alive.add(self)

    def get(self, name: str) -> bytes | None:
        check_name(name)
        question = _Question(name)
        with self._lock:
            self._questions.add(question)
        value, trouble = _tried(self._near.get, name)
        until, answered = self._until(), True
        for depth, tier in enumerate(self._far):
            if value is None:
                then = partial(self._fill, question, depth)
                value, told = tier.get(name, until, then)
                answered &= told
        if value is None and not answered and name.startswith(BLOB):
            # Whoever takes it for gone forgets the manifest that names it, for all.
            trouble = trouble or OSError(f"no store has said that {name} is not there")
        if value is None and trouble is not None:
            raise trouble
        found: bytes | None = value
        return found

    def _fill(self, question: _Question, depth: int, value: bytes) -> None:
        """Put what a tier had into those nearer, unless there is something newer."""
        with self._lock:
            if question.fresh:
                _tried(self._near.put, question.name, value)
                for tier in self._far[:depth]:
                    tier.tell(question.name, value)

    def put(self, name: str, value: bytes) -> None:
        check_name(name)
        with self._lock:
            self._overtake(name)
            _, refusal = _tried(self._near.put, name, value)
            told = [tier.tell(name, value) for tier in self._far]
            if refusal is not None:
                if not any(told):
                    raise refusal
                _tried(self._near.delete, name)  # it has the value before, if any

    def delete(self, name: str) -> bool:
        check_name(name)
        until = self._until()
        with self._lock:
            self._overtake(name)
            found, _ = _tried(self._near.delete, name)
            told = [tier.tell(name, None) for tier in self._far]
        for job in told:
            if job is not None and job.done.wait(_left(until)):
                found = found or job.answer
        return bool(found)

    def _overtake(self, name: str) -> None:
        """Have late answers about a name put nowhere: they say what was before."""
        for question in self._questions:
            if question.name == name:
                question.fresh = False

    def scan(self) -> Iterator[Item]:
        until, found = self._until(), list(self._near.scan())
        for tier in self._far:
            items = partial(_items, tier.store)
            found += tier.ask(_Job("scans", items, until=until)) or ()
        yield from {item.name: item for item in reversed(found)}.values()

    def lease(self, name: str) -> Lease | None:
        """Return a lease from the store that most share; None: it is taken.

        Raises `OSError` where none grants any now.
        """
        check_name(name)
        until = self._until()
        for tier in reversed(self._far):
            if hasattr(tier.store, "lease"):
                ask = partial(_leased, tier.store, name)
                end = partial(_end_late, until)
                answer = tier.ask(_Job("leases", ask, until=until, then=end))
                if answer is not None:
                    return answer[0] and _AfterPuts(answer[0], tier)
        if not hasattr(self._near, "lease"):
            raise OSError("none of these stores grants leases")
        nearest: Lease | None = self._near.lease(name)
        return nearest

    def stats(self) -> list[dict[str, int]]:
        """Return what became of questions and writes to each store but the first."""
        return [dict(sorted(tier.tally.items())) for tier in self._far]

    def close(self) -> bool:
        """Wait until the deadline for what is to be put; return whether all of it is.

        It may be used again afterwards. Where a process ends, this is called.
        """
        until = self._until()
        last = [tier.told.last() for tier in self._far]
        return all(job is None or job.done.wait(_left(until)) for job in last)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def forked(self) -> None:
        """Take note that this is a child of the process that made it."""
        self._lock = Lock()
        for tier in self._far:
            tier.forked()

    def _until(self) -> float:
        return time.monotonic() + self.deadline


class _AfterPuts:
    """A lease that ends after what waits was put: till then nobody else finds it."""

    def __init__(self, lease: Lease, tier: _Far) -> None:
        self._lease, self._tier, self.renew = lease, tier, lease.renew

    def release(self) -> None:
        """End it, and wait for that."""
        last = self._tier.told.last()
        if last is not None:
            last.done.wait(RENEWED)
        self._lease.release()


def _tried(call: Callable[..., Any], *given: Any) -> tuple[Any, Exception | None]:
    """Return what a store returns, or None and what it raises."""
    try:
        return call(*given), None
    except (StoreError, OSError) as error:
        return None, error


def _leased(store: Any, name: str) -> tuple[Lease | None]:
    """Return a lease or None, as an answer that is not None."""
    return (store.lease(name),)


def _items(store: Store) -> list[Item]:
    return list(store.scan())


def _left(until: float) -> float:
    return max(until - time.monotonic(), 0.0)


def _end_late(until: float, answer: tuple[Lease | None]) -> None:
    """End a lease that nobody waits for any more."""
    if not _left(until) and answer[0] is not None:
        answer[0].release()


_alive: Final[WeakSet[Tiers]] = WeakSet()


@atexit.register
def _close_all() -> None:
    for each in list(_alive):
        each.close()


def _forked() -> None:
    """Give a child locks of its own: whoever had these has not come with it."""
    for each in list(_alive):
        each.forked()


os.register_at_fork(after_in_child=_forked)


def _outcome(error: Exception) -> str:
    """Return how an error is counted: as one of the value, or of its store."""
    if isinstance(error, StoreError):
        return "damaged"
    number = error.errno if isinstance(error, OSError) else None
    return "refused" if number in {errno.EAGAIN, errno.EFBIG} else "errors"
