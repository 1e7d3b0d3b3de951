"""Ways to spoil a file or an entry: bytes at random, or what the digests are of."""

from __future__ import annotations

import copy
import json

from tests.support.spoil import places

JUNK = (
    None,
    True,
    False,
    -1,
    0,
    1,
    2,
    7,
    8,
    64,
    1 << 16,
    1 << 31,
    1 << 40,
    1 << 47,
    1 << 62,
    1 << 70,
    -(1 << 47),
    "",
    "x",
    "kernel",
    "copy",
    "set",
    "call:add",
    "make:tile",
    "builtins:list",
    "builtins:dict",
    "collections:Counter",
    "collections:deque",
    "subprocess:Popen",
    "<f8",
    "|O",
    "\ud800",
    [],
    [[]],
    {},
    ["tuple"],
    ["list"],
    ["fresh", 0, ["tuple"], 0],
    ["alias", 0],
    ["view", 0, ["tuple", ["tuple", 9], ["tuple", 8], "<f8", True, True], 0],
    ["same", 0],
    ["constant", 1],
    ["float", "7ff8000000000000"],
)
WORDS = (0, 1, 2, 8, 1 << 12, 1 << 31, 1 << 47, 3 << 45, 1 << 63, (1 << 64) - 1)


def deep(size):
    """Return a nest of so many lists."""
    found = []
    for _ in range(size):
        found = [found]
    return found


def spoiled_bytes(draw, data):
    """Return data of which a few bytes are others, more, or fewer."""
    wrong = bytearray(data)
    kind = draw.randrange(5)
    at = draw.randrange(len(wrong) + 1) if wrong else 0
    if kind == 0 and wrong:
        for _ in range(draw.randrange(1, 4)):
            bit = draw.randrange(8 * len(wrong))
            wrong[bit // 8] ^= 1 << bit % 8
    elif kind == 1:
        del wrong[at:]
    elif kind == 2:
        wrong[at:at] = draw.randbytes(draw.randrange(1, 20))
    elif kind == 3:
        del wrong[at : at + draw.randrange(1, 20)]
    else:
        end = at + draw.randrange(1, 9)
        wrong[at:end] = draw.randbytes(len(wrong[at:end]))
    return bytes(wrong)


def spoiled_words(draw, data):
    """Return data of which some words of 8 bytes are others."""
    wrong = bytearray(data)
    for _ in range(draw.randrange(1, 4)):
        if len(wrong) < 8:
            break
        at = draw.randrange(len(wrong) // 8) * 8
        kind = draw.randrange(4)
        word = int.from_bytes(wrong[at : at + 8], "little")
        if kind == 0:
            word = draw.choice(WORDS)
        elif kind == 1:
            word += draw.choice((-64, -8, -1, 1, 8, 1 << 16, 1 << 32))
        elif kind == 2:
            other = draw.randrange(len(wrong) // 8) * 8
            word = int.from_bytes(wrong[other : other + 8], "little")
        else:
            word ^= 1 << draw.randrange(64)
        wrong[at : at + 8] = (word % (1 << 64)).to_bytes(8, "little")
    return bytes(wrong)


def _at(table, path):
    for key in path:
        table = table[key]
    return table


def spoiled_table(draw, text):
    """Return JSON of which one place is another value, twice there, or gone."""
    table = json.loads(text)
    paths = list(places(table))[1:]
    if not paths:
        return json.dumps(draw.choice(JUNK)).encode()
    path = draw.choice(paths)
    holder, key = _at(table, path[:-1]), path[-1]
    value = holder[key]
    # Nearly right numbers get the furthest.
    likely = 3 if type(value) is int and draw.random() < 0.6 else None
    kind = draw.randrange(8) if likely is None else likely
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(value))
    elif kind == 2:
        holder[key] = copy.deepcopy(_at(table, draw.choice(paths)))
    elif kind == 3 and type(value) is int:
        holder[key] = value + draw.choice((-64, -8, -1, 1, 8, 64, 1 << 16, 1 << 34))
    elif kind == 4:
        holder[key] = deep(draw.choice((3, 90, 110, 300, 450)))
    elif kind == 5 and isinstance(value, str) and value[:1] in ("[", "{"):
        holder[key] = spoiled_table(draw, value).decode()
    elif kind == 6 and isinstance(holder, list):
        draw.shuffle(holder)
    else:
        holder[key] = copy.deepcopy(draw.choice(JUNK))
    return json.dumps(table, separators=(",", ":"), sort_keys=True).encode()


def spoiled_sections(draw, sections):
    """Return sections of which one, or two, are not as they were written."""
    wrong = dict(sections)
    for _ in range(draw.choice((1, 1, 1, 2))):
        names = sorted(wrong) or ["x"]
        name = draw.choice([name for name in names if "image" not in name] or names)
        if draw.random() < 0.04:
            name = draw.choice(names)
        kind = draw.randrange(20)
        if kind == 0:
            wrong.pop(name, None)
        elif kind == 1:
            wrong[draw.choice(("x", "call", "9.call", "image.7", name + "0"))] = b"{}"
        elif name.endswith(("params", "image.0")) or ".bytes" in f".{name}":
            spoil = spoiled_words if draw.random() < 0.8 else spoiled_bytes
            wrong[name] = spoil(draw, wrong.get(name, b""))
        elif draw.random() < 0.9:
            try:
                wrong[name] = spoiled_table(draw, wrong.get(name, b"{}"))
            except (ValueError, RecursionError):
                wrong[name] = spoiled_bytes(draw, wrong.get(name, b""))
        else:
            wrong[name] = spoiled_bytes(draw, wrong.get(name, b""))
    return wrong
