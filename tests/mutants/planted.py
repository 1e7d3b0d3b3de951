"""A plugin that runs the collected tests once for each fault, till one fails.

Tests are collected once. For each fault processes are forked in which it is real, and
which run tests; the first failure ends them. What tests start themselves, by
``subprocess``, is not forked and knows nothing of the fault.
"""

from __future__ import annotations

import gc
import json
import os
import selectors
import shutil
import signal
import tempfile
import time
from collections import defaultdict
from contextlib import nullcontext, suppress
from dataclasses import dataclass

import pytest
from reached import base

NEAR_SECONDS = 25
"""How much of the tests that run the line goes first, in seconds of theirs."""

LIMIT_SECONDS = 45
"""When all tests are run, whichever of those are not through."""


@dataclass
class Outcome:
    """What was seen of a fault; ``test`` is None where it survived."""

    test: str | None = None
    tier: str = "SURVIVED"
    why: str = ""
    cpu: float = 0.0
    wall: float = 0.0


class Planter:
    """Runs the tests for each fault, and tells of each as soon as it is known."""

    def __init__(self, faults, reached, tell, *, jobs, near):
        self.faults, self.reached, self.tell = faults, reached, tell
        self.jobs, self.near = jobs, near
        self.sound, self.broken = set(), set()
        self.write = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session):
        """Instead of running each test once."""
        if session.testsfailed:
            raise session.Interrupted("errors while tests were collected")
        self.session = session
        self.items = defaultdict(list)
        for item in session.items:
            self.items[base(item.nodeid)].append(item)
        gc.collect()
        gc.freeze()
        for fault in self.faults:
            self.tell(fault, self._outcome(fault))
        return True

    def pytest_runtest_logreport(self, report):
        """In a forked process, the first failure is its last act."""
        if self.write is not None and report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = crash.message if crash else str(report.longrepr)
            self.write(failed=report.nodeid, why=why.strip().split("\n")[0][:200])
            os._exit(1)

    def _outcome(self, fault):
        began = time.perf_counter()
        found = Outcome()
        related = [
            item
            for test in self.reached.tests_of(fault.places())
            for item in self.items.get(test, ())
        ]
        near = self._near(related)
        if not self._search(fault, "near", [near], found, LIMIT_SECONDS):
            near.clear()  # those that were not through are among all
        if found.test is None and not self.near:
            self._search(fault, "tier", self._divided(related, near), found)
        found.wall = time.perf_counter() - began
        return found

    def _seconds(self, item):
        return self.reached.seconds.get(base(item.nodeid), 0.1)

    def _near(self, related):
        chosen, left = [], NEAR_SECONDS
        for item in related:
            if self._seconds(item) < left:
                left -= self._seconds(item)
                chosen.append(item)
        return chosen

    def _divided(self, related, done):
        """Return all other tests, a queue for each process; files of related first."""
        files = defaultdict(list)
        done = {item.nodeid for item in done}
        for item in dict.fromkeys((*related, *self.session.items)):
            if item.nodeid not in done:
                files[item.path].append(item)
        queues = [[] for _ in range(self.jobs)]
        taken = [0.0] * self.jobs
        for items in files.values():
            least = taken.index(min(taken))
            queues[least] += items
            taken[least] += sum(map(self._seconds, items))
        return queues

    def _search(self, fault, tier, queues, found, limit=None):
        """Run queues till a test fails that passes without the fault.

        Return whether that, or their end, came within the limit.
        """
        while True:
            left = [[i for i in q if i.nodeid not in self.broken] for q in queues]
            test, why, used = self._run(fault.patch, left, limit)
            found.cpu += used
            if test is None:
                return not why
            if self._is_sound(test):
                found.test, found.tier, found.why = test, tier, why
                return True

    def _is_sound(self, test):
        """Return whether a test passes where nothing is wrong."""
        if test not in self.sound | self.broken:
            items = [each for each in self.session.items if each.nodeid == test]
            failed = self._run(nullcontext, [items], None)[0] is not None
            (self.broken if failed else self.sound).add(test)
        return test in self.sound

    def _run(self, patch, queues, limit):
        """Return the first test to fail, why, and the CPU seconds of all processes."""
        folder = tempfile.mkdtemp()
        children = {}
        with selectors.DefaultSelector() as selector:
            for queue in filter(None, queues):
                pid, pipe = self._forked(patch, queue, folder)
                selector.register(pipe, selectors.EVENT_READ, pid)
                children[pid] = _Child(pid, pipe)
            try:
                test, why = _first_failure(selector, children, limit)
            finally:
                cpu = sum(child.end() for child in children.values())
                shutil.rmtree(folder, ignore_errors=True)
        return test, why, cpu

    def _forked(self, patch, items, folder):
        reading, writing = os.pipe()
        pid = os.fork()
        if pid:
            os.close(writing)
            return pid, reading
        try:
            os.setsid()
            os.close(reading)
            os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.mkdtemp(dir=folder)
            self._act(patch, items, writing)
            os._exit(0)
        finally:
            os._exit(3)

    def _act(self, patch, items, pipe):
        def write(**row):
            os.write(pipe, json.dumps(row).encode() + b"\n")

        self.write = write
        with patch():
            for item, following in zip(items, [*items[1:], None], strict=True):
                write(begun=item.nodeid)
                hook = item.config.hook
                hook.pytest_runtest_protocol(item=item, nextitem=following)
        write(over=True)


class _Child:
    """A process that was forked: what it said last, and its end."""

    def __init__(self, pid, pipe):
        self.pid, self.pipe = pid, pipe
        self.rest, self.begun, self.over = b"", None, False

    def read(self):
        """Return (test, why) where one failed, also by the end of the process."""
        data = os.read(self.pipe, 1 << 16)
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            row = json.loads(line)
            if "failed" in row:
                return row["failed"], row["why"]
            self.begun = row.get("begun", self.begun)
            self.over |= "over" in row
        if not data and not self.over:
            return self.begun or "the fault itself", "the process died"
        return None

    def end(self):
        """End it and all that it started; return its CPU seconds."""
        for end in os.kill, os.killpg:  # it may have no group of its own yet
            with suppress(ProcessLookupError):
                end(self.pid, signal.SIGKILL)
        os.close(self.pipe)
        used = os.wait4(self.pid, 0)[2]
        return used.ru_utime + used.ru_stime


def _first_failure(selector, children, limit):
    until = None if limit is None else time.perf_counter() + limit
    while selector.get_map():
        left = None if until is None else until - time.perf_counter()
        if left is not None and left <= 0:
            return None, "not all were through"
        for key, _ in selector.select(left):
            child = children[key.data]
            failure = child.read()
            if failure is not None:
                return failure
            if child.over:
                selector.unregister(key.fileobj)
    return None, ""
