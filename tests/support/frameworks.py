"""Whose arrays a law is about, where they are, and what is compared of them.

A law in `tests/laws` runs on NumPy's API, on every kind of emulated device, and on CUDA
with CuPy's arrays. One that is marked ``every_framework`` runs with torch's tensors,
too: on CUDA, behind all layers and replayed in C, and on the host. There nothing can
be recorded, so that each call must do what the function does; no number is compared.
One that is marked ``minimal`` runs with the template of a framework, too.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from types import ModuleType
from typing import Any, Final, Self

import numpy as np
import pytest

from sapwood.errors import SapwoodError
from sapwood.runtime import core
from sapwood.runtime.core import Runtime
from sapwood.tree.watch.session import served
from tests.support import minimal
from tests.support.rig import CUDA, Rig, fast_replays_at_once

__all__ = [
    "CUPY_IN_C",
    "MINIMAL",
    "TORCH",
    "TORCH_IN_C",
    "TORCH_ON_HOST",
    "CuPy",
    "Framework",
    "Minimal",
    "Torch",
    "Unlayered",
    "allocated",
    "capturing",
    "collect_after",
    "framework_of",
    "hit",
    "make_rig_of",
    "on_host",
]

TORCH: Final = "torch"
"""Torch's tensors on CUDA, behind all layers: each call is decided."""

TORCH_IN_C: Final = "torch, in C"
"""Torch's tensors on CUDA, and nothing before the driver: C plays fast replays."""


CUPY_IN_C: Final = "cupy, in C"
"""CuPy's arrays on CUDA, likewise."""

TORCH_ON_HOST: Final = "torch on the host"
"""Torch's tensors on the CPU, where every call is the plain one."""

MINIMAL: Final = "minimal"
"""The buffers of `tests.support.minimal`, the template of a framework."""


_ALLOCATING: Final = {
    *("create", "map", "reserve", "set_access", "unmap", "release", "unreserve"),
    *("allocate_host", "free_host", "instantiate", "load_module", "find_function"),
    *("create_event", "create_stream", "begin_capture", "add_node"),
    *("adopt_exec", "adopt_graph", "surround"),
}


def on_host(array: Any) -> np.ndarray[Any, Any]:
    """Return the values of anybody's array as one of NumPy's."""
    if hasattr(array, "untyped_storage"):
        return array.detach().numpy(force=True)  # type: ignore[no-any-return]
    return np.asarray(array)


def capturing() -> bool:
    """Return whether a capture is on, as a framework tells it to code that asks."""
    session = served()
    if session is None:
        return False
    session.asked()
    return session.as_captured or not session.rehearses


def allocated() -> int:
    """Return how often torch has given memory of the GPU: never, if it is not used."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return int(torch.cuda.memory_stats()["allocation.all.allocated"])


def hit(rig: Rig, f: Any, *args: Any) -> dict[str, int]:
    """Return the driver calls that one call makes, which must be a replay.

    Layers stand before the driver here, so that each replay is decided.
    """
    before, memory, given = f.stats(), rig.runtime.memory_stats(), allocated()
    rig.recorded.reset()
    f(*args)
    counts = rig.recorded.counts()
    assert allocated() == given
    assert f.stats().replays == before.replays + 1
    assert f.stats().escaped == before.escaped
    assert rig.runtime.memory_stats() == memory
    assert not _ALLOCATING & counts.keys()
    return counts


class Unlayered:
    """A runtime on CUDA with no layers, in which C plays fast replays."""

    def __init__(self, arrays: str, **options: Any) -> None:
        self.finished = False
        self.runtime = Runtime(device="cuda:0", arrays=arrays, **options)
        fast_replays_at_once(self.runtime)

    def finish(self) -> None:
        """Close the runtime."""
        self.finished = True
        self.runtime.close()

    def abandon(self) -> None:
        """Close the runtime after a test that failed."""
        with suppress(SapwoodError):
            self.runtime.close()


def make_rig_of(kind: str, **options: Any) -> Rig | Unlayered:
    """Return a rig of one kind of device and framework."""
    if kind in {TORCH, TORCH_IN_C, TORCH_ON_HOST}:
        pytest.importorskip("torch").manual_seed(7)
    if kind == TORCH:
        return Rig(CUDA, arrays="torch", **options)
    if kind == TORCH_IN_C:
        return Unlayered("torch", **options)
    if kind == CUPY_IN_C:
        return Unlayered("cupy", **options)
    if kind == MINIMAL:
        with _known(minimal):
            return Rig("latest", arrays="minimal", **options)
    return Rig("latest" if kind == TORCH_ON_HOST else kind, **options)


@contextmanager
def _known(module: ModuleType) -> Iterator[None]:
    """Have new runtimes know a module of tests as one of `sapwood.integrations`."""
    name = module.__name__.rpartition(".")[2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, f"sapwood.integrations.{name}", module)
        patch.setattr(core, "KINDS", {**core.KINDS, "emulated": (name, "numpy")})
        yield


def framework_of(kind: str) -> Framework:
    """Return whose arrays those of a kind are."""
    if kind in {TORCH, TORCH_IN_C, TORCH_ON_HOST}:
        return Torch("cpu" if kind == TORCH_ON_HOST else "cuda")
    if kind == MINIMAL:
        return Minimal()
    return CuPy() if kind in {CUDA, CUPY_IN_C} else Framework()


class _Side:
    """A stream of torch's own, ordered by hand as `Runtime.stream` orders its."""

    def __init__(self, torch: Any) -> None:
        self.cuda = torch.cuda
        self.stream, self.inside = self.cuda.Stream(), nullcontext()

    def __enter__(self) -> Self:
        self.around = self.cuda.current_stream()
        self.stream.wait_stream(self.around)
        self.inside = self.cuda.stream(self.stream)
        self.inside.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.inside.__exit__(*error)
        self.around.wait_stream(self.stream)


