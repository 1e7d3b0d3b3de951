"""Made-up snapshots as a real program would leave them, the same for the same seed.

A small language model is served at many batch sizes: each function is warmed up,
recorded and replayed; some calls miss because an output is held, an array has moved
or a setting has changed; some recordings come from the store. Loaded by path, by the
tests and by the benchmark.
"""

from __future__ import annotations

import random
from typing import Any

PAGE = 2 << 20
OUTPUTS = 34  # the first page that is not scratch

HELD = "a page that the replay would overwrite holds an output that is still held"
MOVED = "an array is not where it was when this was recorded"
AMBIENT = "something the function reads besides its arguments has changed"
UNSEEN = "no call with these shapes, dtypes and values was seen before"

FUNCTIONS = {
    "embed": ("tokens: int64[{n}, 128]", ("tokens", "table")),
    "attention": (
        "hidden: float32[{n}, 128, 256], mask: bool[{n}, 128]",
        ("hidden", "mask", "qkv", "out", "cache"),
    ),
    "mlp": ("hidden: float32[{n}, 128, 256]", ("hidden", "up", "gate", "down")),
    "Decoder.step": (
        "self, token: int64[{n}], cache: float32[{n}, 2, 128, 256]; sample=True",
        ("token", "cache", "self.head", "self.norm"),
    ),
    "loss": ("logits: float32[{n}, 1024], target: int64[{n}]", ("logits", "target")),
    "train_step": (
        "x: float32[{n}, 64], y: int64[{n}]; dropout=0.1",
        ("x", "y", "w1", "b1", "w2", "b2", "m.w1", "m.w2", "generator"),
    ),
    "evaluate": ("x: float32[{n}, 64]", ("x", "w1", "b1", "w2", "b2")),
}


