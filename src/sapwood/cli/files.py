"""``sapwood show`` and ``sapwood run``: functions in files, without their source."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from tokenize import TokenError
from typing import Any, Final
from zipfile import BadZipFile

import numpy as np

import sapwood as sw
from sapwood import knobs
from sapwood.cli.progress import progress
from sapwood.cli.tables import counted
from sapwood.errors import MisuseError, StoreError, misuse_of_file
from sapwood.persist.bundle import Saved
from sapwood.runtime.files import Loaded
from sapwood.tree.nests.plain import from_json, from_text
from sapwood.units import size_text


def show(path: str, *, as_json: bool) -> int:
    """Print what is in a file; return 0. Raises `MisuseError` for a damaged one."""
    with _runtime(path) as runtime, progress(lambda: f"reading {path}"):
        found = _contents(_load(runtime, path))
    if as_json:
        print(json.dumps(found))
        return 0
    _say(f"{found['name']}, for {found['device']}")
    for number, recording in enumerate(found["recordings"], 1):
        kernels = ", ".join(f"{n} {name}" for name, n in recording["kernels"].items())
        _say(f"  recording {number}: {counted(recording['ops'], 'op')} ({kernels})")
        for argument in recording["arguments"]:
            kept = ", saved" if argument["saved"] else ""
            _say(f"    takes {argument['name']}: {argument['array']}{kept}")
        for array in recording["reads"]:
            _say(f"    reads {array}")
        print(f"    returns {counted(recording['returns'], 'leaf', 'leaves')}")
    print(f"  contents of arrays: {size_text(found['bytes'])}")
    return 0


def _runtime(path: str) -> sw.Runtime:
    """Return a runtime for a file that is there: so far all are of emulated devices."""
    if not _is_file(path):
        raise MisuseError(
            f"{path or repr('')} is no file. Name one that sapwood.save() wrote"
        )
    with knobs.scope(store="") as settings:  # files are read without one
        return sw.Runtime(settings.device or "emulated")


def _load(runtime: sw.Runtime, path: str) -> Loaded:
    try:
        return runtime.load(path, nested=False)
    except StoreError as error:
        raise MisuseError(str(error)) from error


def _is_file(path: str) -> bool:
    with misuse_of_file(f"{path} cannot be read", "Name a file that can"):
        return Path(path).is_file()


def _say(line: str) -> None:
    """Print a line of which parts may be anybody's."""
    print("".join(c if c.isprintable() else repr(c)[1:-1] for c in line))


def _contents(function: Loaded) -> dict[str, Any]:
    bundle = function.bundle
    return {
        "name": bundle.name,
        "device": bundle.device,
        "bytes": sum(map(len, bundle.storages)),
        "recordings": [
            {
                "ops": len(saved.archive.recording.ops),
                "kernels": dict(
                    Counter(op.name or op.kind for op in saved.archive.recording.ops)
                ),
                "arguments": [
                    {"name": name, "array": text, "saved": name in saved.pinned}
                    for name, text in zip(saved.names, saved.texts, strict=True)
                ],
                "reads": [slot.path for slot in saved.archive.ambient],
                "returns": len(saved.archive.outputs.leaves),
            }
            for saved in bundle.recordings
        ],
    }


def run(path: str, inputs: Sequence[str], outputs: Sequence[str]) -> int:
    """Call the function in a file on arrays from files; return 0.

    ``inputs`` are paths of ``.npy`` files, in the order of the arguments whose
    contents were not saved, or of all, or ``NAME=PATH``. ``outputs`` are paths to
    write the resulting arrays to, in their order; those left over are described.
    """
    named, unnamed = _split(inputs)
    with _runtime(path) as runtime, progress(lambda: f"running {path}"):
        function = _load(runtime, path)
        saved, arrays = _choose(function.bundle.recordings, named, unnamed)
        leaves = [
            function.arguments[saved.pinned[name]]
            if host is None
            else runtime.array(host)
            for name, host in arrays
        ]
        results = function(*_arguments(saved, leaves))
        found = [np.asarray(leaf) for leaf in results if hasattr(leaf, "dtype")]
    _write(found, outputs)
    return 0


