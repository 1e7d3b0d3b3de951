"""`torch.compile(backend="sapwood")`: what Inductor has compiled, as recorded graphs.

Inductor splits what it compiles into partitions that a graph can take, and asks one
function of torch's, `cudagraphify`, to wrap each. While one of ours is compiled, that
makes a `Partition` graphed in place of torch's own trees. It is the one place that is
also asked where a compiled graph comes from a cache, and for a backward that autograd
has compiled on its own thread: what is passed as ``inner_compile`` is not.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, update_wrapper
from threading import Lock
from typing import Any, Final

import torch

from sapwood.errors import MisuseError
from sapwood.integrations.torch.compiled import trees_of_torch
from sapwood.integrations.torch.partition import Compiled, Partition
from sapwood.runtime.core import Runtime
from sapwood.runtime.default import default_runtime
from sapwood.runtime.graphed import GraphOptions, graphed

_OURS: Final = ("fullgraph", "max_recordings", "max_variants")
"""Options of `Runtime.graph` that `torch.compile` may be given beside Inductor's.

Not ``verify``: what is compiled may write over its inputs, and runs once.
"""

_options: ContextVar[GraphOptions | None] = ContextVar("sapwood_options", default=None)
"""How to graph what this thread compiles; None where that is not for us."""

_installed: list[GraphOptions] = []
"""How to graph what any thread compiles for torch's trees: as the last one says."""

_lock: Final = Lock()
_runtimes: Final[dict[int, Runtime]] = {}
"""By device; each call of a partition asks for its own."""


def backend(
    model: Any,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Compile with Inductor, and record what it compiles: ``backend="sapwood"``.

    ``mode`` and ``options`` are those of Inductor; besides, ``options`` may have
    `Runtime.graph`'s ``max_recordings``, ``max_variants`` and ``fullgraph``. On a CPU
    this is Inductor alone. Raises `MisuseError` for an option that neither has.
    """
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    given = {key.replace("-", "_"): value for key, value in (options or {}).items()}
    ours: Any = {name: given.pop(name) for name in _OURS if name in given}
    patches = {**(list_mode_options(mode) if mode else {}), **given}
    _check_known(patches)
    _take_over()
    with _compiling(ours):
        return compile_fx(
            model,
            inputs,
            inner_compile=_compiling(ours)(compile_fx_inner),
            # Whoever asks for this backend asks for graphs.
            config_patches={**patches, "triton.cudagraphs": True},
        )


def _check_known(patches: Mapping[str, Any]) -> None:
    from torch._inductor import config

    known = config.get_config_copy()
    for name in patches:
        if name not in known:
            raise MisuseError(
                f"torch.compile(options=...) has {name}, which is an option neither of "
                f"Inductor nor of this backend. Those of this backend are "
                f"{', '.join(_OURS)}; torch._inductor.config has the others"
            )


@contextmanager
def _compiling(options: GraphOptions) -> Iterator[None]:
    token = _options.set(options)
    try:
        yield
    finally:
        _options.reset(token)


def install_trees(**options: Any) -> Callable[[], None]:
    """Record in place of torch's trees what is compiled from now on, on any thread.

    It applies to ``torch.compile(mode="reduce-overhead")``, and to all else for which
    Inductor would make CUDA graphs. ``options`` are those of the backend. Returns what
    undoes it; what was compiled meanwhile stays recorded. Raises `MisuseError` for
    options that there are not.
    """
    for name in options:
        if name not in _OURS:
            known = ", ".join(_OURS)
            raise MisuseError(f"there is no option {name}. The options are {known}")
    _take_over()
    given: Any = dict(options)
    _installed.append(given)

    def undo() -> None:
        # By identity: others may have been installed with the same options.
        _installed[:] = [each for each in _installed if each is not given]

    return undo


@contextmanager
def trees(**options: Any) -> Iterator[None]:
    """Record in place of torch's trees what is compiled in this block.

    A context manager: see `install_trees`, which it undoes in the end.
    """
    undo = install_trees(**options)
    try:
        yield
    finally:
        undo()


def _take_over() -> None:
    """Have torch ask us, too, how to wrap what it has compiled; once a process."""
    from torch._inductor import compile_fx

    trees_of_torch()  # here, as a backward may be what is recorded first
    with _lock:
        theirs = compile_fx.cudagraphify
        if not isinstance(theirs, _Wrapping):
            compile_fx.cudagraphify = _Wrapping(theirs)


class _Wrapping:
    """Wraps compiled partitions: those that are for us, in our way, others in torch's.

    Torch looks the function up in its module each time that it needs it.
    """

    def __init__(self, theirs: Callable[..., Any]) -> None:
        self._theirs = theirs
        update_wrapper(self, theirs)

    def __call__(self, model: Compiled, *args: Any, **kwargs: Any) -> Any:
        options = _options.get()
        if options is None and _installed:
            options = _installed[-1]
        if options is None:
            return self._theirs(model, *args, **kwargs)
        return _wrapped(options, model, *args, **kwargs)


def _wrapped(
    options: GraphOptions,
    model: Compiled,
    *_: Any,
    device_index: int,
    placeholders: Sequence[Any] = (),
    mutated_input_idxs: Sequence[int] = (),
    is_backward: bool = False,
    **__: Any,
) -> Callable[[list[Any]], Any]:
    """Return what is called in the place of a compiled partition, with a list."""
    from torch._inductor import config

    name = f"{_compile_id()}, {'backward' if is_backward else 'forward'}"
    # A backward may write over what was saved for it, and any partition over what those
    # before it have made: such an input is none of the graph's, which has users.
    reused = frozenset(
        i
        for i, each in enumerate(placeholders)
        if i not in mutated_input_idxs and (is_backward or not each.users)
    )
    part = Partition(model, name, frozenset(mutated_input_idxs), reused)
    runtime = partial(_runtime, device_index)
    call = graphed(runtime, part, {**options, "name": name})
    sizes = config.triton.cudagraph_capture_sizes
    return part.calls(call, None if sizes is None else frozenset(sizes))


def _compile_id() -> str:
    found = torch._guards.CompileContext.current_compile_id()
    return "compiled graph" if found is None else f"compiled graph {found}"


def _runtime(ordinal: int) -> Runtime:
    """Return the runtime of torch's tensors on a device.

    That is the default one where it can be: what functions record, and what is
    compiled, then have the same pages.
    """
    known = _runtimes.get(ordinal)
    if known is not None and not known.closed:
        return known
    usual = default_runtime()
    there = usual.abilities
    with _lock:
        known = _runtimes.get(ordinal)
        if known is None or known.closed:
            if (there.kind, there.ordinal, usual.arrays) == ("cuda", ordinal, "torch"):
                known = usual
            else:
                known = Runtime(f"cuda:{ordinal}", arrays="torch")
                atexit.register(known.close)
            _runtimes[ordinal] = known
        return known
