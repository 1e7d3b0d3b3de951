"""Results that require grad: a recorded forward, and behind it a recorded backward.

The forward returns, beside its result, what autograd has saved in it for backward, as
outputs like any other: whoever holds the way back holds those. What autograd has built
in a capture is kept with that recording, emptied of tensors. To go back through it with
what a replay has saved is a function of arrays, and is recorded as one. For autograd
outside, the whole call is one node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, wraps
from threading import RLock, local
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from weakref import ref

import torch
from torch.autograd import forward_ad
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.hooks import RemovableHandle

from sapwood.integrations.torch.asking import capturing, generators_of
from sapwood.integrations.torch.watching import as_seed
from sapwood.tree.call.integration import text_of
from sapwood.tree.guards.owners import owner_of_class
from sapwood.tree.nests.containers import Alike, arrays_in, flatten, unflatten
from sapwood.tree.watch import session
from sapwood.tree.watch.capturer import Graph

_C: Any = torch._C
_PLAIN: Final = (bool, complex, float, int, str, type(None), torch.Size, torch.dtype)
_REMEDY: Final = (
    "Call it under torch.no_grad(), return x.detach(), or call backward() inside the "
    "graphed function"
)
_ROOT: Final = torch.empty(0, requires_grad=True)
"""Has what stands for an argument require grad, where nothing may lead on from that."""


class Refused(Exception):
    """A way back cannot be recorded, for a reason that is said to the user."""


class _Source(torch.autograd.Function):  # type: ignore[misc]
    """What stands for an argument in a capture, where the way back ends.

    The argument comes in a list: autograd is not to know what this was made of. Behind
    it the list has gradients that the function itself has sent here.
    """

    @staticmethod
    def forward(ctx: Any, _: Any, given: list[Any]) -> Any:
        ctx.given = given
        return _shown(given[0])

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[None, None]:
        ctx.given.append(gradient)
        return None, None


def _shown(tensor: Any) -> Any:
    """Return a tensor over the same memory, for autograd a new one; nobody is told."""
    with _disable_current_modes():
        return tensor.detach()


class _Box:
    """What nodes find in place of what they saved, while one way back is gone."""

    __slots__ = ("saved",)

    def __init__(self) -> None:
        self.saved: Sequence[Any] | None = None


class _Handle:
    """What a node has of a tensor that it saved: which of those of the call it is.

    Or which it is a ``view`` of, by shape, strides, and how far on it begins. It is a
    ``seed``, if the node wants that on the host unless it is captured.
    """

    __slots__ = ("__weakref__", "box", "place", "seed", "tensor", "version", "view")

    def __init__(self, tensor: Any, box: _Box) -> None:
        self.tensor, self.version, self.box = _shown(tensor), tensor._version, box
        self.place, self.seed = 0, False
        self.view: tuple[Any, ...] = ()


def _packed(handles: list[ref[_Handle]], box: _Box, tensor: Any) -> _Handle:
    handle = _Handle(tensor, box)
    handles.append(ref(handle))
    return handle


def _unpacked(handle: _Handle) -> Any:
    saved = handle.box.saved
    if saved is not None:
        base = saved[handle.place]
        if not handle.view:
            return as_seed(base) if handle.seed and not capturing() else base
        shape, strides, beyond = handle.view
        return base.as_strided(shape, strides, base.storage_offset() + beyond)
    if handle.tensor._version != handle.version:
        raise RuntimeError(
            f"a tensor {text_of(handle.tensor)} that backward needs was written to in "
            f"place: it is at version {handle.tensor._version}, and was saved at "
            f"{handle.version}"
        )
    return handle.tensor


class _View(NamedTuple):
    """Shows a part of the leaf at a ``place``, which begins so far ``beyond`` that."""

    place: int
    shape: Sequence[int]
    strides: Sequence[int]
    beyond: int

    def of(self, leaves: Sequence[Any]) -> Any:
        """Return the view, of the leaves of another result."""
        base = leaves[self.place]
        return base.as_strided(
            self.shape, self.strides, base.storage_offset() + self.beyond
        )


class Way(Alike):
    """The way back through one run.

    ``places`` are those of the results that require grad among the leaves, and
    ``arguments`` the positions and names of the arguments that do. ``back`` takes
    gradients and the ``needed`` ones first of what was saved; when calls come to it
    again, it is recorded. Other leaves are ``views``, each of which of these leaves.
    """

    __slots__ = (
        "_again",
        "_back",
        "_recorded",
        "arguments",
        "needed",
        "places",
        "several",
        "views",
    )

    def __init__(
        self,
        places: Sequence[int] = (),
        arguments: Sequence[int | str] = (),
        needed: int = 0,
        back: Callable[..., Any] = tuple,
        views: Mapping[int, _View] = MappingProxyType({}),
        several: Sequence[int] = (),
    ) -> None:
        self.places, self.arguments, self.needed = places, arguments, needed
        self.views, self.several = views, several
        self._back = back
        self._again, self._recorded = False, back

    def way_back(self, graph: Graph) -> Callable[..., Any]:
        """Return what goes back: a graphed function, for a way that comes again."""
        back = self._back
        if self._again and self._recorded is back:
            self._recorded = graph(lambda: back, back=True)
        self._again = True
        return self._recorded


class _Back:
    """Goes back through one run; guards look into its ``__wrapped__``, if there is."""

    __wrapped__: Callable[..., Any]

    def __init__(self, box: _Box, ends: Sequence[Any], starts: Sequence[Any]) -> None:
        self._box, self._ends, self._starts = box, ends, starts
        self._turn = RLock()

    def __call__(self, *given: Any) -> Any:
        """Return a gradient, or None, for each start.

        Given are gradients, or None, of the ends, and behind them what was saved.
        """
        pairs, saved = zip(self._ends, given, strict=False), given[len(self._ends) :]
        used = [(end, each) for end, each in pairs if each is not None]
        with self._turn:
            self._box.saved = saved
            try:
                return torch.autograd.grad(
                    [end for end, _ in used],
                    self._starts,
                    [each for _, each in used],
                    retain_graph=True,
                    allow_unused=True,
                )
            finally:
                self._box.saved = None


_NOWHERE: Final = Way()


class Taped:
    """A function that returns what it saves for backward behind its result.

    A warm-up returns what autograd makes of it; the way back through a capture is for
    others to take. Those arguments are ``leaves`` by position or name that autocast may
    keep the cast of.
    """

    def __init__(
        self, fn: Callable[..., Any], graded: Gradients, leaves: frozenset[int | str]
    ) -> None:
        self.__wrapped__, self._graded, self._leaves = fn, graded, leaves

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        watching, theirs = session.current(), self._graded.now.theirs
        if watching is None:
            own = (theirs.get(id(each), each) for each in args)
            named = {name: theirs.get(id(x), x) for name, x in kwargs.items()}
            return self.__wrapped__(*own, **named), (), (), _NOWHERE
        captured = capturing()
        run = _Run(theirs, self._leaves, capturing=captured)
        result = run(self.__wrapped__, args, kwargs)
        # A warm-up alone is told which storages are the function's own.
        self._graded.writes |= not captured and any(
            use.writes and storage not in watching.made
            for storage, use in watching.used.items()
        )
        try:
            return run.taped(self.__wrapped__, result, watching)
        except Refused as why:
            watching.refuse(str(why), _REMEDY)
            return result, (), (), _NOWHERE


class _Run:
    """One run of a function, and what autograd saves in it."""

    def __init__(
        self,
        theirs: Mapping[int, Any],
        leaves: frozenset[int | str],
        *,
        capturing: bool,
    ) -> None:
        self._theirs, self._leaves, self._capturing = theirs, leaves, capturing
        self._box = _Box()
        self._handles: list[ref[_Handle]] = []
        self._sources: dict[int | str, tuple[Any, Any, int, Any]] = {}
        self._given: list[Any] = []
        self._lists: list[list[Any]] = []
        self._hooks = self._pushes = self._needed = 0
        self._users = False
        self._seeds: set[int] = set()

    def __call__(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run the function with stand-ins for the arguments that require grad."""
        self._given = arrays_in((args, kwargs), torch.is_tensor)
        own = tuple(self._own(i, each) for i, each in enumerate(args))
        named = {name: self._own(name, each) for name, each in kwargs.items()}
        self._hooks = RemovableHandle.next_id
        # Autograd holds it as long as its graph, which is not to hold the arguments.
        pack = partial(_packed, self._handles, self._box)
        with saved_tensors_hooks(pack, _unpacked):
            self._pushes = _pushes.count
            return fn(*own, **named)

    def _own(self, key: int | str, value: Any) -> Any:
        if not _is_way_in(value):
            return value
        for known, passed, *_ in self._sources.values():
            if passed is value:
                return known
        own = self._theirs.get(id(value), value)
        if self._capturing and key in self._leaves:
            own = _shown(value).requires_grad_()
        elif self._capturing:
            self._lists.append([value])
            own = _Source.apply(_ROOT, self._lists[-1])
            self._lists[-1][0] = None
        self._sources[key] = own, value, own._version, own.grad_fn
        return own

    def taped(
        self, fn: Callable[..., Any], result: Any, watching: session.Session
    ) -> Any:
        """Return the result for others, what was saved, what gets a gradient, the way.

        The result is that of ``fn``. Raises `Refused`.
        """
        self._check_sources()
        back = {id(own): value for own, value, _, _ in self._sources.values()}
        leaves, structure = flatten(result, torch.is_tensor)
        tensors = [(i, x) for i, x in enumerate(leaves) if torch.is_tensor(x)]
        places = [i for i, x in tensors if x.grad_fn is not None and id(x) not in back]
        leaves = [back.get(id(each), each) for each in leaves]
        ends = [leaves[i] for i in places]
        if not places:
            given = self._capturing and back
            result = unflatten(structure, leaves) if given else result
            return result, (), (), _NOWHERE
        if watching.breaks:
            raise Refused(
                "it calls an eager region, or reads on the host, and its result "
                "requires grad"
            )
        if RemovableHandle.next_id != self._hooks:
            raise Refused("the function registers hooks, and its result requires grad")
        if _pushes.count != self._pushes:
            raise Refused(
                "the function has tensors saved for backward by hooks, as checkpoints "
                "do, and its result requires grad"
            )
        variables = self._variables_behind(ends)
        whole = _wholes(ends, [*self._given, *variables])
        views = {
            i: _view_of(leaves[i], leaves, next(k for k in places if leaves[k] is base))
            for i in places
            if (base := whole[id(leaves[i])]) is not leaves[i]
        }
        shown = {id(end): _shown(end) for end in ends}
        places = [i for i in places if i not in views]
        ends = [leaves[i] for i in places]
        saved = self._saved(
            [*self._given, *variables, *watching.reads(), *shown.values()]
        )
        if not self._capturing:
            # As many arrays: seeds, as of attention, are the device's own in a capture.
            return result, (ends[0],) * len(saved), tuple(variables), _NOWHERE
        sources = [own for own, *_ in self._sources.values()]
        unique = {id(end): end for end in ends}.values()
        with _disable_current_modes():  # torch makes views of some
            starts = [*map(get_gradient_edge, (*sources, *variables))]
            went = _Back(self._box, [*map(get_gradient_edge, unique)], starts)
            for own in (each for each in sources if each.is_leaf):
                own.data = own.new_empty(0)  # autograd holds it from now on
        several = [i for i in (*places, *views) if _is_of_several(leaves[i])]
        for i in (*places, *views):
            leaves[i] = shown[id(leaves[i])]
        if self._users:
            # Guards look into what the function leads to, as its own backward.
            went.__wrapped__ = fn
        way = Way(places, [*self._sources], self._needed, went, views, several)
        return unflatten(structure, leaves), saved, tuple(variables), way

    def _check_sources(self) -> None:
        owns = [own for own, *_ in self._sources.values()] if self._capturing else []
        if any(len(x) > 1 for x in self._lists) or any(
            own.is_leaf and own.grad is not None for own in owns
        ):
            raise Refused("backward() leaves a gradient on an argument")
        for own, value, version, before in self._sources.values():
            if own._version != version or own.grad_fn is not before:
                raise Refused(
                    f"the function writes to an argument, {text_of(value)}, that "
                    "requires grad"
                )
        for each in self._given:
            if each.grad_fn is not None:
                raise Refused(
                    f"the function writes what requires grad to an argument, "
                    f"{text_of(each)}"
                )

    def _variables_behind(self, ends: Iterable[Any]) -> list[Any]:
        """Return the leaves that gradients of results come to; arguments are none."""
        own = {id(each) for each, *_ in self._sources.values()}
        seen = {each for *_, each in self._sources.values()}
        stack, found = [end.grad_fn for end in ends], dict[int, Any]()
        while stack:
            node = stack.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            variable = getattr(node, "variable", None)
            if variable is not None and id(variable) not in own:
                if variable._backward_hooks:
                    raise Refused(
                        f"a hook is registered on {text_of(variable)}, a parameter of "
                        "which the result requires grad"
                    )
                found[id(variable)] = variable
            if isinstance(node, _C._FunctionBase):
                self._users |= _is_of_users(node)
            if "EfficientAttention" in node.name():
                # What drops: torch reads it on the host, but in a capture.
                seeds = node._saved_philox_seed, node._saved_philox_offset
                self._seeds.update(map(_memory, seeds))
            stack += [each for each, _ in node.next_functions]
        return [*found.values()]

    def _saved(self, known: Sequence[Any]) -> tuple[Any, ...]:
        """Return the tensors that the way back needs, each once; nodes have none.

        What is ``known``, or seen by a view of it, is returned itself: replays give
        that as it is, and autograd tells if somebody has written it. Of what shares
        memory besides, one tensor is returned; behind those that are needed, what is
        known and is but a part of one.
        """
        groups: dict[Any, list[_Handle]] = {}
        for each in self._handles:
            handle = each()
            if handle is None:
                continue
            tensor = handle.tensor
            if tensor._version != handle.version:
                raise Refused(
                    f"the function writes to a tensor {text_of(tensor)} that was saved "
                    "for backward"
                )
            groups.setdefault((_memory(tensor), _sees(tensor)), []).append(handle)
        base_of = {(_memory(each), _sees(each)): each for each in reversed(known)}
        given: list[Any] = []
        beside: list[Any] = []
        for key, handles in groups.items():
            seen = base_of.get(key)
            base = _base([each.tensor for each in handles], seen)
            if seen is not None and base is not seen:
                beside.append(seen)
            for handle in handles:
                handle.place, handle.seed = len(given), key[0] in self._seeds
                shape, strides, offset = lies = _lies(handle.tensor)
                if lies != _lies(base):
                    handle.view = shape, strides, offset - base.storage_offset()
                if self._capturing:
                    handle.tensor = None
            given.append(base)
        self._needed = len(given)
        return (*given, *beside)


