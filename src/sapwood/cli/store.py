"""``sapwood store``: what is stored in a folder, whether it is whole, and why not used.

Exit codes: 0 fine; 1 something is damaged, is not there, or cannot be read; 2 wrong
usage. Only `gc` changes anything.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from sapwood import knobs
from sapwood.cli.progress import progress
from sapwood.cli.tables import counted, print_table
from sapwood.errors import MisuseError, StoreError
from sapwood.persist.api import Item
from sapwood.persist.disk import DiskStore, is_store
from sapwood.persist.entries import Entries
from sapwood.persist.entries import verify as findings_in
from sapwood.persist.key import Key, Manifest, diff, nearest
from sapwood.tree.nests.plain import from_json, from_text
from sapwood.units import size_text

_SHOWN = 12
"""Digits of a digest that people are shown; a command takes as many as tell it."""
_LONG = 60
_DIGEST: Final = re.compile(rb"(?:sha256 )?[0-9a-f]{64}")


def ls(path: str | None, as_json: bool = False) -> int:
    """List the entries, the last used first; return 1 where one cannot be read.

    Raises `MisuseError` where there is no folder.
    """
    folder, known, told = _entries(path)
    stored = list(known.manifests())[::-1]
    items = list(known.store.scan())
    if as_json:
        entries = [
            {
                "digest": manifest.key.digest,
                "used": _when(item).isoformat(),
                "parts": {part.name: part.size for part in manifest.parts},
                "key": {n: value_text(value) for n, value in manifest.key.components},
            }
            for item, manifest in stored
        ]
        size = sum(item.size for item in items)
        about = {"path": folder, "values": len(items), "size": size}
        print(json.dumps({**about, "entries": entries}))
    else:
        _show_listing(folder, stored, items)
    _complain(told)
    return 1 if told else 0


def gc(path: str | None, limit: str | None = None) -> int:
    """Do what `trim` does, with a limit as text, such as 80GiB; None: what is set."""
    most = knobs.current().store_limit
    if limit is not None:
        named = {setting.name: setting for setting in knobs.settings()}
        most = named["store_limit"].accept(limit, "--limit")
    return trim(path, most)


def trim(path: str | None, limit: int) -> int:
    """Remove what is over ``limit`` bytes, and what dead processes left.

    Raises `MisuseError` where there is no folder.
    """
    trimmed = DiskStore(_folder(path), limit).trim()
    print(
        f"removed {counted(len(trimmed.removed), 'file')} of entries and "
        f"{trimmed.swept} that "
        f"were never finished; {size_text(trimmed.left)} are left"
    )
    return 0


def verify(path: str | None) -> int:
    """Read everything; return 1, and say what is wrong, where something is.

    Raises `MisuseError` where there is no folder.
    """
    store = DiskStore(_folder(path), 0, read_only=True)
    with progress(lambda: f"reading {store.path}"):
        findings = findings_in(store)
    for finding in findings:
        what = finding.what.removeprefix(f"the stored {finding.name} ")
        print(f"{finding.name}: {what}")
    count = sum(1 for _ in store.scan())
    wrong = counted(len(findings), "thing") if findings else "nothing"
    print(f"{counted(count, 'value')}, {wrong} wrong")
    return 1 if findings else 0


def why(path: str | None, digest: str, other: str | None = None) -> int:
    """Show in which components an entry's key differs from that of another.

    Both are named by the first digits of their digests; without ``other`` it is the
    nearest one. Raises `StoreError` where there is none, `MisuseError` where there is
    no folder, and where the digits fit several entries.
    """
    folder, entries, told = _entries(path)
    keys = list(entries.keys())
    if told:
        count = counted(len(told), "entry", "entries")
        _complain([f"{count} cannot be read: see store verify"])
    ours = _named(folder, keys, digest)
    others = [key for key in keys if key != ours]
    theirs = _named(folder, keys, other) if other else nearest(ours, others)
    if theirs is None:
        raise StoreError(f"{folder} has only this entry: put another to compare with")
    _show_difference(ours, theirs)
    return 0


def _folder(path: str | None) -> str:
    path = path or knobs.current().store
    if not path:
        raise MisuseError("no store was named. Give --path, or set SAPWOOD_STORE")
    if not is_store(path):
        raise MisuseError(f"{path} holds no store. Name the folder of one")
    return path


def _entries(path: str | None) -> tuple[str, Entries, list[str]]:
    """Return a store's folder and entries, and what will be told of damaged ones."""
    told: list[str] = []
    folder = _folder(path)
    return folder, Entries(DiskStore(folder, 0, read_only=True), told.append), told


