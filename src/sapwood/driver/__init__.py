"""The device, behind one Protocol, and streams and events as objects."""

from __future__ import annotations

from sapwood.driver.api import (
    Abilities,
    Access,
    CaptureStatus,
    CopyOp,
    Driver,
    EmptyOp,
    EventHandle,
    ExecHandle,
    ExtentHandle,
    FunctionHandle,
    GraphHandle,
    HostOp,
    KernelOp,
    MemoryInfo,
    ModuleHandle,
    NodeHandle,
    Op,
    Pointer,
    SetOp,
    StreamHandle,
)
from sapwood.driver.streams import Event, Stream

__all__ = [
    "Abilities",
    "Access",
    "CaptureStatus",
    "CopyOp",
    "Driver",
    "EmptyOp",
    "Event",
    "EventHandle",
    "ExecHandle",
    "ExtentHandle",
    "FunctionHandle",
    "GraphHandle",
    "HostOp",
    "KernelOp",
    "MemoryInfo",
    "ModuleHandle",
    "NodeHandle",
    "Op",
    "Pointer",
    "SetOp",
    "Stream",
    "StreamHandle",
]
