"""What torch's dispatcher tells while a function is watched.

Every operation is seen with its tensors, autograd's among them, on whatever thread it
runs: what it uses and writes, and whether a replay could repeat it. A compiled graph
is one operation, whatever is in it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from operator import attrgetter
from threading import get_ident
from types import FrameType, TracebackType
from typing import Any, Final, Self
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import (
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)

from sapwood.errors import DriverError
from sapwood.integrations.dispatch import Mode
from sapwood.integrations.torch.asking import draws_from, is_known, swapping
from sapwood.integrations.torch.compiled import listening, put_off
from sapwood.integrations.torch.constants import brought, lifted
from sapwood.integrations.torch.hosted import copied, own_of
from sapwood.integrations.torch.moments import Moments, Uses
from sapwood.integrations.torch.operations import (
    AUTOCASTS,
    Operation,
    constants_of,
    flat,
    has_bytes,
    in_steps,
    is_dense,
    makes,
    operation_of,
)
from sapwood.integrations.torch.storages import Storages
from sapwood.tree.call.integration import text_of
from sapwood.tree.guards.standard import BYTES
from sapwood.tree.record.reading import reading_of
from sapwood.tree.watch import session
from sapwood.tree.watch.session import Session, helped, user_line

_HOST: Final = (
    "Return the tensor, or compute it outside the graphed function, or "
    "in a function marked with @sw.eager"
)
_DATA: Final = (
    "Make the tensor outside the graphed function and pass it in, or make "
    "it in a function marked with @sw.eager"
)
_CPU: Final = (
    "Keep it on the device: optimizers do with capturable=True; make other tensors "
    'with device="cuda"'
)
_DENSE: Final = (
    "Use x.to_dense(), or x.to_padded_tensor(0.0) of a nested one (encoders have "
    "enable_nested_tensor=False), or a function marked with @sw.eager"
)
_HIGHER: Final = "Call it in a function marked with @sw.eager, or compile the function"
_GENERATOR: Final = (
    "it draws from a generator that it makes itself, or that another thread uses",
    "Make the generator outside the graphed function, or draw from the device's own",
)
_DRAWS: Final = "graphsafe_run_with_rng_state"
"""The operator that draws, in compiled checkpoints, from a generator of its own."""

_FORMULA: Final = (
    "the gradient of {}() has other bits where torch is told of operations",
    "Take that gradient in a function marked with @sw.eager, or outside",
)
_FLATTENS: Final = (
    "flatten_parameters() gives the weights other memory in each call",
    "Call it once, outside the graphed function: the weights stay flat",
)
_LENGTHS: Final = (
    "ctc_loss() copies lengths from the host to the device",
    "Call it in a function marked with @sw.eager, or outside",
)
_EIGH: Final = (
    "cuSOLVER cannot compute eigenvalues (linalg.eigh) in a capture",
    "Call it outside the graphed function, or in a function marked with @sw.eager",
)
_COMPOSITE: Final = torch._C.DispatchKey.CompositeImplicitAutograd
_REMEMBERS: Final = torch._C.DispatchKey.PythonTLSSnapshot
_aten: Final[Any] = torch.ops.aten
_OTHERWISE: Final = frozenset({_aten.cumprod, _aten.cumprod_, _aten.prod})
"""Whose gradients torch computes by another formula under a mode of dispatch, as the
one here: `prod_backward` and `cumprod_backward` of FunctionsManual.cpp."""
_NODES: Final = frozenset({"CumprodBackward0", "ProdBackward0", "ProdBackward1"})
"""Autograd's nodes of these operations, by name."""
_ALIGNS: Final = frozenset(
    {_aten._ctc_loss, _aten._ctc_loss_backward, _aten._cudnn_ctc_loss}
)
"""What torch.ctc_loss consists of, which aligns sequences."""
_SOLVES: Final = frozenset(
    {_aten._linalg_eigh, _aten._linalg_eigvals, _aten._linalg_svd, _aten.linalg_eig}
    | {_aten.linalg_ldl_factor_ex, _aten.linalg_ldl_solve, _aten.linalg_lstsq}
    | {_aten.linalg_matrix_exp, _aten.linalg_pinv, _aten.cholesky, _aten.histc}
    | {_aten.linalg_lu, _aten.linalg_lu_factor_ex}
)
"""Operations that no capture takes, and that always give the same shapes."""

