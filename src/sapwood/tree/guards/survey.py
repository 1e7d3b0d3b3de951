"""Everything that a function reads besides its array arguments, read at one moment."""

from __future__ import annotations

import time
from collections.abc import (
    Callable,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import cached_property, partial
from operator import call, is_
from types import BuiltinFunctionType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ReferenceType, WeakValueDictionary

from sapwood.errors import MisuseError
from sapwood.tree.guards import acting, changes, views
from sapwood.tree.guards.aliasing import firsts, twins
from sapwood.tree.guards.ambient import Ambient, extent_of, guard
from sapwood.tree.guards.asking import Ear, Listening, Questions, Summing
from sapwood.tree.guards.changes import Added, Change
from sapwood.tree.guards.constants import constant_of, is_left_out
from sapwood.tree.guards.frameworks import Arrays
from sapwood.tree.guards.moving import PROGRESS, STATE, Watched, is_cached, is_readable
from sapwood.tree.guards.reach import Inside, Row, Walk, is_book, reach
from sapwood.tree.guards.scope import ATOMS, Reach
from sapwood.tree.guards.slots import Item, Slot
from sapwood.tree.guards.standard import BY_NAME, FACTORY, KEYED, MAXLEN
from sapwood.tree.nests.containers import arrays_in, constant_key, flatten, taken_apart
from sapwood.tree.nests.contents import contents_of

if TYPE_CHECKING:
    from sapwood.tree.guards.fingerprint import Fingerprint

_CLOCKS = {
    name: value
    for name, value in vars(time).items()
    if isinstance(value, BuiltinFunctionType) and name != "sleep"
}
_CONTAINERS = (views.DICT, views.LIST, views.SET)
_MADE = (FACTORY, MAXLEN)
_REMADE = {dict, list, tuple, SimpleNamespace}
_ASSIGNED = {bool, bytes, complex, float, int, str, type(None)}


def survey(
    fn: Callable[..., Any], arguments: Mapping[str, object], arrays: Arrays
) -> Survey:
    """Read all slots that ``fn`` may read, by itself and through its arguments.

    ``arguments`` are the call's, by parameter. Raises `CaptureError` where the
    function reaches too much.
    """
    return Survey(reach(fn, arguments, arrays), arguments, {})


class AmbientKey(NamedTuple):
    """Equal for calls between which no guarded value differs.

    ``which`` says of the call's arrays, and then of those that are reached, which of
    them is the first that is the same object; ``nests`` says of the call's containers
    which of all that is looked into each is, or -1. Both are empty where the function
    cannot tell.
    """

    values: Hashable
    which: tuple[int, ...]
    nests: tuple[int, ...] = ()


class Survey:
    """Slots and what they held; it keeps the values, so let it go after the call.

    ``ambients`` are guards of surveys of the function that somebody has.
    """

    def __init__(
        self,
        walk: Walk,
        arguments: Mapping[str, object],
        ambients: MutableMapping[Hashable, Ambient],
    ) -> None:
        self._walk, self._arguments, self._ambients = walk, arguments, ambients
        self._asked = walk.questions.size()
        self._terms: dict[Hashable, tuple[int | float, ...]] = {}

    @cached_property
    def key(self) -> Hashable:
        """Equal for surveys between which no guarded value differs."""
        walk = self._walk
        held = tuple(walk.nodes[number].frozen for number in walk.held())
        return held, *map(_key_of, walk.guarded())

    def unlike(self, key: Any) -> str:
        """Return the first guarded value that another survey's `key` has not, or ""."""
        for inside, was in zip(self._walk.guarded(), key[1:], strict=False):
            _, view, _, *keys = _key_of(inside)
            if view != was[1]:
                break
            for row, now in zip(inside.rows, keys, strict=True):
                if now not in was:
                    path = self._walk.path(inside, row.key)
                    return f"{path} is {views.value_text(row.value)} by now"
        return ""

    def arrays(self) -> tuple[Any, ...]:
        """Return the arrays that the function reaches besides its arguments."""
        return tuple(row.value for _, row in self._walk.arrays_found())

    def which(self, given: Sequence[Any]) -> tuple[int, ...]:
        """Return which of these arrays and those reached are one: see `AmbientKey`."""
        walk = self._walk
        if not walk.reach.compares:
            return ()
        arrays, ids = (*self.arrays(), *walk.array_keys()), walk.ids()
        numbers = *map(id, given), *map(id, arrays), *ids
        return firsts(numbers) if arrays or ids else ()

    def nests(self, containers: Sequence[Any]) -> tuple[int, ...]:
        """Return which of what is reached these containers are: see `AmbientKey`."""
        if not (containers and self._walk.reach.compares):
            return ()
        return tuple(map(self._walk.number_of, containers))

    def key_with(
        self, given: Sequence[Any], containers: Sequence[Any] = ()
    ) -> AmbientKey:
        """Return what tells a call of these from others, their looks aside."""
        return AmbientKey(self.key, self.which(given), self.nests(containers))

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """What was read, in a form that means the same in another process."""
        from sapwood.tree.guards.fingerprint import fingerprint

        return fingerprint(self._walk)

    @contextmanager
    def listening(self) -> Iterator[Callable[[], None]]:
        """Have the numbers that the function adds to note what it asks of them.

        What is yielded ends that, and has each of them compared itself from then on.
        """
        ear = Ear(self._walk.questions)
        # By the objects themselves: their ways may lead elsewhere by the end.
        places = [
            (store, inside.view, thing, row)
            for thing, inside in self.insides()
            for row in inside.rows
            if (store := inside.view.store) and row.role == "tally" and row.name
        ]

        def end() -> None:
            ear.listens = False
            for store, view, thing, row in places:
                with suppress(AttributeError, LookupError):
                    value = view.open(thing)[row.key]
                    if type(value) is Listening:
                        store(thing, row.key, int(value))
                    elif type(value) is Summing:
                        self._terms[id(thing), view, row.key] = value.terms
                        plain = float(value) if value.terms else row.value
                        store(thing, row.key, plain)

        def exactly() -> None:
            end()
            self._walk.questions.exact.update(row.name for *_, row in places)

        try:
            # Within: whatever interrupts it, no number is left to listen.
            for store, _, thing, row in places:
                number = Summing if type(row.value) is float else Listening
                store(thing, row.key, number.to(row.value, row.name, ear))
            yield exactly
        finally:
            end()

    def has_asked_more(self) -> bool:
        """Return whether the function has asked what no number had answered here."""
        return self._walk.questions.size() != self._asked

    def insides(self) -> list[tuple[Any, Inside]]:
        """Return what was looked into, and what it held."""
        return [(self._walk.nodes[x.node].value, x) for x in self._walk.insides]

    def reaches(self, value: object) -> bool:
        """Return whether a value was looked into."""
        return any(node.value is value for node in self._walk.nodes)

    def number_of(self, value: object) -> int:
        """Return which of what was looked into a value is; -1 for none."""
        return self._walk.number_of(value)

    def holds(self, value: object) -> bool:
        """Return whether a value was found anywhere, looked into or not."""
        return self.reaches(value) or any(
            row.value is value for _, row in self._walk.rows()
        )

    def acting(
        self, told: Callable[[str, str | None], object]
    ) -> AbstractContextManager[object]:
        """Return a context in which ``told`` hears what the function does outside."""
        reach = self._walk.reach
        given = [*self._arguments.values(), *self.values()]
        if not (reach.dynamic or acting.may_act(reach.names | reach.builtins, given)):
            return nullcontext()
        nodes = (node.value for node in self._walk.nodes)
        known = {*map(id, given), *map(id, nodes)}
        return acting.listening(told, lambda value: id(value) in known, reach.own)

    def values(self) -> Iterator[Any]:
        """Yield the values in all slots that were read."""
        return (row.value for _, row in self._walk.rows())

    def clock(self) -> str | None:
        """Return the path of a clock of Python's that the function names, if any."""
        named = sorted(_CLOCKS.keys() & self._walk.reach.names)
        for inside, row in self._walk.rows():
            path = self._walk.path(inside, row.key)
            if row.value is time and named:
                return f"{path}.{named[0]}"
            if any(row.value is clock for clock in _CLOCKS.values()):
                return path
        return None

    def guards_hosts(self) -> bool:
        """Return whether the contents of all host arrays are compared that are reached.

        Those of large ones, and of arrays of objects, are not.
        """
        return not any(
            row.role == "constant" and is_left_out(row.value, row.frozen)
            for _, row in self._walk.rows()
        )

    def array_slots(self) -> dict[str, Any]:
        """Return the arrays that the function reaches, by the paths of their slots."""
        found = self._walk.arrays_found()
        return {self._walk.path(inside, row.key): row.value for inside, row in found}

    def slots_of_arrays(self) -> list[tuple[Slot, Any]]:
        """Return the slots in which there are arrays, and what they hold.

        Those in a tuple are as many as there are ways to it.
        """
        walk = self._walk
        return [
            each
            for inside in walk.guarded()
            if inside.view is not views.TUPLE or walk.nodes[inside.node].step is None
            for row in inside.rows
            if row.role == "array" or row.node in self._tuples
            for each in self._ways(self._slot(inside, row.key), row)
        ]

    def _ways(self, slot: Slot, row: Row) -> Iterator[tuple[Slot, Any]]:
        if row.role == "array":
            yield slot, row.value
        elif row.node in self._tuples:
            for each in self._tuples[row.node].rows:
                yield from self._ways(slot.inside(each.key), each)

    @cached_property
    def _tuples(self) -> dict[int, Inside]:
        """What is in each tuple that was looked into, by its number."""
        return {x.node: x for x in self._walk.insides if x.view is views.TUPLE}

    def array_keys(self) -> list[Any]:
        """Return the arrays that are keys of what the function reaches."""
        return self._walk.array_keys()

    def cached(self) -> Watched:
        """Return the functions that are reached and `functools.lru_cache` has made."""
        return Watched(n.value for n in self._walk.nodes if is_cached(n.value))

    def memoised(self) -> dict[int, Any]:
        """Return the arrays that such functions keep, by their identity."""
        is_array, found = self._walk.arrays.is_array, dict[int, Any]()
        for each in self.cached().kept():
            with suppress(MisuseError):  # it is no nest
                found |= {id(leaf): leaf for leaf in arrays_in(each, is_array)}
        return found

    def slot(
        self, path: str, start: str, steps: Sequence[tuple[str, Any]]
    ) -> Slot | None:
        """Return a slot that was described in another process; None if it is gone."""
        ways = tuple((BY_NAME[name], key) for name, key in steps if name in BY_NAME)
        if start in self._arguments:
            return Slot(path, start, ways, start)
        held = [n for n in self._walk.held() if self._walk.nodes[n].path == start]
        if len(held) != 1 or len(ways) != len(steps):
            return None
        return Slot(path, self._walk.hold(held[0]), ways, start)

    def guards(self, used: Callable[[Any], bool]) -> Ambient:
        """Return the guards of what was read; ``used`` arrays are to be pinned.

        They are the guards of an earlier survey, where these would say the same.
        """
        walk, arrays = self._walk, self.arrays()
        roots = [walk.nodes[number].value for number in walk.held()]
        which = self.key, *map(used, arrays), twins(arrays), *map(id, roots)
        if walk.reach.compares:
            which += *map(id, walk.array_keys()), *walk.ids()
        known = self._ambients.get(which)
        # What is gone by now may have had a number that another object has.
        if known is None or not all(map(is_, map(call, known.roots), roots)):
            known = self._ambients[which] = guard(walk, used, self.key)
        return known

    def changes_since(self, before: Survey) -> tuple[Change, ...]:
        """Return what was written since an earlier survey of the same call."""
        found: dict[Hashable, Change] = {}
        items: dict[int, Item] = {}
        for old, new in self._both(before):
            for change in self._written(before, old, new):
                # What stands in a namespace is found by each function that names it.
                place: Hashable = id(change)
                if isinstance(change, Added | changes.Rebound):
                    place = change.place()
                if place not in found:
                    shared = isinstance(change, Added) and change.is_shared(items)
                    plain = Change(change.path, change.text, name=change.name)
                    found[place] = plain if shared else change
        return *found.values(), *self._moved(before)

    def _moved(self, before: Survey) -> Iterator[Change]:
        """Yield the attributes that have changed of arrays that changed their slots.

        A replay would set them on whatever array is in the slot by then.
        """
        then, now = before._bearers, self._bearers
        for key in then | now:
            was, found = then.get(key), now.get(key)
            if was is None or found is None or was.keys() != found.keys():
                (path, row), *_ = (was or found or {}).values()
                old = next(iter(was.values()))[1].value if was else None
                if getattr(row.bearer, key[1]) is not old:
                    text = f"{path} is of an array that the function moved or made"
                    yield Change(path, text)

    @cached_property
    def _bearers(self) -> dict[tuple[int, str], dict[Hashable, tuple[str, Row]]]:
        """The slots of what arrays bear, by an array and the attribute's name."""
        found: dict[tuple[int, str], dict[Hashable, tuple[str, Row]]] = {}
        for inside in self._walk.borne:
            for row in inside.rows:
                places = found.setdefault((id(row.bearer), inside.view.attribute), {})
                thing = self._walk.nodes[inside.node].value
                place = id(thing), id(inside.view), row.key
                places[place] = self._walk.path(inside, row.key), row
        return found

    def read_besides(self, change: Change) -> str | None:
        """Return where the function may read what it adds to, and how."""
        return self._walk.read_besides(change.name)

    def renewed_since(self, before: Survey) -> list[Any]:
        """Return containers that were empty, and in whose place others are by now."""
        return [
            old.value
            for inside, now in self._both(before)
            for old, new in _pairs(inside, now)
            if self._renews(before, old, new)
        ]

    def _both(self, before: Survey) -> Iterator[tuple[Inside, Inside]]:
        """Yield what was found in the same things then and now, if any may differ."""
        insides = before._insides()
        for place, inside in self._insides().items():
            if place in insides:
                yield insides[place], inside

    def _insides(self) -> dict[tuple[int, int], Inside]:
        found: dict[tuple[int, int], Inside] = {}
        for inside in self._walk.insides:
            thing = self._walk.nodes[inside.node].value
            found.setdefault((id(thing), id(inside.view)), inside)
        return found

    def _written(self, before: Survey, old: Inside, new: Inside) -> Iterator[Change]:
        node = self._walk.nodes[new.node]
        path, was, now = node.path, len(old.rows), len(new.rows)
        moves = new.view is PROGRESS and self._walk.reach.advances
        if moves and not is_readable(node.value):
            text = f"{path} is a {views.value_text(node.value)}, which moves unseen"
            yield Change(path, text)
            return
        if new.view in KEYED and was != now:
            return
        if new.view.extent == "length" and was != now:
            text = f"len({path}) changed from {was} to {now}"
            name = self._walk.name(node.parent, *node.step) if node.step else ""
            yield (changes.Filled if now > was else Change)(path, text, name=name)
            return
        yield from self._rows_written(before, old, new, partial(self._slot, new))
        if new.view is views.DICT and not _are_in_order(old, new):
            yield Change(path, f"the order of keys in {path} changed")

    def _rows_written(
        self, before: Survey, old: Inside, new: Inside, slot_of: Callable[[Any], Slot]
    ) -> Iterator[Change]:
        for was, now in _pairs(old, new):
            if was.bearer is not now.bearer:
                continue  # see `_moved`
            inner = self._rebuilt(before, was, now)
            if inner is not None:
                slot = slot_of(now.key)
                yield from self._rows_written(before, *inner, slot.inside)
                continue
            if self._is_same(new, was, now) or self._renews(before, was, now):
                continue
            path = self._walk.path(new, now.key)
            text = _text(new, path, was.value, now.value)
            written = _Written(new, was, now, path, text, slot_of(now.key))
            if was.role == now.role == "tally":
                yield from self._added(before, written)
            else:
                rebound = [*self._rebound(before, written)]
                yield from rebound or [self._compared(written)]

    def _added(self, before: Survey, written: _Written) -> Iterator[Change]:
        """Yield what was added to a number, or the items that were to a list."""
        inside, old, new, path, text, slot = written
        tally = partial(replace, slot, adds=True)
        write = partial(Added, _arguments=self._arguments)
        if type(new.value) is not list:
            terms = before._terms_of(self._walk.nodes[inside.node].value, written)
            for k, more in enumerate(terms):
                to = tally()
                yield write(path, text, slot=to, old=old.value, new=more, number=~k)
            if not terms:
                yield Change(path, text)
            return
        if new.value is not old.value or new.size < old.size:
            yield Change(path, f"{path} is another list, or was cut")
            return
        text = f"len({path}) changed from {old.size} to {new.size}"
        for number, item in enumerate(new.value[old.size :], old.size):
            # Nobody looks into a list to which is only added.
            made = self._new_nest(before, item, places=0)
            if made is None and not self._is_leaf(item):
                yield Change(path, text)
                return
            at, (whole, leaves) = f"{path}[{number}]", made or (None, [item])
            for k, leaf in enumerate(leaves):
                to = tally(item=whole, leaf=k)
                yield write(at, text, slot=to, old=None, new=leaf, number=number)

    def _terms_of(self, thing: object, written: _Written) -> tuple[int | float, ...]:
        """Return what was added to a number here, one by one; nothing if unknown."""
        was, now = written.was.value, written.now.value
        if type(was) is not type(now):
            return ()
        if type(now) is int:
            return (now - was,)
        return self._terms.get((id(thing), written.inside.view, written.now.key), ())

    def _rebound(self, before: Survey, written: _Written) -> Iterator[Change]:
        """Yield what was bound of a new container, by leaves; nothing of any other."""
        _, old, new, path, text, slot = written
        is_array = self._walk.arrays.is_array
        made = self._new_nest(before, new.value) if written.is_assignable() else None
        if made is None or not before._is_kept(old, self):
            return
        item, leaves = made
        was: list[Any] = []
        with suppress(MisuseError):  # the old one contains itself
            was, form = flatten(old.value, is_array)
            was = was if form == item.structure else []
        paths = self._paths(new.value)
        bind = partial(changes.Rebound, path, text, old=old.value)
        for k, leaf in enumerate(leaves):
            to = replace(slot, path=paths.get(id(leaf), path), item=item, leaf=k)
            alike = bool(was) and (
                is_array(leaf) or constant_key(leaf) == constant_key(was[k])
            )
            yield bind(slot=to, new=leaf, _arguments=self._arguments, alike=alike)

    def _new_nest(
        self, before: Survey, value: object, places: int = 1
    ) -> tuple[Item, list[Any]] | None:
        """Return a container that a replay can make again, and its leaves.

        Nobody had it before, and now it is found in so many places; else None.
        """
        if not _is_remade(value):
            return None
        try:
            leaves, form, inside = taken_apart(value, self._walk.arrays.is_array)
        except MisuseError:  # it contains itself
            return None
        known = all(map(self._is_leaf, leaves)) and all(map(_is_remade, inside))
        known = known and self._are_new(before, [*_containers(value)], places)
        if not (leaves and known):
            return None
        return Item(form, len(leaves), tuple(map(id, inside))), leaves

    def _are_new(self, before: Survey, containers: Sequence[Any], places: int) -> bool:
        """Return whether nobody had these before, and each is in so many places now."""
        where: dict[int, set[Hashable]] = {id(each): set() for each in containers}
        for inside, row in self._walk.rows():
            if id(row.value) in where:
                where[id(row.value)].add(self._place(inside, row.key))
        return all(
            not before.reaches(each) and len(where[id(each)]) == places
            for each in containers
        )

    def _place(self, inside: Inside, key: Any) -> Hashable:
        """Return what tells where a slot is: functions share cells, and globals."""
        if inside.view in (views.CELLS, views.GLOBALS, views.MODULE):
            return self._slot(inside, key).place(self._arguments)
        return inside.node, inside.view.name, key

    def _paths(self, nest: object) -> dict[int, str]:
        """Return the paths of what is in a nest, by its identity."""
        walk, numbers = self._walk, {*map(id, _containers(nest))}
        return {
            id(row.value): walk.path(inside, row.key)
            for inside, row in walk.rows()
            if id(walk.nodes[inside.node].value) in numbers
        }

    def _is_kept(self, row: Row, now: Survey, deep: int = 8) -> bool:
        """Return whether a container that was read holds what it held, or was none.

        Of objects in it that are reached ``now`` the function's other writes tell.
        """
        if type(row.value) not in _REMADE and not is_dataclass(type(row.value)):
            return True
        insides = (each for each in self._walk.insides if each.node == row.node)
        return all(self._is_as_it_was(each, now, deep) for each in insides)

    def _is_as_it_was(self, inside: Inside, now: Survey, deep: int) -> bool:
        space = inside.view.open(self._walk.nodes[inside.node].value)
        extent = extent_of(self._walk, inside)
        if extent is not None and not extent.holds(space):
            return False
        for row in inside.rows:
            try:
                held = space[row.key]
            except LookupError:
                return False
            if row.role == "constant":
                same = constant_of(held) == row.frozen
            else:
                same = _are_one(held, row.value) and row.size == 0
            kept = row.node < 0 or now.reaches(held)
            kept = kept or (_is_remade(held) and deep > 0)
            if not (same and kept and (deep == 0 or self._is_kept(row, now, deep - 1))):
                return False
        return True

    def _is_leaf(self, value: object) -> bool:
        """Return whether a replay can append a value again as it is."""
        return self._walk.arrays.is_array(value) or type(value) in ATOMS

    def _rebuilt(
        self, before: Survey, old: Row, new: Row
    ) -> tuple[Inside, Inside] | None:
        """Return what is in a tuple and in that which stands where it was, if one does.

        Nobody can tell them apart but by what is in them. One that stands in two places
        is left alone: replays would bind two, which are not one.
        """
        if old.value is new.value or old.frozen != new.frozen:
            return None
        if type(old.value) is not type(new.value):
            return None
        was, now = before._tuples.get(old.node), self._tuples.get(new.node)
        if was is None or now is None or len(was.rows) != len(now.rows):
            return None
        if sum(row.node == new.node for _, row in self._walk.rows()) > 1:
            return None
        return was, now

    def _slot(self, inside: Inside, key: Any) -> Slot:
        return self._walk.slot(inside, key, by_argument=True)

    def _compared(self, written: _Written) -> Change:
        """Return what was bound, of what is no new container."""
        inside, old, new, path, text, slot = written
        if inside.view is STATE:
            return changes.Draw(path, text)
        was, now = old.value, new.value
        name = self._walk.name(inside.node, inside.view, new.key)
        goes = old.role == "array" and now is None
        if slot.can_be_bound and (new.role == "array" or goes):
            return changes.BoundArray(path, text, slot, was, now, self._arguments)
        # A tally is not guarded by its value: what is assigned may not follow from it.
        constant = old.role == new.role == "constant"
        replaces = constant and _is_plain(was) and written.is_assignable()
        fills = old.role == "absent" and self._is_kept_property(inside, new)
        if (replaces or fills) and _is_plain(now):
            to = slot, was, now, self._arguments
            return changes.Assigned(path, text, *to, name=name)
        filled = was is None or (was is views.EMPTY and inside.view is not views.LIST)
        known = inside.view in views.PLAIN
        kind = changes.Filled if known and filled else Change
        return kind(path, text, name=name)

    def _renews(self, before: Survey, old: Row, new: Row) -> bool:
        """Return whether an empty container stands where another one did.

        Nobody who is reached had that one before: it is as good as the other.
        """
        if not old.role == new.role == "node" or old.frozen != new.frozen:
            return False
        made = before._made(old)
        return made is not None and (
            made == self._made(new) and not before.reaches(new.value)
        )

    def _made(self, row: Row) -> list[Any] | None:
        """Return what an empty container was made with; None where it is none."""
        insides = [each for each in self._walk.insides if each.node == row.node]
        made = [row.value for x in insides if x.view in _MADE for row in x.rows]
        empty = all(
            each.view in _MADE or (each.view in _CONTAINERS and not each.rows)
            for each in insides
        )
        return made if insides and empty else None

    def _is_same(self, inside: Inside, old: Row, new: Row) -> bool:
        if new.role == "absent":
            return _is_dead(old) or self._is_unnamed(inside, old)
        if old.role == "absent":
            return self._comes_by_itself(inside, new)
        if old.role == new.role == "tally" and type(new.value) is int:
            return bool(old.value == new.value)
        if old.value is new.value and old.role == new.role != "constant":
            return old.size == new.size
        if old.role != new.role or old.role == "node":
            return False
        if old.role == "constant":
            return old.frozen == new.frozen
        if inside.view is views.REGISTERED:
            # Its arrays may be made anew by every look.
            look = self._walk.arrays.look
            same = look(old.value).address == look(new.value).address
            return same and old.frozen == new.frozen
        return False

    def _is_unnamed(self, inside: Inside, old: Row) -> bool:
        """Return whether a slot holds what it held, and no reached code names it."""
        if inside.lacks is None or old.key in inside.lacks:
            return False
        space = inside.view.open(self._walk.nodes[inside.node].value)
        return old.key in space and space[old.key] is old.value

    def _comes_by_itself(self, inside: Inside, new: Row) -> bool:
        """Return whether what appeared is none of the function's writes."""
        registry = type(new.key) is str and new.key == "__warningregistry__"
        if registry or isinstance(new.value, ModuleType):
            # A package that is loaded meanwhile shows in the package above it.
            return True
        # Replays fill a cached property with a plain value or an array. Another object
        # they leave to be computed again, which shows if its inputs change by then.
        kept = new.role != "array" and not _is_plain(new.value)
        return kept and self._is_kept_property(inside, new)

    def _is_kept_property(self, inside: Inside, new: Row) -> bool:
        """Return whether what appeared is what a `cached_property` has computed."""
        if inside.view is not views.ATTRIBUTES:
            return False
        cls = type(self._walk.nodes[inside.node].value)
        found = (vars(base)[new.key] for base in cls.__mro__ if new.key in vars(base))
        return isinstance(next(found, None), cached_property)


class Surveyor:
    """Surveys the function that ``target`` gives, which may be gone by now.

    Of what it found it keeps the names and, while somebody has them, the guards.
    """

    def __init__(
        self, target: Callable[[], Callable[..., Any]], arrays: Arrays
    ) -> None:
        self._target, self._arrays = target, arrays
        self._latest: Reach | None = None
        self._shown: set[str] = set()
        self._questions = Questions()
        self._ambients: WeakValueDictionary[Hashable, Ambient] = WeakValueDictionary()

    def survey(self, arguments: Mapping[str, object]) -> Survey:
        """Read all slots that the function may read in a call with these arguments.

        ``arguments`` are by parameter. Raises `CaptureError` where the function
        reaches too much.
        """
        guess = None if self._latest is None else self._latest.guess()
        walk = reach(
            self._target(), arguments, self._arrays, guess, self._questions, self._shown
        )
        self._latest = walk.reach
        return Survey(walk, arguments, self._ambients)

    def shows(self, objects: Iterable[object]) -> bool:
        """Read all attributes of objects that a result has, from the next survey on.

        No code here names them: whoever has the result reads them. Return whether they
        are more than were read.
        """
        names = {
            name
            for each in objects
            for name in (
                *getattr(each, "__dict__", ()),
                *getattr(type(each), "__dataclass_fields__", ()),
            )
        }
        read = set() if self._latest is None else self._latest.names
        more = not names <= read
        self._shown |= names
        return more


class _Written(NamedTuple):
    """A slot in which there is another value than before: see `Change`."""

    inside: Inside
    was: Row
    now: Row
    path: str
    text: str
    slot: Slot

    def is_assignable(self) -> bool:
        """Whether to bind it is possible, and all that there is to do."""
        view = self.inside.view
        known = view in views.PLAIN and not is_book(view, self.was.key)
        return known and self.slot.can_be_bound


def _is_plain(value: object) -> bool:
    """Return whether a value may be assigned again as it is."""
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return type(value) in _ASSIGNED or issubclass(type(value), Enum)


def _is_remade(value: object) -> bool:
    """Return whether a container of a class can be made again from what is in it.

    Not a dataclass that lacks a field, has more, or got them in another order: made of
    its fields, it would have each of them, in theirs.
    """
    cls = type(value)
    if not is_dataclass(cls):
        return cls in _REMADE
    names = [each.name for each in fields(cls)]
    return [*getattr(value, "__dict__", names)] == names


def _are_one(value: object, other: object) -> bool:
    """Return whether nobody can tell two objects apart that hold the same."""
    if type(value) is tuple and type(other) is tuple and len(value) == len(other):
        return all(map(_are_one, value, other))
    return value is other


def _containers(value: object) -> Iterator[Any]:
    """Yield a container and those in it, but for tuples of plain values."""
    if (_is_remade(value) or isinstance(value, tuple)) and not _is_plain(value):
        yield value
        for each in contents_of(value)[1]:
            yield from _containers(each)


def _key_of(inside: Inside) -> tuple[Hashable, ...]:
    """Return what is guarded of what one view held."""
    rows = ((constant_key(r.key), r.role, r.frozen, r.node) for r in inside.rows)
    return inside.node, inside.view.name, inside.lacks, *rows


def _pairs(old: Inside, new: Inside) -> Iterator[tuple[Row, Row]]:
    """Yield the rows of the same keys."""
    was, now = ({row.key: row for row in inside.rows} for inside in (old, new))
    for key in was | now:
        yield was.get(key) or _absent(key), now.get(key) or _absent(key)


def _absent(key: Any) -> Row:
    return Row(key, views.EMPTY, "absent", None)


def _are_in_order(old: Inside, new: Inside) -> bool:
    was, now = ({row.key: row for row in inside.rows} for inside in (old, new))
    return [key for key in was if key in now] == [key for key in now if key in was]


def _is_dead(row: Row) -> bool:
    """Return whether a slot of a weak container went because its object did."""
    return any(
        isinstance(each, ReferenceType) and ReferenceType.__call__(each) is None
        for each in (row.key, row.value)
    )


def _text(inside: Inside, path: str, was: Any, now: Any) -> str:
    if inside.view is STATE:
        return f"{path} moved: a number was drawn from it, or it was seeded"
    if inside.view is PROGRESS:
        return f"{path} moved: a value was taken from it"
    if was is views.EMPTY:
        return f"{path} appeared, as {views.value_text(now)}"
    if now is views.EMPTY:
        return f"{path} went, it was {views.value_text(was)}"
    old, new = views.value_text(was), views.value_text(now)
    return f"{path} changed from {old} to {'another ' if old == new else ''}{new}"
