"""What stays of a function's allocations, when garbage and other threads had time."""

from __future__ import annotations

import gc
import threading
import time
import weakref

from sapwood.tree.watch.capturer import lasting

AT = [(4096, 512)]


class Thing:
    """Stands for an array."""


def while_alive(thing):
    """Return what says that an allocation is lost while the thing is alive."""
    ref = weakref.ref(thing)
    return lambda: AT if ref() is not None else []


def test_what_nobody_has_is_not_waited_for(monkeypatch):
    """There is no collection, and no pause, where nothing is lost."""
    monkeypatch.setattr(gc, "collect", None)
    assert lasting(list) == []


def test_cycles_are_collected():
    """An array in a cycle that nobody can reach is nobody's."""
    thing = Thing()
    thing.itself = thing
    lost = while_alive(thing)
    del thing
    assert lasting(lost) == []


def test_another_thread_has_time_to_let_go(monkeypatch):
    """It is waited for, also where a single collection takes long."""
    collect = gc.collect
    monkeypatch.setattr(gc, "collect", lambda: (time.sleep(0.1), collect()))
    box = [Thing()]
    lost, begun = while_alive(box[0]), threading.Event()

    def late():
        begun.set()
        time.sleep(0.15)
        box.clear()

    thread = threading.Thread(target=late)
    thread.start()
    begun.wait()
    assert lasting(lost) == []
    thread.join()


def test_what_is_held_is_told_soon():
    """Whoever holds on to it is waited for once, for less than a second or so."""
    thing = Thing()
    began = time.monotonic()
    assert lasting(while_alive(thing)) == AT
    assert time.monotonic() - began < 5
    del thing
