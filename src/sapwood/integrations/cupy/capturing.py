"""What CuPy's own functions do in a capture, where their own way cannot be captured.

They are replaced for as long as anybody is watched; calls of other threads, and those
of eager regions, go on to CuPy's. So do those of warm-ups, but for reads on the host.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial, wraps
from types import FunctionType
from typing import Any, Final

import cupy
import numpy as np
from cupy import _core

from sapwood.integrations.cupy.constants import brought
from sapwood.integrations.cupy.products import dot, matmul, tensordot
from sapwood.integrations.strided import bits_of, fill
from sapwood.tree.record.host_data import host_data, is_constant
from sapwood.tree.record.reading import TELL, Reading, reading_of
from sapwood.tree.watch import session

Original = Callable[..., Any]
Replacement = Callable[..., Any]

_MANY, _SMALL = 8, 2 << 20
"""CuPy joins more arrays than these, of fewer bytes each, by a table from the host."""


def _is_host(value: Any) -> bool:
    """Return whether a value is host data of more than one number."""
    return isinstance(value, (list, tuple)) or (
        isinstance(value, np.ndarray) and value.ndim > 0
    )


def _holds_arrays(value: Any) -> bool:
    """Return whether a list has arrays in it, which CuPy joins."""
    if isinstance(value, (list, tuple)):
        return any(map(_holds_arrays, value)) or any(map(_is_array, value))
    return False


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or hasattr(value, "__cuda_array_interface__")


def _constant(value: Any, what: str, **options: Any) -> Any:
    """Return host data on the device; raises `CaptureError` for other than constants.

    ``options`` are those of ``numpy.array``.
    """
    if not is_constant(value):
        host_data(what)
    return brought(np.array(value, **options))


def _array(
    original: Original,
    obj: Any,
    dtype: Any = None,
    copy: Any = True,
    order: Any = "K",
    subok: bool = False,
    ndmin: int = 0,
    blocking: bool = False,
) -> Any:
    """Return ``cupy.array(...)``, of host data as a constant."""
    if subok or _holds_arrays(obj) or not _is_host(obj):
        return original(obj, dtype, copy, order, subok, ndmin, blocking)
    kept = "F" if isinstance(obj, np.ndarray) and obj.flags.fnc else "C"
    order = kept if order in (None, "K", "k", "A", "a") else order
    return _constant(obj, "cupy.array", dtype=dtype, order=order, ndmin=ndmin)


def _index(item: Any) -> Any:
    """Return one part of an index, host data in it brought to the device."""
    if not _is_host(item) or _holds_arrays(item):
        return item
    kind = np.int32 if isinstance(item, (list, tuple)) and not np.size(item) else None
    return _constant(item, "an index", dtype=kind)


def _mask(item: Any) -> Any:
    """Return host data that says of each element whether it is meant; None: it is not.

    CuPy would count on the device how many are, and read that.
    """
    if not _is_host(item) or _holds_arrays(item):
        return None
    found = np.asarray(item)
    return found if found.dtype == np.bool_ and found.size else None


def _indices(array: Any, items: Any) -> Any:
    """Return an index, host data in it brought to the device, masks as numbers."""
    found: list[Any] = []
    axis: int | None = 0
    for item in items if isinstance(items, tuple) else (items,):
        mask = _mask(item)
        if mask is None or axis is None:
            found.append(_index(item))
            axis = None if axis is None or item is Ellipsis else axis + _axes(item)
        elif array.shape[axis : axis + mask.ndim] != mask.shape:
            return items  # CuPy says what is wrong
        else:
            if not is_constant(item):
                host_data("an index")
            found += map(brought, mask.nonzero())
            axis += mask.ndim
    return tuple(found) if isinstance(items, tuple) or len(found) > 1 else found[0]


def _axes(item: Any) -> int:
    """Return how many axes a part of an index is for."""
    if item is None:
        return 0
    is_mask = isinstance(item, cupy.ndarray) and item.dtype == np.bool_
    return item.ndim if is_mask else 1


def _is_advanced(items: Any) -> bool:
    """Return whether an index picks elements, and not a view."""
    parts = items if isinstance(items, tuple) else (items,)
    return any(_is_host(each) or isinstance(each, cupy.ndarray) for each in parts)


def _getitem(original: Original, array: Any, items: Any) -> Any:
    return original(array, _indices(array, items))


def _is_mask_of(array: Any, items: Any) -> bool:
    """Return whether an index is a mask on the device, of an array's first axes."""
    if not isinstance(items, cupy.ndarray) or items.dtype != np.bool_:
        return False
    return bool(items.ndim > 0 and items.shape == array.shape[: items.ndim])


def _fill(array: Any, mask: Any, value: Any) -> None:
    """Write one value where a mask says so; CuPy would count, and read that."""
    if isinstance(value, cupy.ndarray):
        value = value.astype(array.dtype, copy=False)
    else:
        value = np.array(value, array.dtype)[()]
    mask = mask.reshape(mask.shape + (1,) * (array.ndim - mask.ndim))
    cupy.copyto(array, value, where=mask)


