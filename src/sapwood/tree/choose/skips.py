"""Calls of one function that run eagerly for want of a recording: why, and how many.

Running eagerly is right for every call; so where a call looks like one that could not
be recorded, nothing more is asked of it, and only now and then is it looked at again.
"""

from __future__ import annotations

import math
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, Final

from sapwood._fast.state import SkipsState
from sapwood.driver.results import Result
from sapwood.errors import (
    CaptureError,
    DriverError,
    GraphSkipWarning,
    MisuseError,
    OutOfMemory,
)
from sapwood.tree.call.miss import Miss, Why
from sapwood.tree.call.options import Options
from sapwood.tree.call.signature import Call, Unread
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.guards import Ambient
from sapwood.tree.node.node import Node
from sapwood.tree.watch.session import is_users
from sapwood.units import size_text

_ALIKE: Final = 3
"""After so many kinds of calls that fail alike, a function is not tried any more."""

_KNOWN: Final = 64
"""How many reasons, and how many looks of calls, are remembered."""

_GUARDED: Final = 4
"""How many sets of values are remembered for calls with one signature."""

_NEW: Final = 256
_TRIES: Final = 8
"""After so many more calls that were watched than were replayed, and none recorded, as
many run eagerly, and twice as many each time that some tries more are watched in vain:
to watch one takes longer than it does, and a replay spares less than that."""

_FRUITLESS: Final = 16
"""After so many recordings of calls that look alike, of which none was replayed, as
many calls run eagerly, and twice as many each time that two more are not replayed."""
_PAUSE_AT_MOST: Final = 4096

_SETTLED: Final = 64
_BLIND: Final = 63
"""After so many skips that look alike, of a function without recordings, an eighth as
many calls are not looked at, and at most so many: a look costs more than all else."""

_OTHERS: Final = "other reasons"
_VALUE: Final = re.compile(r"(?<![:\w])\d+(\.\d+)?")
"""A number that may differ from call to call; that of a line follows a colon."""
_PLAIN: Final = frozenset({bool, bytes, float, int, str, type(None)})
_SIZED: Final = frozenset({dict, list, tuple})
_REMEDY: Final = (
    "Graph only the parts that take arrays and plain values, or use sapwood.disabled()"
)
_SAME: Final = (
    "A call is recorded when it comes again with the same shapes and values: pass what "
    "changes, such as a step or a rate, as an array"
)
_UNRECORDED: Final = (
    f"of recent calls, {_NEW} more were watched than were replayed, and none could be "
    "recorded: they raise, or leave things otherwise than they were"
)
_VAIN: Final = "recordings are made of it again and again, and none is ever replayed"
_NEW_EACH_TIME: Final = (
    "Pass what is another value in each call as an array, or read it after the call"
)
_MOVED: Final = CaptureError(
    "its recordings wait for arrays at addresses that do not come again",
    remedy="Copy new values into the arrays that are there, or pass the arrays as "
    "arguments: explain() names them",
)
_AGAIN: Final = "It is tried again after some calls: there is nothing to do"


def is_due(count: int) -> bool:
    """Return whether a call is tried again: the fourth, the eighth, and so on."""
    return count >= 4 and not count & count - 1


def skip_of(error: Exception) -> CaptureError:
    """Return why a call is not recorded, of what was raised before it ran."""
    if isinstance(error, CaptureError):
        return error.anew()
    if isinstance(error, OutOfMemory):
        return CaptureError(
            f"memory is short: {size_text(error.asked)} were asked for, and "
            f"{size_text(error.free)} are free",
            remedy=error.remedy,
        )
    if isinstance(error, DriverError) and error.name == Result.OUT_OF_MEMORY.name:
        return CaptureError(
            "the device has no free addresses, or no memory, to record it",
            remedy="Let go of results that you keep, or copy them. It is tried again "
            "after some calls",
        )
    if isinstance(error, DriverError):
        return CaptureError(f"the device failed to record it ({error})", remedy=_AGAIN)
    told = isinstance(error, MisuseError) or type(error) is TypeError
    named = "" if told else f"{type(error).__qualname__}: "
    what, _, remedy = str(error).rstrip(".").partition(". ")
    return CaptureError(f"{named}{what}", remedy=remedy or _REMEDY)


