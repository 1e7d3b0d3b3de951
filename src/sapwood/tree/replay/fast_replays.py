"""What is known of a function's latest calls, to replay one like them at once.

A memo of the call before knows one like it at a glance. Recordings that are replayed
more and more often get an encore, which decides nothing anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from sapwood.tree.call.parameters import Parameters
from sapwood.tree.call.signature import Call
from sapwood.tree.choose.function_cache import Families, Found
from sapwood.tree.choose.recordings import Forest
from sapwood.tree.choose.specialization import Group
from sapwood.tree.node.node import Node
from sapwood.tree.replay.fast_replay import Encore
from sapwood.tree.replay.last_call import Memo
from sapwood.tree.tell.call_log import Diary

__all__ = ["Encores"]

_MANY: Final = 4
"""Encores of one function: each call may look at all of them."""


class Encores:
    """The memo and the encores of one function, that of the newest first.

    ``agains`` are those of the encores that C plays.
    """

    __slots__ = ("__dict__", "__weakref__", "agains")  # which C looks at

    def __init__(
        self, forest: Forest, families: Families, diary: Diary, parameters: Parameters
    ) -> None:
        self._forest, self._families = forest, families
        self._diary, self._parameters = diary, parameters
        self._memo: Memo | None = None
        self._latest: Group | None = None
        self._ready: tuple[Encore, ...] = ()
        self.agains: tuple[Callable[..., Any], ...] = ()

    def play(
        self, began: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any] | None:
        """Return the result of an encore, alone; None where none fits.

        Raises what a replay raises.
        """
        forest = self._forest
        device = forest.device
        if not self._ready:
            return None
        with device.lock:
            if device.closed:
                return None
            if device.returns:
                device.returns.drain_dropped()
            if forest.before_call is not None:
                forest.before_call()
            if self.agains:
                self.tell()
            for encore in self._ready:
                again = encore.play(args, kwargs)
                if again is not None:
                    break
            else:
                return None
            result, values, found, arrays = again
            node = encore.node
            if values:
                slots = self._families.bound[node]
                encore.bindings.bind(
                    slots, values, found, self._parameters, args, kwargs
                )
            self._diary.tally["copied_bytes"] += node.copied_bytes
            self._diary.escaped(node)
            self._diary.replayed(began, node)
            if encore.put_to_c(arrays, found):
                self._list()
            return (result,)

    def let_go(self) -> None:
        """Have C play nothing before it is asked anew what outputs become."""
        for encore in self._ready:
            encore.let_go()

    def tell(self) -> None:
        """Have all replays counted that C has made since the last time."""
        forest, diary = self._forest, self._diary
        with forest.device.lock:
            for encore in self._ready:
                node, (began, took) = encore.node, encore.noted()
                if began:
                    node.hits += len(began)
                    node.last_used = forest.tick(len(began))
                    diary.tally["copied_bytes"] += node.copied_bytes * len(began)
                    for _ in began:
                        diary.escaped(node)
                    diary.played(began, took, node)

    def _list(self) -> None:
        agains = (encore.again for encore in self._ready)
        self.agains = tuple(again.play for again in agains if again is not None)
        if self.agains:
            self._forest.quiet.add(self)

    def recognise(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Call | None:
        """Return a call that is like the one before, or None.

        Raises `StaleOutput` for an array that was revoked.
        """
        return None if self._memo is None else self._memo.recognise(args, kwargs)

    def learn(self, call: Call, found: Found) -> None:
        """Remember a call that was replayed, if the recording is there still."""
        memo, adapter, node = self._memo, self._forest.adapter, found.node
        if node.revokes or node not in self._families.nodes:
            return  # what was donated is no more: no call is like this one
        if memo is None or call.key is not memo.key:
            # Of a call alone, as of the first of many, nothing is remembered.
            _, group = self._families.nodes[node]
            again, self._latest = group is self._latest, group
            apart = again and not node.nests
            self._memo = Memo.of(call, adapter) if apart else None
        known = next((each for each in self._ready if each.node is node), None)
        if known is None:
            # Not more and more often: some recordings never get any.
            due = (
                node.hits >= self._forest.encore_from and not node.hits & node.hits - 1
            )
        else:
            due = known.is_outdated()
        # Not the memo from before, whose arrays may lie where this recording has none.
        memo = Memo.of(call, adapter) if due and not node.nests else None
        if memo is not None:
            self.forget(node)
            new = Encore.of(self._forest, node, call.given, found.ambient, memo, known)
            if new is not None:
                new.rivals = self._families.nodes[node][1].nodes
                ready = (new, *self._ready)[:_MANY]
                # Those that copy nothing out first, as recordings are.
                self._ready = tuple(sorted(ready, key=lambda e: bool(e.node.ferries)))
            self._list()

    def forget(self, node: Node) -> None:
        """Have no encore of a recording any more."""
        self.tell()
        for each in self._ready:
            # Somebody may be about to play it in C, and waits for the lock.
            if each.node is node:
                each.let_go()
        self._ready = tuple(each for each in self._ready if each.node is not node)
        self._list()
