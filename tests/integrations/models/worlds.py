"""Where programs of models run: eagerly, replayed, or watched without a device.

A program is a generator function. It gets a world, makes its models, inputs and
functions there, and yields what calls return, last what they have written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from sapwood.errors import CaptureError
from sapwood.tree.call.parameters import Parameters
from sapwood.tree.choose.skips import skip_of
from sapwood.tree.guards import Surveyor
from sapwood.tree.guards.changes import Filled, Repeated
from sapwood.tree.node.objects import Told, agree, told
from sapwood.tree.record.taking import plain_changes
from sapwood.tree.watch.session import Session, entered

torch = pytest.importorskip("torch")

SEED = 11


@dataclass(frozen=True)
class Trial:
    """A program, and whether its calls are recorded: or why not, as a pattern.

    ``moves``: no two calls are alike, so that all are warm-ups or skipped. ``reads``:
    what is around its functions reads on the host, as no device without memory can.
    ``live``: so do its functions, where an optimizer steps between recorded parts.
    """

    name: str
    program: Callable[[World], Iterable[Any]]
    skips: str | None = None
    moves: bool = False
    reads: bool = False
    live: bool = False
    needs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


def opened(value: Any, depth: int = 12) -> Any:
    """Return a nest of tensors and plain values, objects taken apart in it."""
    if isinstance(value, torch.Tensor | torch.dtype | torch.device) or not depth:
        return value
    if isinstance(value, Mapping):
        return {str(key): opened(each, depth - 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [opened(each, depth - 1) for each in value]
    if isinstance(value, type) or callable(value) or not hasattr(value, "__dict__"):
        return value if isinstance(value, Plain) else type(value).__name__
    return {"": type(value).__name__, **opened(vars(value), depth - 1)}


Plain = bool | bytes | float | int | str | type(None)


def looks(nest: Any) -> Any:
    """Return a nest with shapes in the place of tensors, as text."""
    leaves, structure = torch.utils._pytree.tree_flatten(opened(nest))
    tensors = (torch.Tensor,)
    shown = [(x.shape, x.dtype) if isinstance(x, tensors) else x for x in leaves]
    return str((shown, structure))


class World:
    """Where functions run as they are; it makes what a program needs."""

    def __init__(self, place: str) -> None:
        self.place = place
        torch.manual_seed(SEED)
        self._source = torch.Generator().manual_seed(SEED)

    def values(self, *shape: int) -> Any:
        """Return a tensor of new values: in all worlds the same, in their order."""
        return torch.randn(shape, generator=self._source).to(self.place)

    def ids(self, *shape: int, below: int = 90) -> Any:
        """Return a tensor of new whole numbers."""
        drawn = torch.randint(3, below, shape, generator=self._source)
        return drawn.to(self.place)

    def model(self, build: Callable[[], Any], *, train: bool = False) -> Any:
        """Return a model on the device, its values from the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            return build().to(self.place).train(train)

    def autocast(self, dtype: Any) -> Any:
        """Return the context of lower precision, if the device has one."""
        if self.place == "meta":
            return nullcontext()
        return torch.autocast(torch.device(self.place).type, dtype=dtype)

    def graph(
        self, fn: Callable[..., Any], reads: Callable[[], Any] = tuple, **_: Any
    ) -> Any:
        """Graph a function, whose calls look alike if arguments and ``reads()`` do."""
        del reads
        return fn


class Replayed(World):
    """Where functions are graphed; ``answers`` say how each call is to be done eagerly.

    A call is done as in a capture where it is replayed, recorded, or warmed up again,
    and where a capture met another value than any warm-up.
    """

    def __init__(self, place: str, rt: Any) -> None:
        super().__init__(place)
        self.rt, self.functions, self.answers = rt, [], []

    def graph(
        self, fn: Callable[..., Any], reads: Callable[[], Any] = tuple, **options: Any
    ) -> Any:
        f, warm = self.rt.graph(fn, **options), set()
        self.functions.append(f)

        def call(*args: Any, **kwargs: Any) -> Any:
            # Behind a call that registers hooks the next one is the first of its kind.
            hooks, before = torch.utils.hooks.RemovableHandle.next_id, f.stats()
            look = looks((args, kwargs, reads(), hooks))
            result, after = f(*args, **kwargs), f.stats()
            played = after.recordings + after.replays
            asked = played > before.recordings + before.replays
            if after.warmups > before.warmups:
                asked = look in warm
                warm.add(look)
            why = {reason for reason, _ in {*after.skipped} - {*before.skipped}}
            asked |= any(
                "another value than in the call before" in each for each in why
            )
            self.answers.append(asked)
            return result

        call.__wrapped__ = fn
        return call

    def count(self, what: str) -> int:
        """Return the sum of one statistic over all functions."""
        return sum(getattr(f.stats(), what) for f in self.functions)

    def reasons(self) -> list[str]:
        """Return why calls were skipped."""
        return [why for f in self.functions for why, _ in f.stats().skipped]


