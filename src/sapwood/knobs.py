"""Every setting: its type, default, environment variable and one line of help.

`current` reads the environment when it is called, never at import. A runtime calls
it once, when it is made, and `graph` whenever it graphs a function: later changes
reach later runtimes and functions only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import partial
from math import inf
from typing import Any

from sapwood.errors import MisuseError
from sapwood.units import Size, size_text

_PREFIX = "SAPWOOD_"
_told: set[str] = set()
_BYTES = "bytes, or text in KiB, MiB, GiB or TiB such as 512MiB"
_REMEMBERED = 10_000_000
"""The most events or calls that a runtime may be told to remember."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a setting may be.

    ``read`` makes a value of it, or of its text; it raises ValueError for others.
    """

    allowed: str
    read: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, as documented; ``default`` is text, as in the environment.

    ``read_by`` names what reads it when it is made or called, ``argument_of`` what
    takes an argument of the same name, which goes before it; empty: nothing does.
    """

    default: str
    kind: Kind
    meaning: str
    read_by: str = "Runtime"
    argument_of: str = ""
    name: str = ""

    @property
    def variable(self) -> str:
        """The environment variable of this name."""
        return f"{_PREFIX}{self.name.upper()}"

    def accept(self, value: object, said_by: str) -> Any:
        """Return ``value``, or the value that it is the text of.

        Raises `MisuseError` that names ``said_by``, the value and what is allowed.
        """
        try:
            return self.kind.read(value)
        except (TypeError, ValueError):
            raise MisuseError(
                f"{said_by}={value!r} is not allowed. Set {self.kind.allowed}; the "
                f"default is {self.default or 'empty'}"
            ) from None


def _count(least: int, most: float = inf) -> Kind:
    def read(value: Any) -> int:
        count = int(value) if isinstance(value, str) else value
        if type(count) is not int or not least <= count <= most:
            raise ValueError(value)
        return count

    to = "" if most == inf else f" to {most}"
    return Kind(f"a whole number from {least}{to}", read)


def _size_of(value: Any, least: int) -> Size:
    if isinstance(value, str):
        text = value.strip().upper()
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?(?:([KMGT])IB|B?)", text)
        if match is None or ("." in match[1] and not match[2]):
            raise ValueError(value)
        value = int(Fraction(match[1]) * (1 << 10 * " KMGT".index(match[2] or " ")))
    if type(value) is not int or value < least:
        raise ValueError(value)
    return Size(value)


def _size(least: int) -> Kind:
    return Kind(f"{_BYTES}, from {size_text(least)}", partial(_size_of, least=least))


def _text(pattern: str, allowed: str) -> Kind:
    def read(value: Any) -> str:
        if re.fullmatch(pattern, value) is None:
            raise ValueError(value)
        return str(value)

    return Kind(allowed, read)


def _limit(least: int) -> Kind:
    def read(value: Any) -> Size | None:
        return None if value is None or value == "" else _size_of(value, least)

    return Kind(f"{_size(least).allowed}, or empty", read)


