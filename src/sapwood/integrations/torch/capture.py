"""A capture by torch: its own graph object, its own allocator, over our addresses.

Torch asks for segments under its allocator's lock; C serves them, from addresses that
were backed before. What is captured never runs at that time.
"""

from __future__ import annotations

import secrets
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

import torch

from sapwood.driver.streams import Stream
from sapwood.errors import CaptureError, DriverError, MisuseError
from sapwood.integrations.torch.asking import generators_of, place_in, rewind
from sapwood.integrations.torch.gradients import Gradients
from sapwood.integrations.torch.history import History, lives_of, unharmed
from sapwood.integrations.torch.hosted import HostedCalls
from sapwood.integrations.torch.layout import note_spent
from sapwood.integrations.torch.moments import Moments
from sapwood.integrations.torch.pool import Pool
from sapwood.integrations.torch.streams import TorchFramework
from sapwood.memory.fold import Life
from sapwood.memory.range import Range
from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import text_of
from sapwood.tree.nests.containers import arrays_in
from sapwood.tree.watch.capturer import GoesBack, Graph
from sapwood.units import Addr, Size

_C: Any = torch._C


class _Held(NamedTuple):
    """A tensor, its memory as it was before, and where and how it viewed that."""

    tensor: Any
    before: Any
    where: tuple[Any, ...]


class TorchCapturer:
    """Has torch capture functions."""

    def __init__(self, framework: TorchFramework) -> None:
        self._framework = framework

    def stream(self) -> Stream:
        """Return the stream that torch captures on."""
        return self._framework.aside()

    def rejoin(self) -> None:
        """Have all work to come run after what captures have run on that stream."""
        self._framework.rejoin()

    def histories(self, arrays: Sequence[Any]) -> Mapping[int, object]:
        """Return by what gradients go back through tensors, by ids, where any do."""
        return _histories(arrays)

    def refusal(
        self, result: Any, histories: Mapping[int, object]
    ) -> CaptureError | None:
        """Return what is wrong with a result, of what this thread ran last.

        A tensor that was there, and has the history that it had, goes out as it is.
        """
        went_back = self._framework.went_back
        for leaf in arrays_in(result, torch.is_tensor):
            if not leaf.requires_grad or leaf.is_leaf:
                continue
            if leaf.grad_fn is histories.get(id(leaf)):
                continue
            if went_back:
                if _is_spent(leaf.grad_fn):
                    continue
                return CaptureError(
                    f"the function returns a tensor {text_of(leaf)} through which a "
                    "gradient may be sent back, beside one that it sends back itself",
                    remedy="Return x.detach(), or leave backward() to the caller",
                )
            return GoesBack(
                f"the function returns a tensor {text_of(leaf)} that requires "
                "grad, and no replay could send a gradient back through it",
                remedy="Call it under torch.no_grad(), return x.detach(), or call "
                "backward() inside the graphed function",
            )
        return None

    def graded(self, target: Callable[[], Any], graph: Graph) -> Gradients:
        """Return what runs calls of a function with gradients."""
        framework = self._framework
        return Gradients(target, graph, lambda: framework.theirs(framework.aside()))

    def hosted(
        self, target: Callable[[], Callable[..., Any]], graph: Graph
    ) -> HostedCalls:
        """Return what runs calls of a function that is passed tensors of the CPU."""
        return HostedCalls(target, graph, self._framework.place)

    def owner(self, range_: Range, room: Size, *, warm: bool) -> TorchOwner:
        """Return a capture that allocates from ``room`` of a range."""
        return TorchOwner(self._framework, range_, room, warm=warm)


def _is_spent(node: Any) -> bool:
    """Return whether torch raises where a gradient is sent back from a node once more.

    What a node has saved is gone when a gradient was sent back through it.
    """
    seen: set[Any] = set()
    left = [node]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if _has_lost(node):
            return True
        left += [each for each, _ in node.next_functions]
    return False


def _has_lost(node: Any) -> bool:
    """Return whether what a node has saved is gone.

    One tensor tells of all: where hooks pack what is saved, each look unpacks it.
    """
    for name in dir(node):
        if name.startswith("_saved_") or name == "saved_tensors":
            try:
                if isinstance(getattr(node, name), torch.Tensor):
                    return False
            except RuntimeError:
                return True
    return False


def _histories(arrays: Sequence[Any]) -> Mapping[int, object]:
    return {id(x): x.grad_fn for x in arrays if x.requires_grad and x.grad_fn}


