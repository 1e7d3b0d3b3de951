"""Faulty variants of every room that readers of the library have tried.

Those of `GAP_MUTANTS` had passed the whole suite, and each has a law of its own now.

Those of Python are contexts, as all mutants. Those of C are data: the file, which is
compiled anew when its text changes, and what in it is right and wrong.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from sapwood.allocator.caching.blocks import Bin, Pools
from sapwood.allocator.pinned.stock import Stock
from sapwood.driver.emulated.graphs import Graph
from sapwood.driver.emulated.schedules import Item
from sapwood.driver.emulated.work import Program
from sapwood.integrations.numpy.copies import _is_same, raveled
from sapwood.memory.fold import stretches
from sapwood.memory.heap import Everybody, Heap
from sapwood.memory.pages import Pages
from sapwood.memory.range import Range
from sapwood.memory.storage import Storage
from sapwood.persist import evict, restore
from sapwood.persist.disk import DiskStore
from sapwood.persist.entries import Entries
from sapwood.runtime.core import Runtime
from sapwood.tree.call import signature
from sapwood.tree.call.integration import LayoutProbe
from sapwood.tree.choose.admit import rejects
from sapwood.tree.choose.decide import next_step
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.choose.skips import Fruitless, Skips
from sapwood.tree.choose.specialization import Specialization
from sapwood.tree.guards import adding, aliasing, ambient, checks, restoring, slots
from sapwood.tree.guards.asking import Answers
from sapwood.tree.guards.reach import Walk
from sapwood.tree.guards.scope import Reach
from sapwood.tree.guards.survey import Survey, _Written
from sapwood.tree.node import objects
from sapwood.tree.node.leases import Leases
from sapwood.tree.node.outputs import analyse
from sapwood.tree.record import host_data, taking
from sapwood.tree.record.repeated import _differs
from sapwood.tree.record.staging import Swaps
from sapwood.tree.regions import branches, chain, flow
from sapwood.tree.regions.chain import Passage
from sapwood.tree.regions.parts import _Parts
from sapwood.tree.regions.rerun import Begun, Rerun
from sapwood.tree.replay import compiled, fast_chain
from sapwood.tree.replay.fast_chain import FastChain
from sapwood.tree.replay.last_call import LastCall
from sapwood.tree.replay.replay import order
from sapwood.tree.run.eagerly import Eagerly
from sapwood.tree.run.making import Making
from sapwood.tree.run.runner import Runner
from sapwood.tree.watch.session import Session
from tests.support.tree_mutants import Mutant, mutant

__all__ = ["C_MUTANTS", "GAP_MUTANTS", "TORCH_MUTANTS", "TRIED_MUTANTS"]


def _torch_mutants() -> tuple[Mutant, ...]:
    if not find_spec("torch"):
        return ()
    from sapwood.integrations.torch import asking, code_cache, gradients
    from sapwood.integrations.torch.integration import TorchIntegration, _finished
    from sapwood.integrations.torch.operations import Operation

    return (
        mutant(
            "the code cache: signatures are not compared",
            code_cache.CodeCache._is_signed,
            'hmac.compare_digest(expected, parts.get("signature", b""))',
            'len(expected) == len(parts.get("signature", b""))',
        ),
        mutant(
            "the code cache: a signature is of any key",
            code_cache._signature,
            'join({"": encode_key(key), **told})',
            "join(told)",
        ),
        mutant(
            "the code cache: objects are put anywhere",
            code_cache.CodeCache._bring,
            "if _OBJECT.fullmatch(path) is None:",
            "if False:",
        ),
        mutant(
            "the code cache: another machine's code is loaded",
            code_cache._key_of,
            "*_machine(),",
            "",
        ),
        mutant(
            "a capture knows no generator that draws",
            asking.is_known,
            "or _drawn_from.get(generator, (None,))[0] == thread",
            "",
        ),
        mutant(
            "autocast is off in what operations are made of",
            Operation.__init__,
            "[k for k, key in AUTOCASTS.items() if _has(func, key.name)]",
            "[*AUTOCASTS]",
        ),
        mutant(
            "the way back: one argument in two places is two",
            gradients._Run._own,
            "if passed is value:",
            "if False:",
        ),
        mutant(
            "the way back: what is saved is written, and nobody is told",
            gradients._Run._saved,
            "if tensor._version != handle.version:",
            "if False:",
        ),
        mutant(
            "the way back: views begin where what they are of does",
            gradients._Run._saved,
            "offset - base.storage_offset()",
            "0",
        ),
        mutant(
            "the way back: results that are views are sent a gradient",
            gradients._wholes,
            "if _memory(end) in taken or",
            "if",
        ),
        mutant(
            "the way back: what a capture writes is another's",
            gradients.Taped.__call__,
            "not captured and any(",
            "any(",
        ),
        mutant(
            "the way back: another run, whatever was written since",
            gradients.Gradients._again,
            "versions != _versions((args, kwargs), inputs)",
            "False",
        ),
        mutant(
            "the way back: what was passed is held with the result",
            gradients._Node.backward,
            "if not _C._autograd._get_current_graph_task_keep_graph():",
            "if False:",
        ),
        mutant(
            "negative views made plain",
            _finished,
            "if flags & NEGATIVE:",
            "if flags & 0:",
        ),
        mutant(
            "item size of a stale address forgotten",
            TorchIntegration.look,
            "array.storage_offset() * array.element_size()",
            "array.storage_offset()",
        ),
    )


GAP_MUTANTS: Final = (
    mutant(
        "branches: any of them is gone on with",
        branches.branches,
        "way(other)[: region + 1] != passed",
        "len(way(other)) <= region",
    ),
    mutant(
        "branches: a region that ran runs again",
        Rerun.answer,
        "if not self.answers():",
        "if True:",
    ),
    mutant(
        "branches: held against a warm-up of another way",
        Specialization.on_way,
        "if way.breaks[: len(ran)] == ran",
        "if ran",
    ),
    mutant(
        "branches: gone on with whatever addresses it has",
        Passage._turn,
        "if rejects(each, live_pages, self.given, self.ambient) is None",
        "if True",
    ),
    mutant(
        "branches: a longer one finds what the last region left",
        Passage._cross,
        "last = following.live is None and not live.branches",
        "last = following.live is None",
    ),
    mutant(
        "branches: run again against the warm-up of another",
        Passage._turn,
        "self.begun.warm = self.cache.warm[other]",
        "pass",
    ),
    mutant(
        "branches: values that take turns never meet",
        Specialization.captured_astray,
        "self.warmups_due = self.stray_captures",
        "self.warmups_due = 1",
    ),
    mutant(
        "branches: what parts made stays where it was",
        Passage._settle_in,
        "if _takes_from_anywhere(node, region):",
        "if True:",
    ),
    mutant(
        "branches: elsewhere without its bytes",
        Passage._settle_in,
        "if old.size:",
        "if False:",
    ),
    mutant(
        "branches: what is shown stays in a recording",
        _Parts._made,
        "[count + k for k in outputs.carried()]",
        "[]",
    ),
    mutant(
        "branches: what regions may keep stays in a recording",
        _Parts.__init__,
        "not self.warm.sees",
        "True",
    ),
    mutant(
        "branches: regions of other ways change nothing",
        branches.join,
        "any(node.changes for node in nodes)",
        "nodes[0].changes",
    ),
    mutant(
        "branches: places of other calls are saved",
        branches.join,
        "node.undone = _joint(alike[_names(node)])",
        "node.undone = _joint([x for each in alike.values() for x in each])",
    ),
    mutant(
        "run again without knowing what is guarded",
        Rerun.run,
        "self.session.holds, self.session.guarded = before.holds, before.guards_hosts",
        "pass",
    ),
    mutant("lists stay longer", Begun._shrink, "del grown[size:]", "pass"),
    mutant(
        "what the function wrote is a region's",
        Begun._unwind,
        "whose = mine",
        "pass",
    ),
    mutant(
        "regions where an exception is handled are replayed",
        Session._check_seeing,
        "if error is not self.handled:",
        "if False:",
    ),
    mutant(
        "sums around reads are refused",
        _Parts._captured,
        "if self.in_place else",
        "if False else",
    ),
    mutant(
        "sums around reads are added twice",
        _Parts._bound,
        "undo_bound([each for each in bound if not isinstance(each, BoundArray)])",
        "pass",
    ),
    mutant(
        "behind a region that sees all is as before",
        Passage._cross,
        "if live.sees or got",
        "if got",
    ),
    mutant(
        "what is written behind a region is a region's",
        Begun._unwind,
        "whose = edits[k - 1]",
        "whose = edits[0]",
    ),
    mutant(
        "what is bound in front of a read is taken away",
        _Parts._begin,
        "first = len(self.carried.storages)",
        "first = (anew or self._swap_in(), len(self.carried.storages))[1]",
    ),
    mutant(
        "what nobody can open is shown",
        _Parts.record,
        "sealed_in(node.outputs, other, self.warm) or self._unheld(other)",
        "None",
    ),
    mutant(
        "branches: new ways are warmed up as they are eagerly",
        Eagerly.warm_up,
        "specialization.apart if rerun else",
        "False if rerun else",
    ),
    mutant(
        "what is read in front of a question refuses what is written",
        Eagerly._repeats,
        "if watching.sees and not apart:",
        "if watching.sees:",
    ),
    mutant(
        "what a region left in arrays is not put there",
        Rerun._leave,
        "left.saved.restore()",
        "pass",
    ),
    mutant(
        "what a region added is found before it",
        restoring.put_in,
        "are_same(now, then) or",
        "not are_same(now, then) or",
    ),
    mutant(
        "what graphed functions write in a region is not counted",
        Begun._written,
        "untold = self._device.pages.writes != self._writes",
        "untold = False",
    ),
    mutant(
        "a region binds what it was passed, and not what that is",
        Rerun._as_own,
        "theirs, mine = ([pair[k] for pair in self._pairs] for k in range(2))",
        "return value",
    ),
    mutant(
        "bytes that a region has written on the host are found before it",
        ambient.Ambient.restore,
        "edits += put_bytes(value, guard.frozen)",
        "pass",
    ),
    mutant(
        "an array that the function had from before is another",
        Passage._admitted,
        "self._known.get(path) is not ambient.arrays[i]",
        "False",
    ),
    mutant(
        "an array that is passed again is another",
        LastCall.leaves,
        "leaves[i] is not leaves[k]",
        "False",
    ),
    mutant(
        "handlers of a recording that fails run on the device",
        _Parts._divert,
        "if not capture.is_on():",
        "if False:",
    ),
    mutant(
        "what a region has bound is written, and not saved",
        Passage._save,
        "self.begun is None or link.live is None or link.idle",
        "True",
    ),
    mutant(
        "what a region did to arguments is found before it",
        Begun.put_back,
        "in self._containers:",
        "in ():",
    ),
    mutant(
        "what a region filled is lost",
        Rerun._leave,
        "fill(mine, mapped(now, self._as_own))",
        "pass",
    ),
    mutant(
        "pages from the start of an extent",
        Range.mask_of,
        "<< extent.first + start - index",
        "<< extent.first",
    ),
    mutant(
        "closed ranges let go with the last lease of all",
        Pages.drop,
        "self.live != before",
        "not self.live",
    ),
    mutant("outermost route ended", Pools.end, "[-1]", "[0]"),
    mutant(
        "manifest older than its blobs",
        Entries._load,
        "self.store.get(name)  # used",
        "# used",
    ),
    mutant(
        "view before its array",
        restore._check_view,
        "at + lo < storage.address or",
        "",
    ),
    mutant(
        "keys in any order",
        checks.Extent.holds,
        "[*map(constant_key, space)] == [*map(constant_key, was)]",
        "{*map(constant_key, space)} == {*map(constant_key, was)}",
    ),
    mutant(
        "class of a second object not asked",
        ambient.guard,
        'extent = Extent("class", "", inside.rows[0].value)',
        "extent = None",
    ),
    mutant(
        "written beside a reader",
        order,
        "storage.writer is stream and not (written and storage.readers)",
        "storage.writer is stream",
    ),
    mutant("wait lost in a capture", Range.allocate, "storage.writer = stream", "pass"),
    mutant(
        "output that was said to die",
        stretches,
        "mask = lasts if not output or lasts & end else 2 * end - 1",
        "mask = lasts",
    ),
    mutant(
        "users forgotten with a failed wait",
        Heap.allocate,
        "self.give(address, end, tuple(users))",
        "self.give(address, end, ())",
    ),
    mutant(
        "work of ended streams over",
        Everybody.query_stream,
        "not user.ended and user.query()",
        "user.ended or user.query()",
    ),
    mutant(
        "kept blocks used by a stream that ended",
        Stock._used,
        "[*self.live.values(), *self._kept]",
        "[*self.live.values()]",
    ),
    mutant(
        "gone is none",
        checks._is_object,
        " and value is not None",
        "",
    ),
    mutant(
        "view from its storage",
        analyse,
        "looks[owner].address",
        "storage.address",
    ),
    mutant(
        "another op not verified", Program.replaced, "step.verify(self.memory)", "pass"
    ),
    mutant(
        "copied back after the last op alone",
        Graph.surround,
        "tuple(node for node in self.nodes if node not in followed)",
        "tuple(self.nodes)[-1:]",
    ),
    mutant(
        "values that earlier regions set stay",
        Begun._unwind,
        "whose += ambient.restore(picture)",
        "whose += ambient.restore(picture) if k == len(self.states) - 1 else []",
    ),
    mutant(
        "values are set again by the last region alone",
        Rerun._leave,
        "_redo_all(self._edits[self._next - 1], self._as_own)",
        "self._next < len(self._ran) or _redo_all(chain(*self._edits), self._as_own)",
    ),
    mutant(
        "assigned to itself by another layout",
        _is_same,
        "and target.layout == value.layout",
        "",
    ),
    mutant(
        "replays by C uncounted", Runtime.stats, "self._recordings.settle()", "pass"
    ),
    mutant(
        "readers alone are no change",
        Storage._used,
        "any(other is not stream for other in self._ordered())",
        "self.writer is not None and self.writer is not stream",
    ),
    mutant(
        "failures end when they are done",
        Item.__init__,
        "each.error or not each.done",
        "not each.done",
    ),
    mutant(
        "blob left by its manifest",
        evict.victims,
        "max(used, now - YOUNG)",
        "used",
    ),
    mutant(
        "contents of another name kept",
        Entries._parts,
        "self._forget(part.blob)",
        "pass",
    ),
    mutant(
        "reversed single elements copied",
        raveled,
        "if face.flags.c_contiguous:",
        "if face.flags.c_contiguous and min(x.strides, default=0) >= 0:",
    ),
)

TRIED_MUTANTS: Final = (
    mutant(
        "sleep of what is held",
        Pages.sleep,
        "extent.mask & self.live",
        "extent.mask & 0",
    ),
    mutant(
        "sleep of what others map",
        Pages.sleep,
        "== extent.ranges",
        "<= extent.ranges",
    ),
    mutant(
        "sleep that ends a recording in its call",
        Recordings.wake,
        "self.busy.add(node)",
        "pass",
    ),
    mutant(
        "sleep that is unmapped twice",
        Range._unmap,
        "if not extent.asleep:",
        "if True:",
    ),
    mutant(
        "regions that write are taken to be passed all that was written",
        _Parts._is_alone,
        "return all(",
        "return True or all(",
    ),
    mutant(
        "what is used is passed on",
        flow._others,
        "if any(each.places for each in taken):",
        "if False:",
    ),
    mutant(
        "what is not true is taken for true",
        flow._Following._asks_now,
        'answer ^= op.opname == "UNARY_NOT"',
        "answer ^= False",
    ),
    mutant(
        "both ways of a jump have the same answer",
        flow._told,
        "else not positive",
        "else positive",
    ),
    mutant(
        "names of objects are known whatever has run",
        flow._Following._operand,
        "free = fresh and bool(first)",
        "free = bool(first)",
    ),
    mutant(
        "sums of floats are the difference",
        Survey._is_same,
        "type(new.value) is int:",
        "type(new.value) is not list:",
    ),
    mutant(
        "whatever is called float is it",
        flow._shown,
        "return number if there is getattr(builtins, name, None) else None",
        "return number",
    ),
    mutant(
        "what is raised behind a region that wrote is tried again",
        fast_chain._goes_on,
        "if ends:",
        "if False:",
    ),
    mutant(
        "what is passed on could go another way",
        chain._may_stray,
        "if live.passed_on is not None and not live.passed_on.asks:",
        "if live.passed_on is not None:",
    ),
    mutant(
        "regions that only read are answered after captures that raise",
        Eagerly._as_captured,
        "if not begun.warm.writes:",
        "if False:",
    ),
    mutant(
        "whatever a region returns goes on",
        fast_chain._goes_on,
        "return live.key == (constant_key(result),)",
        "return True",
    ),
    mutant(
        "what was written before a read is not restored",
        FastChain.play,
        "each()",
        "pass",
    ),
    mutant(
        "a chain is not left",
        FastChain.play,
        "self.recordings.leave(self.node, self._beyond)",
        "pass",
    ),
    mutant("regrouped arrays admitted", rejects, "if regrouped or ", "if "),
    mutant(
        "crossing counts stay",
        Leases.crossed,
        "self.crossing = +self.crossing",
        "pass",
    ),
    mutant(
        "hole behind a block not counted",
        Bin.add,
        "reach += block.next.size",
        "reach += 0",
    ),
    mutant(
        "evicted though used meanwhile",
        DiskStore._removed,
        "!= item.used",
        "is None",
    ),
    mutant(
        "first reader unknown",
        Storage.order_read,
        "(*readers, stream)",
        "(*readers, stream) if writer else ()",
    ),
    mutant(
        "moved argument of another layout",
        LayoutProbe.__call__,
        "[look.layout for look in looks] != self._layouts",
        "False",
    ),
    mutant(
        "offsets in a shared storage forgotten",
        signature._grouped,
        "[low - first for low in places]",
        "[0 for low in places]",
    ),
    mutant(
        "evicted at the first miss",
        next_step,
        "missed_since(victim.last_used) < 2",
        "missed_since(victim.last_used) < 1",
    ),
    mutant(
        "an object that was there made anew",
        objects._is_unknown,
        "not weakref.getweakrefcount(value)",
        "True",
    ),
    mutant(
        "what is set stays where a call is broken off",
        Runner._described,
        "surroundings.restore()",
        "pass",
    ),
    mutant(
        "the recording that is played gives way",
        compiled._room_beside,
        "recordings.busy.add(node)",
        "pass",
    ),
    mutant(
        "large host arrays as constants",
        host_data._is_guarded,
        "value.nbytes <= BYTES",
        "value.nbytes > 0",
    ),
    mutant(
        "context variables not put back",
        restoring._kept_variables,
        "variable.set(old)",
        "pass",
    ),
    mutant(
        "a replay without memory is an error",
        Making.replay_or_skip,
        "if self.options.fullgraph:",
        "if not self.options.fullgraph:",
    ),
    mutant(
        "recorded calls skipped with those that look like them",
        Skips.passes,
        "if self._has_nodes() and self._may_be_recorded(look):",
        "if False:",
    ),
    mutant(
        "a skip whatever the values",
        Skips.holds,
        "if ambient.holds():",
        "if True:",
    ),
    mutant(
        "a call that strays is replayed again",
        Making.strayed,
        "if node in self.recordings.nodes:",
        "if False:",
    ),
    mutant(
        "a number that code uses is only added to",
        Reach._has_no_other_use,
        "name not in self.used and",
        "",
    ),
    mutant(
        "an item that code uses is only added to",
        Reach.only_adds_to,
        "and item not in self.used",
        "",
    ),
    mutant(
        "answers that nobody asks for again",
        Answers.holds,
        "_answer(question, value) == answer for",
        "True for",
    ),
    mutant(
        "what stands in two namespaces added twice",
        slots.Slot.place,
        "id(owner if view is FIELDS else view.open(owner)), key",
        "id(self), key",
    ),
    mutant(
        "items of a failed attempt kept",
        restoring.put_back,
        "del row.value[row.size :]",
        "pass",
    ),
    mutant(
        "another sum than in the warm-up",
        _differs,
        "elif added != warm.added:",
        "elif False:",
    ),
    mutant(
        "a value that an operator took is looked at still",
        adding._straight,
        "if op.is_jump_target or _reaches(op) > above:",
        "if op.is_jump_target or above < 0:",
    ),
    mutant(
        "comparisons of objects that are counted in",
        adding._equates,
        'return name == "CONTAINS_OP" or (',
        "return False and (",
    ),
    mutant(
        "fields of what is returned are not read",
        Eagerly._shows,
        "return self.surveyor.shows(reached)",
        "return False",
    ),
    mutant(
        "what never comes again is watched for ever",
        Skips.watched,
        "if self._options.donate:",
        "if True:",
    ),
    mutant(
        "what was in vain is tried as often as before",
        Fruitless.again,
        "min(2 * self._pause, _PAUSE_AT_MOST)",
        "self._pause",
    ),
    mutant(
        "what is assigned is not held against the warm-up",
        taking.added,
        "if isinstance(change, Added | Assigned | Rebound)",
        "if isinstance(change, Added | Rebound)",
    ),
    mutant(
        "what a clock has told is assigned",
        Eagerly._repeats,
        " and before.clock() is None",
        "",
    ),
    mutant(
        "what is assigned needs no other view",
        _Written.is_assignable,
        "known = view in views.PLAIN and ",
        "known = ",
    ),
    mutant(
        "what is filled again and again is never told of",
        Eagerly._fills,
        " and self.assigning <= _ASSIGNING",
        "",
    ),
    mutant(
        "a container that was there is made anew",
        Survey._are_new,
        "not before.reaches(each) and ",
        "",
    ),
    mutant(
        "one container in two places is made twice",
        Survey._are_new,
        "len(where[id(each)]) == places",
        "len(where[id(each)]) >= places",
    ),
    mutant(
        "nobody asks what the old container holds",
        Survey._rebound,
        "if made is None or not before._is_kept(old, self):",
        "if made is None:",
    ),
    mutant(
        "stand-ins stay in a container that was replaced",
        Swaps.enter,
        "((there, own, array), (slot, own, array))",
        "((slot, own, array),)",
    ),
    mutant(
        "a new container that is returned is made twice",
        taking.also_returned,
        "if isinstance(change, Added | Rebound)",
        "if isinstance(change, Added)",
    ),
    mutant(
        "plain values that are kept are not held against the warm-up",
        taking.added,
        "if isinstance(change, Added | Assigned | Rebound)",
        "if isinstance(change, Added | Assigned)",
    ),
    mutant(
        "a call that can be recorded by now is not looked at",
        Skips.settled,
        "self.looks.pop(",
        "self.looks.get(",
    ),
    mutant(
        "calls that C ran are counted once more",
        Skips.tell,
        "more, self._counted = self.passed - self._counted, self.passed",
        "more = self.passed - self._counted",
    ),
    mutant(
        "what a step ends is not watched in calls without a look",
        Skips._look_away,
        " and not self._recordings.steps_end()",
        "",
    ),
    mutant(
        "what is added to is one with what is read",
        aliasing.kept_apart,
        "if len(each) > 1",
        "if False",
    ),
    mutant(
        "a second name to what is added to",
        Walk._check_added,
        "if known is not None and len(names) > 1:",
        "if False:",
    ),
)
"""What the suite has caught from the beginning."""

TORCH_MUTANTS: Final = _torch_mutants()
"""What is wrong in the adapter of torch's tensors, where torch is installed."""