def _setitem(original: Original, array: Any, items: Any, value: Any) -> None:
    if _is_mask_of(array, items) and np.ndim(value) == 0:
        _fill(array, items, value)
        return
    if isinstance(value, np.ndarray) and value.ndim and _is_advanced(items):
        # CuPy takes host arrays for elements only, and converts them on the host.
        what = f"x[...] = an array of {np.shape(value)}"
        value = _constant(value, what, dtype=array.dtype)
    original(array, _indices(array, items), value)


def _take(original: Original, array: Any, indices: Any, *rest: Any, **by: Any) -> Any:
    return original(array, _index(indices), *rest, **by)


def _put(
    original: Original, array: Any, indices: Any, values: Any, *rest: Any, **by: Any
) -> Any:
    if _is_host(values):
        values = _constant(values, "x.put", dtype=array.dtype)
    return original(array, _index(indices), values, *rest, **by)


def _by_columns(original: Original, array: Any, dtype: Any = None) -> Any:
    """Return ``cupy.asfortranarray(...)``, copied by a kernel and not by cuBLAS."""
    if array.flags.f_contiguous:
        return original(array, dtype)
    found = cupy.empty(array.shape, dtype or array.dtype, order="F")
    found[...] = array
    return found


def _needs_table(parts: list[Any], dtype: Any) -> bool:
    """Return whether CuPy would join arrays by a table of their addresses."""
    if len(parts) <= _MANY or not _are_arrays(*parts):
        return False
    kinds, size = {each.dtype for each in parts}, sum(each.nbytes for each in parts)
    alike = len(kinds) == 1 and dtype in {None, *kinds}
    return alike and size < _SMALL * len(parts)


def _concatenate(
    original: Original,
    arrays: Any,
    axis: int,
    out: Any = None,
    dtype: Any = None,
    casting: str = "same_kind",
) -> Any:
    """Return arrays joined, a few at a time."""
    parts = list(arrays)
    if not _needs_table(parts, dtype if out is None else out.dtype):
        return original(parts, axis, out, dtype, casting)
    kind = parts[0].dtype
    while len(parts) > _MANY:
        few = [parts[i : i + _MANY] for i in range(0, len(parts), _MANY)]
        parts = [original(some, axis, None, kind, casting) for some in few]
    return original(parts, axis, out, dtype, casting)


def _are_arrays(*values: Any) -> bool:
    return all(isinstance(each, cupy.ndarray) for each in values)


def _of_arrays(product: Replacement) -> Replacement:
    """Return what does a product of arrays of CuPy's; CuPy does those of others."""

    def call(original: Original, a: Any, b: Any, out: Any = None) -> Any:
        if _are_arrays(a, b):
            return product(original, a, b, out)
        return original(a, b, out)

    return call


_matmul, _dot = _of_arrays(matmul), _of_arrays(dot)


def _product(original: Original, a: Any, b: Any) -> Any:
    return _matmul(lambda *_: original(a, b), a, b)


def _read(array: Any) -> Any:
    """Give what floats, masks and all else that CuPy wants on the host come to."""
    return bits_of(array.get())


def _filled(dtype: Any, shape: tuple[int, ...], order: str, bits: Any) -> Any:
    host = np.empty(shape, dtype, "F" if order == "F" else "C")
    fill(host, bits)
    return host


def _get(
    original: Original,
    array: Any,
    stream: Any = None,
    order: Any = "C",
    out: Any = None,
    blocking: Any = True,
) -> Any:
    """Return the values on the host, as an eager region, where that can be one."""
    watching = session.current()
    partly = stream is not None or out is not None
    if watching is None or partly or not watching.may_read(array.nbytes):
        return original(array, stream, order, out, blocking)
    by_columns = order != "C" and array.flags.f_contiguous
    shown = partial(_filled, array.dtype, array.shape, "F" if by_columns else "C")
    return shown(watching.live(Reading("x.get()", _read, shown), (array,), {}))


def _region(called: str) -> Replacement:
    """Return what runs a function of CuPy's as an eager region.

    CuPy captures no calls of cuSOLVER and cuRAND.
    """

    def call(original: Original, *args: Any, **options: Any) -> Any:
        watching = session.current()
        if watching is None or not watching.may_read(0):
            return original(*args, **options)
        part, arrays = reading_of(called, original, args, options, _are_arrays)
        return watching.live(part, arrays, {})

    return call


def _text(original: Original, array: Any, *args: Any) -> str:
    """Return a text of an array; refused, for a replay would show it to nobody."""
    watching = session.current()
    if watching is not None:
        watching.refuse("a value is needed on the host", TELL)
    with session.entered(None):
        shown: str = original(array, *args)
    return shown


