"""Whether a picture of memory can be true: laws over the data of `snapshot`.

Written from the schema and the design, without the code that keeps the books, so that
the two can disagree. Tests ask it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from sapwood.units import hex_address, interval_text, touching
from sapwood.violation import Violation

_ALIGNMENT: Final = 512
_VERSION: Final = 2

Picture = Mapping[str, Any]


def validate(snapshot: Picture) -> list[Violation]:
    """Return every law that a snapshot of version 2 breaks; none, if all is well."""
    if snapshot["version"] != _VERSION:
        return [Violation("the version is known", str(snapshot["version"]))]
    return [
        *_heap(snapshot["heap"], snapshot["page"]),
        *_extents(snapshot["extents"]),
        *_mappings(snapshot),
        *_live(snapshot),
        *_addresses(snapshot),
        *_limit(snapshot),
    ]


def _heap(heap: Picture, page: int) -> Iterator[Violation]:
    free = sorted((lo, hi) for lo, hi in heap["free"])
    blocks = sorted([*free, *((at, at + size) for at, size in heap["taken"])])
    for lo, hi in blocks:
        if lo >= hi:
            yield Violation("a block has a size", interval_text(lo, hi))
        if lo % _ALIGNMENT or hi % _ALIGNMENT:
            yield Violation("blocks are aligned", interval_text(lo, hi))
    runs = touching((lo, hi - lo) for lo, hi in blocks)
    tiled = [[lo, lo + size] for lo, size in runs if size > 0]
    if tiled != heap["spans"]:
        about = f"{_texts(tiled)}, not {_texts(heap['spans'])}"
        yield Violation("blocks tile the heap", about)
    for (_, first), (second, _) in pairwise(free):
        if first == second:
            yield Violation("free neighbours are one block", hex_address(first))
    if sum(hi - lo for lo, hi in heap["spans"]) != heap["pages"] * page:
        yield Violation("the heap's pages are its size", f"{heap['pages']} pages")


def _texts(intervals: Iterable[Sequence[int]]) -> str:
    return ", ".join(interval_text(lo, hi) for lo, hi in intervals) or "nothing"


def _extents(extents: Sequence[Picture]) -> Iterator[Violation]:
    numbers = Counter(n for extent in extents for n in _numbers(extent))
    for number, count in numbers.items():
        if count > 1:
            yield Violation("a page is in one extent", f"page {number}")
    for extent in extents:
        pages = extent["pages"]
        if pages < 1 or pages & (pages - 1):
            yield Violation("an extent is a power of two pages", _name(extent))
        if extent["ranges"] < 1:
            kind = "scratch" if extent["scratch"] else "output"
            yield Violation(f"no {kind} extent is unused", _name(extent))


def _mappings(snapshot: Picture) -> Iterator[Violation]:
    known = {(extent["first"], extent["pages"]) for extent in snapshot["extents"]}
    mapped = Counter[tuple[int, int]]()
    for range_ in snapshot["ranges"]:
        inside = Counter((m["first"], m["pages"]) for m in range_["mappings"])
        mapped.update(inside.keys())
        for (first, pages), count in inside.items():
            about = f"pages {first} to {first + pages - 1} in {range_['name']}"
            if (first, pages) not in known:
                yield Violation("what is mapped is an extent", about)
            if count > 1 and not range_["folded"]:
                yield Violation("a range maps an extent once", about)
    for extent in snapshot["extents"]:
        count = mapped[extent["first"], extent["pages"]]
        if count != extent["ranges"]:
            about = f"{_name(extent)}: {extent['ranges']}, but {count} map it"
            yield Violation("an extent counts its ranges", about)


def _live(snapshot: Picture) -> Iterator[Violation]:
    live = set(snapshot["live"])
    homes = {n: extent for extent in snapshot["extents"] for n in _numbers(extent)}
    for number in sorted(live):
        if number not in homes:
            yield Violation("a live page is in an extent", f"page {number}")
        elif homes[number]["scratch"]:
            yield Violation("a live page is no scratch", f"page {number}")
        elif homes[number].get("asleep"):
            yield Violation("a live page is awake", f"page {number}")
    for range_ in snapshot["ranges"]:
        if not range_["closed"]:
            continue
        if not range_["mappings"]:
            yield Violation("a closed range waits for a lease", range_["name"])
        for mapping in range_["mappings"]:
            if live.isdisjoint(_numbers(mapping)):
                about = f"{_name(mapping)} in {range_['name']}"
                yield Violation("a closed range maps what is live", about)


def _addresses(snapshot: Picture) -> Iterator[Violation]:
    page, heap = snapshot["page"], snapshot["heap"]
    spans = [(lo, hi) for lo, hi in heap["spans"]]
    for range_ in snapshot["ranges"]:
        for mapping in range_["mappings"]:
            lo = mapping["address"]
            spans.append((lo, lo + mapping["pages"] * page))
            if lo < range_["base"] or (lo - range_["base"]) % page:
                about = f"{_name(mapping)} in {range_['name']}"
                yield Violation("a mapping lies on pages of its range", about)
    for first, second in pairwise(sorted(spans)):
        if second[0] < first[1]:
            about = f"{interval_text(*first)} and {interval_text(*second)}"
            yield Violation("mappings do not overlap", about)


def _limit(snapshot: Picture) -> Iterator[Violation]:
    awake = (e for e in snapshot["extents"] if not e.get("asleep"))
    pages = sum(extent["pages"] for extent in awake)
    size = (pages + snapshot["heap"]["pages"]) * snapshot["page"]
    if snapshot["limit"] is not None and size > snapshot["limit"]:
        yield Violation("the limit holds", f"{size} bytes of {snapshot['limit']}")


def _numbers(extent: Picture) -> range:
    return range(extent["first"], extent["first"] + extent["pages"])


def _name(extent: Picture) -> str:
    return f"pages {extent['first']} to {extent['first'] + extent['pages'] - 1}"
