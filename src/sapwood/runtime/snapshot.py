"""What a runtime did and who holds what, as plain data: see docs/snapshot.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from sapwood.errors import StoreError
from sapwood.events import Event
from sapwood.memory.pages import page_numbers
from sapwood.memory.storage import Storage
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.node.node import Node
from sapwood.tree.run.runner import Runner
from sapwood.tree.tell.call_log import CallLog, Missing
from sapwood.units import Addr
from sapwood.version import __version__

if TYPE_CHECKING:
    from sapwood.persist.entries import Entries

_SCHEMA: Final = 1
_TALLIED: Final = "hits", "misses", "puts", "errors", "damaged"


def picture(
    recordings: Recordings,
    runners: Sequence[Runner],
    memory: Mapping[str, int],
    events: Iterable[Event],
) -> dict[str, Any]:
    """Return a snapshot, the store left out; called under the device's lock."""
    recordings.settle()
    live = recordings.leases.addresses()
    numbers = {node.label: node.number for node in recordings.nodes}
    every = [each for runner in runners for each in (runner, *runner.behind)]
    # What runs a function's calls with gradients has its log.
    first = {each.call_log.number: each for each in reversed(every)}
    functions = {number: first[number].options.name for number in sorted(first)}
    logs = [first[number].call_log for number in functions]
    told = [(log, missing) for log in logs for missing in log.misses]
    told.sort(key=lambda pair: pair[1].number)
    indices = {missing.number: i for i, (_, missing) in enumerate(told)}
    calls = _calls(recordings, functions, indices)
    called = {call["miss"]: i for i, call in enumerate(calls)}
    return {
        "schema": _SCHEMA,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "sapwood": __version__,
        "device": _device(recordings),
        "memory": dict(memory),
        "functions": [_function(first[number]) for number in functions],
        "recordings": [
            _recording(runner.options.name, node, numbers, live)
            for runner in every
            for node in runner.cache.nodes
        ],
        "misses": [
            _miss(call_log, missing, called.get(indices[missing.number]))
            for call_log, missing in told
        ],
        "pages": list(_pages(recordings)),
        "calls": calls,
        "memory_over_time": list(_memory_over_time(recordings)),
        "store": None,
        "events": [_event(event) for event in events],
    }


def store_picture(entries: Entries) -> dict[str, Any]:
    """Return the store's part of a snapshot; without items where it is unreadable."""
    try:
        items = entries.items()
        count = sum(item.name.startswith("entry-") for item in items)
        size = sum(item.size for item in items)
    except (OSError, StoreError):
        count, size = 0, 0
    tally = entries.tally
    return {
        "path": entries.where,
        **{name: tally[name] for name in _TALLIED},
        "entries": count,
        "bytes": size,
    }


def _device(recordings: Recordings) -> dict[str, Any]:
    device = recordings.device
    abilities = device.driver.abilities
    # A device that was closed with its runtime has no memory any more.
    total = 0 if device.finished else device.driver.memory_info().total
    return {
        "kind": abilities.kind,
        "name": abilities.name,
        "page_bytes": abilities.page,
        "total_bytes": total,
        "limit_bytes": device.pages.limit,
    }


def _function(runner: Runner) -> dict[str, Any]:
    stats = runner.call_log.stats()
    counts = {each.name: getattr(stats, each.name) for each in fields(stats)}
    skipped = [{"reason": text, "calls": calls} for text, calls in stats.skipped]
    return {"name": runner.options.name, **counts, "skipped": skipped}


def _recording(
    function: str, node: Node, numbers: Mapping[str, int], live: Mapping[Addr, Storage]
) -> dict[str, Any]:
    outputs = [
        {"bytes": storage.size, "live": storage.address in live}
        for storage in node.outputs.storages
    ]
    return {
        "id": node.number,
        "name": node.label,
        "function": function,
        "signature": node.signature,
        "parent": None if node.parent is None else numbers.get(node.parent),
        "hits": node.timed,
        "ops": len(node.recording.ops),
        "pages": node.clobbers.bit_count(),
        "clobbers": list(page_numbers(node.clobbers)),
        "output_pages": [
            number
            for extent in node.range.output_extents()
            for number in page_numbers(extent.mask)
        ],
        "live": any(output["live"] for output in outputs),
        "escapes": node.escapes,
        "restored": node.restored,
        "host_us": [
            node.took / 1000 if node.took else None,
            node.spent / 1000 / node.timed if node.timed else None,
        ],
        "arguments": [
            {
                "name": place.name,
                "role": place.role.value,
                "bytes": place.size,
                "written": place.written,
                "donated": place.donated,
            }
            for place in node.places
        ],
        "outputs": outputs,
        "range": {"address": hex(node.range.base), "pages": node.range.size()},
    }


def _calls(
    recordings: Recordings, functions: Mapping[int, str], misses: Mapping[int, int]
) -> list[dict[str, Any]]:
    return [
        {
            "at_us": (entry.began - recordings.timeline.origin) / 1000,
            "host_us": entry.took / 1000,
            "function": functions.get(entry.function, "a function that is gone"),
            "kind": entry.ran.text,
            "recording": entry.recording or None,
            "miss": misses.get(entry.miss),
        }
        for entry in recordings.timeline
    ]


def _memory_over_time(recordings: Recordings) -> Iterator[dict[str, Any]]:
    timeline, pages = recordings.timeline, recordings.device.pages
    timeline.measured(perf_counter_ns(), pages.shares())
    for at, *counts in timeline.memory:
        told = [count * pages.page for count in counts]
        yield {
            "at_us": (at - timeline.origin) / 1000,
            **dict(zip(("recordings", "outputs", "eager"), told, strict=True)),
        }


def _miss(call_log: CallLog, missing: Missing, call: int | None) -> dict[str, Any]:
    return {
        "call": call,
        "function": call_log.function,
        "signature": missing.signature,
        "reasons": [
            {"recording": number or None, "text": str(miss)}
            for number, miss in missing.reasons
        ],
    }


def _pages(recordings: Recordings) -> Iterator[dict[str, Any]]:
    """Yield the numbered pages, with who uses each."""
    holds: dict[int, list[str]] = {}
    users: dict[int, list[int]] = {}
    for node in recordings.nodes:
        for number in page_numbers(node.clobbers):
            users.setdefault(number, []).append(node.number)
        for i, mask in enumerate(node.output_masks):
            for number in page_numbers(mask):
                holds.setdefault(number, []).append(f"output {i} of {node.label}")
    for extent in (e for e in recordings.device.pages.extents if not e.asleep):
        for number in page_numbers(extent.mask):
            use = "scratch" if extent.scratch else "output"
            if recordings.device.pages.live >> number & 1:
                use = "live"
            elif not extent.ranges:
                use = "free"
            yield {
                "number": number,
                "use": use,
                "recordings": users.get(number, []),
                "holds": holds.get(number, []),
            }


def _event(event: Event) -> dict[str, str]:
    told = [f"{each.name}: {getattr(event, each.name)}" for each in fields(event)]
    return {"kind": type(event).__name__, "text": ", ".join(told)}
