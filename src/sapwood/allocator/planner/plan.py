"""Plans: the best packing that is found within a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sapwood.allocator.planner.buffers import Buffer, lower_bound
from sapwood.allocator.planner.effort import Effort
from sapwood.allocator.planner.improve import improve
from sapwood.allocator.planner.instance import Instance, Wholes
from sapwood.allocator.planner.orders import pack
from sapwood.allocator.planner.search import FEW
from sapwood.errors import MisuseError
from sapwood.units import Size

_SECONDS = 45.0
_POLISH = 5.0
_NEAR = 100
_ROUNDS = 20
_ROUNDS_OF_MANY = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """Where each buffer begins, in bytes, and how good that is.

    ``height`` is where the topmost buffer ends, ``lower_bound`` what no plan can go
    below. ``solved``: the height is within the capacity that was asked for; without
    one, it is the lower bound. ``seconds`` is the time that it took, and no part of
    what makes plans equal.
    """

    offsets: tuple[int, ...]
    height: Size
    lower_bound: Size
    solved: bool
    seconds: float = field(default=0.0, compare=False)

    @property
    def ratio(self) -> float:
        """``height`` to ``lower_bound``."""
        return self.height / self.lower_bound if self.lower_bound else 1.0


def plan(
    buffers: Sequence[Buffer],
    *,
    capacity: int | None = None,
    seconds: float | None = None,
    alignment: int = 1,
    seed: int = 0,
    steps: int | None = None,
    goes_on: Callable[[int | None], bool] | None = None,
) -> Plan:
    """Return the best plan found: no two buffers overlap that are in use at once.

    The search ends as soon as the height is within ``capacity`` bytes (None: at the
    lower bound), or after ``seconds``. None: 45, but not before there is a plan; of
    more than 1,000 buffers 5 once the height is within 1 % of the lower bound. Offsets
    are multiples of ``alignment``. After a given number of ``steps`` the plan depends
    on nothing but ``seed``. ``goes_on`` is called with the best height so far, None at
    first, often; where it returns False, that is the plan.

    Raises `MisuseError` for impossible buffers, an alignment below 1, and negative
    capacities, seconds or steps; TimeoutError where it ends before there is a plan of
    many buffers.
    """
    bound = lower_bound(buffers, alignment)
    _check_limits(capacity=capacity, seconds=seconds, steps=steps)
    instance = Instance.of(buffers, alignment)
    impatient = seconds is None and instance.count > FEW
    effort = Effort(
        enough=bound if capacity is None else max(bound, capacity),
        seconds=_SECONDS if seconds is None else seconds,
        near=bound + bound // _NEAR if impatient else 0,
        polish=_POLISH,
        patient=seconds is None,
        most=steps,
        goes_on=goes_on,
    )
    begins = _pack(instance, effort, seed)
    height = Size(instance.height(begins))
    return Plan(
        offsets=instance.offsets(begins),
        height=height,
        lower_bound=bound,
        solved=height <= (bound if capacity is None else capacity),
        seconds=effort.elapsed,
    )


def _check_limits(**limits: float | None) -> None:
    for name, limit in limits.items():
        if limit is not None and not limit >= 0:
            raise MisuseError(f"{name} is {limit}. Give a number from 0")


def _pack(instance: Instance, effort: Effort, seed: int) -> Wholes:
    """Pack in some orders, then improve the best; beyond 64 bits only the former."""
    if not instance.count:
        return instance.size
    few = instance.count <= FEW
    rounds = (_ROUNDS if few else _ROUNDS_OF_MANY) if instance.is_exact else None
    begins = pack(instance, effort, seed, rounds)
    return improve(instance, begins, effort, seed) if instance.is_exact else begins
