"""The store: what outlives a process, as bytes under keys.

`open_store` gives a store in a folder, `Entries` keeps parts under a `Key` in it.
Nothing that is read runs; what is damaged is absent.
"""

from __future__ import annotations

from sapwood.store.api import Item, Store, is_store
from sapwood.store.disk import DiskStore, open_store
from sapwood.store.entries import Absent, Entries, Nearest
from sapwood.store.key import Difference, Key, decode_key, diff, encode_key
from sapwood.store.memory import MemoryStore
from sapwood.store.tiered import Tiered
from sapwood.store.verify import Finding, verify

__all__ = [
    "Absent",
    "Difference",
    "DiskStore",
    "Entries",
    "Finding",
    "Item",
    "Key",
    "MemoryStore",
    "Nearest",
    "Store",
    "Tiered",
    "decode_key",
    "diff",
    "encode_key",
    "is_store",
    "open_store",
    "verify",
]
