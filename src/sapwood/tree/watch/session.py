"""What is watched while a user's function runs as a warm-up or is captured.

The framework's integration tells the current session of everything that a recording
could not repeat; the session knows whether that is an error.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Hashable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from threading import Thread, current_thread
from types import FrameType
from typing import Any, Final, NamedTuple, NoReturn, Protocol, TypeAlias
from weakref import ref

from sapwood.errors import CaptureError
from sapwood.memory.storage import Storage
from sapwood.surroundings import follow
from sapwood.tree.guards.standard import BYTES
from sapwood.tree.node.objects import Told
from sapwood.tree.node.passed_on import PassedOn
from sapwood.units import Addr, Size

_PACKAGES = ("cupy", "cupy_backends", "cupyx", "numpy", "torch", "triton")
_FRAMEWORKS = tuple(f"-packages/{name}/" for name in _PACKAGES)
_CONTEXTS = contextlib.__file__
_CONSTANT = "host data"
_COMPILED = tuple(f"{name}/" for name in _PACKAGES)
ROOM: Final = f"{Path(__file__).parents[2]}/"
"""Where all files of Sapwood's own are."""
_session: ContextVar[Session | None] = ContextVar("sapwood_session", default=None)
follow(_session)


class EagerRegion(Protocol):
    """A function that runs live, between two recorded parts of another."""

    @property
    def name(self) -> str:
        """What messages call it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    @property
    def shown(self) -> Callable[[Any], Any] | None:
        """What makes of its result what the function's code gets, if that is known."""

    def held(self) -> Callable[[], Callable[..., Any] | None]:
        """Return a weak reference to the function, and to what it is a method of."""

    @property
    def runs(self) -> Callable[..., Any]:
        """The function that runs."""

    @property
    def writes(self) -> bool:
        """Whether it may write arrays."""

    @property
    def sees(self) -> bool:
        """Whether it may look at, keep or change what else the function has."""


Broken: TypeAlias = tuple[int, str, str, str]
"""An region that ran: after how many ops, its name, and its arguments and result."""

Between: TypeAlias = Callable[[EagerRegion, tuple[Any, ...], dict[str, Any]], Any]


