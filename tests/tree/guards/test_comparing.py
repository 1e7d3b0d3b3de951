"""Which code may ask what is one object, by its instructions alone."""

from __future__ import annotations

import pytest

from sapwood.tree.guards.code import names_of

ASKING = [
    "p is q",
    "p in (q, several)",
    "p in [q]",
    "type(p) is q if c else p is q",
    "p is not q.w",
    "{p, q}",
    "{1, p}",
    "{*several}",
    "{p for p in several}",
    "{p if c else 'a'}",
    "p is (q if c else None)",
    "set(several)",
    "set()",
    "map(set, several)",
    "frozenset(several)",
    "dict.fromkeys(several)",
    "hash(p)",
    "several.index(p)",
    "operator.is_(p, q)",
    "object.__repr__(p)",
]

SILENT = [
    "p in several",
    "{p: 1}",
    "{'a': 1, p: f(q)}",
    "{p if c else 'a': 1}",
    "{'a': 1, (p if c else 'a'): 1}",
    "{p: 1 if c else 2}",
    "{p: 1 for p in several}",
    "dict(several)",
    "collections.OrderedDict(several)",
    "d.setdefault(p, 1)",
    "d[p] = 1",
    "d[p, 1] = 1",
    "d[f(p)] += 1",
    "d[p if c else 'a'] = 1",
    "type(p) is f",
    "type(p) is not f.w",
    "p is None",
    "other.__class__ is self.__class__",
    "'name' in several",
    "{1, 2}",
    "{1, 2, 3}",
    "{'a', f'{p}'}",
    "{'a': p}",
    "{'a': p, 'b': f(q)[1].w(c=2)}",
    "{f'{p}.a': q}",
    "{**d, 'a': p}",
    "{}",
    "{(p, 1): 1}",
    "isinstance(p, dict)",
    "isinstance(p, (list, set))",
    "issubclass(p, frozenset)",
    "d['a'] = p",
    "d['a'] += p",
    "d[0] = p",
    "d[p:q] = 1",
    "d[:, p] = 1",
    "d[..., p] = 1",
    "p.at.set(q)",
    "torch.add(p, q)",
    "d.get('a')",
    "d[p]",
    "p == q",
]


@pytest.mark.parametrize("text", ASKING)
def test_what_asks(text):
    """Whether arrays are one may show in what this gives."""
    assert names_of(compile(text, "<asking>", "exec")).compares


@pytest.mark.parametrize("text", SILENT)
def test_what_does_not(text):
    """Functions are often written so, and not held to which arrays are one."""
    source = f"def fn(p, q, c, d, f, several, self, other):\n  {text}"
    assert not names_of(compile(source, "<silent>", "exec")).compares


@pytest.mark.parametrize(
    ("text", "more"),
    [
        ("type(p)(1)", True),
        ("t = type(p)", True),
        ("f(type(p))", True),
        ("[type(p)]", True),
        ("type(p)(q, c)", True),
        ("type(p) is f", False),
        ("type(p) is not f", False),
        ("type(p) == q.w", False),
        ("type(p) is q.w.v", False),
        ("type(p) in (f, d)", False),
        ("type(p).__name__", False),
        ("f'{type(p)}'", False),
    ],
)
def test_what_may_call_a_class(text, more):
    """A class that is compared or named is not made anew."""
    space = {}
    text = text if text.startswith("t = ") else f"return ({text})"
    exec(f"def fn(p, q, c, d, f):\n  {text}", space)
    assert ("__class__" in names_of(space["fn"].__code__).attributes) is more