C_MUTANTS: Final = (
    (
        "calls without a look are not counted",
        "_fast/call.h",
        "skips->left--, skips->passed++;",
        "skips->left--;",
    ),
    (
        "fast replay on any stream",
        "_fast/fits.h",
        "return is_on_stream(r) && is_state_same(r)",
        "return is_state_same(r)",
    ),
    (
        "overlap seen from one side",
        "_fast/fits.h",
        "reached = end;",
        "reached = low;",
    ),
    (
        "only the last word is stale",
        "_fast/plays.h",
        "stale |= *word->at",
        "stale = *word->at",
    ),
    (
        "another value taken",
        "_fast/steps.h",
        "return *at == s->value;",
        "return *at != NULL;",
    ),
    (
        "pages of another stream's segment but the first",
        "_fast/segments.c",
        "memset(r->users + page, OTHERS, r->span[page]);",
        "memset(r->users + page, OTHERS, 1);",
    ),
    (
        "settled but for the first page",
        "_fast/segments.c",
        "      memset(r->users + page, ITS_STREAM, r->span[page]);\n",
        "      r->users[page] = ITS_STREAM;\n",
    ),
    (
        "picked behind the arguments",
        "_fast/plays.h",
        ": (from -= constants) < r->count",
        ": (from -= constants) <= r->count",
    ),
)