def _wholes(ends: Sequence[Any], others: Sequence[Any]) -> dict[int, Any]:
    """Return which result each is a part of, or itself, by identity.

    Raises `Refused` where others show it, too, or another one a part of it alone: of
    writes there, autograd would not know.
    """
    found: dict[int, Any] = {}
    taken = {_memory(each) for each in others}
    wholes: dict[int, list[Any]] = {}
    unique = {id(end): end for end in ends}.values()
    for end in sorted(unique, key=lambda end: -end.numel()):
        known = wholes.setdefault(_memory(end), [])
        met = [each for each in known if not _are_apart(each, end)]
        if _memory(end) in taken or len(met) > 1 or not all(_has(x, end) for x in met):
            raise Refused(
                f"the function returns a tensor {text_of(end)} that requires grad, "
                "and is a view of an argument, or shares a part of another result"
            )
        found[id(end)] = met[0] if met else end
        if not met:
            known.append(end)
    return found


def _has(whole: Any, part: Any) -> bool:
    """Return whether a tensor has all of another in it, as autograd knows, too."""
    (start, end), (first, last) = _extent(whole), _extent(part)
    roots = (each if each._base is None else each._base for each in (whole, part))
    within: bool = start <= first and last <= end and _is_dense(whole)
    return within and _sees(whole) == _sees(part) and len({*map(id, roots)}) == 1


