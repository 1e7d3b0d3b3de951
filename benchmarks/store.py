"""Getting entries from a store in a folder: hits of several sizes, misses and puts.

All are medians in one process, with the files in the operating system's memory.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from sapwood.persist.disk import DiskStore
from sapwood.persist.entries import Entries
from sapwood.persist.key import Key, nearest

GOALS = {
    "a get of a 1 MiB entry, ms": 2.0,
    "a miss, ms": 0.2,
    "a miss among 1,000 entries, ms": 0.2,
}

REPEATS = 200
FEW = 20
ENTRIES = 1_000
LIMIT = 1 << 30


def measure() -> dict[str, float]:
    """Return times in milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        entries = Entries(DiskStore(Path(folder) / "store", LIMIT))
        figures = {
            "a put of a 1 MiB entry, ms": _time(
                lambda turn: entries.put(_key(turn), _parts(turn, 1 << 20)), FEW
            ),
            "a get of a 1 MiB entry, ms": _time(lambda _: entries.find(_key(0))),
            "a miss, ms": _time(lambda turn: entries.find(_key(-1 - turn))),
        }
        for number in range(FEW, ENTRIES):
            entries.put(_key(number), _parts(number, 2_000))
        figures |= {
            "a put of a 2 kB entry, ms": _time(
                lambda turn: entries.put(_key(FEW + turn), _parts(turn, 2_000)), FEW
            ),
            "a get of a 2 kB entry, ms": _time(
                lambda turn: entries.find(_key(FEW + turn))
            ),
            "a miss among 1,000 entries, ms": _time(
                lambda turn: entries.find(_key(-1 - turn))
            ),
            "the nearest of 1,000 keys, ms": _time(
                lambda turn: nearest(_key(-1 - turn), entries.keys()), FEW
            ),
            "counting 1,000 entries at a process's first put, ms": _time(
                lambda turn: _put_first(Path(folder) / "store", turn), FEW
            ),
        }
    if entries.tally["hits"] != 2 * REPEATS:
        raise LookupError(f"what was put was not found: {entries.tally}")
    return figures


def _key(number: int) -> Key:
    return Key((("function", b"step"), ("signature", b"%d" % number)))


def _parts(number: int, size: int) -> dict[str, bytes]:
    own = b"%8d" % number
    return {"recording": own + os.urandom(size - len(own))}


def _put_first(path: Path, turn: int) -> None:
    Entries(DiskStore(path, LIMIT)).put(_key(FEW), {"recording": b"%d" % turn})


def _time(call: Callable[[int], object], repeats: int = REPEATS) -> float:
    times = []
    for turn in range(repeats):
        start = time.perf_counter()
        call(turn)
        times.append(time.perf_counter() - start)
    return 1e3 * median(times)