def run_live(part: EagerRegion, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an eager region."""
    return part(*args, **kwargs)


class Unready(CaptureError):
    """A function cannot be captured before another warm-up; nothing of it has run.

    Where the call has ``moved``, to be another one than it was taken for, a warm-up
    of it would not be that one's.
    """

    def __init__(
        self, what: str, *, where: str | None = None, moved: bool = False
    ) -> None:
        super().__init__(what, where=where, remedy="Call it again, outside of captures")
        self.moved = moved

    def anew(self) -> Unready:
        """Return the same error without a traceback."""
        return Unready(self.what, where=self.where, moved=self.moved)


class Midway(CaptureError):
    """A call cannot go on as recorded when parts of it have run, nor begin anew."""


class Passing(Midway):
    """That holds of one call, and says nothing of others."""


class Branched(Passing):
    """A region returned a value that no recording of the call goes on from."""


class Hopeless(BaseException):
    """Ends a function that tries again what cannot be captured, whatever it catches."""


class Raised(CaptureError):
    """A function raised where it was captured; maybe because it was."""


class Use(NamedTuple):
    """How ops use a storage, and the line that the first of them came from."""

    writes: bool
    where: str | None


def _nothing(_: object) -> bool:
    return False


_PATIENCE: Final = 100
"""Refusals in one capture, after which the function is taken to try for ever."""


@dataclass(kw_only=True, eq=False, repr=False)
class Session:
    """One warm-up or capture in progress, on this thread.

    ``tolerant`` sessions note what cannot be recorded, in ``unrecordable``, and let
    the function go on eagerly; others raise `CaptureError` there and then. ``between``
    runs eager regions, where the session has any; ``breaks`` says, for each, after how
    many ops which one ran, on what and with what result. ``lines`` are those of the
    ops that were given to the device, ``spans`` the bytes of those that were not.
    Where the framework says so itself, ``used`` are the storages that ops use, ``made``
    those of a warm-up that were first seen as what an op gives; ``room`` is how many
    bytes a capture is likely to need for what was allocated; ``code`` is what a
    compiler has made of parts of the function, behind what tells it apart. If it
    ``prepares`` what later calls find ready, a warm-up shows nothing of those.
    ``untold`` counts what was captured and is no op's: it may use, and write, whatever
    can be reached. ``constants`` are what the ops of a capture read of the host,
    ``hosts`` the arrays there, and the lines, that are to end with the call; ``holds``
    says of a value whether it is guarded, ``guarded`` whether all host arrays are that
    are reached, ``reads`` which arrays are found besides the arguments.
    ``asks`` says that somebody asked whether a capture is on, who may do other work in
    one. Where it ``splits``, the function is recorded around what it reads on the host,
    as around eager regions. A session that ``rehearses``, as warm-ups do, finds nothing
    unrecordable from then on: only a capture does. ``as_captured`` is the answer, where
    none is on. One ``branches`` where a region returned plain values, which what
    follows may go by; it ``writes`` where one ran that may have written arrays, and one
    ``sees`` it where it may have found, kept or changed anything of the function's. The
    exception that was ``handled`` where the call began, regions find in replays, too.
    What regions return that is only ``passed_on`` is noted beside how, unless what is
    read ``decides`` in any case. A capture ``stands_in`` where the function is given
    other objects than were passed: if it does other work then, nothing of it is used.
    ``exactly`` ends that numbers listen to what is asked of them, where they do.
    """

    tolerant: bool
    rehearses: bool = False
    splits: bool = False
    decides: bool = False
    as_captured: bool = False
    holds: Callable[[object], bool] = _nothing
    guarded: Callable[[], bool] = bool
    reads: Callable[[], Sequence[Any]] = tuple
    asks: bool = False
    stands_in: bool = False
    unrecordable: CaptureError | None = None
    ops: list[tuple[str, bytes]] = field(default_factory=list)
    lines: list[str | None] = field(default_factory=list)
    spans: list[tuple[Addr, Addr]] = field(default_factory=list)
    used: dict[Storage, Use] = field(default_factory=dict)
    made: set[Storage] = field(default_factory=set)
    room: Size = Size(0)  # noqa: RUF009 - an int
    code: list[tuple[str, object]] = field(default_factory=list)
    constants: list[object] = field(default_factory=list)
    hosts: list[tuple[ref[Any], str]] = field(default_factory=list)
    prepares: bool = False
    untold: int = 0
    _where: list[str | None] = field(default_factory=list)
    breaks: list[Broken] = field(default_factory=list)
    branches: bool = False
    writes: bool = False
    sees: bool = False
    passed_on: list[tuple[PassedOn, Any]] = field(default_factory=list)
    _refused: int = 0
    handled: BaseException | None = field(default_factory=sys.exception)
    exactly: Callable[[], object] = bool
    between: Between | None = None

    def op(self, name: str, constants: bytes) -> None:
        """Note one op that the function gave to the device, addresses left out."""
        self.lines.append(self._note(name, constants))

    def needless(self, name: str, constants: bytes, span: tuple[Addr, Addr]) -> None:
        """Note one op that was not given, because it writes what is there already.

        At other addresses it would be: it is told from others, and uses its ``span``.
        """
        self._note(name, constants)
        self.spans.append(span)

    def constant(self, data: bytes) -> None:
        """Note what the next op reads of the host, for calls to be told apart."""
        self._note(_CONSTANT, data)

    def has_ops(self) -> bool:
        """Return whether more was noted than what ops would read of the host."""
        return any(name != _CONSTANT for name, _ in self.ops)

    def _note(self, name: str, constants: bytes) -> str | None:
        line = user_line()
        self.ops.append((name, constants))
        self._where.append(line)
        return line

    def uses(self, storage: Storage, *, writes: bool) -> None:
        """Note that the latest op uses a storage."""
        known = self.used.get(storage)
        if known is None:
            self.used[storage] = Use(writes, self._where[-1] if self._where else None)
            self.spans.append((storage.address, Addr(storage.address + storage.size)))
        elif writes and not known.writes:
            self.used[storage] = Use(writes, known.where)

    def go_on(self) -> None:
        """Forget what ops have used so far: what comes is captured by itself."""
        self.used, self.spans, self.untold = {}, [], 0

    def where(self, op: int) -> str | None:
        """Return the line that an op was noted at."""
        return self._where[op]

    def digests(self) -> tuple[bytes, ...]:
        """Return what tells ops apart, the same in every process."""
        import hashlib

        return tuple(
            hashlib.sha256(f"{name}\0".encode() + constants).digest()
            for name, constants in self.ops
        )

    def broken(
        self,
        part: EagerRegion,
        passed: str,
        returned: str,
        *,
        branches: bool,
        passed_on: tuple[PassedOn | None, Any] = (None, None),
    ) -> None:
        """Note that an eager region ran, on what and with what result, as text.

        Of one that is only passed on, there is the result besides.
        """
        goes, result = passed_on
        if goes is not None:
            self.passed_on.append((goes, result))
        self.breaks.append((len(self.ops), part.name, passed, returned))
        self.branches |= branches
        self.writes |= part.writes
        self.sees |= part.sees

    def live(
        self, part: EagerRegion, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run an eager region, which the function has come to."""
        if part.sees:
            self._check_seeing(part)
        if self.between is not None:
            return self.between(part, args, kwargs)
        self.refuse(
            f"the region {part.name} is called, and was not in the call before with "
            "the same arguments",
            "Let that depend on an argument, or on a value that the function names",
        )
        return None

    def _check_seeing(self, part: EagerRegion) -> None:
        self.exactly()  # it may ask what nobody would hear
        error = sys.exception()
        if error is not self.handled:
            self.refuse(
                f"the eager region {part.name} is called where an exception is handled "
                f"({type(error).__name__}), which it may ask for, and no replay raises",
                "Call it behind the except block, or put all of that into the region",
            )

    def may_read(self, size: int) -> bool:
        """Return whether so many bytes may be read on the host, as an eager region."""
        return self.splits and self.between is not None and size <= BYTES

    def unready(self, what: str) -> NoReturn:
        """Say that a capture would hold more than the function does each time."""
        error = Unready(what, where=user_line())
        self.unrecordable = self.unrecordable or error
        raise error.anew()

    def asked(self) -> None:
        """Note that somebody asked whether a capture is on."""
        self.asks = True

    def refuse(self, what: str, remedy: str, where: str | None = None) -> None:
        """Say that the function does something that no replay could repeat.

        It does so at ``where``, or else where it is just now.
        """
        if self.asks and self.rehearses:
            return
        where = where or user_line()
        if self.unrecordable is None:
            self.unrecordable = CaptureError(what, where=where, remedy=remedy)
        if not self.tolerant:
            self._refused += 1
            if self._refused > _PATIENCE:
                raise Hopeless
            # Not self.unrecordable: its traceback would hold this frame, and this frame
            # holds it. Arrays that frames on the way name would live on in that cycle.
            raise CaptureError(what, where=where, remedy=remedy)


current: Callable[[], Session | None] = _session.get
"""Returns the session that this thread or task is in."""


helped: list[Callable[[], Session | None]] = []
"""Each returns the session that this thread works for without being in it, if any:
frameworks have threads of their own."""


def served() -> Session | None:
    """Return the session that this thread works for, be it another thread's."""
    found = (ask() for ask in helped)
    return current() or next((each for each in found if each is not None), None)


class entered:
    """``with entered(session):`` makes a session (or None) current."""

    def __init__(self, session: Session | None) -> None:
        self.session = session

    def __enter__(self) -> Session | None:
        self.token = _session.set(self.session)
        return self.session

    def __exit__(self, *_: object) -> None:
        _session.reset(self.token)


def user_line() -> str | None:
    """Return ``file:line`` of the innermost frame that is the user's own code."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - made for this
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def raising_line(error: BaseException) -> str | None:
    """Return ``file:line`` where the user's own code was when it raised an error."""
    found, trace = None, error.__traceback__
    while trace is not None:
        if is_users(trace.tb_frame.f_code.co_filename):
            found = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


@lru_cache(maxsize=4096)
def is_users(file: str) -> bool:
    """Return whether a file is the user's own code, and no framework's."""
    if file.startswith((ROOM, "<", *_COMPILED)) or file == _CONTEXTS:
        return False
    return not any(package in file for package in _FRAMEWORKS)


@dataclass(frozen=True, slots=True)
class Warm:
    """What a warm-up showed, for the recording to be held against.

    ``ops`` are digests of the ops, addresses left out; ``stays`` the allocations, by
    their order, that outlived the function or were alive when an eager region ran;
    ``told`` the plain values in the result; ``breaks``, ``room``, ``asks``,
    ``branches``, ``writes`` and ``sees`` as in `Session`; ``code`` what tells compiled
    code apart; ``thread`` the one that it ran on. One that is of a capture was
    ``captured``. ``added`` tells what the function has added to numbers and lists.
    """

    ops: tuple[bytes, ...]
    stays: frozenset[int]
    told: Told
    breaks: tuple[Broken, ...] = ()
    room: int = 0
    code: frozenset[str] = frozenset()
    asks: bool = False
    captured: bool = False
    branches: bool = False
    writes: bool = False
    sees: bool = False
    added: tuple[Hashable, ...] = ()
    thread: ref[Thread] = field(
        default_factory=lambda: ref(current_thread()), compare=False
    )
