"""How finely sizes are rounded up to steps between powers of two, per interval."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sapwood.errors import MisuseError

_MIB_SHIFT = 20
_INTERVALS = 16  # 1 MiB, 2 MiB, … 32 GiB
_NAME = "roundup_power2_divisions"


class Divisions(Mapping[int, int]):
    """Divisions by interval: key *m* covers sizes from *m* to 2 *m* MiB.

    Has the keys 1, 2, 4, … 32768, or none where nothing is rounded so. Sizes below
    1 MiB belong to the first, sizes from 64 GiB to the last. Immutable; hashable.
    """

    __slots__ = ("_steps",)

    def __init__(self, steps: Iterable[int] = ()) -> None:
        self._steps = tuple(steps)

    def __getitem__(self, interval: int) -> int:
        return dict(zip(self, self._steps, strict=True))[interval]

    def __iter__(self) -> Iterator[int]:
        return (1 << power for power in range(len(self._steps)))

    def __len__(self) -> int:
        return len(self._steps)

    def __hash__(self) -> int:
        return hash(self._steps)

    def __repr__(self) -> str:
        return f"Divisions({self})"

    def of(self, size: int) -> int:
        """Return the divisions for a request of ``size`` bytes; 0: not rounded so."""
        if not self._steps:
            return 0
        power = size.bit_length() - 1 - _MIB_SHIFT
        return self._steps[min(max(power, 0), _INTERVALS - 1)]

    def __str__(self) -> str:
        """Return the shortest spelling: one number, or a list of intervals."""
        steps = self._steps
        if len(set(steps)) <= 1:
            return str(steps[0] if steps else 0)
        first = next(i for i, count in enumerate(steps) if count != steps[0]) - 1
        rest = next(i for i in range(_INTERVALS - 1, -1, -1) if steps[i] != steps[-1])
        pairs = [f"{1 << power}:{steps[power]}" for power in range(first, rest + 1)]
        return f"[{','.join(pairs)},>:{steps[-1]}]"

    @classmethod
    def everywhere(cls, steps: object) -> Divisions:
        """Return the same number of divisions for every size.

        Raises `MisuseError` unless it is 0 or a power of two.
        """
        count = _steps(steps)
        return cls([count] * _INTERVALS) if count else NO_DIVISIONS

    @classmethod
    def by_interval(cls, given: Mapping[object, object]) -> Divisions:
        """Return divisions from intervals in MiB, the last of which may be ``">"``.

        Sizes below the first interval are divided as it is; ``">"`` covers all
        above the largest; intervals that are not named are not rounded so. Raises
        `MisuseError` for intervals and divisions that are no powers of two.
        """
        rest = _steps(given.get(">", 0))
        named = {
            _power(interval): _steps(steps)
            for interval, steps in given.items()
            if interval != ">"
        }
        if not named:
            return cls.everywhere(rest)
        first, last = min(named), max(named)
        below = [named[first]] * first
        inside = [named.get(power, 0) for power in range(first, last + 1)]
        steps = [*below, *inside, *[rest] * (_INTERVALS - last - 1)]
        return cls(steps) if any(steps) else NO_DIVISIONS


def _steps(value: object) -> int:
    if type(value) is not int or value < 0 or value & (value - 1):
        raise MisuseError(
            f"{_NAME}: {value!r} divisions are not allowed. Set a power of two, or 0 "
            "to round to multiples of 512 B only"
        )
    return value


def _power(interval: object) -> int:
    if type(interval) is not int or interval < 1 or interval & (interval - 1):
        raise MisuseError(
            f"{_NAME}: the interval {interval!r} is not allowed. Name intervals in "
            "MiB by powers of two from 1 to 32768, or > for all above"
        )
    power = interval.bit_length() - 1
    if power >= _INTERVALS:
        raise MisuseError(
            f"{_NAME}: the interval {interval} is too large. The last is 32768 MiB, "
            "and covers everything above it"
        )
    return power


NO_DIVISIONS = Divisions()