def _is_dense(tensor: Any) -> bool:
    """Return whether a tensor has each element of its extent, and that once."""
    wanted = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != wanted:
                return False
            wanted *= size
    return True


def _are_apart(one: Any, other: Any) -> bool:
    """Return whether two views of one memory, which differ in nothing else, never meet.

    Where they begin is told apart by one stride: within it, both end before the other.
    """
    first, second = sorted((one, other), key=lambda x: x.storage_offset())
    gap: int = second.storage_offset() - first.storage_offset()
    if _sees(one) != _sees(other):
        return False
    if not other.numel() or _extent(first)[1] <= second.storage_offset():
        return True
    strides = {stride for stride in first.stride() if stride > gap}
    row: int = min(strides, default=0)
    if first.stride() != second.stride() or any(each % row for each in strides):
        return False
    reach, further = (_extent_within(each, row) for each in (first, second))
    return reach <= gap and gap + further <= row


def _extent_within(tensor: Any, row: int) -> int:
    """Return how many elements a tensor reaches over, by strides shorter than a row."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    reach: int = sum((size - 1) * stride for size, stride in steps if stride < row)
    return 1 + reach


_SEVERAL: Final = ("Chunk", "Split", "Unbind")
"""How the nodes of operations begin that give several views at once."""


def _is_of_several(tensor: Any) -> bool:
    return bool(tensor._is_view() and tensor.grad_fn.name().startswith(_SEVERAL))


def _as_of_several(tensor: Any) -> Any:
    """Return a tensor as one of several views, which nobody may write in place."""
    return tensor.unsqueeze(0).unbind(0)[0]


def _view_of(part: Any, leaves: Sequence[Any], place: int) -> _View:
    beyond = part.storage_offset() - leaves[place].storage_offset()
    return _View(place, part.shape, part.stride(), beyond)


def _base(tensors: Sequence[Any], known: Any) -> Any:
    """Return a tensor that has all of some in it: what is ``known``, if it has."""
    starts, ends = zip(*map(_extent, tensors), strict=True)
    start, end = min(starts), max(ends)
    if known is not None:
        first, last = _extent(known)
        if first <= start and end <= last:
            return known
    first = tensors[0]
    if all(_lies(each) == _lies(first) for each in tensors):
        return first
    with _disable_current_modes():
        return first.as_strided((end - start,), (1,), start)


def _extent(tensor: Any) -> tuple[int, int]:
    """Return where the elements of a tensor begin and end in its memory."""
    start = tensor.storage_offset()
    if not tensor.numel():
        return start, start
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return start, start + sum((size - 1) * stride for size, stride in steps) + 1


def _lies(tensor: Any) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.storage_offset()


def _is_way_in(value: Any) -> bool:
    """Return whether a gradient is sent out by way of an argument."""
    return type(value) is torch.Tensor and value.requires_grad


def _memory(tensor: Any) -> int:
    memory: int = tensor.untyped_storage()._cdata
    return memory


def _sees(tensor: Any) -> tuple[Any, ...]:
    """Return what a tensor makes of its bytes."""
    return tensor.dtype, tensor.is_conj(), tensor.is_neg()


def _is_of_users(node: Any) -> bool:
    """Return whether a way back is the user's own; raise `Refused` if it has tensors.

    Others than were saved, that is: nobody would know that these are needed.
    """
    cls = type(node)._forward_cls
    if cls is _Source:
        return False
    if not _is_plain([*vars(node).values()]):
        raise Refused(
            f"{cls.__qualname__} keeps more for its backward than plain values, and "
            "what it saves by save_for_backward, and the result requires grad"
        )
    return owner_of_class(cls) == "user"


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


class _Call(NamedTuple):
    """A call with ``ends`` that require grad; ``again`` has gradients that do."""

    ends: Sequence[Any]
    saved: Sequence[Any]
    needed: int
    back: Callable[..., Any]
    again: Callable[..., Any]


class _Node(torch.autograd.Function):  # type: ignore[misc]
    """A whole call, to autograd outside."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *_: Any) -> Any:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*call.saved)
        ctx.needed, ctx.back, ctx.again = call.needed, call.back, call.again
        # Others than those that the recording may keep for its next replay.
        return tuple(end.detach() for end in call.ends)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        saved = ctx.saved_tensors
        if torch.is_grad_enabled():
            return None, *ctx.again(gradients)
        if not _C._autograd._get_current_graph_task_keep_graph():
            del ctx.again  # which holds what was passed, as long as it may be needed
        return None, *ctx.back(*gradients, *saved[: ctx.needed])


