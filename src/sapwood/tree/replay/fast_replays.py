"""The fast replays of one function, and what its last call looked like.

`LastCall` recognises a call like the one before without making a key. Recordings that
are replayed often get a `FastReplay`, which decides nothing anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from sapwood._fast.state import ReplaysState
from sapwood.memory.storage import Storage
from sapwood.tree.call.parameters import Parameters
from sapwood.tree.call.signature import Call
from sapwood.tree.choose.function_cache import Found, FunctionCache
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.choose.specialization import Specialization
from sapwood.tree.node.node import Node
from sapwood.tree.replay.compiled import MISS
from sapwood.tree.replay.fast_chain import FastChain
from sapwood.tree.replay.fast_replay import FastReplay
from sapwood.tree.replay.last_call import LastCall
from sapwood.tree.tell.call_log import CallLog

_MANY: Final = 8
"""Fast replays of one function: each call may look at all of them, which takes some
0.3 us; to decide takes 30 to 160."""


class FastReplays(ReplaysState):
    """The fast replays of one function, the newest first, and its last call.

    ``last_call`` is None where the call before is not remembered. ``players`` are the
    replays in C of calls that pass arrays alone, in the same order.
    """

    __slots__ = ("__dict__", "__weakref__")

    def __init__(
        self,
        recordings: Recordings,
        cache: FunctionCache,
        call_log: CallLog,
        parameters: Parameters,
        *,
        guarded: bool,
    ) -> None:
        self._recordings, self._cache = recordings, cache
        self._seen = partial(
            LastCall.of, integration=recordings.integration, guarded=guarded
        )
        self._call_log, self._parameters = call_log, parameters
        self.last_call: LastCall | None = None
        self._latest: Specialization | None = None
        self._ready: tuple[FastReplay, ...] = ()
        self.players, self.skips = (), call_log.skips

    def play(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any] | None:
        """Return the result of a replay in C, alone; None where none fits.

        Raises what a replay raises.
        """
        for fast in self._ready:
            last_call = fast.last_call
            # C has tried those of calls that pass arrays alone, which are no chains.
            if fast.compiled is not None and (fast.node.chain or not last_call.flat):
                arrays = last_call.arguments(args, kwargs)
                result = MISS if arrays is None else fast.play(arrays)
                if result is not MISS:
                    return (result,)
        return None

    def let_go(self) -> None:
        """Have all fast replays let go of kept outputs, and C play none of them."""
        for fast in self._ready:
            fast.let_go()

    def tell(self) -> None:
        """Count the replays that C has made since the last time."""
        recordings, call_log = self._recordings, self._call_log
        with recordings.device.lock:
            for fast in self._ready:
                node, (began, took) = fast.node, fast.noted()
                if began:
                    node.hits += len(began)
                    node.last_used = recordings.tick(len(began))
                    for _ in began:
                        call_log.copied(node)
                    call_log.played(began, took, node)
                    if node.chain and node in self._cache.nodes:
                        self._cache.nodes[node][1].went(len(began))

    def _list(self) -> None:
        played = [fast for fast in self._ready if fast.compiled is not None]
        self.players = tuple(
            fast.compiled
            for fast in played
            if fast.last_call.flat and not fast.node.chain
        )
        if played:
            self._recordings.quiet.add(self)

    def keeper(self, node: Node) -> Callable[[Sequence[Storage]], object]:
        """Return what keeps new storages of a recording's outputs, if anything does."""
        known = (fast.keep for fast in self._ready if fast.node is node)
        return next(known, bool)

    def before(self, call: Call, found: Found) -> None:
        """Have C play a chain from its next turn on, if it could not so far.

        Then nobody has its pages, as now, where it is about to be replayed.
        """
        known = next((each for each in self._ready if each.node is found.node), None)
        if not isinstance(known, FastChain) or known.alike is None or known.kept:
            return
        arrays, slots = (
            known.last_call.arrays(call.leaves),
            self._cache.bound[known.node],
        )
        if known.arm(arrays, known.alike, slots):
            self._list()
        known.rest()

    def learn(
        self, call: Call, found: Found, values: Sequence[Any] | None = None
    ) -> None:
        """Remember a call that was replayed; if that is due, have C play those like it.

        ``values`` are what it bound; None: nobody knows.
        """
        last_call, node = self.last_call, found.node
        if node.revokes or node not in self._cache.nodes:
            return  # what was donated is no more: no call is like this one
        if last_call is None or call.key is not last_call.key:
            # Not of a call alone: to remember it costs, and pays only if the next call
            # is one of the same specialization.
            _, specialization = self._cache.nodes[node]
            again, self._latest = specialization is self._latest, specialization
            apart = again and not node.nests
            self.last_call = self._seen(call) if apart else None
        known = next((each for each in self._ready if each.node is node), None)
        if known is None:
            # Retry at hits = 4, 8, 16, …: FastReplay.of may return None for good.
            due = (
                node.hits >= self._recordings.fast_from
                and not node.hits & node.hits - 1
            )
        else:
            due = known.is_outdated()
        # Made anew: the arrays in self.last_call may lie at addresses that this node
        # does not take, and then its fast replay would never fit.
        last_call = self._seen(call) if due and not node.nests else None
        if last_call is not None:
            self.forget(node)
            kind = FastChain if node.chain else FastReplay
            known = kind.of(self._recordings, node, found.ambient, last_call, known)
            if known is not None:
                known.rivals = self._cache.nodes[node][1].nodes
                ready = (known, *self._ready)[:_MANY]
                # Those that copy outputs out come last, as in Specialization.add.
                self._ready = tuple(sorted(ready, key=lambda e: bool(e.node.ferries)))
        armed = False
        if known is not None and values is not None:
            arrays = known.last_call.arrays(call.leaves)
            if isinstance(known, FastChain):
                one = dict[int, object]()
                known.alike = [one.setdefault(id(each), object()) for each in values]
            armed = known.arm(arrays, values, self._cache.bound[node])
        if armed or last_call is not None:
            self._list()

    def forget(self, node: Node) -> None:
        """Have no fast replay of a recording any more."""
        self.tell()
        for each in self._ready:
            # Another thread may have found it already, and wait for the lock to play
            # it in C: with another epoch, it does not fit there.
            if each.node is node:
                each.let_go()
        self._ready = tuple(each for each in self._ready if each.node is not node)
        self._list()