_READS: Final = {
    _aten._local_scalar_dense: "x.item()",
    _aten._to_copy: "x.cpu()",
    _aten._unique2: "torch.unique",
    _aten.index: "x[mask]",
}
"""How users ask for what is read on the host, where it has another name."""

_C: Final[Any] = torch._C
_NOT_ITSELF: Final = torch.Tensor.__torch_dispatch__
"""What classes have whose tensors leave it to torch what operations on them do."""


class Watcher(Mode):
    """Tells a session of all operations on the tensors of one device.

    ``count`` says how much has been captured by now, where this is a capture: what
    comes to be there between operations was launched past the dispatcher. ``moments``
    are told of each operation that is over; what a capture has of the host, ``bring``
    brings to the device.
    """

    def __init__(
        self,
        session: Session,
        storages: Storages,
        count: Callable[[], int] | None = None,
        moments: Moments | None = None,
        bring: Callable[[Session, Any], Any] | None = None,
    ) -> None:
        super().__init__()
        self.session, self._storages = session, storages
        self._kind = storages.place.type
        self._is_here = attrgetter(f"is_{self._kind}")
        self.captures = count is not None
        self._count, self._moments = count or int, moments
        self._bring = bring
        self._told = self._count()
        self._made: WeakSet[Any] = WeakSet()
        self._seeds: WeakSet[Any] = WeakSet()
        self._held: WeakSet[Any] = WeakSet()
        self._lengths: WeakSet[Any] = WeakSet()
        self._masks: WeakKeyDictionary[Any, tuple[Any, dict[Any, Any]]]
        self._masks = WeakKeyDictionary()
        self._called: str | None = None
        self._stack, self._thread = ExitStack(), get_ident()
        self._regions = 0
        self._tunes = False
        self._ways_back: list[tuple[Any, Callable[[Any], Any], Any]] = []
        self._line: str | None = None
        self.went_back = False

    supports_higher_order_operators = True
    """So that torch calls this with one, and does not raise for want of a rule."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return that compiled functions run as they are: what they do is told."""
        return True

    def __enter__(self) -> Self:
        """Begin to be told, by the dispatcher and of compiled graphs."""
        self._listen()
        super().__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Be told no more."""
        super().__exit__(kind, error, trace)
        self._stack.__exit__(kind, error, trace)
        try:
            self._find_untold()
        except DriverError:
            # A capture that is spoilt says so where it ends, too.
            if kind is None:
                raise

    @contextmanager
    def _again(self) -> Iterator[None]:
        """Be told of what one operation is made of."""
        super().__enter__()
        try:
            yield
        finally:
            super().__exit__(None, None, None)

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Be told nothing meanwhile; what is captured then has ended.

        Afterwards `go_on` says what is captured now, if anything is.
        """
        self._find_untold()
        self._stack.close()
        self.go_on(int, None)
        try:
            with _disable_current_modes():
                yield
        finally:
            self._listen()

    def _listen(self) -> None:
        self._stack.enter_context(listening(self))
        self._stack.enter_context(lifted())

    def go_on(self, count: Callable[[], int], moments: Moments | None) -> None:
        """Be told of another capture, of which this counts and these are told."""
        self._count, self._moments = count, moments
        self._told = count()

    def _find_untold(self) -> None:
        """Tell the session of work that no operation has launched."""
        if not self._regions:
            count = self._count()
            self.session.untold += count - self._told
            self._told = count

    def compiling(self) -> None:
        """Note that torch compiles. Raises `Unready` in a capture."""
        if self.captures:
            self.session.unready("torch compiles something while it is captured")
        self.session.prepares = True

    @contextmanager
    def region(self, graph: Any, inputs: Sequence[Any]) -> Iterator[None]:
        """Note one compiled graph; operations inside of it are parts of it."""
        self._note_backward()
        self._find_untold()
        uses: Uses = []
        if self._kind in graph.device_types:
            uses = self._lend(inputs, self._note_region(graph, inputs))
        outside, self._line = self._line, self._line or user_line()
        tuned, self._tunes = self._tunes, not getattr(graph, "has_run", True)
        self._regions += 1
        try:
            yield
        finally:
            self._regions -= 1
            self._line, self._tunes = outside, tuned
        self._end(uses)

    def gave(self, results: Any) -> None:
        """Note what a compiled graph returns.

        On the host are the seeds of attention's dropout, but in a capture.
        """
        if not self.captures:
            self._made_now(results)
            self._note_made(results)

    def _note_uses(self, uses: Uses) -> None:
        for storage, writes in uses:
            self.session.uses(storage, writes=writes)

    def _end(self, uses: Uses) -> None:
        """Take note that an operation is over, and has launched all that it does."""
        self._told = self._count()
        if self._moments is not None:
            self._moments.passed(uses)

    def _note_region(self, graph: Any, inputs: Sequence[Any]) -> Uses:
        for each in inputs:
            if isinstance(each, torch.Generator):
                self._draws_from(each)
            elif isinstance(each, torch.Tensor) and self._kind != "cpu":
                self._refuse_cpu_tensor(each, "is used on the device", _DATA)
        hosts = self._hosts((each, False) for each in flat(inputs))
        self.session.op("compiled graph", constants_of(inputs, {}, hosts=hosts))
        self.session.code.append((graph.cache_key, graph))
        uses = [
            (self._storages.of(each), i in graph.mutated_input_idxs)
            for i, each in enumerate(inputs)
            if isinstance(each, torch.Tensor) and each.device.type == self._kind
        ]
        self._note_uses(uses)
        return uses

    def _lend(self, inputs: Sequence[Any], uses: Uses) -> Uses:
        """Give a compiled graph tensors of its own, which it lets go of in time.

        Returns what it uses until it is over.
        """
        if self._moments is None or not isinstance(inputs, list):
            return uses
        lasting = {storage for storage, writes in uses if writes}
        for i, each in enumerate(inputs):
            if isinstance(each, torch.Tensor) and each.device.type == self._kind:
                storage = self._storages.of(each)
                if storage not in lasting:
                    inputs[i] = self._moments.lend(self._storages, each)
                if inputs[i] is each:
                    lasting.add(storage)
        return [(storage, writes) for storage, writes in uses if storage in lasting]

    def _note_backward(self) -> None:
        if torch._C._current_graph_task_id() >= 0:
            self.went_back = True

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Note one operation, and run it."""
        given = kwargs or {}
        if self._ways_back:
            self._go_back()
        if isinstance(func, HigherOrderOperator):
            if not self._regions:
                self.refused(
                    f"the operator {func.name()} runs functions of its own", _HIGHER
                )
            with swapping() if func.name() == _DRAWS else nullcontext():
                return func(*args, **given)
        if any(each.__torch_dispatch__ is not _NOT_ITSELF for each in types):
            # What is made of other tensors says by operations on those what it does.
            return NotImplemented
        op = operation_of(func)
        with _with_casts(op.autocasts):
            if op.composite:
                with _with_views(), self._again():
                    # Not `decompose`: of some, torch has another form in Python
                    # besides, which gives other bits.
                    return func._op_dk(_COMPOSITE, *args, **given)
            if op.in_steps and not self._regions and self._may_wait(args):
                steps = in_steps(op, args, given, self._where)
                if steps is not None:
                    with self._again():
                        return steps()
            if op.packet is _aten.record_stream:
                # It computes nothing, and tells whose memory it is to those who ask.
                return func(*args, **given)
            return self._done(func, op, args, given)

    def _done(
        self, func: Any, op: Operation, args: tuple[Any, ...], given: Mapping[str, Any]
    ) -> Any:
        """Note an operation on plain tensors, and run it."""
        copy = copied(op.packet, args, given, own_of) if op.copies else None
        if copy is not None:
            with self._again():
                return copy()
        tensors, is_here = op.tensors(args, given), self._is_here
        here = [each for each in tensors if is_here(each[0])]
        if not all(map(is_dense, here)):
            self.refused("a sparse or nested tensor is used", _DENSE)
            return func(*args, **given)
        if self._may_read(op, args, given, tensors, here):
            return self._read(func, op, args, given)
        self._refuse(op, args, given, tensors, here)
        self._note_backward()
        if not self._regions and (here or makes(given, self._kind)):
            hosts = self._hosts(tensors)
            self.session.op(op.text, constants_of(args, given, hosts=hosts))
        storage_of = self._storages.of
        uses = [
            (storage_of(tensor), writes)
            for tensor, writes in here
            if not tensor._is_zerotensor()
        ]
        self._find_untold()
        self._note_uses(uses)
        result = self._as_ever(func, op, args, given, here)
        self._end(uses)
        if op.hosted or not here:
            self._made_here(op, tensors, result)
        if not self.captures:
            self._made_now(result)
            if here:
                # Of attention, for example.
                self.seeds(result)
        return result

    def _may_wait(self, args: Sequence[Any]) -> bool:
        """Return whether the host would wait for tensors of an operation."""
        return not torch.is_tensor(args[0]) or self._is_here(args[0])

    def _where(self, mask: Any) -> Any:
        """Return where a mask is true; in a backward pass, as it was on the way there.

        Autograd goes back by the masks that it has saved, and no region can run then.
        """
        storage = mask.untyped_storage()
        look = mask.storage_offset(), mask.shape, mask.stride()
        version = None if mask.is_inference() else mask._version
        known, found = self._masks.get(storage, (version, {}))
        if known == version and _C._current_graph_task_id() >= 0 and look in found:
            return found[look]
        self._called = "x[mask]"
        try:
            places = mask.nonzero()
        finally:
            self._called = None
        if torch.is_grad_enabled():
            # Autograd refuses a mask that was written since: older ones are no use.
            kept = found if known == version else {}
            self._masks[storage] = version, kept | {look: places}
        return places

    def _as_ever(
        self,
        func: Any,
        op: Operation,
        args: tuple[Any, ...],
        given: Mapping[str, Any],
        here: list[tuple[Any, bool]],
    ) -> Any:
        """Run an operation as where no mode is told, also what torch does otherwise."""
        if here and op.packet in _ALIGNS:
            func, args = self._aligned(func, args)
        otherwise = bool(here) and op.packet in _OTHERWISE and _goes_back(here)
        of = None
        if otherwise:
            of = args[0].clone() if here[0][1] else args[0]
        result = self._run(func, op, args, given, here=bool(here))
        if self._lengths and op.packet is _aten.clamp_min:
            result = self._length(args[0], result)
        if otherwise:
            again = partial(_again_with, op, args[1:], given)
            self._ways_back.append((result, again, of))
        return result

    def _may_read(
        self,
        op: Operation,
        args: tuple[Any, ...],
        given: Mapping[str, Any],
        tensors: list[tuple[Any, bool]],
        here: list[tuple[Any, bool]],
    ) -> bool:
        """Return whether an operation that no capture takes can be an eager region.

        Where the host waits for it, it gives plain values, tensors whose shapes are
        some, or a copy on the host.
        """
        leaves = op.packet is _aten._to_copy and _leaves(args[0], given, self._kind)
        if not (leaves or _solves(op, args) or op.waits(args, given)):
            return False
        only_here = 0 < len(here) == len(tensors) and not any(w for _, w in tensors)
        # Autograd has threads of its own, and no region can run in the midst of it.
        back = session.current() is not self.session or _C._current_graph_task_id() >= 0
        size = args[0].nbytes if leaves else 0
        apart = self._regions or back or _is_for_text()
        return only_here and not apart and self.session.may_read(size)

    def _read(
        self, func: Any, op: Operation, args: tuple[Any, ...], given: Mapping[str, Any]
    ) -> Any:
        """Run an operation as an eager region; return what it gives."""

        def read(*own: Any, **named: Any) -> Any:
            result = func(*own, **named)
            if op.packet not in _SOLVES:
                return _packed(result)
            return (*result,) if isinstance(result, tuple) else result

        usual = _READS.get(op.packet, f"torch.{op.packet.__name__}")
        name = self._called or usual
        part, tensors = reading_of(name, read, args, given, torch.is_tensor, _unpacked)
        # Gradients go back by the function's own tensors, and none through a region.
        tensors = tuple(x.detach() if x.requires_grad else x for x in tensors)
        result = _unpacked(self.session.live(part, tensors, {}))
        if not self.captures:
            self._made_now(result)
        self._note_made(result)
        return result

    def seeds(self, made: Any) -> None:
        """Take tensors on the host for what a capture has on the device."""
        self._note_made(made)
        self._seeds.update(each.untyped_storage() for each in self._on_host(made))

    def _hosts(self, tensors: Iterable[tuple[Any, bool]]) -> list[Any]:
        """Return those of the tensors that are only read, and lie on the host."""
        if self._kind == "cpu":
            return []
        return [
            tensor
            for tensor, writes in tensors
            if tensor.device.type == "cpu"
            and not writes
            and has_bytes(tensor)
            and tensor.untyped_storage() not in self._seeds
        ]

    def _run(
        self,
        func: Any,
        op: Operation,
        args: tuple[Any, ...],
        given: Mapping[str, Any],
        *,
        here: bool,
    ) -> Any:
        if self._bring is None or not (op.copies or (op.moves and here)):
            return func(*args, **given)
        bring = partial(self._bring, self.session)
        return brought(func, op, args, given, bring, self._kind)

    def _made_now(self, result: Any) -> None:
        """Note what an operation gives that nobody has come with before."""
        for tensor in flat(result):
            if tensor.device.type != self._kind or tensor._is_zerotensor():
                continue  # of zeros that autograd makes, there is no memory
            if torch._C._has_storage(tensor):
                storage = self._storages.of(tensor)
                if storage not in self.session.used:
                    self.session.made.add(storage)

    def _refuse(
        self,
        op: Operation,
        args: tuple[Any, ...],
        given: Mapping[str, Any],
        tensors: list[tuple[Any, bool]],
        here: list[tuple[Any, bool]],
    ) -> None:
        """Say what no replay could repeat, before it is done."""
        if here and op.waits(args, given):
            name = self._called or op.packet.__name__
            self.refused(f"a value is needed on the host ({name})", _HOST)
        elif here and op.enters:
            self.refused("host data enters the device (torch.tensor)", _DATA)
        elif here and op.packet in _OTHERWISE and _goes_back(here):
            what, remedy = _FORMULA
            self.refused(what.format(op.packet.__name__), remedy)
        elif here and op.packet is _aten._cudnn_rnn_flatten_weight:
            self.refused(*_FLATTENS)
        elif here and op.packet in _ALIGNS:
            self.refused(*_LENGTHS)
        elif here and op.packet in (_aten._linalg_eigh, _aten.linalg_pinv):
            # It fails there, and once more in the next call of anybody's.
            self.refused(*_EIGH)
        elif op.copies:
            self._refuse_copy(op.packet, args, given)
        generator = given.get("generator") if given else None
        if generator is not None:
            self._draws_from(generator)
        if len(here) < len(tensors) and not op.copies:
            self._refuse_cpu(tensors, here)

    def _go_back(self) -> None:
        """Have gradients sent back as where no mode is told of it.

        Autograd has a node for an operation only when that is over; it saves the result
        then, by an operation. What is written to a view has the node of a view.
        """
        ways, self._ways_back = self._ways_back, []
        for result, again, of in ways:
            if type(result.grad_fn).__name__ in _NODES:
                result.grad_fn.register_hook(partial(_sent_back, again, of))

    def _aligned(self, func: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """Return what a step of ctc_loss does eagerly, with lengths on the host.

        Under a mode of dispatch torch passes them on as they are, and raises where
        they are on the host: `ctc_loss_impl` of ATen/native/LossCTC.cpp.
        """
        names = [each.name for each in func._schema.arguments]
        lengths = [k for k, name in enumerate(names) if name.endswith("_lengths")]
        if not all(isinstance(args[k], torch.Tensor) for k in lengths):
            return func, args
        self._lengths.add(args[lengths[-1]].untyped_storage())
        listed = [x.tolist() if k in lengths else x for k, x in enumerate(args)]
        return func.overloadpacket.default, tuple(listed)

    def _length(self, of: Any, length: Any) -> Any:
        """Return what ctc_loss divides by where eager calls have it: on the device."""
        if of.device.type != "cpu" or of.untyped_storage() not in self._lengths:
            return length
        self._lengths.discard(of.untyped_storage())
        return length.to(self._storages.place)

    def _draws_from(self, generator: torch.Generator) -> None:
        """Note what the function is about to draw from."""
        if generator.device.type != self._kind:
            return
        if not self.captures:
            draws_from(generator, self._thread)
        elif not is_known(generator, self._thread):
            # Torch would raise, and the capture would be spoilt.
            self.refused(*_GENERATOR)

    def _refuse_copy(
        self, packet: Any, args: tuple[Any, ...], given: Mapping[str, Any]
    ) -> None:
        is_into = packet is _aten.copy_
        given_tensor = args[1 if is_into else 0]
        if not isinstance(given_tensor, torch.Tensor):
            return
        source = given_tensor.device.type
        wanted = args[0].device if is_into else given.get("device")
        target = source if wanted is None else torch.device(wanted).type
        # Shapes alone are copied to no memory at all.
        if source == target or {source, target} != {self._kind, "cpu"}:
            return
        if target == self._kind:
            if self._is_made(given_tensor):
                return
            what = f"host data enters the device (a tensor {text_of(given_tensor)})"
            self.refused(what, _DATA)
        else:
            self.refused("a value is needed on the host (a copy)", _HOST)

    def refused(self, what: str, remedy: str) -> None:
        """Tell the session; in a compiled graph, at the line that it came from."""
        if self._regions and (self.session.prepares or self._tunes):
            # Kernels that were just compiled may tune themselves, and do so once. They
            # copy to the host what they write, where the device has had no more memory.
            self.session.prepares = True
            return
        self.session.refuse(what, remedy, self._line)

    def _refuse_cpu(
        self, tensors: list[tuple[Any, bool]], here: list[tuple[Any, bool]]
    ) -> None:
        for tensor, writes in tensors:
            if writes:
                self._refuse_cpu_tensor(tensor, "is written", _CPU, by_guards=False)
            elif here:
                self._refuse_cpu_tensor(tensor, "is used on the device", _DATA)

    def _refuse_cpu_tensor(
        self, tensor: Any, does: str, remedy: str, *, by_guards: bool = True
    ) -> None:
        made = self._is_made(tensor, by_guards=by_guards)
        if made or tensor.device.type != "cpu":
            return
        what = f"a CPU tensor {text_of(tensor)} {does}, which no replay would repeat"
        self.refused(what, remedy)

    def _made_here(
        self, op: Operation, tensors: list[tuple[Any, bool]], result: Any
    ) -> None:
        """Remember CPU tensors that come from nothing but the function itself.

        Random numbers do not, nor what they were written to.
        """
        of = [each for each, _ in tensors]
        if op.hosted:
            of = self._hosts(tensors)
        if not op.draws and (op.enters or all(map(self._is_made, of))):
            self._note_made(result)
            return
        for tensor, writes in tensors:
            if writes and tensor.device.type == "cpu" and self._is_made(tensor):
                self._made.discard(tensor.untyped_storage())

    def _is_made(self, tensor: Any, *, by_guards: bool = True) -> bool:
        """Return whether a CPU tensor comes of the function, or of what is guarded."""
        if not torch._C._has_storage(tensor):
            return False
        storage = tensor.untyped_storage()
        if storage in self._made or (by_guards and storage in self._held):
            return True
        held = by_guards and storage.nbytes() <= BYTES and self.session.holds(tensor)
        if held:
            self._held.add(storage)
        return held

    def _note_made(self, result: Any) -> None:
        self._made.update(each.untyped_storage() for each in self._on_host(result))

    def _on_host(self, result: Any) -> Iterator[Any]:
        """Yield the tensors of a result that have memory of the host."""
        for made in flat(result):
            if made.device.type == "cpu" and torch._C._has_storage(made):
                yield made


def _with_views() -> AbstractContextManager[object]:
    """Return a context in which views are what they are where nobody is told.

    A mode is told below what makes views of parameters require grad, and torch decides
    by that how it multiplies: in inference mode, too, where no gradient is taken.
    """
    views = _C.DispatchKey.ADInplaceOrView
    exclude = _C._dispatch_tls_local_exclude_set().remove(views)
    guard: AbstractContextManager[object] = _C._ForceDispatchKeyGuard(
        _C._dispatch_tls_local_include_set(), exclude
    )
    return guard


def as_seed(tensor: Any) -> Any:
    """Return a tensor on the host, for an operation that wants it there eagerly."""
    modes = _get_current_dispatch_mode_stack()
    with _disable_current_modes():
        seed = tensor.cpu()
    for each in modes:
        if isinstance(each, Watcher):
            each.seeds(seed)
    return seed


def _solves(op: Operation, args: Sequence[Any]) -> bool:
    """Return whether no capture takes an operation that always gives the same shapes.

    A histogram is one where it looks for its bounds itself.
    """
    low, high = (*args[2:], 0, 0)[:2] if op.packet is _aten.histc else (0, 0)
    return op.packet in _SOLVES and low == high


def _leaves(tensor: Any, given: Mapping[str, Any], kind: str) -> bool:
    """Return whether a copy of a tensor is to be on the host."""
    wanted = given.get("device")
    there = wanted is not None and torch.device(wanted).type == "cpu" != kind
    return there and tensor.device.type == kind and not given.get("pin_memory")


def _is_for_text() -> bool:
    """Return whether torch makes a text of a tensor, which no replay would show."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename == _TEXTS or (
            code.co_name == "__format__" and code.co_filename == _TENSORS
        ):
            return True
        frame = frame.f_back
    return False