def _kind(reason: str) -> str:
    """Return what is the same of texts for one reason: all but values and shapes."""
    return _VALUE.sub("#", reason)


class Fruitless:
    """What was done for calls in vain, watched or recorded, since one was replayed.

    After the ``most`` that are done, and then after each ``tries`` more, ``left`` calls
    are to run eagerly, for ``reason``; ``untold`` is what to warn of.
    """

    def __init__(self, replays: int, most: int, tries: int) -> None:
        self.replays, self._most, self._tries = replays, most, tries
        self._done, self._pause, self.left = 0, most, 0
        self.reason = ""
        self.untold: CaptureError | None = None

    def spared(self, replays: int) -> None:
        """Take note of how many replays there were by now: each makes up for one."""
        self._done = max(self._done + self.replays - replays, 0)
        self.replays = replays

    def add(self) -> None:
        """Count one more, and leave it to the next one what follows."""
        self._done += 1

    def again(self) -> bool:
        """Count one more; return whether the next calls run eagerly."""
        self.add()
        if self._done < self._most:
            return False
        self._done, self._most = 0, self._tries
        self.left, self._pause = self._pause, min(2 * self._pause, _PAUSE_AT_MOST)
        return True


class Skips(SkipsState):
    """What is known of the skipped calls of one function.

    ``counts`` are the calls by reason, ``given_up`` why the function is not tried any
    more. ``looks`` are those of calls that were skipped: the reason, how many there
    were, and at which of them the call is looked at again. Where recorded calls look
    the same, only what is guarded tells them apart. ``nodes`` are the recordings of the
    function, as they are now. Calls that are not looked at may run in C.
    """

    __slots__ = ("__dict__", "__weakref__")

    def __init__(
        self,
        options: Options,
        recordings: Recordings,
        nodes: Collection[Node],
        target: Callable[[], Callable[..., Any]],
    ) -> None:
        self._options, self._recordings, self._known = options, recordings, [nodes]
        self._is_array, self.target = recordings.integration.is_array, target
        self.left = self.passed = self._counted = 0
        self.counts: Counter[str] = Counter()
        self.given_up: str | None = None
        self._untold: CaptureError | None = None
        self.looks: dict[Hashable, list[Any]] = {}
        self._latest: list[Any] = ["", 0, math.inf]
        self._whole = self._latest
        self._recorded: set[Hashable] = set()
        self._guarded: dict[Hashable, list[tuple[Ambient, str]]] = {}
        self._failed: Counter[Hashable] = Counter()
        self._reasons: dict[str, str] = {}
        self._strange = Fruitless(0, _NEW, _TRIES)
        self._fruitless: dict[Hashable, Fruitless] = {}
        self._paused: dict[Hashable, Fruitless] = {}

    def shared(self, nodes: Collection[Node]) -> None:
        """Take these for recordings of the function, too."""
        self._known.append(nodes)

    def _has_nodes(self) -> bool:
        return any(self._known)

    def failed(self, error: CaptureError, call: Call | Unread) -> None:
        """Note that calls of one more kind cannot be recorded, with one as an example.

        Where no other kind can be replayed, either, none is tried any more once enough
        have failed; where others can, those are not that look alike.
        """
        reason = self._reason(str(error))
        if self._has_nodes():
            if self._often((reason, self._look(call.args, call.kwargs))):
                self.learn(reason, call)
        elif self._often(reason) and not self._options.donate:
            self.given_up, self._untold = reason, error
            self._whole = [reason, 0, math.inf]

    def _often(self, kind: Hashable) -> bool:
        """Count a failure; return whether there were enough of its kind."""
        if kind in self._failed or len(self._failed) < _KNOWN:
            self._failed[kind] += 1
        return self._failed[kind] >= _ALIKE

    def _reason(self, text: str) -> str:
        """Return the first text that says the same, but for values and shapes."""
        kind = _kind(text)
        known = self._reasons.get(kind)
        if known is None and len(self._reasons) < _KNOWN:
            known = self._reasons[kind] = text
        return known or _OTHERS

    def watched(self, differs: str, replays: int, *, new: bool) -> None:
        """Note a call that is watched, to be recorded when it comes again.

        ``replays`` is how many there were, ``new`` whether it is the first of its kind,
        and ``differs`` says in what. Where no such call ever comes again, or each
        raises, the user is told once, and the next ones run eagerly.
        """
        self._spare(replays)
        if not self._strange.again():
            return
        what = f"of recent calls, {_NEW} more were new than were replayed"
        what = f"{what}{differs and f': {differs}'}" if new else _UNRECORDED
        error = CaptureError(what, remedy=_SAME)
        self.warn(error)
        self._strange.reason = self._reason(str(error))
        if self._options.donate:
            self._strange.left = 0

    def _spare(self, replays: int) -> None:
        if replays - self._strange.replays >= _NEW:
            self._strange = Fruitless(replays, _NEW, _TRIES)
        self._strange.spared(replays)

    def warn(self, error: CaptureError) -> None:
        """Warn that a call is about to run eagerly, once for each reason."""
        warn(self._options, error)

    def count(self, reason: str) -> None:
        """Count a call that runs eagerly."""
        self.counts[self._reason(reason)] += 1

    def learn(self, reason: str, call: Call | Unread) -> bool:
        """Remember what a call looks like that runs eagerly; return whether it is new.

        Not where an argument is to end, whatever becomes of the call.
        """
        if self._options.donate:
            return False
        look, reason = self._look(call.args, call.kwargs), self._reason(reason)
        known = self.looks.get(look)
        if known is not None:
            known[0] = reason
        elif len(self.looks) < _KNOWN:
            self.looks[look] = [reason, 1, 4]
        return known is None

    def may_settle(self, error: CaptureError, call: Call) -> None:
        """Note a call that found other values than any before, and was not recorded.

        One that looks like it is tried now and then: a list may be full by then, or a
        count at its end. To give the function up would be for good.
        """
        if self._options.donate or self._has_nodes():
            self.failed(error, call)
        elif self.learn(str(error), call):
            self._untold = error

    def settled(self, call: Call) -> None:
        """Note a call that can be recorded when it comes again."""
        self.let_go()
        if self.looks:
            self.looks.pop(self._look(call.args, call.kwargs), None)

    def recorded(
        self, call: Call, replays: int, why: Sequence[Miss], *, restored: bool
    ) -> None:
        """Remember what a call looks like that was recorded, after so many replays.

        ``why`` says why no other recording fitted it. Where none is ever replayed, the
        next calls run eagerly, and that is told once. What was ``restored`` costs
        little.
        """
        self.let_go()
        if restored:
            self._strange = Fruitless(replays, _NEW, _TRIES)
        else:
            self._spare(replays)
            self._strange.add()
        look = self._look(call.args, call.kwargs)
        if len(self._recorded) < _KNOWN:
            self._recorded.add(look)
        known = self._fruitless.get(look)
        if known is None or known.replays != replays:
            if known is not None or len(self._fruitless) < _KNOWN:
                self._fruitless[look] = Fruitless(replays, _FRUITLESS, 2)
        elif not self._options.donate and known.again():
            if not known.reason:
                known.untold = _in_vain(why)
                known.reason = self._reason(known.untold.what)
            self._paused[look] = known

    def _pauses(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Return whether no recording of such a call is worth the while by now."""
        look = self._look(args, kwargs)
        known = self._paused.get(look)
        if known is None:
            return False
        if known.untold is not None:
            error, known.untold = known.untold, None
            self.warn(error)
        known.left -= 1
        if not known.left:
            del self._paused[look]
        self.counts[known.reason] += 1
        return True

    def guard(self, call: Call, ambient: Ambient, reason: str) -> None:
        """Remember under what calls with this one's signature cannot be recorded.

        A recorded one may look the same.
        """
        args, kwargs = call.args, call.kwargs
        plain = [*map(self._is_plain, (*args, *kwargs.values()))]
        for each in (call.key, self._look(args, kwargs))[: 1 + all(plain)]:
            if each in self._guarded or len(self._guarded) < _KNOWN:
                known = self._guarded.setdefault(each, [])
                known.insert(0, (ambient, self._reason(reason)))
                del known[_GUARDED:]

    def holds(self, key: Hashable) -> bool:
        """Return whether a call with this signature cannot be, and count it then.

        A look is as good as one where all there is in a call shows in it.
        """
        for ambient, reason in self._guarded.get(key, ()):
            if ambient.holds():
                self.counts[reason] += 1
                return True
        return False

    def _is_plain(self, value: object) -> bool:
        return type(value) in _PLAIN or self._is_array(value)

    def is_known(self) -> bool:
        """Return whether any call may run eagerly without more ado."""
        known = self._strange.left or self.looks or self._paused
        return self.given_up is not None or bool(known)

    def passes(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Return whether a call runs eagerly without more ado, and count it then."""
        self.tell()
        if self._strange.left:
            self._strange.left -= 1
            self.counts[self._strange.reason] += 1
            return True
        if self._paused and self._pauses(args, kwargs):
            return True
        if self._untold is not None and not self._has_nodes():
            error, self._untold = self._untold, None
            self.warn(error)
        if self.left > 0 and not self._has_nodes():
            self.left -= 1
            known = self._latest
        elif self.given_up is not None and not self._has_nodes():
            known = self._whole
            self._look_away(known)
        else:
            look = self._look(args, kwargs)
            found = self.looks.get(look)
            if found is None:
                return False
            if self._has_nodes() and self._may_be_recorded(look):
                return self.holds(look)
            known = found
            self._look_away(known)
        known[1] += 1
        if known[1] >= known[2]:
            known[2] *= 2
            self.let_go()
            return False
        self.counts[known[0]] += 1
        return True

    def _look_away(self, known: list[Any]) -> None:
        """Have some calls run as this one without a look, unless those are watched."""
        self._latest, settled = known, known[1] > _SETTLED and not self._has_nodes()
        self.left = 0
        if settled and not self._recordings.steps_end():
            self.left = min(known[1] // 8, _BLIND)
            self._recordings.quiet.add(self)

    def let_go(self) -> None:
        """Have the next call looked at."""
        self.tell()
        self.left = 0

    def tell(self) -> None:
        """Count the calls that C has run since the last time."""
        if self.passed == self._counted:
            return
        with self._recordings.device.lock:  # another thread may count them, too
            more, self._counted = self.passed - self._counted, self.passed
            self._latest[1] += more
            self.counts[self._latest[0]] += more

    def _may_be_recorded(self, look: Hashable) -> bool:
        return look in self._recorded or len(self._recorded) >= _KNOWN

    def _look(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable:
        """Return what a call looks like from afar; unlike calls may look alike."""
        if not kwargs:
            return tuple(map(self._glance, args))
        return (*map(self._glance, args), *kwargs, *map(self._glance, kwargs.values()))

    def _glance(self, value: Any) -> Hashable:
        cls = type(value)
        try:
            if cls in _PLAIN:
                return cls, value
            if cls in _SIZED:
                return cls, len(value)
            if not self._is_array(value):
                return id(cls)
            # By number: a class is not kept.
            return id(cls), value.shape, value.dtype
        # Arrays need have neither, and a nested tensor of torch's raises RuntimeError.
        # Classes need not have a hash.
        except (AttributeError, RuntimeError, TypeError):
            return id(cls)


def _in_vain(why: Sequence[Miss]) -> CaptureError:
    """Return why no recording is replayed, by why none fitted the latest call."""
    read = [miss.about for miss in why if miss.why is Why.AMBIENT]
    if why and not read:
        return _MOVED.anew()
    about = next((f": {each}" for each in read if each), "")
    return CaptureError(f"{_VAIN}{about}", remedy=_NEW_EACH_TIME)


def warn(options: Options, error: CaptureError) -> None:
    """Warn that a call is about to run eagerly, once for each reason."""
    kind, told = _kind(str(error)), options.told
    if kind in told or len(told) >= _KNOWN:
        return
    told.add(kind)
    if options.hears is not None:
        options.hears(str(error))
    warning = GraphSkipWarning(options.name, error.what, error.where, error.remedy)
    file, line = _calling_line()
    warnings.warn_explicit(warning, GraphSkipWarning, file, line)


def _calling_line() -> tuple[str, int]:
    """Return the file and the line of the user's code that calls."""
    frame = sys._getframe(1)  # noqa: SLF001 - made for this
    while frame.f_back is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
