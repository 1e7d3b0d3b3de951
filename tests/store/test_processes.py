"""Many processes at one folder, and processes that are killed at it.

They are forked from one process that has imported the store and in which nothing runs.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from itertools import pairwise

import pytest

from sapwood.persist.disk import DiskStore
from sapwood.persist.entries import Absent, Entries, verify
from sapwood.persist.key import Key

KILLS = 200
PROCESSES = 8

PROGRAM = """
import os, random, sys
from sapwood.persist.disk import DiskStore
from sapwood.persist.entries import Absent, Entries
from sapwood.persist.key import Key

def parts(number):
    return {"own": b"%d" % number * 4_000, "shared": bytes([number % 3]) * 900}

def work(path, seed, turns, limit, keys):
    draw = random.Random(seed)
    entries = Entries(DiskStore(path, limit))
    while turns:
        turns -= 1
        number = draw.randrange(keys)
        key = Key((("number", b"%d" % number),))
        if draw.random() < 0.6:
            entries.put(key, parts(number))
            continue
        found = entries.find(key)
        if not isinstance(found, Absent) and found != parts(number):
            return 3
    print(entries.tally, file=sys.stderr)
    put, failed = entries.tally["puts"], entries.tally["errors"]
    return 4 if entries.tally["refused"] or failed > put // 4 else 0

for line in sys.stdin:
    verb, *words = line.split()
    if verb == "fork":
        child = os.fork()
        if not child:
            os._exit(work(words[0], *map(int, words[1:])))
        print(child, flush=True)
    else:
        print(os.waitpid(int(words[0]), 0)[1], flush=True)
"""


class Nursery:
    """The process that children are forked from."""

    def __init__(self, process):
        self.process = process

    def _ask(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def fork(self, path, seed, turns, limit, keys):
        return self._ask("fork", path, seed, turns, limit, keys)

    def wait(self, child):
        return self._ask("wait", child)


@pytest.fixture
def nursery():
    """Children that put, find and evict for so many turns; -1 is for ever."""
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Nursery(process)


def _parts(number):
    return {"own": b"%d" % number * 4_000, "shared": bytes([number % 3]) * 900}


def _check_found(entries, keys):
    """Whatever is found is what every process puts there; return how much that was."""
    found = 0
    for number in range(keys):
        parts = entries.find(Key((("number", b"%d" % number),)))
        if not isinstance(parts, Absent):
            assert parts == _parts(number)
            found += 1
    return found


def test_a_kill_at_any_moment_leaves_no_bad_entry(nursery, path):
    """After each of them all is whole, and in the end the dead are swept."""
    draw = random.Random(7)
    reader = DiskStore(path, 30_000, read_only=True)
    torn, found = 0, []
    for seed in range(KILLS):
        child = nursery.fork(path, seed, -1, 30_000, 12)
        time.sleep(draw.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
        assert nursery.wait(child) == signal.SIGKILL
        torn += len(list(path.glob("v1/new/*")))
        assert verify(reader) == []
        found.append(_check_found(Entries(reader), 12))
    assert torn > 0, "no kill came in the middle of a put"
    assert any(after < before for before, after in pairwise(found)), "none evicted"
    DiskStore(path, 30_000).trim()
    assert list(path.glob("v1/new/*")) == []
    assert list(path.glob("v1/damaged/*")) == []


def test_eight_processes_at_once(nursery, path):
    """Putting, finding and evicting: nothing fails, and nothing wrong is found."""
    children = [nursery.fork(path, seed, 100, 150_000, 40) for seed in range(PROCESSES)]
    assert [nursery.wait(child) for child in children] == [0] * PROCESSES
    assert list(path.glob("v1/new/*")) == []
    size = sum(file.stat().st_size for file in path.glob("v1/?/*"))
    assert size <= 150_000 + PROCESSES * 9_000  # each may have had a blob in hand
    entries = Entries(DiskStore(path, 150_000))
    assert 0 < _check_found(entries, 40) < 40
    # A blob may go in the instant in which another process puts it anew; such an
    # entry was found damaged above, and is gone.
    assert verify(entries.store) == []
