"""What outlives a process: recordings as bytes, in files and under keys in stores.

`DiskStore` is a store in a folder, `Entries` keeps parts under a `Key` in it.
Nothing that is read runs; what is damaged is absent.
"""

from sapwood.persist.api import Item, Store, is_store
from sapwood.persist.disk import DiskStore
from sapwood.persist.entries import Absent, Entries, Finding, verify
from sapwood.persist.key import Difference, Key, decode_key, diff, encode_key, nearest

__all__ = [
    "Absent",
    "Difference",
    "DiskStore",
    "Entries",
    "Finding",
    "Item",
    "Key",
    "Store",
    "decode_key",
    "diff",
    "encode_key",
    "is_store",
    "nearest",
    "verify",
]