def _memory_over_time(calls: list[Any], pages: list[Any]) -> list[dict[str, Any]]:
    """Return moments at which ever more of the pages are in use."""
    looked = [call for call in calls if call["kind"] != "replay"]
    moments = []
    for i, call in enumerate(looked, start=1):
        known = pages[: len(pages) * i // len(looked)]
        live = sum(page["use"] == "live" for page in known)
        moments.append(
            {
                "at_us": call["at_us"] + call["host_us"],
                "recordings": (len(known) - live) * PAGE,
                "outputs": live * PAGE,
                "eager": (3 + i % 2) * PAGE,
            }
        )
    return moments


def snapshot(recordings: int = 36, seed: int = 0) -> dict[str, Any]:
    """Return a snapshot with that many recordings, and calls and misses to match."""
    rng = random.Random(seed)
    names = list(FUNCTIONS)
    made = [_recording(rng, i, names, recordings) for i in range(recordings)]
    pages = _pages(made, rng)
    calls, misses = _calls(rng, made)
    return {
        "schema": 1,
        "made": "2026-11-23T16:42:07+00:00",
        "sapwood": "0.2.0",
        "device": {
            "kind": "emulated",
            "name": "emulated",
            "page_bytes": PAGE,
            "total_bytes": 4 << 30,
            "limit_bytes": 2 << 30 if seed % 2 else None,
        },
        "memory": _memory(made, pages),
        "memory_over_time": _memory_over_time(calls, pages),
        "functions": [_function(name, made, calls, rng) for name in names],
        "recordings": made,
        "misses": misses,
        "pages": pages,
        "calls": calls,
        "store": {
            "path": "/home/ada/.cache/sapwood/store",
            "hits": sum(r["restored"] for r in made),
            "misses": sum(not r["restored"] for r in made),
            "puts": sum(not r["restored"] for r in made),
            "errors": 0,
            "damaged": 1,
            "entries": recordings + 11,
            "bytes": recordings * 48_211,
        },
        "events": _events(made, misses),
    }


def _recording(
    rng: random.Random, index: int, names: list[str], number: int
) -> dict[str, Any]:
    name = names[index % 3] if rng.random() < 0.5 else rng.choice(names)
    signature, arguments = FUNCTIONS[name]
    size = 2 ** rng.randrange(8) if number < 200 else rng.randrange(1, 257)
    scratch = rng.randrange(1, 2 + size // 8)
    escapes = rng.random() < 0.06
    outputs = [] if escapes else _output_pages(rng, index, number)
    parent = None
    if index and rng.random() > 0.04:
        parent = index - 1 if rng.random() < 0.75 else rng.randrange(index)
    replay = rng.lognormvariate(1.6, 0.35)
    hits = int(25 * rng.paretovariate(0.9)) if rng.random() < 0.93 else 0
    return {
        "id": index,
        "name": f"{name}#{index + 1}",
        "function": name,
        "signature": signature.format(n=size),
        "parent": parent,
        "hits": min(hits, 90_000),
        "ops": rng.randrange(3, 90),
        "pages": scratch + len(outputs),
        "clobbers": sorted({*range(scratch), *outputs}),
        "output_pages": outputs,
        "live": bool(outputs) and rng.random() < 0.18,
        "escapes": escapes,
        "restored": rng.random() < 0.3,
        "host_us": [
            round(rng.lognormvariate(8.4, 0.4), 1),
            round(replay, 2) if hits else None,
        ],
        "arguments": [_argument(rng, argument) for argument in arguments],
        "outputs": [{"bytes": 4 * size * 256, "live": rng.random() < 0.2}],
        "range": {
            "address": f"{0x6000_0000_0000 + index * 64 * PAGE:#_x}",
            "pages": scratch + len(outputs),
        },
    }


def _output_pages(rng: random.Random, index: int, number: int) -> list[int]:
    """Outputs lie beyond all scratch; some recordings share theirs."""
    places = 4 + number // 3
    first = OUTPUTS + 2 * (
        index % places if rng.random() < 0.6 else rng.randrange(places)
    )
    return [first + i for i in range(rng.randrange(1, 3))]


def _argument(rng: random.Random, name: str) -> dict[str, Any]:
    data = name in {"tokens", "hidden", "mask", "token", "x", "y", "logits", "target"}
    roles = ("inherited", "copied", "pinned") if data else ("pinned",)
    written = name in {"cache", "generator"} or name.startswith("m.")
    return {
        "name": name,
        "role": rng.choice(roles),
        "bytes": 2 ** rng.randrange(4, 23),
        "written": written,
        "donated": written and rng.random() < 0.3,
    }


def _pages(made: list[dict[str, Any]], rng: random.Random) -> list[dict[str, Any]]:
    users: dict[int, list[dict[str, Any]]] = {}
    for recording in made:
        for number in recording["clobbers"]:
            users.setdefault(number, []).append(recording)
    top = max(users, default=0) + 24
    return [_page(number, users.get(number, []), rng, top) for number in range(top)]


def _page(
    number: int, users: list[dict[str, Any]], rng: random.Random, top: int
) -> dict[str, Any]:
    owners = [r for r in users if number in r["output_pages"]]
    live = [r for r in owners if r["live"]]
    if live:
        use, holds = "live", [f"output 0 of {r['name']}" for r in live[:1]]
    elif owners:
        use, holds = "output", [f"kept for {owners[-1]['name']}"]
    elif users:
        use, holds = "scratch", [f"temporaries of {len(users)} recordings"]
    elif number > top - 16:
        use, holds = "heap", [f"eager array of {rng.randrange(1, 64)} KiB"]
    else:
        use, holds = "free", []
    return {
        "number": number,
        "use": use,
        "recordings": [r["id"] for r in users],
        "holds": holds,
    }


def _calls(
    rng: random.Random, made: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    calls: list[dict[str, Any]] = []
    misses: list[dict[str, Any]] = []
    clock = 0.0

    def call(recording: dict[str, Any], kind: str, host: float, why: str = "") -> None:
        nonlocal clock
        if why:
            misses.append(_miss(recording, why, len(calls), made))
        bare = kind in {"warm-up", "pass-through"}
        calls.append(
            {
                "at_us": round(clock, 1),
                "host_us": round(host, 2),
                "function": recording["function"],
                "kind": kind,
                "recording": None if bare else recording["id"],
                "miss": len(misses) - 1 if why else None,
            }
        )
        clock += host + rng.expovariate(1 / 180)

    for index, recording in enumerate(made):
        record, replay = recording["host_us"]
        if recording["restored"]:
            call(recording, "restore", record * rng.uniform(0.04, 0.09), UNSEEN)
        else:
            if rng.random() < 0.6:
                call(recording, "warm-up", record * rng.uniform(0.4, 0.8), UNSEEN)
            why = rng.choice((UNSEEN, HELD, HELD, MOVED, AMBIENT))
            call(recording, "record", record, why)
        for _ in range(
            min(recording["hits"], rng.randrange(3, 3 + 300 // len(made) + 4))
        ):
            near = made[max(0, index - rng.randrange(8))]
            usual = near["host_us"][1] or replay or 5.0
            call(near, "replay", usual * rng.lognormvariate(0, 0.18))
        if rng.random() < 0.05:
            call(recording, "pass-through", record * rng.uniform(0.3, 0.6), HELD)
    return calls, misses


def _miss(
    recording: dict[str, Any], why: str, call: int, made: list[dict[str, Any]]
) -> dict[str, Any]:
    name = recording["arguments"][0]["name"]
    about = {
        HELD: f": {len(recording['output_pages']) or 1} page(s)",
        MOVED: f": {name}",
        AMBIENT: ": model.training",
    }.get(why, "")
    rivals = [
        r
        for r in made[max(0, recording["id"] - 40) : recording["id"]]
        if r["function"] == recording["function"]
    ]
    tried: list[int | None] = [r["id"] for r in rivals[-3:]]
    if why == UNSEEN or not tried:
        tried = [None]
    return {
        "call": call,
        "function": recording["function"],
        "signature": recording["signature"],
        "reasons": [{"recording": r, "text": why + about} for r in tried],
    }


def _function(
    name: str,
    made: list[dict[str, Any]],
    calls: list[dict[str, Any]],
    rng: random.Random,
) -> dict[str, Any]:
    own = [r for r in made if r["function"] == name]
    kinds = [c["kind"] for c in calls if c["function"] == name]
    return {
        "name": name,
        "warmups": kinds.count("warm-up"),
        "recordings": kinds.count("record"),
        "replays": max(kinds.count("replay"), sum(r["hits"] for r in own)),
        "passed_through": kinds.count("pass-through"),
        "restored": kinds.count("restore"),
        "evicted": rng.randrange(3) if len(own) > 4 else 0,
        "copied_bytes": rng.randrange(1 << 26),
        "escaped": sum(r["escapes"] for r in own) * 7,
        "skipped": [{"reason": "bool(x)", "calls": kinds.count("pass-through")}],
    }


def _memory(made: list[dict[str, Any]], pages: list[dict[str, Any]]) -> dict[str, int]:
    uses = [page["use"] for page in pages]
    output = uses.count("output") + uses.count("live")
    return {
        "heap.bytes": 1_482_752,
        "heap.pages": uses.count("heap"),
        "limit": 0,
        "page.bytes": PAGE,
        "pages.live": uses.count("live"),
        "pages.mapped": output + uses.count("scratch"),
        "pages.output": output,
        "pages.scratch": uses.count("scratch"),
        "ranges": len(made),
        "ranges.pages": sum(r["range"]["pages"] for r in made),
    }


def _events(
    made: list[dict[str, Any]], misses: list[dict[str, Any]]
) -> list[dict[str, str]]:
    told = [
        {
            "kind": "restored" if r["restored"] else "recorded",
            "text": f"{r['name']} ({r['signature']}): {r['ops']} ops",
        }
        for r in made
    ]
    told += [
        {"kind": "missed", "text": f"{m['function']}: {m['reasons'][0]['text']}"}
        for m in misses
    ]
    return told[-256:]
