"""Files and functions stay small where the core state lives, as everywhere."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.style

LINES_OF_A_FILE = 450
LINES_OF_A_FUNCTION = 40

# What may be larger, since when and why: "path" or "path:function" -> "date: reason".
EXCEPTIONS: dict[str, str] = {}


def _too_large(sources) -> set[str]:
    large = {s.path for s in sources if s.text.count("\n") > LINES_OF_A_FILE}
    for source in sources:
        for function in source.functions:
            if function.end_lineno - function.lineno + 1 > LINES_OF_A_FUNCTION:
                large.add(f"{source.path}:{function.name}")
    return large


def test_nothing_is_too_large(sources):
    """A file has at most 450 lines and a function at most 40, or a dated reason."""
    assert sorted(_too_large(sources) - EXCEPTIONS.keys()) == []


def test_exceptions_are_needed(sources):
    """An exception goes when its reason is gone."""
    assert sorted(EXCEPTIONS.keys() - _too_large(sources)) == []
