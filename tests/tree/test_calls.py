"""Any program of calls, kept and dropped outputs equals plain NumPy."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from hypothesis import settings

from sapwood.runtime.core import Runtime
from sapwood.tree.run import eagerly
from tests.support.tree import Calls

Calls.TestCase.settings = settings(stateful_step_count=30)
TestCalls = Calls.TestCase


def test_an_array_that_is_replaced_is_copied_to_bytes_of_its_own():
    """It is copied in before the ops run, so no temporary may lie where it does."""
    with Runtime(device="emulated") as rt:
        table = rt.array(np.zeros(4))

        @rt.graph
        def f(x):
            return (x * 0.5 + 100.0) + table

        x, before = rt.array(np.ones(4)), []
        for value in range(8):
            before.append(table)
            table = rt.array(np.full(4, float(value)))
            assert np.asarray(f(x)).tolist() == [100.5 + value] * 4
        table = None


def test_a_function_whose_making_was_interrupted_goes_quietly(monkeypatch):
    """Nothing was recorded that would have to be given back; the next call makes it."""
    with Runtime(device="emulated") as rt:
        f, x = rt.graph(lambda x: x + 1.0), rt.array(np.zeros(2))

        def interrupt(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(eagerly, "Parameters", interrupt)
            with pytest.raises(KeyboardInterrupt):
                f(x)
        gc.collect()
        assert np.asarray(f(x)).tolist() == [1.0, 1.0]
