"""Scenarios of which one driver call fails, and what must hold of each all the same."""

from __future__ import annotations

import gc

import numpy as np

import sapwood as sw

SURVIVABLE = {"create", "allocate_host"}


class Trial:
    """One run of a scenario: its errors, and how each next call is checked."""

    def __init__(self, rig, *, strict=True):
        self.strict = strict
        self.rig, self.rt = rig, rig.runtime
        self.errors = []

    def call(self, f, plain, arrays, *more):
        """Call ``f``; if it works, it did what ``plain`` does to the state left.

        ``arrays`` are device arrays that ``f`` may write; ``more`` go to both as they
        are. Returns the result, or None where it failed.
        """
        left = [self.read(array) for array in arrays]
        try:
            result = f(*arrays, *more)
        except sw.DriverError as error:
            self.note(error)
            return None
        expected = plain(*left, *more)
        for found, wanted in zip(result, expected, strict=True):
            assert self.read(found).tobytes() == np.asarray(wanted).tobytes()
        for array, host in zip(arrays, left, strict=True):
            assert self.read(array).tobytes() == host.tobytes()
        return result

    def read(self, array):
        """Return an array's values, asking again where reading is what failed."""
        try:
            return np.asarray(array)
        except sw.DriverError as error:
            self.note(error)
            return np.asarray(array)

    def trying(self, act):
        """Return ``act()``, doing it again if it fails."""
        try:
            return act()
        except sw.DriverError as error:
            self.note(error)
            return act()

    def note(self, error):
        self.errors.append((type(error), error.call))

    def array(self, host):
        return self.trying(lambda: self.rt.array(host))


def run(rig, scenario, position, *, strict=True):
    """Run a scenario with one call failing; return what failed, and the errors."""
    trial = Trial(rig, strict=strict)
    start = rig.faulty.position
    rig.faulty.plan = () if position is None else {start + position}
    held = scenario(trial)
    gc.collect()
    try:
        rig.runtime.close()
    except sw.DriverError as error:
        trial.note(error)
    count = rig.faulty.position - start
    rig.faulty.plan = ()
    assert rig.runtime.closed
    del held
    gc.collect()
    fired = rig.faulty.fired
    rig.finish()
    return fired, trial.errors, count
