"""What tests of CuPy share: CuPy, and a runtime on a GPU."""

from __future__ import annotations

import gc
import warnings

import pytest

from tests.support.rig import CUDA, Rig


@pytest.fixture
def cp():
    """Return CuPy, where it is installed."""
    return pytest.importorskip("cupy")


@pytest.fixture
def rt(cp):
    """Return a runtime on the GPU, leak-checked when the test is over."""
    rig = Rig(CUDA)
    yield rig.runtime
    # What is caught in a call that cannot be recorded holds arrays, and plans hold
    # what they work in.
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # it may change, says CuPy
        cp.fft.config.clear_plan_cache()
    rig.finish()
