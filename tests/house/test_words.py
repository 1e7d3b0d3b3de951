"""One word per thing, and none of the words that say nothing."""

from __future__ import annotations

import ast
import re

import pytest

pytestmark = pytest.mark.style

EMPTY_WORDS = {"common", "helper", "helpers", "manager", "misc", "util", "utils"}
EMPTY_NAMES = re.compile(r"_?(get|do|maybe)_|\w+_impl$|\w*[Mm]anager$|\w+Impl$")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")


def test_files_are_named_by_their_subject(sources):
    """No file or room is called after nothing in particular."""
    for source in sources:
        words = {word for part in source.module.split(".") for word in part.split("_")}
        assert not words & EMPTY_WORDS, source.path


def test_functions_are_verbs_and_classes_nouns(sources):
    """No function or class has a name that only fills space."""
    named = [
        f"{source.path}:{definition.name}"
        for source in sources
        for definition in (*source.functions, *source.classes)
        if EMPTY_NAMES.match(definition.name)
    ]
    assert named == []


def test_nothing_is_left_unfinished(sources):
    """No promise is put off."""
    unfinished = [s.path for s in sources if UNFINISHED.search(s.text)]
    assert unfinished == []


def test_errors_are_raised_not_asserted(sources):
    """An assert is no error model: it says nothing, and can be switched off."""
    asserting = [
        f"{source.path}:{node.lineno}"
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Assert)
    ]
    assert asserting == []