_MATMUL: Final[Any] = cupy.matmul._ops_register  # noqa: SLF001 - what it calls
_REPLACED: Final[tuple[tuple[Any, str, Replacement], ...]] = (
    (cupy.ndarray, "__matmul__", _product),
    (cupy.ndarray, "dot", _dot),
    (cupy.ndarray, "__getitem__", _getitem),
    (cupy.ndarray, "__setitem__", _setitem),
    (cupy.ndarray, "take", _take),
    (cupy.ndarray, "put", _put),
    (_MATMUL, "_default_func", _matmul),
    (_core, "matmul", _matmul),
    (_core, "dot", _dot),
    (_core, "tensordot_core", tensordot),
    (_core, "array", _array),
    (_core, "asfortranarray", _by_columns),
    (_core, "concatenate_method", _concatenate),
)
_SOLVERS: Final = (
    *("cholesky", "det", "eig", "eigh", "eigvals", "eigvalsh", "inv", "lstsq"),
    *("matrix_rank", "pinv", "qr", "slogdet", "solve", "svd", "tensorinv"),
    *("tensorsolve",),
)
_STATES: Final = frozenset({"default_rng", "get_random_state"})
_DRAWS: Final = [
    name
    for name, value in vars(cupy.random).items()
    if isinstance(value, FunctionType)
    and value.__module__.startswith("cupy.random._")
    and name not in _STATES
    and name != "shuffle"  # it writes what it is passed
]
"""What draws by cuRAND, or seeds it. The module's own functions use the state that is
current."""
_READS: Final[tuple[tuple[Any, str, Replacement], ...]] = (
    (cupy.ndarray, "get", _get),
    (cupy.ndarray, "__format__", _text),
    (cupy.ndarray, "__repr__", _text),
    (cupy.ndarray, "__str__", _text),
    *(
        (cupy.linalg, name, _region(f"cupy.linalg.{name}"))
        for name in _SOLVERS
        if hasattr(cupy.linalg, name)
    ),
    *((cupy.random, name, _region(f"cupy.random.{name}")) for name in _DRAWS),
    *(
        (cupy.random.RandomState, name, _region(f"RandomState.{name}"))
        for name in _DRAWS
        if name in vars(cupy.random.RandomState)
    ),
)
"""What warm-ups replace, too: these are the regions that captures are to meet."""

_lock: Final = threading.Lock()
_now: list[ExitStack] = []
_count = 0


@contextmanager
def replaced() -> Iterator[None]:
    """Have CuPy's functions do, where this thread is watched, what can be captured."""
    global _count  # noqa: PLW0603 - as CuPy's functions are
    with _lock:
        _count += 1
        if _count == 1:
            _now.append(_replace())
    try:
        yield
    finally:
        with _lock:
            _count -= 1
            if not _count:
                _now.pop().close()


def _replace() -> ExitStack:
    stack, diverted = ExitStack(), set[FunctionType]()
    for owner, name, replacement in (*_REPLACED, *_READS):
        original, reads = getattr(owner, name), (owner, name, replacement) in _READS
        if type(original) is FunctionType and original.__closure__ is None:
            if original not in diverted:  # one may have two names
                diverted.add(original)
                _divert(stack, original, replacement, reads=reads)
            continue
        if name in vars(owner):
            stack.callback(setattr, owner, name, original)
        else:
            stack.callback(delattr, owner, name)
        setattr(owner, name, _captured_by(replacement, original, reads=reads))
    return stack


def _divert(
    stack: ExitStack, original: FunctionType, replacement: Replacement, *, reads: bool
) -> None:
    """Have a function of CuPy's call its replacement, whatever name it is called by.

    Code may have bound it to one: ``from cupy.linalg import solve``. Another function
    under the module's name would not be found then, and the capture would fail.
    """
    was, space = original.__code__, original.__globals__
    plain = FunctionType(
        was, space, original.__name__, original.__defaults__, original.__closure__
    )
    plain.__kwdefaults__ = original.__kwdefaults__
    name = f"_sapwood_{id(original)}"
    found: dict[str, Any] = {}
    text = f"def {original.__name__}(*args, **named): return {name}(*args, **named)"
    exec(compile(text, was.co_filename, "exec"), found)  # noqa: S102 - text of ours
    # It stays: another thread may be on its way there.
    space[name] = _captured_by(replacement, plain, reads=reads)
    stack.callback(setattr, original, "__code__", was)
    original.__code__ = found[original.__name__].__code__


def _counts(name: str, array: Any, items: Any, *value: Any) -> bool:
    """Return whether CuPy counts the elements of a mask only where nobody captures."""
    parts = items if isinstance(items, tuple) else (items,)
    filled = name == "__setitem__" and _is_mask_of(array, items)
    return (filled and np.ndim(*value) == 0) or any(
        _mask(each) is not None for each in parts
    )


def _captured_by(
    replacement: Replacement, original: Original, *, reads: bool
) -> Original:
    ours = partial(replacement, original)
    name = original.__name__
    indexes = name in ("__getitem__", "__setitem__")

    @wraps(original, assigned=("__name__", "__doc__"), updated=())
    def call(*args: Any, **options: Any) -> Any:
        watching = session.current()
        if watching is None:
            return original(*args, **options)
        if watching.tolerant and not reads:
            quiet = indexes and _counts(name, *args)
            with session.entered(None) if quiet else nullcontext():
                return original(*args, **options)
        return ours(*args, **options)

    return call
