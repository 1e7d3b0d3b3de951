"""Faulty variants of the store, which `Puts` must catch.

Each is one line of the library written wrongly; `mutant` says how it is put there.
"""

from __future__ import annotations

from typing import Final

from sapwood.persist import disk, entries, evict, key
from sapwood.persist import format as form
from tests.support.tree_mutants import mutant

__all__ = ["STORE_MUTANTS"]


STORE_MUTANTS: Final = (
    mutant("torn write accepted", disk.write_all, "while left:", "if left:"),
    mutant(
        "torn file accepted",
        form.accept,
        "_check_digest(text, value, digest,",
        "len(value) == len(head) and _check_digest(text, value, digest,",
    ),
    mutant(
        "digest unchecked",
        form._check_digest,
        "if _digest(name, body) != digest:",
        "if False:",
    ),
    mutant(
        "digest of a part unchecked",
        entries.Entries._parts,
        "blob_name(value) != part.blob or",
        "",
    ),
    mutant(
        "name unchecked",
        form.check_size,
        "if count != 1 or text != name.encode():",
        "if count != 1:",
    ),
    mutant(
        "key component dropped",
        key.encode_key,
        "dict(key.components)",
        "dict(key.components[1:])",
    ),
    mutant(
        "eviction of an entry in use",
        evict.victims,
        "for item in items if not held[item.name]",
        "for item in items",
    ),
    mutant(
        "shared blob evicted with its first holder",
        evict._let_go,
        "if not held[blob]",
        "",
    ),
    mutant(
        "manifest of evicted blobs",
        disk.DiskStore._check_whole,
        "for blob in blobs:",
        "for blob in ():",
    ),
    mutant("eviction skipped", disk.DiskStore._evict, "not want.must", "True"),
    mutant(
        "use not noted",
        disk.DiskStore._load,
        "self._files.stamp(fd, time.time_ns())",
        "pass",
    ),
    mutant(
        "manifest put before its blobs",
        entries.Entries._put,
        "manifest.parts:\n",
        "(self.store.put(entry_name(manifest.key.digest), encode_manifest(manifest)), "
        "manifest.parts)[1]:\n",
    ),
    mutant(
        "contents not synced",
        disk.DiskStore._write,
        "self._files.sync(fd)",
        "pass",
    ),
    mutant(
        "name not synced",
        disk.Folder.publish,
        "self.files.sync_folder(shard)",
        "pass",
    ),
    mutant(
        "damage left in place",
        disk.Folder.quarantine,
        "self._set_aside(name)",
        "pass",
    ),
    mutant(
        "quarantine without bound",
        disk.Folder.quarantine,
        "(place >= KEPT_DAMAGED or size > most)",
        "False",
    ),
    mutant(
        "dead writers' files kept",
        disk._abandoned,
        "return True",
        "return False",
    ),
    mutant(
        "manifest of another key accepted",
        entries.Entries._manifest,
        "if entry_name(manifest.key.digest) != name:",
        "if False:",
    ),
)
