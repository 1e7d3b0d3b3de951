"""The error tree is what its drawing says, and errors travel between processes."""

from __future__ import annotations

import pickle
import re

import pytest

from sapwood import errors
from sapwood.errors import (
    CaptureError,
    DriverError,
    GraphSkipWarning,
    InternalError,
    MisuseError,
    NoDevice,
    OutOfMemory,
    SapwoodError,
    StaleOutput,
    StoreError,
    StoreWarning,
)

SAMPLES = (
    SapwoodError("anything"),
    MisuseError("wrong. Do right"),
    StaleOutput("y", "it was donated", "Copy it before"),
    DriverError("map", 1, "INVALID_VALUE", "not a multiple of the page"),
    NoDevice("open", 100, "NO_DEVICE", "there is none. Use emulated"),
    OutOfMemory("create", asked=8, free=4, largest=2, holders=(("f", 3),)),
    CaptureError("float(x)", where="user.py:3", remedy="Return x"),
    GraphSkipWarning("f", "float(x)", "user.py:3", "Return x"),
    StoreError("no such file. Give another"),
    StoreWarning("the store is not used: a file is in its place"),
    InternalError("pages are counted", snapshot={"pages": 3}),
)


CLASSES = {
    cls
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, BaseException)
}


def _drawn() -> list[tuple[int, str]]:
    """Return ``(depth, name)`` of every line of the drawing."""
    lines = re.findall(r"^([ │├└─]*)([A-Z]\w+)", errors.__doc__, flags=re.MULTILINE)
    known = {*(cls.__name__ for cls in CLASSES), "UserWarning"}
    return [(len(indent) // 3, name) for indent, name in lines if name in known]


def test_the_drawing_is_the_tree():
    """Every class is drawn once, under its parent."""
    path: list[str] = []
    drawn = {}
    for depth, name in _drawn():
        path = [*path[:depth], name]
        drawn[name] = path[-2] if depth else "Exception"
    assert drawn.pop("UserWarning")
    assert drawn == {cls.__name__: cls.__base__.__name__ for cls in CLASSES}


def test_every_error_has_a_sample():
    """The laws below are checked of every error."""
    assert {type(sample) for sample in SAMPLES} == CLASSES


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_errors_survive_pickling(error):
    """An error that crosses a process keeps its class, text, fields and notes."""
    error.add_note("seen in a worker")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_out_of_memory_is_a_memory_error():
    """Programs that catch MemoryError catch ours."""
    assert issubclass(OutOfMemory, MemoryError)