class Gradients:
    """Calls of a function whose results require grad.

    ``target`` gives it, ``graph`` graphs functions, and captures are on a ``stream``.
    What ``writes`` what others have cannot be run again, to be differentiated twice.
    """

    def __init__(
        self,
        target: Callable[[], Callable[..., Any]],
        graph: Graph,
        stream: Callable[[], Any],
    ) -> None:
        self._target, self._graph, self.writes = target, graph, False
        self._stream = stream
        self.now = _Now()
        self._forwards: dict[frozenset[int | str], Callable[..., Any]] = {}

    def applies(self) -> bool:
        """Return whether autograd alone sends gradients back through a call."""
        return (
            torch.is_grad_enabled()
            and forward_ad._current_level < 0
            and not _C._are_functorch_transforms_active()
        )

    def _forward(self, leaves: frozenset[int | str]) -> Callable[..., Any]:
        """Return the function for calls of which these arguments are leaves."""
        if leaves not in self._forwards:
            target = self._target
            self._forwards[leaves] = self._graph(
                lambda: Taped(target(), self, leaves), back=False
            )
        return self._forwards[leaves]

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call, and have gradients of what it returns sent on."""
        own: dict[int, Any] = {}
        given = tuple(_detached(each, own) for each in args)
        named = {name: _detached(each, own) for name, each in kwargs.items()}
        every: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
        leaves = frozenset(k for k, x in every if id(x) in own and x.is_leaf)
        theirs = {id(own[id(x)]): x for _, x in every if id(x) in own}
        before, self.now.theirs = self.now.theirs, theirs
        try:
            result, saved, variables, way = self._forward(leaves)(*given, **named)
        finally:
            self.now.theirs = before
        if not (way.places or theirs):
            return result
        found, structure = flatten(result, torch.is_tensor)
        if not way.places and theirs.keys().isdisjoint(map(id, found)):
            return result
        found = [theirs.get(id(each), each) for each in found]
        if way.places:
            ends = {id(found[i]): found[i] for i in way.places}
            sources = [args[k] if type(k) is int else kwargs[k] for k in way.arguments]
            inputs = [*sources, *variables]
            now = _versions((args, kwargs), inputs)
            again = partial(self._again, args, kwargs, way, inputs, now)
            shown = self._linked(ends, saved, way, inputs, again)
            parts = {id(found[i]): view for i, view in way.views.items()}
            alone = {id(found[i]) for i in way.several}
            whole = [shown.get(id(each), each) for each in found]
            shown |= {key: view.of(whole) for key, view in parts.items()}
            shown |= {key: _as_of_several(shown[key]) for key in alone}
            found = [shown.get(id(each), each) for each in found]
        return unflatten(structure, found)

    def _linked(
        self,
        ends: Mapping[int, Any],
        saved: Sequence[Any],
        way: Way,
        inputs: Sequence[Any],
        again: Callable[..., Any],
    ) -> dict[int, Any]:
        """Return results, by what they are in place of, that lead on to the inputs."""
        aside, here = self._stream(), torch.cuda.current_stream()
        back = partial(_back_on, here, aside, way.way_back(self._graph))
        call = _Call([*ends.values()], saved, way.needed, back, again)
        # On the stream of captures: what adds gradients up is of that, too, since one
        # was captured. Were it of the default stream, none could be.
        torch.cuda.set_stream(aside)
        try:
            found = _Node.apply(call, *inputs)
        finally:
            torch.cuda.set_stream(here)
        return dict(zip(ends, found, strict=True))

    def _again(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        way: Way,
        inputs: Sequence[Any],
        versions: Sequence[int],
        gradients: Sequence[Any],
    ) -> Any:
        """Return gradients that can be differentiated: those of another, eager run.

        Raises `RuntimeError` for a function of which that would be another result.
        """
        drawn = _drawn()
        result = self._target()(*args, **kwargs)
        written = self.writes or versions != _versions((args, kwargs), inputs)
        if written or _drawn() != drawn:
            raise RuntimeError(
                "a graphed function is differentiated twice that draws random numbers, "
                "writes to what others have, or whose arguments or parameters were "
                "written to since. Call the plain one there, which is its __wrapped__, "
                "or under sapwood.disabled()"
            )
        found, _ = flatten(result, torch.is_tensor)
        ends = {id(found[i]): found[i] for i in way.places}.values()
        pairs = [x for x in zip(ends, gradients, strict=True) if x[1] is not None]
        return torch.autograd.grad(
            [end for end, _ in pairs],
            inputs,
            [each for _, each in pairs],
            create_graph=True,
            allow_unused=True,
        )


def _back_on(here: Any, aside: Any, back: Callable[..., Any], *given: Any) -> Any:
    """Go back on the stream that the call was on, where what it saved was used."""
    here.wait_stream(aside)
    with torch.cuda.stream(here):
        found = back(*given)
    aside.wait_stream(here)
    return found


def _detached(value: Any, own: dict[int, Any]) -> Any:
    """Return what stands for an argument that requires grad: for one, always one."""
    if not _is_way_in(value):
        return value
    if id(value) not in own:
        own[id(value)] = value.detach().requires_grad_()
    return own[id(value)]


def _versions(nest: Any, others: Iterable[Any]) -> list[int]:
    return [x._version for x in (*arrays_in(nest, torch.is_tensor), *others)]


def _drawn() -> Any:
    """Return how far the generators of the device have come."""
    place = torch.device("cuda", torch.cuda.current_device())
    return [each.get_offset() for each in generators_of(place)]


class _Now(local):
    """The arguments of this thread's call, by what stands for them meanwhile."""

    theirs: Mapping[int, Any] = MappingProxyType({})


class _Pushes(local):
    """How often this thread has had tensors saved by hooks, for backward."""

    count = 0


_pushes: Final = _Pushes()


def notice_pushes() -> None:
    """Count, from now on, how often tensors are saved by hooks."""
    push = _C._autograd._push_saved_tensors_default_hooks
    if hasattr(push, "__wrapped__"):
        return

    @wraps(push)
    def pushing(*hooks: Any) -> None:
        _pushes.count += 1
        push(*hooks)

    _C._autograd._push_saved_tensors_default_hooks = pushing