class _HostStream:
    """A stream of the host, where everything has always been done."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def wait(self, other: object) -> None:
        """Wait for nothing."""

    def record(self) -> _HostStream:
        """Return an event of nothing."""
        return self


class Framework:
    """NumPy's API: the runtime's own arrays, and plainly NumPy's on the host.

    ``records``: there are recordings. ``steps_back``: there are views with negative
    steps. ``dtype`` is what values are of, ``many`` so many that they lie apart from
    small arrays. ``settling``: so many calls more may be made before all are replayed.
    ``changes``: how many rounds of changes, and calls after each, are compared.
    ``anew``: how many calls find an array elsewhere, and none is eager for that.
    ``lasting`` is how many values an operation does not have done at once.
    ``holds``: users keep what two streams work on, or its memory goes to others.
    """

    xp: Any = np
    """The namespace of its functions."""

    records = steps_back = True
    dtype = "float64"
    many = 4000
    settling = 0
    calls = 4
    """How many calls of one function `same` compares."""
    changes = 3, 3
    anew = 40
    lasting = 32
    holds = False

    def begin(self) -> None:
        """Begin a program: random numbers that nobody seeded are the same again."""

    def array(self, rt: Runtime, host: Any) -> Any:
        """Return an array of the runtime with a copy of host values."""
        return rt.array(host)

    def plain_array(self, host: Any) -> Any:
        """Return an array that functions take where nothing is graphed."""
        return np.array(host, order="K")

    def plain_generator(self, rt: Runtime, seed: int) -> Any:
        """Return a generator of random numbers where nothing is graphed."""
        del rt
        return np.random.Generator(np.random.Philox(seed))

    def plain_stream(self) -> Any:
        """Return a stream where nothing is graphed."""
        return _HostStream()

    def own_stream(self) -> Any:
        """Return a stream that no runtime has made."""
        return _HostStream()

    @property
    def capturing(self) -> Any:
        """What users ask whether a capture is on."""
        return capturing

    def plain_mode(self) -> Any:
        """Return the context in which nothing is graphed."""
        return np.errstate(all="ignore")

    @staticmethod
    def turned(x: Any) -> Any:
        """Return what an array's items are from the last to the first."""
        return x[::-1]

    @staticmethod
    def copied(x: Any) -> Any:
        """Return an array's values in memory of their own."""
        return x.copy()

    @staticmethod
    def positive(x: Any) -> Any:
        """Return an array's values, 0 where they are less."""
        return np.maximum(x, 0)

    @staticmethod
    def address(x: Any) -> int:
        """Return where an array is; one that no runtime made, at some address."""
        return int(getattr(x, "address", 1 << 46))

    @staticmethod
    def cast(x: Any, dtype: Any) -> Any:
        """Return an array's values as those of another dtype."""
        return x.astype(dtype)

    def is_array(self, value: object) -> bool:
        """Return whether a value is an array: of the device, or of NumPy."""
        if isinstance(value, (np.ndarray, np.generic)):
            return True
        return hasattr(value, "storage") or hasattr(value, "__cuda_array_interface__")

    def leaf(self, value: Any) -> tuple[Any, ...]:
        """Return what is compared of an array: dtype, shape, strides, bytes, and all.

        How a single element would be stepped over is not.
        """
        host = np.asarray(value)
        steps = [
            step
            for step, length in zip(value.strides, value.shape, strict=True)
            if length > 1 and value.size
        ]
        return str(value.dtype), value.shape, steps, host.tobytes()

    def owner(self, value: Any) -> Any:
        """Return the object that owns an array's memory; None for none."""
        if not value.size or isinstance(value, np.generic):
            return None
        if hasattr(value, "storage"):
            return value.storage
        while isinstance(value.base, np.ndarray):
            value = value.base
        return value


