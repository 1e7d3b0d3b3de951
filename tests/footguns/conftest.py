"""A runtime for every surprise, leak-checked like everywhere."""

from __future__ import annotations

import pytest

from tests.support.rig import Rig


@pytest.fixture
def rt():
    rig = Rig("earliest")
    yield rig.runtime
    rig.finish()