_TEXTS: Final = torch._tensor_str.__file__
_TENSORS: Final = torch._tensor.__file__


def _packed(result: Any) -> Any:
    """Return what an operation gives as plain values, and tensors beside their kind."""
    if isinstance(result, (list, tuple)):
        return tuple(map(_packed, result))
    if not isinstance(result, torch.Tensor):
        return result
    if result.device.type != "cpu":
        return "here", result
    plain = result.detach().resolve_conj().resolve_neg()
    form = str(plain.dtype), tuple(plain.shape), plain.stride()
    flat = plain.reshape(-1).clone().view(torch.uint8)
    return "host", bytes(flat.tolist()), *form


def _unpacked(told: Any) -> Any:
    """Return what an operation gave, of which plain values were made."""
    if not isinstance(told, tuple):
        return told
    if told[:1] == ("here",):
        return told[1]
    if told[:1] != ("host",):
        return tuple(map(_unpacked, told))
    _, data, kind, shape, strides = told
    dtype = getattr(torch, kind.removeprefix("torch."))
    made = torch.empty_strided(shape, strides, dtype=dtype)
    if data:
        made.copy_(torch.frombuffer(bytearray(data), dtype=dtype).view(shape))
    return made


@contextmanager
def _with_casts(own: Collection[str]) -> Iterator[None]:
    """Let autocast take part in what an operation is made of, where it does untold.

    A mode is told below autocast, which stays off from there on. It is to be off only
    within operations for which it has kernels of its ``own``, on these devices.
    """
    include = _C._dispatch_tls_local_include_set()
    # What is called in this is to remember, too, how things were there.
    exclude = _C._dispatch_tls_local_exclude_set().remove(_REMEMBERS)
    with _C._RestorePythonTLSSnapshot():
        # As at the operation: whether autocast is on is not to be seen below it.
        for kind, key in AUTOCASTS.items():
            if kind not in own and torch.is_autocast_enabled(kind):
                exclude = exclude.remove(key)
        with _C._ForceDispatchKeyGuard(include, exclude):
            yield