def _split(inputs: Sequence[str]) -> tuple[dict[str, Any], list[Any]]:
    named: dict[str, Any] = {}
    unnamed: list[Any] = []
    for each in inputs:
        name, equals, path = each.partition("=")
        if equals and not _is_file(each):
            named[name] = _read(path)
        else:
            unnamed.append(_read(each))
    return named, unnamed


_NO_ARRAY: Final = (
    *(ArithmeticError, BadZipFile, EOFError, MemoryError, SyntaxError, TokenError),
    *(TypeError, ValueError),
)
"""What NumPy raises for damaged files: headers are text of Python's, for one."""


def _read(path: str) -> Any:
    try:
        with (
            misuse_of_file(f"{path} cannot be read", "Name a .npy file"),
            Path(path).open("rb") as file,
        ):
            found = np.load(file, allow_pickle=False)
    except _NO_ARRAY as error:
        raise MisuseError(
            f"{path} is no array in a .npy file, or larger than memory. Write one, "
            "with numpy.save"
        ) from error
    if not isinstance(found, np.ndarray):
        found.close()
        raise MisuseError(f"{path} holds several arrays: write one, with numpy.save")
    return found


def _choose(
    recordings: Sequence[Saved], named: dict[str, Any], unnamed: Sequence[Any]
) -> tuple[Saved, list[tuple[str, Any]]]:
    """Return the recording that fits the inputs, and the array for each argument."""
    told: list[str] = []
    for saved in recordings:
        texts = dict(zip(saved.names, saved.texts, strict=True))
        asked = [name for name in saved.names if name not in named]
        if len(unnamed) < len(asked):
            asked = [name for name in asked if name not in saved.pinned]
        hosts = named | dict(zip(asked, unnamed, strict=False))
        if (
            len(asked) == len(unnamed)
            and hosts.keys() <= texts.keys()
            and all(_text(host) == texts[name] for name, host in hosts.items())
        ):
            return saved, [(name, hosts.get(name)) for name in saved.names]
        wants = [
            f"{name} ({text}{', saved' if name in saved.pinned else ''})"
            for name, text in texts.items()
        ]
        told.append(", ".join(wants) or "nothing")
    given = [*map(_text, unnamed), *(f"{n}={_text(a)}" for n, a in named.items())]
    raise MisuseError(
        f"no recording in the file takes these inputs ({', '.join(given) or 'none'}). "
        f"They take: {'; or '.join(told)}. Give each with --input PATH in this order, "
        "or --input NAME=PATH. Those that are saved may be left out: all, or by name"
    )


def _text(host: Any) -> str:
    return f"{host.dtype}{list(host.shape)}"


def _arguments(saved: Saved, arrays: Sequence[Any]) -> list[Any]:
    """Return all leaves of the call: arrays, and the plain values between them."""
    _, leaves, _ = from_text(saved.signature)
    left = iter(arrays)
    arguments: list[Any] = []
    for leaf in leaves:
        if leaf[0] == "tuple":
            arguments.append(next(left))
            continue
        _, proof = leaf
        try:
            arguments.append(from_json(from_text(proof.encode())))
        except StoreError:
            raise MisuseError(
                f"an argument is a {leaf[0]}, which no command line can give. Load "
                "the file in Python, with sapwood.load"
            ) from None
    return arguments


def _write(arrays: Sequence[Any], outputs: Sequence[str]) -> None:
    if len(outputs) > len(arrays):
        raise MisuseError(
            f"{len(outputs)} outputs were named, and the function returns "
            f"{counted(len(arrays), 'array')}. Name as many"
        )
    for array, path in zip(arrays, outputs, strict=False):
        # Not to the file itself: NumPy's error of a full disk has no number.
        np.save(data := BytesIO(), array, allow_pickle=False)
        with misuse_of_file(f"{path} cannot be written", "Name another file"):
            Path(path).write_bytes(data.getbuffer())
        print(f"{path}: {_text(array)}")
    for number, array in enumerate(arrays[len(outputs) :], len(outputs) + 1):
        print(f"output {number}, not written: {_text(array)}")
