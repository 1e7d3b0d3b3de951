"""One partition of what Inductor has compiled, as a function that can be graphed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Final

import torch
from torch._dynamo.utils import counters
from torch.multiprocessing.reductions import StorageWeakRef

from sapwood.integrations.torch.compiled import Listener, listeners
from sapwood.integrations.torch.storages import tensor_over

Compiled = Callable[[list[Any]], Sequence[Any]]
"""What torch has compiled: it takes its inputs in a list, which it empties."""

_SEEDS: Final = (
    "attention with dropout has its seeds on the host, for a backward that comes later",
    "Compute attention in bfloat16, whose seeds are on the device, or without dropout",
)

_SEED_ROOM: Final = 1 << 64
"""A seed has no sign; in a tensor it has one."""

_numbers: Final = itertools.count()

_log: Final = torch._logging.getArtifactLogger(__name__, "cudagraphs")


class Partition:
    """A compiled partition, called with one argument for each of its inputs.

    Of its inputs ``static`` are the numbers of those that torch expects where they
    were, ``mutated`` of those that it writes, and ``writable`` of those over which it
    may write what it computes, as nobody reads them later. Guards look into no object
    of this class: whatever decides what a partition does, Dynamo has guarded by then.
    """

    device_types = frozenset({"cuda"})
    """What `Listener.region` asks of a compiled graph."""

    def __init__(
        self,
        model: Compiled,
        name: str,
        *,
        static: Collection[int] = (),
        mutated: Collection[int] = (),
        writable: Collection[int] = (),
    ) -> None:
        self._model, self._static = model, static
        self.mutated_input_idxs, self._writable = mutated, writable
        self.cache_key = f"{name} no. {next(_numbers)}"
        self.__qualname__ = name
        self._realigned: Compiled | None = None
        self.has_run = False
        """Whether its kernels are tuned: a first run may do what no later one does."""

    def __call__(self, *inputs: Any) -> Any:
        """Run the partition; whoever watches this thread is told of it as a whole."""
        given, watchers = [*inputs], listeners()
        if watchers:
            self._say(given, recording=any(each.captures for each in watchers))
        with ExitStack() as stack:
            for each in watchers:
                stack.enter_context(each.region(self, given))
            writable = self._memory_of(given) if watchers else {}
            results = self._run_watched(given, watchers)
            if writable:
                # A replay copies its inputs. It would give the argument in whose memory
                # a result lies as that is, which is not written then.
                results = [*_apart(results, writable)]
            for each in watchers:
                each.gave(results)
        return results

    def _run_watched(
        self, inputs: list[Any], watchers: Sequence[Listener]
    ) -> Sequence[Any]:
        """Run what is compiled; give seeds that nobody reads where a capture has them.

        Attention that keeps little memory returns its seeds on the host, but on the
        device in a capture. Without dropout they say nothing.
        """
        place = next((x.device for x in inputs if _has_bytes(x) and x.is_cuda), None)
        if not watchers or place is None or any(each.captures for each in watchers):
            return self.run(inputs)
        draws = torch.cuda.default_generators[place.index]
        own = [each for each in inputs if isinstance(each, torch.Generator)]
        before = draws.get_offset()
        drawn = {each.initial_seed() % _SEED_ROOM for each in (draws, *own)}
        results = self.run(inputs)
        seeds = {i for i, each in enumerate(results) if _is_seed(each)}
        read = seeds and (own or draws.get_offset() != before)
        # Not by an operation, of which watchers would be told.
        if read and any(int(results[i].numpy()) % _SEED_ROOM in drawn for i in seeds):
            # A backward that is not captured reads seeds on the host: one of the device
            # would end the process.
            for each in watchers:
                each.refused(*_SEEDS)
            return results
        return [
            torch.zeros((), dtype=torch.int64, device=place) if i in seeds else each
            for i, each in enumerate(results)
        ]

    def _say(self, inputs: Sequence[Any], *, recording: bool) -> None:
        """Tell torch's log and counters of a warm-up, or of a recording."""
        if not recording:
            _log.debug("Warming up %s", self.__qualname__)
            return
        copied = sum(
            i not in self._static and isinstance(each, torch.Tensor)
            for i, each in enumerate(inputs)
        )
        counters["inductor"]["cudagraph_recorded_non_static_inputs"] += copied
        _log.debug("Recording %s", self.__qualname__)

    def heard(self, reason: str) -> None:
        """Tell torch's log and counters why calls are not recorded."""
        counters["inductor"]["cudagraph_skips"] += 1
        _log.info("Not recording %s: %s", self.__qualname__, reason)

    def run(self, inputs: list[Any]) -> Sequence[Any]:
        """Run what is compiled, as torch runs it.

        Where it wraps graphs, torch leaves it to them to copy inputs whose addresses
        are not aligned as they were when it compiled.
        """
        if self._realigned is None:
            from torch._inductor.compile_fx import (
                align_inputs_from_check_idxs,
                get_input_idxs_to_check,
            )

            checked = get_input_idxs_to_check(inputs, self._static)
            self._realigned = align_inputs_from_check_idxs(
                self._model, checked, self.mutated_input_idxs
            )
        results = self._realigned(inputs)
        self.has_run = True
        return results

    def calls(
        self,
        call: Callable[..., Any],
        sizes: Collection[Any] | None,
        is_ready: Callable[[], bool],
    ) -> Callable[[list[Any]], Any]:
        """Return what torch calls in the place of the partition.

        It uses ``call``, the partition graphed. With ``sizes`` only calls are recorded
        whose integers are among them: one, or a tuple of several
        (`config.triton.cudagraph_capture_sizes`). ``is_ready`` is asked by the first
        call whether there can be recordings at all.
        """
        ready: bool | None = None

        def run(inputs: list[Any]) -> Any:
            nonlocal ready
            if ready is None:
                ready = is_ready()
            if not ready or (sizes is not None and _integers(inputs) not in sizes):
                return self.run(inputs)
            given = tuple(inputs)
            # Torch expects that: the list may be all that keeps some of them.
            inputs.clear()
            return call(*given)

        return run

    def _memory_of(self, inputs: Sequence[Any]) -> dict[int, StorageWeakRef]:
        """Return the storages that may be written over, by their numbers.

        They are held weakly: what runs may let go of them, and the number of one that
        is gone would be given to a storage of a result.
        """
        found = (inputs[i] for i in self._writable)
        references = (
            StorageWeakRef(each.untyped_storage()) for each in found if _has_bytes(each)
        )
        return {each.cdata: each for each in references}


