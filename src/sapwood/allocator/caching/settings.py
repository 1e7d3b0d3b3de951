"""The allocator's settings: typed, checked as a whole before any is used.

Names are PyTorch's without the unit: sizes are bytes here, and ``_mb`` in text. A
`Settings` that exists is valid: made from keywords, text or the environment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from sapwood import knobs
from sapwood.allocator.caching import kinds
from sapwood.allocator.caching.kinds import MIB, NO_DIVISIONS, SWITCH, Divisions, Kind
from sapwood.errors import MisuseError
from sapwood.units import Size, size_text

VARIABLE = "SAPWOOD_ALLOC_CONF"

_CUSTOMARY = Size(20 * MIB)

_REFUSED = {
    "expandable_segments_reserve_by_class": "Both size classes reserve alike: set "
    "expandable_segments_reserve"
}


def _setting(default: Any, kind: Kind) -> Any:
    return field(default=default, metadata={"kind": kind})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every setting's value; making one with a wrong value raises `MisuseError`."""

    expandable_segments: bool = _setting(True, SWITCH)
    """Grow one range of addresses per stream and size class, page by page, instead of
    asking for one segment after the other.
    """
    expandable_segments_reserve: Size | float | None = _setting(None, kinds.RESERVE)
    """How many addresses one expandable segment takes; None: as it needs."""
    max_split_size: Size | None = _setting(None, kinds.size(1, optional=True))
    """Blocks above this size are not split and serve only requests above it; None: all
    are split. At least large_segment_size.
    """
    large_segment_size: Size = _setting(
        _CUSTOMARY, kinds.size(10 * MIB + 1, "bytes above 10 MiB")
    )
    """What is asked of the driver for requests above 1 MiB and below 10 MiB."""
    max_non_split_rounding: Size = _setting(_CUSTOMARY, kinds.size(1))
    """How much larger than its request a block may be that is not split. At least
    large_segment_size or 20 MiB, whichever is less.
    """
    garbage_collection_threshold: float = _setting(0.0, kinds.THRESHOLD)
    """From which part of the limit on free segments go back to the driver before it is
    asked for more; needs per_process_memory_fraction below 1.
    """
    roundup_power2_divisions: Mapping[int, int] = _setting(
        NO_DIVISIONS, kinds.DIVISIONS
    )
    """Round sizes up to one of this many equal steps between powers of two."""
    per_process_memory_fraction: float = _setting(1.0, kinds.FRACTION)
    """Which part of the device's memory this allocator may hold."""
    throw_on_cudamalloc_oom: bool = _setting(False, SWITCH)
    """Refuse what would exceed the limit before the driver is asked, and without giving
    anything back first.
    """
    release_lock_on_cudamalloc: bool = _setting(False, SWITCH)
    """Accepted, without effect: waits run without the lock anyway, and what growing
    makes, other threads need.
    """
    graph_capture_record_stream_reuse: bool = _setting(False, SWITCH)
    """Accepted, without effect: what other streams used during a capture is reused
    after it.
    """
    cross_stream_reuse: bool = _setting(False, SWITCH)
    """A miss may take free blocks of other streams; a wait on the device orders their
    uses.
    """
    pinned_use_cuda_host_register: bool = _setting(False, SWITCH)
    """Make pinned memory by registering ordinary pages with the driver."""
    pinned_num_register_threads: int = _setting(1, kinds.THREADS)
    """How many threads touch pages before they are registered."""
    pinned_use_background_threads: bool = _setting(False, SWITCH)
    """Look after finished copies on a thread of its own."""
    pinned_reserve_segment_size: Size | None = _setting(
        None, kinds.size(1, optional=True)
    )
    """The size of one pinned segment that blocks are cut from first; None: no such
    segment.
    """
    pinned_free_catch_all: bool = _setting(False, SWITCH)
    """Warn of errors while pinned memory is freed."""
    pinned_max_round_threshold: Size | None = _setting(
        None, kinds.size(0, optional=True)
    )
    """Pinned requests above this keep their size, others become powers of two; None:
    all become powers of two.
    """
    pinned_max_cached_size: Size | None = _setting(None, kinds.size(0, optional=True))
    """How many bytes of free pinned memory are kept; larger requests keep their size.
    None: no bound.
    """

    def __post_init__(self) -> None:
        for name, value in self._values().items():
            try:
                accepted = _kind(name).accept(value)
            except ValueError:
                raise _refusal(name, name, value) from None
            object.__setattr__(self, name, accepted)
        _check_together(self)

    @classmethod
    def parse(cls, text: str) -> Settings:
        """Return the settings that ``text`` spells; defaults for the rest.

        Raises `MisuseError` that names the piece of text, or key, value and range.
        """
        return cls(**_read(text))

    @classmethod
    def from_env(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Return what ``SAPWOOD_ALLOC_CONF`` spells; defaults where it is not set.

        Raises `MisuseError` as `parse`, with the variable's name.
        """
        given = environment is not None
        known = knobs.Knobs.from_env(environment) if given else knobs.current()
        try:
            return cls.parse(known.alloc_conf)
        except MisuseError as error:
            raise MisuseError(f"{VARIABLE}: {error}") from None

    def replace(self, **changes: object) -> Settings:
        """Return these settings with some changed; raises `MisuseError` as a whole."""
        values = self._values()
        for name in sorted(changes.keys() - values.keys()):
            raise _unknown(name, sorted(values))
        return Settings(**{**values, **changes})

    def revised(self, text: str) -> Settings:
        """Return these settings with those changed that ``text`` spells."""
        return self.replace(**_read(text))

    def divisions(self, size: int) -> int:
        """Return how finely a request of ``size`` bytes is rounded up; 0: it is not."""
        steps = self.roundup_power2_divisions
        return steps.of(size) if isinstance(steps, Divisions) else 0

    def plain(self) -> dict[str, bool | int | float | str | None]:
        """Return every setting by name as a plain value; ``Settings(**plain)`` undoes.

        Sizes are bytes; divisions are in their spelling.
        """
        values = self._values().items()
        return {name: str(v) if isinstance(v, Divisions) else v for name, v in values}

    def text(self) -> str:
        """Return the shortest spelling that `parse` makes these settings of."""
        values = self._values().items()
        changed = [(name, value) for name, value in values if value != _default(name)]
        return ",".join(_kind(name).spell(name, value) for name, value in changed)

    def _values(self) -> dict[str, Any]:
        return {setting.name: getattr(self, setting.name) for setting in fields(self)}


def settings_of(settings: object) -> Settings:
    """Return settings from a value or text; TypeError for anything else."""
    if isinstance(settings, Settings):
        return settings
    if isinstance(settings, str):
        return Settings.parse(settings)
    raise TypeError(
        f"settings are text or AllocatorSettings, not {type(settings).__name__} "
        f"{settings!r}: write 'expandable_segments:True', or settings.replace(...)"
    )


def _kind(name: str) -> Kind:
    kind: Kind = Settings.__dataclass_fields__[name].metadata["kind"]
    return kind


def _default(name: str) -> Any:
    return Settings.__dataclass_fields__[name].default


def _refusal(name: str, key: str, said: object) -> MisuseError:
    """Return what to say of a value ``said`` of ``name``, which was called ``key``."""
    kind, default = _kind(name), _default(name)
    allowed = kind.allowed
    if key != name:
        allowed = f"a whole number of MiB: {name} takes {allowed}"
        default = kind.spell(name, default).partition(":")[2]
    return MisuseError(
        f"{key}: {said!r} is not allowed. Set {allowed}; the default is {default}"
    )


def _check_together(settings: Settings) -> None:
    large, split = settings.large_segment_size, settings.max_split_size
    if split is not None and split < large:
        raise MisuseError(
            f"max_split_size: {size_text(split)} is not allowed, as large_segment_size "
            f"is {size_text(large)}: its segments could never be split. Set at least "
            "large_segment_size, or None"
        )
    least = min(large, _CUSTOMARY)
    if settings.max_non_split_rounding < least:
        raise MisuseError(
            f"max_non_split_rounding: {size_text(settings.max_non_split_rounding)} is "
            f"not allowed. Set at least {size_text(least)}"
        )


def _read(text: str) -> dict[str, Any]:
    """Return the fields that ``text`` spells, each checked by itself."""
    values: dict[str, Any] = {}
    for key, value in kinds.pairs(text):
        if key == "backend":
            if value != "native":
                raise MisuseError(
                    f"backend: {value!r} is not allowed: this allocator is its own "
                    "backend. Set native, or leave the key out"
                )
            continue
        name = _name(key)
        if name in values:
            raise MisuseError(f"{text!r}: {name} is set twice. Keep one of the two")
        try:
            mib = None if key == name else kinds.read_whole(value) * MIB
            kind = _kind(name)
            values[name] = kind.parse(value) if mib is None else kind.accept(mib)
        except ValueError:
            raise _refusal(name, key, value) from None
    return values


def _name(key: str) -> str:
    """Return the setting that is called ``key`` in text; raises `MisuseError`."""
    keys = {setting.name: setting.name for setting in fields(Settings)}
    known = keys | {f"{name}_mb": name for name in keys if _kind(name).mib}
    if key in known:
        return known[key]
    if key in _REFUSED:
        raise MisuseError(f"{key} is not supported. {_REFUSED[key]}")
    raise _unknown(key, known)


def _unknown(key: str, known: Iterable[str]) -> MisuseError:
    import difflib

    near = difflib.get_close_matches(key, known, n=1)
    remedy = f"Did you mean {near[0]}" if near else f"Choose from {', '.join(known)}"
    return MisuseError(f"{key!r} is no setting of the allocator. {remedy}")


DEFAULT = Settings()
