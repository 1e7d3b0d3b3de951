"""What is new about a call is held against the nearest call before. Pure."""

from __future__ import annotations

import pytest

from sapwood.tree.choose.function_cache import unlike

NAMES = ("x", "n", "s")
NOW = ("nest", (1, 2, 3), None)


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ([], ""),
        ([("nest", (1, 0, 3), None)], "n differs"),
        ([("nest", (1, 0, 3), None), ("nest", (0, 0, 3), None)], "n differs"),
        ([("nest", (0, 0, 3), None), ("nest", (1, 0, 3), None)], "n differs"),
        # Of two that are as near, the later one.
        ([("nest", (1, 0, 3), None), ("nest", (1, 2, 0), None)], "s differs"),
        ([("nest", (0, 2, 0), None)], "x and s differ"),
        ([("nest", (1, 2, 3), "shared")], "other arrays share memory, or are one"),
        ([("other", (1, 2), None)], "arguments are passed or nested otherwise"),
        ([("other", (1,), None), ("nest", (0, 2, 3), None)], "x differs"),
        ([("nest", (0, 2, 3), None), ("other", (1,), None)], "x differs"),
    ],
)
def test_the_nearest_counts(others, said):
    """Fewest names, and what is nested otherwise only where nothing else is known."""
    assert unlike(NOW, others, NAMES) == said