def _complain(told: Iterable[str]) -> None:
    for text in told:
        print(f"sapwood: {text}", file=sys.stderr)


def _named(folder: str, keys: Iterable[Key], digits: str) -> Key:
    found = [key for key in keys if key.digest.startswith(digits.lower())]
    if len(found) > 1:
        several = ", ".join(sorted(key.digest[: len(digits) + 4] for key in found[:4]))
        raise MisuseError(
            f"{digits!r} fits {len(found)} entries: {several}. Give more digits"
        )
    if not found:
        raise StoreError(f"there is no entry {digits} in {folder}. See store ls")
    return found[0]


def _when(item: Item) -> datetime:
    return datetime.fromtimestamp(item.used / 1e9, UTC)


def value_text(value: bytes, most: int | None = None) -> str:
    """Return a component's value as people read it: text, or hex where it is none.

    Plain values are shown as Python writes them. What is longer than ``most``
    characters is cut.
    """
    text = _plain_text(value) or value.decode(errors="replace")
    if not text.isprintable() or "\ufffd" in text:
        text = f"0x{value.hex()}"
    if most is None or len(text) <= most:
        return text
    return f"{text[: most - 1]}…"


def _plain_text(value: bytes) -> str | None:
    if not value.startswith((b"[", b'"')) and value not in {b"null", b"true", b"false"}:
        return None
    try:
        return repr(from_json(from_text(value)))
    except StoreError:
        return None  # a list of something else


def _show_listing(
    path: str, stored: Sequence[tuple[Item, Manifest]], items: list[Item]
) -> None:
    rows = (
        (
            manifest.key.digest[:_SHOWN],
            f"{_when(item):%Y-%m-%d %H:%M}",
            size_text(sum(part.size for part in manifest.parts)),
            _title(manifest.key),
        )
        for item, manifest in stored
    )
    print_table(path, ("entry", ">last used", ">size", "what"), rows)
    size = size_text(sum(item.size for item in items))
    entries = counted(len(stored), "entry", "entries")
    print(f"{entries}, {counted(len(items), 'value')}, {size}")


def _title(key: Key) -> str:
    """Return what a key is about: a call, a compiler's key, else all components."""
    components = dict(key.components)
    if "function" in components:
        function = value_text(components["function"], _LONG)
        return f"{function}({_arrays(components.get('signature', b''))})"
    if "tenant" in components:
        name = value_text(components.get("torch's key", b""), _LONG)
        return f"{value_text(components['tenant'], _LONG)}: {name}"
    return ", ".join(f"{label}: {value_text(v, 24)}" for label, v in key.components)


def _arrays(signature: bytes) -> str:
    """Return the arrays of a call, by dtype and shape, as far as that is told."""
    try:
        return ", ".join(map(_leaf, from_text(signature)[1]))
    except (IndexError, KeyError, StoreError, TypeError, ValueError):
        return "…"


def _leaf(leaf: Any) -> str:
    """Return a call's leaf: an array's layout, or a plain value, or else its type."""
    kind, *rest = leaf
    if kind == "tuple":
        return f"{np.dtype(rest[2])}{rest[0][1:]}"
    return value_text(rest[0].encode(), 24) or str(kind)


def _shown(label: str, value: bytes | None) -> str:
    """Return a component's value for people, to whom a digest says nothing."""
    if value is None:
        return "-"
    if label == "signature":
        return f"({_arrays(value)})"
    return "one" if _DIGEST.fullmatch(value) else value_text(value, _LONG)


def _show_difference(ours: Key, theirs: Key) -> None:
    differences = diff(ours, theirs)
    digests = (key.digest[:_SHOWN] for key in (ours, theirs))
    rows = []
    for each in differences:
        label, *values = astuple(each)
        one, other = (_shown(label, value) for value in values)
        name = label.replace("reads ", "", 1)
        if one == other:
            other = "another"
            if (function := name.removesuffix(".__code__")) != name:
                name, other = f"the code of {function}", "another: edited"
        rows.append((name, one, other))
    print_table("Where the keys differ", ("component", *digests), rows)
    equal = len(set(ours.components) & set(theirs.components))
    print(f"components that differ: {len(differences)}, equal: {equal}")
