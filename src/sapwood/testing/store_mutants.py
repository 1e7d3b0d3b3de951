"""Faulty variants of the store, which `Puts` must catch.

Each is one line of the library written wrongly; `Mutant` says how it is put there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from sapwood.store import disk, entries, evict, files, folder, frame, key
from sapwood.testing.tree_mutants import Mutant, miswritten

__all__ = ["STORE_MUTANTS"]


def _mutant(name: str, function: Callable[..., Any], right: str, wrong: str) -> Mutant:
    return Mutant(name, partial(miswritten, function, right, wrong))


STORE_MUTANTS: Final = (
    _mutant("torn write accepted", files.write_all, "while left:", "if left:"),
    _mutant(
        "torn file accepted",
        frame.accept,
        """if length != len(value):
        raise _damaged(name, f"it holds {len(value)} of {length} bytes")
    if digest""",
        "if length == len(value) and digest",
    ),
    _mutant(
        "digest unchecked",
        frame.accept,
        "if digest != _digest(fields, head[_HEADER:], value):",
        "if False:",
    ),
    _mutant(
        "digest of a part unchecked",
        entries.Entries._parts,  # noqa: SLF001 - a fault lies inside
        "hashlib.sha256(value).digest() != part.digest or",
        "",
    ),
    _mutant(
        "name unchecked",
        frame._length,  # noqa: SLF001
        "if head[_HEADER:] != name.encode() or named",
        "if named",
    ),
    _mutant(
        "key component dropped",
        key._digest,  # noqa: SLF001
        "in components:",
        "in tuple(components)[1:]:",
    ),
    _mutant(
        "eviction of an entry in use",
        evict.victims,
        "for item in items if not held[item.name]",
        "for item in items",
    ),
    _mutant(
        "shared blob evicted with its first holder",
        evict._let_go,  # noqa: SLF001
        "if not held[blob]",
        "",
    ),
    _mutant(
        "manifest of evicted blobs",
        disk.DiskStore._check_whole,  # noqa: SLF001
        "for blob in blobs:",
        "for blob in ():",
    ),
    _mutant("eviction skipped", disk.DiskStore._evict, "not want.must", "True"),  # noqa: SLF001
    _mutant(
        "use not noted",
        disk.DiskStore.get,
        "self._files.stamp(fd, time.time_ns())",
        "pass",
    ),
    _mutant(
        "manifest put before its blobs",
        entries.Entries._put,  # noqa: SLF001
        "manifest.parts:\n",
        "(self.store.put(entry_name(manifest.key.digest), encode_manifest(manifest)), "
        "manifest.parts)[1]:\n",
    ),
    _mutant(
        "contents not synced",
        disk.DiskStore._write,  # noqa: SLF001
        "self._files.sync(fd)",
        "pass",
    ),
    _mutant(
        "name not synced",
        folder.Folder.publish,
        "self.files.sync_folder(shard)",
        "pass",
    ),
    _mutant(
        "damage left in place",
        folder.Folder.quarantine,
        "self.files.rename(self.file(name), aside)",
        "pass",
    ),
    _mutant(
        "quarantine without bound",
        folder.Folder.quarantine,
        "(place >= KEPT_DAMAGED or size > most)",
        "False",
    ),
    _mutant(
        "dead writers' files kept",
        folder._abandoned,  # noqa: SLF001
        "return True",
        "return False",
    ),
    _mutant(
        "manifest of another key accepted",
        entries._check_own,  # noqa: SLF001
        "if entry_name(manifest.key.digest) != name:",
        "if False:",
    ),
)
