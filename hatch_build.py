"""Builds what is written in C while the package is built, where there is a compiler."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

__all__ = ["FastBuildHook"]


class FastBuildHook(BuildHookInterface):
    """Has a wheel bring what is in C, for this interpreter; an editable one, in place.

    Where it cannot be built the wheel is one of Python alone, and that is said.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Build it before files are collected."""
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        fast = _fast(root / "src/sapwood/_fast/build.py")
        try:
            built = fast.build()
        except fast.NotBuilt as error:
            self.app.display_warning(f"sapwood goes without its parts in C: {error}")
            return
        build_data["pure_python"], build_data["infer_tag"] = False, True
        build_data["artifacts"] += [f"/{path.relative_to(root)}" for path in built]


def _fast(path: Path) -> ModuleType:
    """Return the module that builds, of a package that cannot be imported yet."""
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
