"""Garbage waits while anything is captured, and only as long as that."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from sapwood.tree.uncollected import collected, uncollected

FILE = uncollected.__wrapped__.__code__.co_filename


@pytest.fixture(autouse=True)
def as_before():
    before = gc.isenabled()
    yield
    assert gc.isenabled() == before


@pytest.mark.parametrize("enabled", [True, False])
def test_python_collects_as_it_did_before(enabled):
    """Captures within each other, and errors: the last to end gives it back."""
    had = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with uncollected():
            assert not gc.isenabled()
            with pytest.raises(KeyError), uncollected():
                raise KeyError
            assert not gc.isenabled()
            with collected():
                assert gc.isenabled() == enabled
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if had else gc.disable)()


def _traced(trace, run):
    """Return what a function gives that is traced, on a thread that nobody traces."""

    def traced():
        sys.settrace(trace)
        try:
            return run()
        finally:
            sys.settrace(None)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(traced).result()


def test_who_handles_a_signal_within_may_capture_as_well():
    """At any step of beginning and ending; it is on again when all is over."""
    steps = []

    def nested(frame, event, _):
        if event == "line" and frame.f_code.co_filename == FILE:
            sys.settrace(None)
            steps.append(frame.f_lineno)
            with uncollected():
                pass
            sys.settrace(nested)
        return nested

    def captures():
        with uncollected(), collected(), uncollected():
            pass
        return gc.isenabled()

    for _ in range(3):
        assert _traced(nested, captures)
    assert len(set(steps)) > 10


@pytest.mark.parametrize("line", range(5))
def test_who_interrupts_a_beginning_leaves_all_as_it_was(line):
    """Wherever it comes: later captures begin and end as if it never had."""
    left = [line]

    def interrupt(frame, event, _):
        code = frame.f_code
        if event == "line" and (code.co_filename, code.co_name) == (FILE, "begin"):
            left[0] -= 1
            if left[0] < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return interrupt

    def captures():
        with uncollected():
            pass

    with pytest.raises(KeyboardInterrupt):
        _traced(interrupt, captures)
    with uncollected():
        assert not gc.isenabled()
    assert gc.isenabled()


FORKS = """
import gc, os
from sapwood.tree.uncollected import collected, uncollected

with uncollected():
    child = os.fork()
    if not child:
        with collected():
            found = gc.isenabled()
        found = found and gc.isenabled()
if not child:
    os._exit(0 if found and gc.isenabled() else 1)
status = os.waitpid(child, 0)[1]
raise SystemExit(bool(status) or not gc.isenabled())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes do not fork here")
def test_a_child_of_a_process_that_captures_collects():
    """Nobody captures there; what ends in it had begun elsewhere."""
    # In a process of its own: this one may have threads, which forks do not go with.
    done = subprocess.run([sys.executable, "-c", FORKS], check=False, timeout=60)
    assert done.returncode == 0


def test_threads_that_capture_at_once_are_all_left_alone():
    """Whoever comes and goes: while one captures, nothing is collected."""
    broken = []

    def captures(seed):
        chance = random.Random(seed)
        for _ in range(300):
            with ExitStack() as stack:
                stack.enter_context(uncollected())
                if chance.random() < 0.3:
                    with collected():
                        sorted(range(chance.randrange(50)))
                if gc.isenabled():
                    broken.append(seed)

    threads = [threading.Thread(target=captures, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not broken
