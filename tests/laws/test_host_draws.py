"""Random numbers that are drawn on the host: said to be so, from the first call on."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import pytest

import sapwood as sw

PRIVATE = random.Random(3)
OWN = np.random.default_rng(3)

DRAWS = {
    "random": lambda x: x * random.random(),
    "np.random": lambda x: x * float(np.random.rand()),
    "np.random, seeded": lambda x: (np.random.seed(0), x + 1)[1],
    "PRIVATE": lambda x: x * PRIVATE.random(),
    "OWN": lambda x: x * OWN.random(),
}


@pytest.mark.parametrize("name", DRAWS)
def test_who_draws_on_the_host_is_told_where_to_draw(rt, name):
    """What moved, and the generator whose state the device has."""
    source = name.partition(",")[0]
    np.random.random()  # not as it is seeded below
    f, x = rt.graph(DRAWS[name], fullgraph=True), rt.array(np.ones(2))
    with pytest.raises(sw.CaptureError, match=f"state of {source} moved") as caught:
        f(x)
    assert "a number was drawn from it, or it was seeded" in str(caught.value)
    assert "rt.generator(seed)" in caught.value.remedy


PROBE = """
import sys
import numpy as np
import sapwood as sw

assert "numpy.random" not in sys.modules
with sw.Runtime("emulated") as rt:
    f, x = rt.graph(lambda x: {draw}, fullgraph=True), rt.array(np.ones(2))
    try:
        for _ in range(4):
            f(x)
    except sw.CaptureError as error:
        print(error)
    else:
        print(f.stats().recordings)
"""


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        ("x * float(np.random.rand())", "the state of np.random moved"),
        ("(np.random.seed(0), x + 1)[1]", "the state of np.random moved"),
        ("x * np.random.default_rng(0).random()", "1\n"),
        ("x + 1", "1\n"),
    ],
    ids=["drawn", "seeded", "of its own", "none"],
)
def test_that_nobody_has_loaded_a_source_yet_makes_no_difference(draw, said):
    """NumPy loads its own when it is first named: that is no write of the function."""
    told = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROBE.replace("{draw}", draw)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.startswith(said)
