"""One partition of what Inductor has compiled, as a function that can be graphed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from sapwood.integrations.torch.compiled import listeners

Compiled = Callable[[list[Any]], Sequence[Any]]
"""What torch has compiled: it takes its inputs in a list, which it empties."""


class Partition:
    """A compiled partition, called with one argument for each of its inputs.

    ``mutated`` are the numbers of those that it writes, ``reused`` those that nobody
    needs after it, over which it may write what it computes. Guards look into no object
    of this class: whatever decides what a partition does, Dynamo has guarded by then.
    """

    device_types = frozenset({"cuda"})
    """What `Listener.region` asks of a compiled graph."""

    def __init__(
        self,
        model: Compiled,
        name: str,
        mutated: frozenset[int],
        reused: frozenset[int],
    ) -> None:
        self._model, self.cache_key = model, name
        self.mutated_input_idxs, self._reused = mutated, reused
        self.__qualname__ = name

    def __call__(self, *inputs: Any) -> Any:
        """Run the partition; whoever watches this thread is told of it as a whole."""
        given, told = [*inputs], listeners()
        with ExitStack() as stack:
            for each in told:
                stack.enter_context(each.region(self, given))
            reused = {_memory(given[i]) for i in self._reused} - {0} if told else ()
            results = self._model(given)
            if reused:
                # A replay that copies its inputs would give what it was recorded with:
                # the argument in whose memory a result lies, as it is, unwritten.
                results = [
                    each.clone() if _memory(each) in reused else each
                    for each in results
                ]
            for each in told:
                each.gave(results)
        return results

    def calls(
        self, call: Callable[..., Any], sizes: frozenset[Any] | None
    ) -> Callable[[list[Any]], Any]:
        """Return what torch calls in the place of the partition.

        With ``sizes`` only calls are recorded whose integers are among them: one, or
        a tuple of several (`config.triton.cudagraph_capture_sizes`).
        """
        model = self._model

        def run(inputs: list[Any]) -> Any:
            if sizes is not None and _integers(inputs) not in sizes:
                return model(inputs)
            given = tuple(inputs)
            # What only the caller's list has, a replay may write over.
            inputs.clear()
            return call(*given)

        return run


def _memory(value: Any) -> int:
    """Return which memory a tensor has; 0 for what has none."""
    if not isinstance(value, torch.Tensor) or not torch._C._has_storage(value):
        return 0
    return value.untyped_storage()._cdata if value.nbytes else 0


def _integers(inputs: Sequence[Any]) -> int | tuple[int, ...] | None:
    found = tuple(each for each in inputs if isinstance(each, int))
    if len(found) == 1:
        return found[0]
    return found or None