def _apart(results: Sequence[Any], of: Collection[int]) -> Iterator[Any]:
    """Yield results; those in storages ``of`` inputs in copies of these.

    They lie there as they did: the strides of a result are known to what uses it, and
    two results may share their bytes.
    """
    copies: dict[int, Any] = {}
    for each in results:
        theirs = each.untyped_storage() if _has_bytes(each) else None
        if theirs is None or theirs._cdata not in of:
            yield each
            continue
        if theirs._cdata not in copies:
            whole = tensor_over((theirs.nbytes(),), (1,), torch.uint8, theirs)
            copies[theirs._cdata] = whole.clone().untyped_storage()
        look = tuple(each.shape), each.stride(), each.dtype
        yield tensor_over(*look, copies[theirs._cdata], each.storage_offset())


def _is_seed(value: Any) -> bool:
    is_host = isinstance(value, torch.Tensor) and value.device.type == "cpu"
    return is_host and value.dtype is torch.int64 and not value.dim()


def _has_bytes(value: Any) -> bool:
    is_tensor = isinstance(value, torch.Tensor) and torch._C._has_storage(value)
    return is_tensor and value.untyped_storage().nbytes() > 0


def _integers(inputs: Sequence[Any]) -> int | tuple[int, ...] | None:
    found = tuple(each for each in inputs if isinstance(each, int))
    if len(found) == 1:
        return found[0]
    return found or None
