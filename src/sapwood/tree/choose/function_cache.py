"""The recordings of one function, by signature, and finding the one that fits."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sapwood.memory.pages import Extent
from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import Array, Integration
from sapwood.tree.call.miss import Miss, Why
from sapwood.tree.call.parameters import Parameters
from sapwood.tree.call.roles import History
from sapwood.tree.call.signature import NONE, Arrays, Call
from sapwood.tree.choose.admit import explain, rejects
from sapwood.tree.choose.decide import Action, Step
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.choose.specialization import Specialization
from sapwood.tree.guards import AmbientKey, Slot, Survey
from sapwood.tree.node.node import Node
from sapwood.tree.watch.session import Warm

if TYPE_CHECKING:
    from sapwood.tree.choose.origins import Origins

_NEAR: Final = 64
"""A miss names what is new by comparing with this many signatures, the latest."""


class Found(NamedTuple):
    """A recording that fits a call, and the ambient arrays that it reads."""

    node: Node
    ambient: Arrays


def ambient_arrays(node: Node, integration: Integration) -> Arrays | None:
    """Return the ambient arrays that a recording uses; None where a guard fails."""
    found = node.ambient.match()
    if found is None:
        return None
    if not found:
        return NONE
    return node.whereabouts.look(found, node.ambient.layouts, integration)


class FunctionCache:
    """All specializations and recordings of one function; used under the device's lock.

    ``limit`` bounds how many signatures without a recording are remembered, and how
    many sets of ambient values of each.
    """

    def __init__(self, recordings: Recordings, *, limit: int) -> None:
        self.integration, self.limit = recordings.integration, limit
        self.pages, self.rest = recordings.device.pages, recordings.rest
        self.groups: OrderedDict[Hashable, list[Specialization]] = OrderedDict()
        self.nodes: dict[Node, tuple[Hashable, Specialization]] = {}
        self.bound: dict[Node, tuple[Slot, ...]] = {}
        self.origins: dict[Node, Origins] = {}
        self.warm: dict[Node, Warm | None] = {}
        self._outputs: dict[Node, tuple[Extent, ...]] = {}

    def find(self, call: Call) -> Found | None:
        """Return a recording that may be replayed on this call."""
        for node, ambient, why in self._asked(call):
            # To read guards may run any code, which evicts it.
            if ambient is not None and why is None and node in self.nodes:
                return Found(node, ambient)
        return None

    def misses(self, call: Call) -> dict[Node, Miss]:
        """Return why each recording with the call's signature does not fit."""
        return {
            node: explain(node, why, self.pages.live, call.given, ambient)
            for node, ambient, why in self._asked(call)
            if why is not None
        }

    def _asked(self, call: Call) -> Iterator[tuple[Node, Arrays | None, Why | None]]:
        """Yield each recording with the call's signature, and why it does not fit.

        Between them, the ambient arrays that it uses; None where a guard fails.
        """
        given, asked, ambient = call.given, None, None
        for specialization in self.groups.get(call.key, ()):
            for node in tuple(specialization.nodes):
                if node.ambient is not asked:
                    # Recordings of one specialization share their guards: asked once.
                    asked = node.ambient
                    ambient = ambient_arrays(node, self.integration)
                why: Why | None = Why.AMBIENT
                if ambient is not None:
                    self.rest(node.clobbers)
                    why = rejects(node, self.pages.live, given, ambient)
                    which = given.arrays, call.nests, node.which, node.nests
                    if why is None and not asked.are_those(*which):
                        why = Why.WHICH
                yield node, ambient, why

    def unfound(
        self,
        call: Call,
        specialization: Specialization,
        step: Step,
        parameters: Parameters,
        looked: Survey,
    ) -> tuple[Miss, ...]:
        """Return why a call has nothing to be replayed, besides what `misses` says.

        It was ``looked`` at before.
        """
        others = (x for x in reversed(self.groups[call.key]) if x is not specialization)
        known = next(others, None)
        match step.action:
            case Action.PASS_THROUGH:
                refused = specialization.unrecordable is not None
                about = "it cannot be recorded" if refused else step.reason
                return (Miss(Why.EAGER, about),)
            case Action.WARM_UP if known is not None:
                return (Miss(Why.AMBIENT, looked.unlike(known.ambient_key.values)),)
            case Action.WARM_UP:
                keys = [key for key in self.groups if key != call.key]
                names = parameters.leaf_names(call.structure)
                return (Miss(Why.UNSEEN, unlike(call.key, keys[-_NEAR:], names)),)
            case _ if specialization.nodes:
                return ()
            case _:
                made = step.action is Action.RECORD
                return (Miss(Why.WARMED if made else Why.STORED),)

    def known(self, call: Call, ambient_key: AmbientKey) -> Specialization | None:
        """Return the specialization of a call, if there is one."""
        for specialization in self.groups.get(call.key, ()):
            if specialization.ambient_key == ambient_key:
                return specialization
        return None

    def specialization(
        self, call: Call, ambient_key: AmbientKey, max_variants: int
    ) -> Specialization:
        """Return the specialization of a call, a new one if need be."""
        groups = self.groups.setdefault(call.key, [])
        self.groups.move_to_end(call.key)
        known = self.known(call, ambient_key)
        if known is not None:
            return known
        specialization = Specialization(ambient_key, max_variants)
        specialization.places = [History() for _ in call.given.lows]
        groups.append(specialization)
        self._forget_oldest(groups)
        return specialization

    def saw(
        self,
        call: Call,
        specialization: Specialization,
        reached: Mapping[str, Array],
        inherits: Callable[[Storage], bool],
    ) -> None:
        """Have a specialization remember where a call's arrays are.

        ``reached`` are those that the function reads besides, by path; ``inherits``
        tells which storages recordings made.
        """
        most, given = specialization.max_variants, call.given
        seen = [*zip(specialization.places, given.lows, given.storages, strict=True)]
        for path, array in reached.items():
            history = specialization.ambient.setdefault(path, History())
            look = self.integration.look(array)
            seen.append((history, look.low, look.storage))
        for history, address, storage in seen:
            history.saw(address, inherited=inherits(storage), max_variants=most)

    def _forget_oldest(self, groups: list[Specialization]) -> None:
        for specialization in [g for g in groups[:-1] if not g.nodes]:
            if len(groups) <= self.limit:
                break
            groups.remove(specialization)
        for key in list(self.groups)[:-1]:
            if len(self.groups) <= self.limit:
                break
            if not any(specialization.nodes for specialization in self.groups[key]):
                del self.groups[key]

    def plant(
        self,
        call: Call,
        specialization: Specialization,
        node: Node,
        bound: tuple[Slot, ...],
        origins: Origins,
    ) -> None:
        """Add a recording, which from now on is found."""
        for other in specialization.nodes:
            if other.ambient == (mine := node.ambient):
                for part in [x for x in node.parts() if x.ambient is mine]:
                    part.ambient = other.ambient
        _, node.which, node.nests = specialization.ambient_key
        specialization.add(node)
        self.nodes[node] = (call.key, specialization)
        self.bound[node] = bound
        self.origins[node] = origins
        self.warm[node] = specialization.warm
        self._outputs[node] = tuple(
            extent for part in node.parts() for extent in part.range.output_extents()
        )

    def remove(self, node: Node) -> None:
        """Remove a recording, which is not found any more."""
        _, specialization = self.nodes.pop(node)
        specialization.nodes.remove(node)
        # hits counts the recording call itself, so 1 means it was never replayed.
        del self.bound[node], self.origins[node], self._outputs[node], self.warm[node]

    def candidates(self, call: Call) -> list[Extent]:
        """Return output extents of other signatures that nobody holds.

        A new recording may share them: while an output of the one is held, the other is
        not admitted.
        """
        mine: set[Extent] = set()
        others: dict[Extent, None] = {}
        for node, (key, _) in self.nodes.items():
            if key == call.key:
                mine.update(self._outputs[node])
            else:
                others |= dict.fromkeys(self._outputs[node])
        live = self.pages.live
        return [e for e in others if e not in mine and not e.mask & live]


def unlike(key: Any, others: Iterable[Any], names: Sequence[str]) -> str:
    """Say how a call's key differs from the nearest of others, if there are any.

    ``names`` are those of the leaves. Of equally near ones the last counts.
    """
    structure, parts, _ = key
    nearest: list[str] | None = None
    said = ""
    for shape, leaves, _ in others:
        if shape != structure:
            said = said or "arguments are passed or nested otherwise"
            continue
        pairs = zip(names, parts, leaves, strict=True)
        differ = [name for name, now, then in pairs if now != then]
        if nearest is None or len(differ) <= len(nearest):
            nearest = differ
    if nearest is None:
        return said
    if not nearest:
        return "other arrays share memory, or are one"
    return f"{' and '.join(nearest)} differ{'s' if len(nearest) == 1 else ''}"
