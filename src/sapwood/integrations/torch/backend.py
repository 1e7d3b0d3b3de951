"""`torch.compile(backend="sapwood")`: what Inductor has compiled, as recorded graphs.

Inductor splits what it compiles into partitions that a graph can take, and asks one
function of torch's, `cudagraphify`, to wrap each. While one of ours is compiled, that
makes a `Partition` graphed in place of torch's own trees. It is the one place that is
also asked where a compiled graph comes from a cache, and for a backward that autograd
has compiled on its own thread: what is passed as ``inner_compile`` is not.
"""

from __future__ import annotations

import atexit
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, update_wrapper
from threading import Lock
from typing import Any, Final

import torch

from sapwood import knobs
from sapwood.errors import MisuseError, SapwoodError
from sapwood.integrations.torch.compiled import trees_of_torch
from sapwood.integrations.torch.partition import Compiled, Partition
from sapwood.runtime.core import Runtime
from sapwood.runtime.default import default_runtime, made_runtime
from sapwood.runtime.graphed import GraphOptions, graphed
from sapwood.tree.call.options import Options
from sapwood.tree.choose.skips import skip_of, warn

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

_skipping: Final[dict[int, Options]] = {}
"""What has been said of devices that have no runtime."""

_names: Final = Counter[str]()
"""How many partitions were given each name."""


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
    from torch._functorch import config
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    given = {key.replace("-", "_"): value for key, value in (options or {}).items()}
    ours: Any = {name: given.pop(name) for name in _OURS if name in given}
    _check(ours)
    patches = {**(list_mode_options(mode) if mode else {}), **given}
    _check_known(patches)
    _take_over()
    if knobs.current().cache:
        # It loads more of torch's compiler than else is needed by now.
        from sapwood.integrations.torch.code_cache import install_named

        install_named()
    # A backward that may write over what was saved for it would be recorded with
    # copies of what it passes on.
    with _compiling(ours), config.patch(donated_buffer=False):
        return compile_fx(
            model,
            inputs,
            inner_compile=_compiling(ours)(compile_fx_inner),
            # Whoever asks for this backend asks for graphs.
            config_patches={**patches, "triton.cudagraphs": True},
        )


def _check(options: GraphOptions) -> None:
    """Raise `MisuseError` for options that no function could be graphed with."""
    graphed(default_runtime, lambda: None, options)


def _check_known(patches: Mapping[str, Any]) -> None:
    from torch._inductor import config

    if not patches.get("triton.cudagraphs", True):
        raise MisuseError(
            "torch.compile(options=...) has triton.cudagraphs=False, and this backend "
            'is for graphs. Use backend="inductor" where there are to be none'
        )
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
    given: Any = dict(options)
    _check(given)
    _take_over()
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
    from torch._inductor import compile_fx, output_code

    trees_of_torch()  # here, as a backward may be what is recorded first
    with _lock:
        if not isinstance(compile_fx.cudagraphify, _Instead):
            theirs = compile_fx.cudagraphify
            compile_fx.cudagraphify = _Instead(theirs, _wrapping)
            theirs = output_code.maybe_handle_backward_generation
            output_code.maybe_handle_backward_generation = _Instead(theirs, _untold)


class _Instead:
    """Stands for a function of torch's, and calls that for what others compile.

    Torch looks the name up in its module at each call, so that this is found there.
    """

    def __init__(self, theirs: Callable[..., Any], ours: Callable[..., Any]) -> None:
        self._theirs, self._ours = theirs, ours
        update_wrapper(self, theirs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        options = _options.get()
        if options is not None:
            return self._ours(options, False, *args, **kwargs)
        if _installed:
            return self._ours(_installed[-1], True, *args, **kwargs)
        return self._theirs(*args, **kwargs)


def _wrapping(options: GraphOptions, donates: bool, *args: Any, **kwargs: Any) -> Any:
    return _wrapped(options, *args, donates=donates, **kwargs)


def _untold(*_: Any) -> None:
    """Leave torch's trees alone: they hold no forward of a backward of ours."""


def _wrapped(
    options: GraphOptions,
    model: Compiled,
    static_input_idxs: Sequence[int] = (),
    *,
    donates: bool,
    device_index: int,
    placeholders: Sequence[Any] = (),
    mutated_input_idxs: Sequence[int] = (),
    is_backward: bool = False,
    **__: Any,
) -> Callable[[list[Any]], Any]:
    """Return what is called in the place of a compiled partition, with a list.

    With ``donates``, a backward may write over whatever was saved for it.
    """
    from torch._inductor import config

    way = "backward" if is_backward else "forward"
    name = _named(f"{_compile_id()}, {way}")
    # Partitions write over what those before them have made. An input that is none of
    # the graph's own is described as one that has no users.
    writable = [
        i
        for i, each in enumerate(placeholders)
        if i not in mutated_input_idxs and ((is_backward and donates) or not each.users)
    ]
    part = Partition(
        model,
        name,
        static=static_input_idxs,
        mutated=mutated_input_idxs,
        writable=writable,
    )
    fullgraph = options.get("fullgraph", False) or config.triton.cudagraph_or_error
    made: GraphOptions = {**options, "name": name, "fullgraph": fullgraph}
    own = partial(_runtime, device_index)
    call = graphed(own, part, made, part.heard, guarded=True)
    sizes = config.triton.cudagraph_capture_sizes
    return part.calls(call, sizes, partial(_is_ready, device_index, made, part.heard))


def _named(name: str) -> str:
    """Return a name that no partition has had: of one graph, there may be several."""
    with _lock:
        _names[name] += 1
        return name if _names[name] == 1 else f"{name} ({_names[name]})"


def _is_ready(
    ordinal: int, options: GraphOptions, hears: Callable[[str], None]
) -> bool:
    """Return whether a device has a runtime, or can be given one.

    Where it cannot, and that is no error, it is warned of once for each reason;
    ``hears`` is told each time.
    """
    try:
        _runtime(ordinal)
    except SapwoodError as error:
        if options.get("fullgraph"):
            raise
        reason = skip_of(error)
        hears(str(reason))
        name = str(options["name"])
        warn(_skipping.setdefault(ordinal, Options(name)), reason)
        return False
    return True


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
    # To make the default one would take the first GPU, which may be another process's.
    usual = made_runtime() if ordinal else default_runtime()
    with _lock:
        known = _runtimes.get(ordinal)
        if known is None or known.closed:
            if usual is not None and _is_of(usual, ordinal):
                known = usual
            else:
                known = Runtime(f"cuda:{ordinal}", arrays="torch")
                atexit.register(known.close)
            _runtimes[ordinal] = known
        return known


def _is_of(runtime: Runtime, ordinal: int) -> bool:
    there = runtime.abilities
    looked = there.kind, there.ordinal, runtime.arrays
    return looked == ("cuda", ordinal, "torch")
