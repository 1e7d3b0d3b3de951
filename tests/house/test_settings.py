"""Every setting is typed, checked, documented and undone after its scope."""

from __future__ import annotations

import inspect
import logging
import re
import subprocess
import sys

import pytest

import sapwood as sw
from sapwood import knobs
from sapwood.errors import MisuseError
from sapwood.runtime.graphed import GraphOptions

WRONG = {
    "alloc_conf": "one\nother",
    "cache": "one\nother",
    "device": "gpu",
    "emulated_memory": "8 GB",
    "emulated_schedule": "sometimes",
    "events": "-1",
    "held_beyond": "-1",
    "max_recordings": 0,
    "max_variants": True,
    "memory_limit": "1 page",
    "store": "one\nother",
    "store_limit": "1 page",
    "timeline": -1,
}


@pytest.mark.parametrize("name", ["settings", "functions"])
def test_the_page_is_current(root, name):
    """A page that a script prints is what the script prints."""
    printed = subprocess.run(
        [sys.executable, root / "scripts" / name],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    page = {"settings": "settings", "functions": "numpy"}[name]
    assert (root / f"docs/{page}.md").read_text() == printed


def test_arguments_are_told_of_what_takes_them():
    """What stands under *argument of* takes such an argument, and nothing else does."""
    takes = {
        "Runtime": inspect.signature(sw.Runtime).parameters,
        "graph": GraphOptions.__annotations__,
    }
    for setting in knobs.settings():
        named = [name for name, arguments in takes.items() if setting.name in arguments]
        assert ", ".join(named) == setting.argument_of, setting.name


class Noting:
    """Settings that note which of them are read."""

    def __init__(self):
        self.known, self.read = knobs.current(), set()

    def __getattr__(self, name):
        self.read.add(name)
        return getattr(self.known, name)


def test_settings_are_read_by_what_is_told(monkeypatch, tmp_path):
    """A runtime reads its own when it is made, `graph` those of functions."""
    monkeypatch.setenv("SAPWOOD_DEVICE", "emulated")
    monkeypatch.setenv("SAPWOOD_STORE", str(tmp_path / "store"))
    noting = Noting()
    monkeypatch.setattr(knobs, "current", lambda: noting)
    with sw.Runtime() as rt:
        by_runtime, noting.read = noting.read, set()
        rt.graph(lambda x: x)
        by_graph = noting.read
    for setting in knobs.settings():
        readers = setting.read_by.split(", ")
        assert (setting.name in by_runtime) == ("Runtime" in readers), setting.name
        assert (setting.name in by_graph) == ("graph" in readers), setting.name


@pytest.mark.style
def test_every_variable_in_the_source_is_a_knob(sources):
    """Nothing reads an environment variable of ours behind the knobs' back."""
    known = {setting.variable for setting in knobs.settings()}
    named = {
        name for s in sources for name in re.findall(r"\bSAPWOOD_[A-Z_]+\b", s.text)
    }
    assert named <= known


@pytest.mark.style
def test_only_knobs_read_the_environment(sources):
    """One room does; guards look at what functions read of it, and a build has $CC."""
    reading = [s.module for s in sources if re.search(r"environ\b|getenv", s.text)]
    assert reading == [
        "sapwood._fast.build",
        "sapwood.knobs",
        "sapwood.tree.guards.standard",
    ]


@pytest.mark.parametrize("name", sorted(WRONG))
def test_a_wrong_value_is_named(name):
    """A wrong value is refused with its name, itself and what is allowed."""
    (setting,) = (s for s in knobs.settings() if s.name == name)
    with pytest.raises(MisuseError) as refused, knobs.scope(**{name: WRONG[name]}):
        pass
    for part in (name, repr(WRONG[name]), setting.kind.allowed):
        assert part in str(refused.value)


def test_every_knob_refuses_something():
    """The test above covers every knob."""
    assert sorted(WRONG) == [setting.name for setting in knobs.settings()]


@pytest.mark.parametrize("name", ["events", "timeline"])
def test_what_is_remembered_is_bounded(name):
    """However large a number somebody writes to mean: all of it."""
    with (
        pytest.raises(
            MisuseError, match=f"{name}=.* is not allowed. Set .* to 10000000"
        ),
        knobs.scope(**{name: "9" * 20}),
    ):
        raise AssertionError


def test_sizes_are_written_in_binary_units():
    """From bytes to tebibytes, in any case."""
    units = ("", "B", "kib", "MiB", "GIB", " TiB")
    found = [knobs.limit("size", f"3{unit}") for unit in units]
    assert found == [3, 3, 3 << 10, 3 << 20, 3 << 30, 3 << 40]


def test_the_environment_is_read_when_asked(monkeypatch):
    """A variable counts from when it is set, as text, and is refused by its name."""
    assert knobs.current().memory_limit is None
    monkeypatch.setenv("SAPWOOD_MEMORY_LIMIT", "64 MiB")
    monkeypatch.setenv("SAPWOOD_EMULATED_SCHEDULE", "random:7")
    assert knobs.current().memory_limit == 64 << 20
    assert knobs.current().emulated_schedule == "random:7"
    monkeypatch.setenv("SAPWOOD_MAX_VARIANTS", "many")
    with pytest.raises(MisuseError, match="SAPWOOD_MAX_VARIANTS='many'"):
        knobs.current()


def test_a_scope_is_undone():
    """Scopes nest, change what they name only, and end with their block."""
    usual = knobs.current()
    with knobs.scope(max_variants=2):
        with knobs.scope(events="3"):
            assert (knobs.current().max_variants, knobs.current().events) == (2, 3)
        assert (knobs.current().max_variants, knobs.current().events) == (2, 256)
    assert knobs.current() == usual


def test_an_unknown_knob_is_refused():
    """A misspelt name is refused, with the names that there are."""
    with pytest.raises(MisuseError, match=r"max_variant\. Choose from .*max_variants"):
        knobs.scope(max_variant=3).__enter__()


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("SAPWOOD_MAX_RECORDING", "SAPWOOD_MAX_RECORDINGS"),
        ("SAPWOOD_MEMORYLIMIT", "SAPWOOD_MEMORY_LIMIT"),
        ("SAPWOOD_max_variants", "SAPWOOD_MAX_VARIANTS"),
        ("SAPWOOD_DEVCE", "SAPWOOD_DEVICE"),
    ],
)
def test_a_mistyped_variable_is_told_once(monkeypatch, caplog, name, near):
    """With the one that it is almost; nothing else comes of it."""
    monkeypatch.setattr(knobs, "_told", set())
    monkeypatch.setenv(name, "4")
    with caplog.at_level(logging.WARNING, "sapwood"):
        assert [knobs.current() for _ in range(3)] == [knobs.Knobs()] * 3
    (line,) = caplog.messages
    assert line == f"{name} is no setting and changes nothing. Did you mean {near}?"


def test_variables_of_others_are_left_alone(monkeypatch, caplog):
    """Those that are settings, and those that look like none."""
    monkeypatch.setattr(knobs, "_told", set())
    for name in ("SAPWOOD_VERSION", "SAPWOOD_HOME", "SAPWOODS", "MAX_RECORDING"):
        monkeypatch.setenv(name, "4")
    for setting in knobs.settings():
        monkeypatch.setenv(setting.variable, setting.default)
    with caplog.at_level(logging.WARNING, "sapwood"):
        knobs.current()
    assert caplog.messages == []
