"""Views into objects of the standard library that keep their contents in C.

What is written in Python is looked into by its attributes like anybody's object;
these are the others, and the functions that tell what the process is set to.
"""

from __future__ import annotations

import ctypes
import gc
import io
import os
import sys
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from operator import attrgetter
from types import FunctionType, GetSetDescriptorType
from typing import Any, Final
from weakref import ReferenceType

from sapwood.tree.guards import views
from sapwood.tree.guards.owners import owner_of_class, owner_of_code
from sapwood.tree.guards.views import View

BYTES: Final = 1 << 16
"""How much of a host array, or of anything like it, is compared on every call."""


ENVIRONMENT: Final = type(os.environ)
"""The class of the process's environment, which is for users' functions to read."""


def is_host_array(cls: type) -> bool:
    """Return whether instances of a class are arrays whose bytes are on the host.

    Arrays on a device have ``tobytes`` too, CuPy's for one: reading them here would
    wait for the device, in each call.
    """
    host = cls is memoryview or hasattr(cls, "__array_interface__")
    return host and hasattr(cls, "tobytes")


def holds_objects(value: Any) -> bool:
    """Return whether a value is a host array whose items are Python objects."""
    return is_host_array(type(value)) and str(getattr(value, "dtype", "")) == "object"


def bytes_of(value: Any) -> bytes | None:
    """Return the bytes of an object that has some, and not too many; else None.

    Of a `bytearray` all: its signature is its bytes, so nothing else shows a write.
    """
    cls: type = type(value)
    if any(hasattr(vars(base).get("__buffer__"), "__code__") for base in cls.__mro__):
        # Its bytes are what code of somebody's says.
        return None
    try:
        with memoryview(value) as seen:
            few = cls is bytearray or seen.nbytes <= BYTES
            return seen.tobytes() if few else None
    except (BufferError, TypeError, ValueError):
        return None


def _raised(error: Any) -> Mapping[str, Any]:
    """Return what an exception holds in C; a class may give these names others."""
    held: Any = vars(BaseException)
    return {name: held[name].__get__(error) for name in ("args", "__cause__")}


_variable = views.alone(ContextVar.get, LookupError)
_referent = views.alone(ReferenceType.__call__)
# The one way to what a proxy stands for is a method that it lends.
_proxied = views.alone(attrgetter("__repr__.__self__"), AttributeError, ReferenceError)


def _alive(key: Any) -> Any:
    return ReferenceType.__call__(key) if isinstance(key, ReferenceType) else key


def _weak_label(path: str, _: Any, key: Any) -> str:
    return f"{path}[{views.value_text(_alive(key))}]"


def _weakly_held(thing: Any) -> Sequence[Any]:
    """Return the keys of a weak dict that there is something inside of."""
    return views.keys_inside(map(_alive, thing.data))


def _members(thing: Any) -> Mapping[Any, Any]:
    return {reference: reference for reference in thing.data}


def _text(stream: Any) -> Sequence[Any]:
    kind: Any = io.StringIO if issubclass(type(stream), io.StringIO) else io.BytesIO
    if kind.closed.__get__(stream):
        return (views.EMPTY, views.EMPTY)
    return (kind.getvalue(stream), kind.tell(stream))


_DECIMAL = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")


def _decimal(context: Any) -> Mapping[str, Any]:
    found = {name: getattr(context, name) for name in _DECIMAL}
    # Flags are what was met on the way, and no setting.
    return found | {"traps": tuple(context.traps.values())}


def _factory(thing: Any) -> Sequence[Any]:
    return (vars(defaultdict)["default_factory"].__get__(thing),)


def handlers_of(logger: Any) -> Sequence[Any]:
    """Return the handlers of the user's that a logger calls."""
    found: list[Any] = []
    while logger is not None:
        users = (x for x in logger.handlers if owner_of_class(type(x)) == "user")
        found += users
        logger = logger.parent if logger.propagate else None
    return found


def _level(logger: Any) -> Sequence[Any]:
    return (logger.getEffectiveLevel(), logger.disabled, logger.manager.disable)


def _said(function: Any) -> Mapping[Any, Any] | Sequence[Any]:
    told = function()
    # A dict that is made for every answer is no dict of anybody's.
    return told if type(told) is dict else (told,)


def _said_label(path: str, _: Any, key: Any) -> str:
    return f"{path}()" if key == 0 else f"{path}()[{key!r}]"


_own_dict: Any = ctypes.pythonapi.PyObject_GenericGetDict
_own_dict.restype = ctypes.py_object
_own_dict.argtypes = ctypes.py_object, ctypes.c_void_p


