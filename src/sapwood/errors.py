"""The errors, sorted by who can mend them.

SapwoodError
├─ MisuseError          you: wrong argument, closed object, unfit function
│   └─ StaleOutput      an output used after it was revoked or donated
├─ DriverError          the device: call, code, name, explanation
│   ├─ NoDevice         there is no such device here
│   └─ OutOfMemory      asked, free, largest, and who holds the rest; also a MemoryError
├─ CaptureError         this function cannot be recorded: what, where, what to do
├─ StoreError           only from explicit store commands, never from a call
└─ InternalError        us: a broken law; carries a snapshot. With verify=, mostly the
                        function, whose replay is not as an eager run
UserWarning
├─ GraphSkipWarning     calls of a function run eagerly: what, where, what to do
└─ StoreWarning         a runtime's store is not used, and why: raised by no call

Not among them are errors that Python and NumPy have: arrays and allocators raise
TypeError for wrong types (a host array as an argument), arrays also IndexError and
ValueError, as in NumPy.

Every error has fields, survives pickling, and ends with what to do.
"""

from __future__ import annotations

import errno
import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

from sapwood.units import size_text


class SapwoodError(Exception):
    """The root of all errors that are this library's own.

    Errors that Python and NumPy have are not below it, also where this library raises
    them on purpose: a TypeError for a host array as an argument, an IndexError.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        # The default re-calls ``cls(*args)`` with the finished message, which no
        # constructor with fields survives: rebuild without it, fields included.
        return _rebuilt, (type(self), self.args), self.__dict__


def _rebuilt(cls: type[SapwoodError], args: tuple[Any, ...]) -> SapwoodError:
    return BaseException.__new__(cls, *args)


class MisuseError(SapwoodError):
    """A wrong argument, a closed object, a kind of function that cannot be graphed."""


@contextmanager
def misuse_of_file(what: str, remedy: str) -> Iterator[None]:
    """Raise `MisuseError` for an `OSError` inside: ``what``, why, and the remedy.

    A full disk is nobody's misuse: it stays an `OSError`, which says ``what``.
    """
    try:
        yield
    except OSError as error:
        said = f"{what}: {error.strerror or error}"
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise OSError(error.errno, said) from error
        raise MisuseError(f"{said}. {remedy}") from error


def words(error: Exception) -> str:
    """Return an error's text; of the system's without the number, with the file."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return error.strerror + (f": {error.filename}" if error.filename else "")


@contextmanager
def of_file(path: str | Path) -> Iterator[None]:
    """Name the file in a `MisuseError` or `StoreError` about what is in it."""
    try:
        yield
    except (MisuseError, StoreError) as error:
        raise type(error)(f"{path}: {error}") from error


_BRIEF: Final = reprlib.Repr()
_BRIEF.maxlevel, _BRIEF.maxstring = 2, 60


def shown(value: object) -> str:
    """Return a value in a few words, however large, deep or often shared it is."""
    try:
        text = _BRIEF.repr(value)
    except ValueError:  # a number of too many digits
        text = f"a large {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."


_MOST: Final = 1 << 30


def read_file(path: str | Path, remedy: str) -> bytes:
    """Return what is in a file; raise `MisuseError` where that cannot be read."""
    with misuse_of_file(f"{str(path) or repr('')} cannot be read", remedy):
        with Path(path).open("rb") as file:
            data = file.read(_MOST + 1)
        if len(data) > _MOST:
            raise OSError(f"it holds more than {size_text(_MOST)}")
    return data


class StaleOutput(MisuseError):
    """An output was used after it was revoked or donated.

    Fields: ``what`` (the array), ``why`` (what ended it), ``remedy``.
    """

    def __init__(self, what: str, why: str, remedy: str) -> None:
        self.what, self.why, self.remedy = what, why, remedy
        super().__init__(f"{what} is stale: {why}. {remedy}")


