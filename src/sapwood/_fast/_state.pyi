# What each class is for is said in state.py.
from collections.abc import Callable
from typing import Any

VERSION: str

class StreamEpoch:
    now: int
    def advance(self) -> None: ...

class PageState:
    live: Any
    uses: Any
    revoked: bool

class RecordingsState:
    single_stream: Any

class GuardState:
    epoch: int

class ReplayState:
    epoch: int
    stream_epoch: int
    guard_epoch: int
    marks: Any
    kept: Any

class ReplaysState:
    players: tuple[Any, ...]

class CallState:
    _fast_replays: Any
    _runtime: Callable[[], Any]
    _on: Any