def _knob(default: str, kind: Kind, meaning: str, **by: str) -> Any:
    setting = Setting(default, kind, meaning, **by)
    return field(default=default, metadata={"setting": setting})


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """The value of every setting; wrong ones raise `MisuseError` when it is made."""

    alloc_conf: str = _knob(
        "",
        _text(r"[^\0\n]*", "key:value pairs with commas between, or empty"),
        "Settings of caching allocators, as PyTorch spells them: docs/allocator.md.",
        read_by="Runtime, lender, sapwood simulate",
    )
    cache: str = _knob(
        "",
        _text(r"[^\0\n]*", "the path of a folder, or empty"),
        'The folder in which what is compiled with backend="sapwood" outlives the '
        "process; empty: it does not.",
        read_by="torch.compile",
    )
    device: str = _knob(
        "",
        _text("|emulated|cuda(:[0-9]{1,4})?", "empty, emulated, cuda or cuda:N"),
        "The device of a runtime that names none; empty: the best that is here.",
        argument_of="Runtime",
    )
    emulated_memory: Size = _knob(
        "4GiB", _size(2 << 20), "Size of the emulated device's memory."
    )
    emulated_schedule: str = _knob(
        "earliest",
        _text("earliest|latest|random:[0-9]+", "earliest, latest or random:SEED"),
        "When the emulated device runs queued work: at once, when waited for, or "
        "at times drawn from a seed.",
    )
    events: int = _knob(
        "256",
        _count(0, _REMEMBERED),
        "How many of the last events a runtime remembers.",
    )
    held_beyond: Size = _knob(
        "1GiB",
        _size(0),
        "How much memory outputs that are kept may hold beyond their own bytes, in "
        "pages of which they need a part, but no more than a sixteenth of "
        "memory_limit; past that, new recordings copy them out.",
    )
    max_recordings: int = _knob(
        "64",
        _count(1),
        "How many recordings one function may have.",
        read_by="graph",
        argument_of="graph",
    )
    max_variants: int = _knob(
        "4",
        _count(1),
        "How many recordings one signature of a function may have.",
        read_by="graph",
        argument_of="graph",
    )
    memory_limit: Size | None = _knob(
        "",
        _limit(2 << 20),
        "The most device memory that a runtime may use; empty: all there is.",
        argument_of="Runtime",
    )

    store: str = _knob(
        "",
        _text(r"[^\0\n]*", "the path of a folder, or empty"),
        "The folder in which recordings outlive the process; empty: they do not.",
        read_by="Runtime, sapwood store",
        argument_of="Runtime",
    )
    store_limit: Size = _knob(
        "1GiB",
        _size(1 << 20),
        "How large that folder, and one of compiled code, may become.",
        read_by="Runtime, Tiers, install_cache, sapwood store gc",
    )
    timeline: int = _knob(
        "1024",
        _count(0, _REMEMBERED),
        "How many of the last calls a runtime remembers, with their host times.",
    )

    def __post_init__(self) -> None:
        for setting in settings():
            value = getattr(self, setting.name)
            value = setting.accept(value, setting.name)
            object.__setattr__(self, setting.name, value)

    @classmethod
    def from_env(cls, environment: Mapping[str, str] | None = None) -> Knobs:
        """Return what the environment says, and defaults for the rest.

        Raises `MisuseError` naming the variable, its value and what is allowed.
        """
        environment = os.environ if environment is None else environment
        _tell_mistyped(environment)
        return cls(
            **{
                setting.name: setting.accept(said, setting.variable)
                for setting in settings()
                if (said := environment.get(setting.variable)) is not None
            }
        )


def _tell_mistyped(environment: Mapping[str, str]) -> None:
    """Warn, once of each, of variables whose names are almost those of settings."""
    known = {setting.name.upper(): setting for setting in settings()}
    for variable in environment:
        name = variable.removeprefix(_PREFIX)
        if name == variable or name in known or variable in _told:
            continue
        import difflib

        near = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.75)
        if near:
            _told.add(variable)
            import logging

            logging.getLogger("sapwood").warning(
                "%s is no setting and changes nothing. Did you mean %s?",
                variable,
                known[near[0]].variable,
            )


def unknown() -> list[str]:
    """Return the variables that are named as settings are, and are none."""
    known = {setting.variable for setting in settings()}
    return sorted(v for v in os.environ if v.startswith(_PREFIX) and v not in known)


def settings() -> tuple[Setting, ...]:
    """Return all settings, sorted by name."""
    return tuple(
        replace(knob.metadata["setting"], name=knob.name)
        for knob in sorted(fields(Knobs), key=lambda knob: knob.name)
    )


def limit(
    name: str, value: object, least: str = "one page of the device, or empty"
) -> Size | None:
    """Return a limit in bytes, given so or as text; None where it is empty.

    ``least`` says from where on it makes sense. Raises `MisuseError` that names
    ``name``, the value and what is allowed.
    """
    try:
        size: Size | None = _limit(1).read(value)
    except (TypeError, ValueError):
        raise MisuseError(
            f"{name}={value!r} is not allowed. Set {_BYTES}, from {least}"
        ) from None
    return size


_scoped: ContextVar[Knobs | None] = ContextVar("sapwood_knobs", default=None)


def current() -> Knobs:
    """Return the knobs of the innermost `scope`, else what the environment says."""
    return _scoped.get() or Knobs.from_env()


@contextmanager
def scope(**changes: object) -> Iterator[Knobs]:
    """Change settings for what is made inside the ``with`` block, on this thread.

    That is runtimes, functions that are graphed, and what else reads settings.
    Values may also be text, as in the environment. Raises `MisuseError` for a name
    that is no setting and for a value that is not allowed.
    """
    known = {setting.name for setting in settings()}
    if unknown := changes.keys() - known:
        raise MisuseError(
            f"no such knob: {', '.join(sorted(unknown))}. "
            f"Choose from {', '.join(sorted(known))}"
        )
    before: Any = current()
    knobs: Knobs = replace(before, **changes)
    token = _scoped.set(knobs)
    try:
        yield knobs
    finally:
        _scoped.reset(token)
