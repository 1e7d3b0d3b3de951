from collections.abc import Callable
from typing import Any

VERSION: str

# Its steps are taken when it is called: the used arrays, or None.
class Guards:
    def __call__(self) -> list[Any] | None: ...

# It replays when it is called with a call's arguments, or gives the sentinel. `noted`
# tells, in turn, when each replay since the last time began, and how many ns it took.
class Replay:
    def __call__(self, *args: Any) -> Any: ...
    def noted(self) -> list[int]: ...

def compile_guards(
    rows: tuple[Any, ...],
    found: tuple[int, ...],
    latest: list[Callable[[], object]],
    registers: int,
) -> Guards: ...
def compile_replay(
    spec: tuple[Any, ...], tensors: tuple[Any, ...]
) -> Replay | None: ...
def same(one: list[Any], other: list[Any]) -> bool: ...
def take_calls(
    cls: type[Any], session: Any, disabled: Any, missed: Callable[..., Any]
) -> bool: ...
def watch_nothing() -> None: ...