class TorchOwner:
    """One capture, and its graph."""

    def __init__(
        self, framework: TorchFramework, range_: Range, room: Size, *, warm: bool
    ) -> None:
        close_orphans()
        self._framework, self._range, self._warm = framework, range_, warm
        self._place, self._stream = place, stream = framework.place, framework.aside()
        self._raw: int = framework.theirs(stream).cuda_stream
        idle = range_.idle()
        base, size = range_.lend(room)
        # Where there is as much as can be taken, nothing need be shared in turn.
        self._shares = idle < size
        self._pool = Pool(base, size, place, range_.pages.page)
        # Where a collection finds both, it would end their parts in any order.
        self._end = weakref.finalize(self, self._pool.end)
        self._end.atexit = False
        self._generators = generators_of(place)
        self._seeds: Sequence[tuple[torch.Generator, int, int]] = ()
        self._history = History(place.index)
        self._moments = self._moments_of(())
        self._known = self._closed = False
        self._held: Sequence[_Held] = ()
        self._histories: Mapping[int, object] = {}
        self.launches = True
        range_.outsiders = self._holds

    @property
    def short(self) -> bool:
        """Whether torch has asked for a segment that no addresses were left for."""
        return self._pool.segments.counters().refused > 0

    def _moments_of(self, stages: Sequence[Storage]) -> Moments:
        return Moments(stages, self._raw, self._place.index)

    def follow(self, stages: Sequence[Storage]) -> None:
        """Note when these stages of inputs are used last."""
        self._moments = self._moments_of(stages)

    @contextmanager
    def holding(self, arrays: Sequence[Any]) -> Iterator[None]:
        """Have tensors end with the memory that they have, whatever they are given."""
        self._held = [_Held(each, each.detach(), _where(each)) for each in arrays]
        self._histories = _histories(arrays)
        try:
            yield
        finally:
            for each in self._moved():
                each.tensor.data = each.before
            self._held, self._histories = (), {}

    def _moved(self) -> list[_Held]:
        """Return the tensors that are of other memory by now."""
        return [each for each in self._held if _where(each.tensor) != each.where]

    def begin(self) -> None:
        """Begin to capture on the stream, and to allocate from the range."""
        if not self._warm:
            self._framework.prime()
        self._framework.turn.acquire()
        # A workspace that is kept would be baked in, and freed by the next clearing.
        _C._cuda_clearCublasWorkspaces()
        with ExitStack() as failed:
            failed.callback(self._framework.turn.release)
            failed.callback(self._history.end, self._pool.id)
            failed.callback(self._moments.end)
            # Torch itself writes there before it captures: what random numbers need.
            self._framework.gather()
            failed.callback(self._put_back_seeds)
            self._hide_seeds()
            if self._shares:
                self._moments.begin()
                self._history.begin()
            self._pool.begin()
            failed.callback(self._pool.rest)
            with self._on_stream():
                self._pool.graph.capture_begin(
                    pool=self._pool.id, capture_error_mode="thread_local"
                )
            self._framework.moments = self._moments if self._shares else None
            failed.pop_all()

    def _hide_seeds(self) -> None:
        """Register the users' generators with the graph, under random seeds meanwhile.

        While a capture is on, torch raises where `manual_seed` sets another seed, but
        ignores one that sets the same seed: replays would go on in the sequence, where
        eager calls begin it again. Nobody sets the random seed, so that torch raises.
        """
        own = self._generators[1:]
        self._register(self._pool.graph)
        self._seeds = [(each, *place_in(each)) for each in own]
        for each in own:
            each.manual_seed(secrets.randbits(63))

    def _register(self, graph: Any) -> None:
        """Have a graph know the generators that are not the default one.

        Torch keeps what its kernels read of a generator on the device that is current
        when a graph first knows of it; they may run on another one.
        """
        with torch.cuda.device(self._place):
            for each in self._generators[1:]:
                graph.register_generator_state(each)

    def _put_back_seeds(self) -> None:
        for each in self._seeds:
            rewind(*each)
        self._seeds = ()

    def end(self) -> int:
        """End the capture; return the address of its graph."""
        try:
            with self._ending():
                self._pool.graph.capture_end()
        except RuntimeError as error:
            says = str(error).partition("\n")[0]
            raise DriverError(
                "capture_end", 901, "STREAM_CAPTURE_INVALIDATED", says
            ) from None
        raw: int = self._pool.graph.raw_cuda_graph()
        return raw

    def abandon(self) -> None:
        """End a capture that nobody wants."""
        with suppress(RuntimeError), self._ending():
            self._pool.graph.capture_end()

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """Leave the capture, however it ends, and everything as it was before."""
        with ExitStack() as last:
            last.callback(self._framework.turn.release)
            last.callback(self._put_back_seeds)
            last.callback(self._pool.rest)
            last.callback(_C._cuda_clearCublasWorkspaces)
            last.callback(self._history.end, self._pool.id)
            last.callback(self._moments.end)
            self._framework.moments = None
            # That there is nothing in it, is no reason to warn; and where warnings are
            # errors, torch would not come to its end.
            last.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", message=".*CUDA Graph is empty")
            try:
                with self._on_stream():
                    yield
            except RuntimeError:
                self._spoilt()
                raise

    def _spoilt(self) -> None:
        """Have torch's allocator and generator forget a capture that CUDA ended."""
        at, pool = self._place.index, self._pool.id
        with suppress(RuntimeError):
            _C._cuda_endAllocateToPool(at, pool)
            # What the end of the capture would have made the graph do at its own.
            _C._cuda_releasePool(at, pool)
        with suppress(RuntimeError):
            self._pool.graph.reset()
        again = torch.cuda.CUDAGraph()
        self._register(again)
        with warnings.catch_warnings(), suppress(RuntimeError):
            warnings.simplefilter("ignore")
            with self._on_stream():
                again.capture_begin(capture_error_mode="thread_local")
                again.capture_end()

    def _on_stream(self) -> AbstractContextManager[Any]:
        return self._framework.inside(self._stream)[1]

    def lives(self, stages: Sequence[Storage]) -> list[Life]:
        """Return when what was allocated, and stages, were in use.

        All that was served is in it.
        """
        spans, events = self._spans(), self._history.taken()
        found = lives_of(events, spans, self._raw)
        if found is None:
            return [Life(lo, hi, 0, None) for lo, hi in spans]
        staged = self._moments.lives(stages, events)
        return [*(Life(lo, hi, 0, 0) for lo, hi in spans), *found, *staged]

    def _spans(self) -> list[tuple[Addr, Addr]]:
        return [
            (each.address, Addr(each.address + each.size))
            for each in self._pool.segments.log()
            if each.what == "served"
        ]

    def returned(self, result: Any) -> None:
        """Note what a gradient was sent back through: replays are to say so, too."""
        if not self._framework.went_back:
            return
        with suppress(MisuseError):  # it contains itself
            for leaf in arrays_in(result, torch.is_tensor):
                graph = leaf.grad_fn
                known = graph is None or graph is self._histories.get(id(leaf))
                if not known and _is_spent(graph):
                    note_spent(leaf)

    def survivors(self) -> list[tuple[Addr, Size]]:
        """Return the allocations of the capture that are alive."""
        with unharmed(self._pool.id) as pool:
            segments = torch.cuda.memory_snapshot(pool, include_traces=False)
        return [
            (Addr(block["address"]), Size(block["size"]))
            for segment in segments
            for block in segment["blocks"]
            if block["state"] == "active_allocated"
        ]

    def refusal(self, result: Any, arrays: Sequence[Any]) -> CaptureError | None:
        """Return what is wrong with what the function leaves to others."""
        graded = [tensor for tensor in arrays if self._has_new_grad(tensor)]
        for tensor in graded:
            tensor.grad = None
        for moved in self._moved():
            return CaptureError(
                f"the function gives a tensor {text_of(moved.tensor)} other memory or "
                "another shape, as by x.data = y or x.t_(), which no replay would "
                "repeat",
                remedy="Write into it, x.copy_(y), or bind the new tensor to a slot",
            )
        for tensor in graded:
            return CaptureError(
                "backward() leaves a gradient on an argument, or on a new leaf: "
                f"{text_of(tensor)}",
                remedy="Return what torch.autograd.grad(...) gives, or keep the "
                "tensor in a module or optimizer that the function names",
            )
        return TorchCapturer(self._framework).refusal(result, self._histories)

    def _has_new_grad(self, tensor: Any) -> bool:
        return tensor.is_leaf and tensor.grad is not None and self._is_new(tensor.grad)

    def _is_new(self, tensor: Any) -> bool:
        try:
            at = tensor.data_ptr()
        except RuntimeError:
            return False  # it is stale
        return any(lo <= at < hi for lo, hi in self._spans())

    def instantiate(self) -> int:
        """Make the graph launchable; return the address of that."""
        self._pool.graph.instantiate()
        raw: int = self._pool.graph.raw_cuda_graph_exec()
        return raw

    def launch(self) -> None:
        """Launch on torch's current stream, after what random numbers need."""
        before = [each.get_offset() for each in self._generators]
        self._pool.graph.replay()
        if not self._known:
            # Only a graph that drew random numbers moves a generator.
            self._known = True
            self.launches = before != [each.get_offset() for each in self._generators]
            self._generators = []

    def close(self) -> None:
        """Let go of the graph and of torch's pool, once nothing is allocated there."""
        self._closed = True
        self._holds()

    def _holds(self) -> bool:
        """Return whether torch may still free what it has in the range.

        It knows its allocations by their addresses, which must not be anybody else's
        before.
        """
        if not self._end.alive:
            return False
        if self.survivors():
            if self._closed:
                _orphans[self] = self._range
            return True
        if self._closed:
            self._end()
            _orphans.pop(self, None)
        return False


_orphans: dict[TorchOwner, Range] = {}
"""Captures that are closed, of which there are tensors: with their addresses.

Whoever made them may be gone, and with a tensor's end torch looks for its address: if
that were somebody else's by then, it would end the process.
"""


def close_orphans() -> None:
    """Give back the addresses of captures whose last tensors have gone meanwhile."""
    for range_ in [*_orphans.values()]:
        range_.close()


def _where(tensor: Any) -> tuple[Any, ...]:
    """Return which bytes a tensor views, and how."""
    look = tensor.shape, tensor.stride(), tensor.dtype, tensor.storage_offset()
    return tensor.untyped_storage()._cdata, look