def is_veiled(cls: type) -> bool:
    """Return whether instances' ``__dict__`` is what a class says, not their own."""
    found = (vars(base)["__dict__"] for base in cls.__mro__ if "__dict__" in vars(base))
    own = isinstance(next(found, None), GetSetDescriptorType | None)
    return cls.__dictoffset__ != 0 and not own


def _own(thing: Any) -> dict[str, Any]:
    found: dict[str, Any] = _own_dict(thing, None)
    return found


def _store_own(thing: Any, key: str, value: Any) -> None:
    views.bind(_own(thing), key, value)


def _set_variable(environment: Any, key: bytes, value: Any) -> None:
    text = value if value is views.EMPTY else os.fsdecode(value)
    views.bind(environment, os.fsdecode(key), text)


ENVIRON = View(
    "environment",
    attrgetter("_data"),
    lambda path, _, key: f"{path}[{os.fsdecode(key)!r}]",
    _set_variable,
    "keys",
    portable=False,
)
CONTEXT = View("variable", _variable, lambda path, _, __: f"{path}.get()")
REFERENT = View("referent", _referent, lambda path, _, __: f"{path}()")
OWN = View("own attributes", _own, views.dotted, _store_own, "names")
PROXIED = View("proxied", _proxied, views.same_path)
WEAK = View("weak", attrgetter("data"), _weak_label, None, "keys")
WEAK_KEYS = View("inside weak keys", _weakly_held, views.KEYS.label)
MEMBERS = View("members", _members, _weak_label, None, "keys")
WHOLE = View("whole", gc.get_referents, views.same_path, None, "length")
TEXT = View("text", _text, views.same_path)
EVENT = View(
    "event", lambda thing: (thing.is_set(),), lambda path, _, __: f"{path}.is_set()"
)
SIZE = View("size", lambda thing: (thing.qsize(),), lambda path, _, __: f"len({path})")
MAXLEN = View("maxlen", views.alone(deque.maxlen.__get__), views.by_names("maxlen"))
FACTORY = View("factory", _factory, views.by_names("default_factory"))
BUFFER = View("bytes", views.alone(bytes_of), views.same_path)
RAISED = View("raised", _raised, views.dotted)
OBJECTS = View(
    "objects",
    lambda array: array.ravel().tolist(),
    lambda path, _, key: f"{path}.flat[{key}]",
)
DECIMAL = View("decimal", _decimal, views.dotted)
HANDLERS = View(
    "handlers",
    handlers_of,
    lambda path, _, key: f"{path}.handlers[{key}]",
    None,
    "length",
)
LEVEL = View("level", _level, lambda path, _, __: f"the level of {path}")
_SAID = View("said", _said, _said_label)
_SAID_HERE = View("said here", _said, _said_label, portable=False)
SETTINGS = View("settings", lambda _: (os.environ,), lambda *_: "os.environ")

KEYED: Final = frozenset({views.KEYS, WEAK_KEYS})
"""Views of keys: other views say which there are, and in what order."""

_SAYING: Final[Mapping[str, tuple[str, View]]] = {
    "getenv": ("os", SETTINGS),
    "getcontext": ("decimal", _SAID),
    "isenabled": ("gc", _SAID),
    "field_size_limit": ("csv", _SAID),
    "getdefaulttimeout": ("socket", _SAID),
    "geterr": ("numpy", _SAID),
    "geterrcall": ("numpy", _SAID),
    "getbufsize": ("numpy", _SAID),
    "get_printoptions": ("numpy", _SAID),
    "getrecursionlimit": ("sys", _SAID),
    "getswitchinterval": ("sys", _SAID),
    "get_int_max_str_digits": ("sys", _SAID),
    "get_ident": ("_thread", _SAID_HERE),
    "getcwd": ("posix", _SAID_HERE),
    "getpid": ("posix", _SAID_HERE),
    "current_thread": ("threading", _SAID_HERE),
}
"""Functions whose result is a state of the process, and how to see that state."""


def said_by(function: Any) -> View | None:
    """Return how to see the state that a function tells, if it is such a one.

    That is the very function that its module has: what those say of themselves differs
    from Python to Python.
    """
    module, view = _SAYING.get(function.__name__, ("", None))
    known = getattr(sys.modules.get(module), function.__name__, None)
    ours = isinstance(function, FunctionType) and (
        owner_of_code(function.__code__) == "user"
    )
    return view if known is function and not ours else None


BY_NAME: Final[Mapping[str, View]] = {
    view.name: view
    for view in [*vars(views).values(), *views.TOLD.values(), *globals().values()]
    if isinstance(view, View)
}
"""All views but those of frameworks."""
