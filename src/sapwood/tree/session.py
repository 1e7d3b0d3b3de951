"""What is watched while a user's function runs as a warm-up or is captured.

The framework's integration tells the current session of everything that a recording
could not repeat; the session knows whether that is an error.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, TypeAlias

from sapwood.errors import CaptureError
from sapwood.units import Addr

__all__ = ["Broken", "LivePart", "Session", "current", "entered", "user_line"]

_SITE = "/site-packages/"
_ROOM = f"{Path(__file__).parent.parent}/"
_session: ContextVar[Session | None] = ContextVar("sapwood_session", default=None)


class LivePart(Protocol):
    """A function that runs live, between two recorded parts of another."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def held(self) -> Callable[[], Callable[..., Any] | None]:
        """Return a weak reference to the function, and to what it is a method of."""
        ...


Broken: TypeAlias = tuple[int, str, str, str]
"""A live part that ran: after how many ops, its name, and its arguments and result."""

Between: TypeAlias = Callable[[LivePart, tuple[Any, ...], dict[str, Any]], Any]


class Session:
    """One warm-up or capture in progress, on this thread.

    ``tolerant`` sessions note what cannot be recorded, in ``unrecordable``, and let
    the function go on eagerly; others raise `CaptureError` there and then. ``between``
    runs live parts, where the session has any; ``breaks`` says, for each, after how
    many ops which one ran, on what and with what result. ``lines`` are those of the
    ops that were given to the device, ``spans`` the bytes of those that were not.
    """

    def __init__(self, *, tolerant: bool) -> None:
        self.tolerant = tolerant
        self.unrecordable: CaptureError | None = None
        self.ops: list[tuple[str, bytes]] = []
        self.lines: list[str | None] = []
        self.spans: list[tuple[Addr, Addr]] = []
        self._where: list[str | None] = []
        self.breaks: list[Broken] = []
        self.between: Between | None = None

    def op(self, name: str, constants: bytes) -> None:
        """Note one op that the function gave to the device, addresses left out."""
        self.lines.append(self._note(name, constants))

    def needless(self, name: str, constants: bytes, span: tuple[Addr, Addr]) -> None:
        """Note one op that was not given, because it writes what is there already.

        At other addresses it would be: it is told from others, and uses its ``span``.
        """
        self._note(name, constants)
        self.spans.append(span)

    def _note(self, name: str, constants: bytes) -> str | None:
        line = user_line()
        self.ops.append((name, constants))
        self._where.append(line)
        return line

    def where(self, op: int) -> str | None:
        """Return the line that an op was noted at."""
        return self._where[op]

    def digests(self) -> tuple[bytes, ...]:
        """Return what tells ops apart, the same in every process."""
        return tuple(
            hashlib.sha256(f"{name}\0".encode() + constants).digest()
            for name, constants in self.ops
        )

    def broken(self, part: LivePart, passed: str, returned: str) -> None:
        """Note that a live part ran, on what and with what result, as text."""
        self.breaks.append((len(self.ops), part.name, passed, returned))

    def live(
        self, part: LivePart, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a live part, which the function has come to."""
        if self.between is not None:
            return self.between(part, args, kwargs)
        self.refuse(
            f"the live part {part.name} is called, and was not in the call before with "
            "the same arguments",
            "Let that depend on an argument, or on a value that the function names",
        )
        return None

    def refuse(self, what: str, remedy: str) -> None:
        """Say that the function does something that no replay could repeat."""
        where = user_line()
        if self.unrecordable is None:
            self.unrecordable = CaptureError(what, where=where, remedy=remedy)
        if not self.tolerant:
            # Not that one: an error that its own frames name outlives its handlers.
            raise CaptureError(what, where=where, remedy=remedy)


def current() -> Session | None:
    """Return the session that this thread or task is in."""
    return _session.get()


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
        name = frame.f_code.co_filename
        ours = name.startswith(_ROOM) or f"{_SITE}numpy/" in name
        if not ours and name[:1] != "<":
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return None