class DriverError(SapwoodError):
    """A device call failed.

    Fields: ``call`` (its name), ``code`` (number), ``name`` (of the code),
    ``explanation``.
    """

    def __init__(self, call: str, code: int, name: str, explanation: str) -> None:
        self.call, self.code, self.name = call, code, name
        self.explanation = explanation
        super().__init__(f"{call} failed with {name} ({code}): {explanation}")


class NoDevice(DriverError):
    """There is no such device here: that is all it says, whatever found it out."""

    def __init__(self, call: str, code: int, name: str, explanation: str) -> None:
        super().__init__(call, code, name, explanation)
        if name == "NO_DEVICE":
            self.args = (explanation,)


class OutOfMemory(DriverError, MemoryError):
    """The device cannot give the memory that was asked for.

    Fields: ``asked``, ``free`` and ``largest`` in bytes (``largest``: the largest
    single piece that can be had), ``holders``: who holds the rest, in bytes, and
    ``shortage``: where an allocator could say more, a value whose text is the
    explanation (`sapwood.allocator.caching.shortage.Shortage`), else None, and
    what helps is ``remedy``.
    """

    def __init__(
        self,
        call: str,
        *,
        asked: int,
        free: int,
        largest: int | None = None,
        holders: tuple[tuple[str, int], ...] = (),
        shortage: object = None,
        remedy: str = "",
    ) -> None:
        self.remedy = remedy or "Ask for less at once, or give back what is not needed"
        self.asked, self.free = asked, free
        self.largest = free if largest is None else largest
        self.holders, self.shortage = holders, shortage
        explanation = self._brief() if shortage is None else str(shortage)
        super().__init__(call, 2, "OUT_OF_MEMORY", explanation)

    def _brief(self) -> str:
        held = ", ".join(f"{who} {size_text(size)}" for who, size in self.holders)
        return (
            f"asked for {size_text(self.asked)}, {size_text(self.free)} free, largest "
            f"piece {size_text(self.largest)}{'; held by ' + held if held else ''}. "
            f"{self.remedy}"
        )


class CaptureError(SapwoodError):
    """A function cannot be recorded.

    Fields: ``what`` happened, ``where`` (the user's ``file:line``, if known),
    ``remedy``.
    """

    def __init__(self, what: str, *, where: str | None = None, remedy: str) -> None:
        self.what, self.where, self.remedy = what, where, remedy
        place = f" at {where}" if where else ""
        super().__init__(f"{what}{place}. {remedy}")

    def anew(self) -> Self:
        """Return the same error without a traceback, whose frames keep arrays alive."""
        return type(self)(self.what, where=self.where, remedy=self.remedy)


class GraphSkipWarning(UserWarning):
    """Calls of a graphed function run eagerly, and why.

    Fields: ``function`` (its name), ``what`` is in the way, ``where`` (the user's
    ``file:line``, if known), ``remedy``.
    """

    def __init__(
        self, function: str, what: str, where: str | None, remedy: str
    ) -> None:
        self.function, self.what = function, what
        self.where, self.remedy = where, remedy
        place = f" at {where}" if where else ""
        super().__init__(f"{function} runs eagerly: {what}{place}. {remedy}")

    def __reduce__(self) -> tuple[Any, ...]:
        fields = self.function, self.what, self.where, self.remedy
        return type(self), fields, self.__dict__


class StoreError(SapwoodError):
    """A store command failed; a call of a graphed function never raises this."""


class StoreWarning(UserWarning):
    """A runtime was made with a store that it does not use, or that cannot be used."""


class InternalError(SapwoodError):
    """A law of this library was broken: please report it with the ``snapshot``.

    Where ``graph(verify=n)`` raises it, a replay was not as an eager run: mostly the
    function reads what no guard sees, and ``remedy`` says what to look at before.
    """

    def __init__(self, law: str, snapshot: Any = None, *, remedy: str = "") -> None:
        self.law, self.snapshot, self.remedy = law, snapshot, remedy
        before = f"{remedy}. Else please" if remedy else "Please"
        super().__init__(f"broken law: {law}. {before} report this with its snapshot")