class CuPy(Framework):
    """CuPy's arrays on CUDA, plainly, too."""

    def plain_array(self, host: Any) -> Any:
        """Return an array of CuPy's, by its type as a runtime's arrays are."""
        import cupy

        from sapwood.integrations.cupy import Array

        return cupy.array(host, order="K").view(Array)

    def plain_generator(self, rt: Runtime, seed: int) -> Any:
        """Return a runtime's generator: NumPy's draws otherwise."""
        return rt.generator(seed)


class Minimal(Framework):
    """Flat buffers of float64: a value has no dtype, and no strides."""

    def leaf(self, value: Any) -> tuple[Any, ...]:
        """Return what is compared of a buffer: its bytes."""
        return (np.asarray(value).tobytes(),)

    def owner(self, value: Any) -> Any:
        """Return the object that owns a buffer's memory; None for none."""
        if isinstance(value, minimal.Buffer):
            return value.storage if len(value) else None
        return super().owner(value)


class Torch(Framework):
    """Torch's tensors on CUDA or on the CPU, plainly, too."""

    steps_back = False
    dtype = "float32"
    many = 1 << 20
    settling = 1
    calls = 6
    changes = 2, 4
    anew = 16
    holds = True

    def __init__(self, device: str) -> None:
        self.xp = self.torch = pytest.importorskip("torch")
        self.device = device
        self.records = device == "cuda"
        self.lasting = 1 << 18 if self.records else 32

    @property
    def capturing(self) -> Any:
        """What torch's users ask whether a capture is on."""
        return self.torch.cuda.is_current_stream_capturing

    def begin(self) -> None:
        """Seed torch."""
        self.torch.manual_seed(11)

    def array(self, rt: Runtime, host: Any) -> Any:
        """Return a new tensor: torch has one kind, whatever runtimes there are."""
        del rt
        return self.plain_array(host)

    def plain_array(self, host: Any) -> Any:
        """Return a new tensor."""
        return self.torch.from_numpy(np.array(host)).to(self.device)

    def own_stream(self) -> Any:
        """Return a stream of torch's."""
        return _Side(self.torch) if self.records else _HostStream()

    def plain_mode(self) -> Any:
        """Return a context that changes nothing."""
        return nullcontext()

    @staticmethod
    def turned(x: Any) -> Any:
        """Return a tensor's items from the last to the first: there is no view."""
        return x.flip(0)

    @staticmethod
    def copied(x: Any) -> Any:
        """Return a tensor's values in memory of their own."""
        return x.clone()

    @staticmethod
    def positive(x: Any) -> Any:
        """Return a tensor's values, 0 where they are less."""
        return x.relu()

    @staticmethod
    def address(x: Any) -> int:
        """Return where a tensor is."""
        return int(x.data_ptr())

    @staticmethod
    def cast(x: Any, dtype: Any) -> Any:
        """Return a tensor's values as those of another dtype."""
        return x.to(dtype)

    def is_array(self, value: object) -> bool:
        """Return whether a value is a tensor."""
        return isinstance(value, self.torch.Tensor)

    def leaf(self, value: Any) -> tuple[Any, ...]:
        """Return all of a tensor's look, its bytes, and whether it has memory."""
        torch = self.torch
        plain = value.detach().resolve_conj().resolve_neg().reshape(-1)
        plain = plain.clone(memory_format=torch.contiguous_format)
        data = plain.view(torch.uint8).cpu().numpy().tobytes()
        return value.dtype, value.shape, value.stride(), data, bool(self.owner(value))

    def owner(self, value: Any) -> Any:
        """Return the address of a tensor's storage; None for none."""
        return value.untyped_storage().data_ptr() or None


def collect_after(kind: str) -> None:
    """Have what is caught in a test go: it holds tensors of a capture that failed."""
    if kind in {TORCH, TORCH_IN_C}:
        gc.collect()
