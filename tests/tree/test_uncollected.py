"""Garbage waits while anything is captured, and only as long as that."""

from __future__ import annotations

import gc
import itertools
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from sapwood.uncollected import collected, uncollected, uncollecting

FILE = uncollected.__code__.co_filename
OFTEN = 20, 5, 5


@pytest.fixture(autouse=True)
def often():
    """Have a collection begin inside few allocations."""
    before = gc.get_threshold()
    gc.set_threshold(*OFTEN)
    gc.callbacks.append(note)
    yield
    gc.callbacks.remove(note)
    assert not uncollecting()
    # Python 3.14 knows two thresholds.
    assert gc.get_threshold()[:2] == OFTEN[:2]
    gc.set_threshold(*before)


ended = Counter()


def note(phase, _):
    ended[threading.get_ident()] += phase == "stop"


def collects():
    """Whether this thread does: one of another may be over, and began before."""
    me = threading.get_ident()
    before = ended[me]
    kept = [[] for _ in range(100)]
    return ended[me] > before and bool(kept)


@pytest.mark.parametrize("enabled", [True, False])
def test_python_collects_as_it_did_before(enabled):
    """Captures within each other, and errors: the last to end gives it back."""

    def fails():
        assert not collects()
        raise KeyError

    def captures():
        assert not collects()
        with pytest.raises(KeyError):
            uncollected("inner", fails)
        assert not collects()
        with collected("outer"):
            assert collects() == enabled
        assert not collects()
        return "its result"

    (gc.enable if enabled else gc.disable)()
    try:
        assert uncollected("outer", captures) == "its result"
        assert collects() == enabled
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


def test_a_capture_around_another_is_not_collected_in():
    """What runs beside the inner one is still inside the outer one."""

    def inner():
        with collected("inner"):
            return collects()

    assert not uncollected("outer", uncollected, "inner", inner)


def test_what_a_program_sets_meanwhile_is_kept():
    """Whether it collects, and how often, are its own."""

    def sets():
        gc.disable()
        assert not gc.isenabled()
        gc.set_threshold(30, 6, 6)

    try:
        uncollected("setting", sets)
        assert not gc.isenabled()
        assert gc.get_threshold()[:2] == (30, 6)
    finally:
        gc.enable()
        gc.set_threshold(*OFTEN)


def test_a_program_may_not_enable_collecting_in_a_capture():
    """It may say that it is enabled, as it did before: still nothing is collected."""

    def enables():
        gc.disable()
        gc.enable()
        return collects()

    assert not uncollected("enabling", enables)
    assert collects()


def _at(number, do, run, kind="opcode"):
    """Do something before a step of the library's; return whether there was one."""
    left = [number]

    def traced(frame, event, _):
        if frame.f_code.co_filename != FILE:
            return None
        frame.f_trace_opcodes = True
        left[0] -= event == kind
        if left[0] == 0 and event == kind:
            sys.settrace(None)
            do()
        return traced

    def on_a_thread_that_nobody_traces():
        # CPython 3.12 tells of opcodes if any frame had asked when tracing began.
        sys._getframe().f_trace_opcodes = True
        sys.settrace(traced)
        try:
            run()
        finally:
            sys.settrace(None)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(on_a_thread_that_nobody_traces).result()
    return left[0] <= 0


def _captures():
    def inner():
        assert not collects()
        with collected("inner"):
            assert collects()
        assert not collects()

    uncollected("inner", inner)


def test_who_handles_a_signal_within_may_capture_as_well():
    """At every step of beginning and ending; it is on again when all is over."""

    def handler():
        uncollected("handler", gc.isenabled)

    for number in itertools.count(1):
        if not _at(number, handler, _captures):
            break
        assert collects(), number
    assert number > 100


def test_an_interrupt_leaves_all_as_it_was():
    """At every step; later captures begin and end as if it never had been."""

    def interrupt():
        raise KeyboardInterrupt

    for number in itertools.count(1):
        try:
            if not _at(number, interrupt, _captures):
                break
            pytest.fail(f"not interrupted at {number}")
        except KeyboardInterrupt:
            assert not uncollecting(), number
            assert collects(), number
            _captures()
            assert collects(), number
    assert number > 100


def test_a_capture_that_begins_while_another_ends_is_not_collected_in():
    """Threads take turns at every line; inside of one nobody is called."""
    begun, over = threading.Event(), threading.Event()

    def stays():
        begun.set()
        over.wait()

    def begins():
        others.append(pool.submit(uncollected, "other", stays))
        begun.wait()

    for number in itertools.count(1):
        others = []
        with ThreadPoolExecutor(1) as pool:
            try:
                if not _at(number, begins, lambda: uncollected("first", int), "line"):
                    break
                assert not collects(), number
            finally:
                over.set()
            others[0].result()
        assert collects(), number
        begun.clear()
        over.clear()
    assert number > 10


FORKS = """
import gc, os
from sapwood.uncollected import collected, uncollected, uncollecting

def fork():
    child = os.fork()
    if not child:
        assert gc.get_threshold() == before and not uncollecting()
        with collected("forking"):
            assert gc.get_threshold() == before
        assert gc.get_threshold() == before
    return child

before = gc.get_threshold()
child = uncollected("forking", fork)
assert gc.get_threshold() == before
if child:
    assert not os.waitpid(child, 0)[1]
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

    def inside(who, chance):
        if chance.random() < 0.3:
            with collected(who):
                sorted(range(chance.randrange(50)))
        if collects():
            broken.append(who)

    def captures(seed):
        chance = random.Random(seed)
        for _ in range(300):
            uncollected(seed, inside, seed, chance)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=captures, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not broken
    assert collects()
