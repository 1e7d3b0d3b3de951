"""``sapwood doctor``: what is here, and what would run where."""

from __future__ import annotations

import json
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

import sapwood as sw
from sapwood import _fast, knobs
from sapwood.allocator.caching.settings import Settings
from sapwood.cli.tables import print_table
from sapwood.driver.cuda.bindings import is_driver_here
from sapwood.errors import InternalError, SapwoodError
from sapwood.version import __version__

FRAMEWORKS = ("numpy", "torch", "cupy", "numba")


def doctor(*, as_json: bool) -> int:
    """Print what is here; return 1 where no device passes its self-check."""
    found = findings()
    if as_json:
        print(json.dumps(found))
    else:
        _show(found)
    return 0 if any(device["works"] for device in found["devices"]) else 1


def findings() -> dict[str, Any]:
    """Return what is here as plain data; imports no framework but NumPy.

    Raises `MisuseError` for any setting that is wrong.
    """
    Settings.from_env()
    return {
        "sapwood": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "frameworks": {name: _version(name) for name in FRAMEWORKS},
        "devices": [_device("emulated"), _device("cuda")],
        "runs": {name: _runs(name) for name in FRAMEWORKS},
        "unknown": knobs.unknown(),
        "fast": _fast.trouble() or "built",
        "settings": _changed_settings(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _device(name: str) -> dict[str, Any]:
    """Return whether a device is here and passes its self-check, or why not."""
    note, works = "no NVIDIA driver here", False
    if name == "emulated" or is_driver_here():
        try:
            with knobs.scope(store=""), sw.Runtime(name) as rt:  # no entry of this
                _check(rt)
                where = "on the CPU" if name == "emulated" else rt.abilities.name
                note, works = f"{where}; self-check passed", True
        except (SapwoodError, ImportError, OSError) as error:
            note = str(error)
    return {"name": name, "works": works, "note": note}


def _check(rt: sw.Runtime) -> None:
    """Record and replay something small; raise where a result is wrong."""
    double = rt.graph(lambda x: x + x, name="self-check")
    for number in range(4):
        told = np.asarray(double(rt.array(np.full(3, number))))
        if told.tolist() != [2 * number] * 3:
            raise InternalError(f"{number} + {number} is not {told}")


_RUNS = {
    "numpy": "functions of sapwood's device arrays: replayed on the emulated device",
    "cupy": "functions of CuPy arrays: replayed on CUDA",
    "torch": "functions of CUDA tensors: replayed on CUDA",
}


def _runs(framework: str) -> str:
    if _version(framework) is None:
        return "not installed"
    said = _RUNS.get(framework, "its memory can come from sapwood's allocator")
    return said if framework == "numpy" or is_driver_here() else f"{said}; no GPU"


def _changed_settings() -> dict[str, str]:
    here, usual = knobs.current(), knobs.Knobs()
    return {
        setting.variable: str(getattr(here, setting.name))
        for setting in knobs.settings()
        if getattr(here, setting.name) != getattr(usual, setting.name)
    }


def _show(found: dict[str, Any]) -> None:
    print(f"sapwood {found['sapwood']}, {found['platform']}")
    print(f"Python {found['python']}, {sys.executable}")
    devices = (
        (device["name"], "yes" if device["works"] else "no", device["note"])
        for device in found["devices"]
    )
    print_table("Devices", ("device", "works", "note"), devices)
    frameworks = (
        (name, here or "-", found["runs"][name])
        for name, here in found["frameworks"].items()
    )
    print_table("What runs where", ("framework", "version", "runs"), frameworks)
    print(f"fast path in C: {found['fast']}")
    for variable, value in found["settings"].items():
        print(f"{variable} is set: {value}")
    for variable in found["unknown"]:
        print(f"{variable} is set, but is no setting: docs/settings.md has them all")