class Answered(World):
    """Where functions run as they are, and are told of captures what they were told."""

    def __init__(self, place: str, answers: Iterable[bool], monkeypatch: Any) -> None:
        super().__init__(place)
        self._answers, self._monkeypatch = iter(answers), monkeypatch

    def graph(
        self, fn: Callable[..., Any], reads: Callable[[], Any] = tuple, **_: Any
    ) -> Any:
        del reads

        def call(*args: Any, **kwargs: Any) -> Any:
            if not next(self._answers):
                return fn(*args, **kwargs)
            with self._monkeypatch.context() as patch:
                patch.setattr(
                    torch.cuda, "is_current_stream_capturing", lambda *_: True
                )
                # Steps that no capture takes run live, where none is on.
                for check in _CHECKS:
                    if hasattr(torch.optim.Optimizer, check):
                        patch.setattr(torch.optim.Optimizer, check, lambda _: None)
                return fn(*args, **kwargs)

        call.__wrapped__ = fn
        return call


_CHECKS = (
    "_accelerator_graph_capture_health_check",
    "_cuda_graph_capture_health_check",
)


class Stopped(Exception):
    """A watched function came to what no replay could repeat."""


class Likeness(NamedTuple):
    """What a call has in common with the last one that looked like it, if any."""

    look: bool
    key: bool
    result: bool


@dataclass
class Seen:
    """What a function's calls were seen to be, each held against one before.

    ``fills`` counts those that wrote what later calls found there.
    """

    calls: list[Likeness] = field(default_factory=list)
    fills: int = 0
    _last: dict[str, tuple[object, Told]] = field(default_factory=dict)

    def add(self, look: str, key: object, now: Told) -> None:
        """Note one more call, while what it reads is there."""
        key_before, before = self._last.get(look, (None, ()))
        alike = look in self._last, key == key_before, agree(now, before)
        self.calls.append(Likeness(*alike))
        self._last[look] = key, now


class Watched(World):
    """Where functions are surveyed and watched as a capture would, on no device."""

    def __init__(self, integration: Any) -> None:
        super().__init__("meta")
        self.integration, self.seen = integration, []
        self.refused: CaptureError | None = None

    def graph(
        self, fn: Callable[..., Any], reads: Callable[[], Any] = tuple, **_: Any
    ) -> Any:
        parameters, seen = Parameters(fn, "f"), Seen()
        surveyor = Surveyor(lambda: fn, self.integration)
        self.seen.append(seen)

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                look = looks((args, kwargs, reads()))
                given = parameters.describe(args, kwargs, self.integration)
                before = surveyor.survey(parameters.bind(args, kwargs))
                key = before.key_with(given.given.arrays, given.nests)
            except Exception as error:
                raise self._stopped(skip_of(error)) from error
            result = self._watched(before, fn, args, kwargs)
            now = surveyor.survey(parameters.bind(args, kwargs))
            changes = now.changes_since(before)
            change = plain_changes(changes, but=Repeated)
            fills = any(isinstance(each, Filled) for each in changes)
            if change is not None and (seen.calls or not fills):
                raise self._stopped(change)
            seen.fills += fills
            seen.add(look, key, told(result, self.integration.is_array))
            return result

        call.__wrapped__ = fn
        return call

    def _watched(self, before: Any, fn: Any, args: Any, kwargs: Any) -> Any:
        from sapwood.integrations.torch.watching import Watcher

        session = Session(tolerant=True, as_captured=True, holds=before.holds)
        try:
            with entered(session), Watcher(session, self.integration.storages_of):
                result = fn(*args, **kwargs)
        except Exception as error:
            if session.unrecordable is None:
                raise
            raise self._stopped(session.unrecordable) from error
        if session.unrecordable is not None:
            raise self._stopped(session.unrecordable)
        return result

    def _stopped(self, error: CaptureError) -> Stopped:
        self.refused = error
        return Stopped(str(error))
