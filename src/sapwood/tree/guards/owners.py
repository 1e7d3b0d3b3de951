"""Whose code something is: the user's, or an installed package's that is not read."""

from __future__ import annotations

import os
import sys
import types
from functools import lru_cache
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, Final, Literal, TypeAlias

Owner: TypeAlias = Literal["user", "installed", "standard", "sapwood"]


def _folders(folder: Path) -> tuple[str, str]:
    """Return how names of files in a folder begin, which a link may lead to."""
    return f"{folder}{os.sep}", f"{folder.resolve()}{os.sep}"


_NAMING: Final = (BuiltinFunctionType, FunctionType, type)
_STANDARD: Final = _folders(Path(os.__file__).parent)
_SAPWOOD: Final = _folders(Path(__file__).parents[2])


@lru_cache(maxsize=4096)
def _owner_of_file(name: str) -> Owner:
    if name.startswith("<"):
        return "standard" if name.startswith("<frozen") else "user"
    if name.startswith(_SAPWOOD):
        return "sapwood"
    if "site-packages" in name or "dist-packages" in name:
        return "installed"
    return "standard" if name.startswith(_STANDARD) else "user"


def owner_of_code(code: CodeType) -> Owner:
    """Return whose file a code object is from; what was typed in is the user's."""
    return _owner_of_file(code.co_filename)


def owner_of_module(name: str, module: ModuleType | None = None) -> Owner:
    """Return whose a module is, by its file; by its name where it has none."""
    module = sys.modules.get(name) if module is None else module
    # To ask the module itself would run its own ``__getattr__``.
    file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
    if isinstance(file, str):
        return _owner_of_file(file)
    top = name.partition(".")[0]
    if top == __name__.partition(".")[0]:
        return "sapwood"
    return "standard" if top in sys.stdlib_module_names else "user"


def package_of(value: Any) -> str:
    """Return the package that a module, function or class is in, or an object's class.

    "" where it does not say.
    """
    if issubclass(type(value), ModuleType):
        name: object = value.__name__
    else:
        # By identity: a class of a class of one's own may have no hash.
        names = any(type(value) is each for each in _NAMING)
        name = (value if names else type(value)).__module__
    return name.partition(".")[0] if isinstance(name, str) else ""


def owner_of_class(cls: type) -> Owner:
    """Return whose module a class says that it is from."""
    module: object = cls.__module__
    if module == types.__name__ and vars(types).get(cls.__name__) is not cls:
        return "user"  # `types.new_class` has made it, and says so
    # A class of C's may give its instances one, and so have none itself.
    return owner_of_module(module) if isinstance(module, str) else "installed"