put_off(Watcher.__torch_dispatch__)


def _session() -> Session | None:
    """Return the session of whoever watches what this thread does.

    On autograd's threads, modes are those of the thread that called it.
    """
    modes = _get_current_dispatch_mode_stack()
    return next((each.session for each in modes if isinstance(each, Watcher)), None)


helped.append(_session)


def _goes_back(tensors: Sequence[tuple[Any, bool]]) -> bool:
    """Return whether a gradient is sent back through what is done with tensors."""
    return torch.is_grad_enabled() and any(each.requires_grad for each, _ in tensors)


def _again_with(
    op: Operation, rest: tuple[Any, ...], given: Mapping[str, Any], of: Any
) -> Any:
    """Run an operation once more, and not in place, on what it was given."""
    return getattr(_aten, op.packet.__name__.rstrip("_"))(of, *rest, **given)


def _sent_back(
    again: Callable[[Any], Any], of: Any, found: Sequence[Any], sent: Sequence[Any]
) -> Sequence[Any] | None:
    """Return the gradient of an operation, as torch computes it where no mode is told.

    ``found`` is what torch has computed under the mode here from what was ``sent``.
    """
    if found[0] is None or sent[0] is None:
        return None
    twice = torch.is_grad_enabled()
    with _disable_current_modes(), torch.enable_grad():
        given = of if twice else of.detach().requires_grad_()
        if not given.requires_grad:
            return None  # it was written, and is a copy
        result = again(given)
        back = torch.autograd.grad(result, given, sent[0], create_graph=twice)
        if twice:
            result.grad_fn.register_hook(partial(_sent_back, again, of))
    return back[0], *found[1:]
