"""The pages: one for each module and package, and one of all keywords."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import Final

from codemap.drawing import svg
from codemap.modules import Module, Name, words_of

_CODE: Final = re.compile(r"(``[^`]+``|`[^`]+`)")
_SHORTEST: Final = 3
"""Words of fewer letters are no keywords."""


@dataclass(frozen=True)
class Map:
    """All that is known of one package.

    ``tests`` are how many of each file's tests execute a module, None if nobody has
    measured. ``terms`` are the words of the glossary. ``mentions`` are, by titles, the
    pages and files that name a module, as text for a page. ``lines`` and ``budgets``
    are the lines of code of modules, and how many a room may have.
    """

    package: str
    modules: Mapping[str, Module]
    imports: Mapping[str, set[str]]
    tests: Mapping[str, Mapping[str, int]] | None = None
    terms: Mapping[str, str] = field(default_factory=dict)
    mentions: Mapping[str, Mapping[str, list[str]]] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)
    budgets: Mapping[str, int] = field(default_factory=dict)

    def children(self, name: str) -> list[str]:
        """Return the modules and packages that lie directly in a package."""
        return sorted(n for n in self.modules if n.rpartition(".")[0] == name)

    def inner(self, name: str) -> list[str]:
        """Return a module, and all that lie in it."""
        return [n for n in self.modules if n == name or n.startswith(f"{name}.")]

    def size(self, name: str) -> int:
        """Return the lines of a module and of what lies in it."""
        inner = self.inner(name)
        return sum(self.lines.get(n, self.modules[n].lines) for n in inner)


def pages(drawn: Map) -> Iterator[tuple[str, str]]:
    """Yield the name and the text (reStructuredText) of each page of a map."""
    importers = defaultdict[str, set[str]](set)
    for name, others in drawn.imports.items():
        for other in others:
            importers[other].add(name)
    for name in drawn.modules:
        yield name, "\n".join(_page(drawn, name, importers[name]))
    yield f"{drawn.package}-keywords", "\n".join(_keywords(drawn))


def _page(drawn: Map, name: str, importers: set[str]) -> Iterator[str]:
    module = drawn.modules[name]
    if name != drawn.package:
        # In no table of contents: a theme draws all of that on each page, and with a
        # thousand pages takes as long for one as for all others.
        above = name.rpartition(".")[0]
        yield from (":orphan:", "", f"in :doc:`{above}`", "")
    yield from (f".. py:module:: {name}", "", *_title(name, "="))
    yield from (_marked(module.promise) or "*No docstring.*", "")
    yield from (f"*{drawn.size(name):,} lines{_budget(drawn, name)}*", "")
    if module.is_package:
        yield from _children(drawn, name)
    if name == drawn.package:
        yield from (f":doc:`Keywords <{drawn.package}-keywords>`", "")
    yield from _names(drawn, module)
    yield from _imports(drawn, name, importers)
    yield from _tests(drawn, name)
    used = [term for word, term in drawn.terms.items() if word in module.words]
    yield from _listed("Words of the glossary", (f":term:`{term}`" for term in used))
    for title, found in drawn.mentions.items():
        yield from _listed(title, found.get(name, ()))


def _title(text: str, sign: str) -> tuple[str, ...]:
    shown = _escaped(text)
    return (shown, sign * len(shown), "")


def _marked(text: str) -> str:
    """Return text in which what is in backticks is code, and nothing else is markup."""
    parts = _CODE.split(text)
    # A backslash and a space end markup in the middle of a word.
    code = (rf"\ ``{part.strip('`')}``\ " for part in parts[1::2])
    both = zip_longest(map(_escaped, parts[::2]), code, fillvalue="")
    return "".join(chain.from_iterable(both))


def _escaped(text: str) -> str:
    """Return text in which nothing is markup."""
    for sign in "\\`*|_":
        text = text.replace(sign, f"\\{sign}")
    return text


def _budget(drawn: Map, name: str) -> str:
    budget = drawn.budgets.get(name)
    return "" if budget is None else f" of {budget:,} that the room may have"


def _children(drawn: Map, name: str) -> Iterator[str]:
    children = drawn.children(name)
    if not children:
        return
    rooms = {child: _imported(drawn, child, name) for child in children}
    links = {child: f"{child}.html" for child in children}
    yield from (".. raw:: html", "", f"   {svg(children, rooms, links)}", "")
    yield from (".. list-table::", "   :widths: auto", "")
    for child in children:
        yield f"   * - :doc:`{child.rpartition('.')[2]} <{child}>`"
        yield f"     - {_marked(drawn.modules[child].promise) or '-'}"
        yield f"     - {drawn.size(child):,}"
    yield ""


def _imported(drawn: Map, child: str, package: str) -> set[str]:
    """Return the other children of a package that one imports."""
    imported = (other for n in drawn.inner(child) for other in drawn.imports.get(n, ()))
    return {_room(other, package) for other in imported} - {child, ""}


def _room(module: str, package: str) -> str:
    """Return which child of a package a module lies in; "" if it lies outside."""
    inside = module.removeprefix(f"{package}.")
    return "" if inside == module else f"{package}.{inside.partition('.')[0]}"


def _names(drawn: Map, module: Module) -> Iterator[str]:
    if not module.names:
        return
    yield from _title("Names", "-")
    for name in module.names:
        is_module = f"{module.name}.{name.name}" in drawn.modules
        yield from _name(name.name, name, is_module=is_module)
        for member in name.members:
            yield from _name(f"{name.name}.{member.name}", member)


def _name(inside: str, name: Name, *, is_module: bool = False) -> Iterator[str]:
    # The domain knows where it is; what is read is the signature as it was written. Of
    # a module and a name of its package that are alike, the domain knows the module.
    if not is_module:
        yield from (f".. py:{name.kind}:: {inside}", "   :no-typesetting:", "")
    yield from (".. code-block:: python", f"   :caption: line {name.line}", "")
    yield from (*(f"   {line}" for line in name.signature.splitlines()), "")
    if name.promise:
        yield from (_marked(name.promise), "")


def _imports(drawn: Map, name: str, importers: set[str]) -> Iterator[str]:
    imported = drawn.imports.get(name, set())
    own = sorted(imported & drawn.modules.keys())
    outside = imported - drawn.modules.keys()
    others = sorted({each.partition(".")[0] for each in outside})
    yield from _listed("Imports", map(_link, own))
    yield from _listed("Imports from elsewhere", (f"``{each}``" for each in others))
    yield from _listed("Imported by", map(_link, sorted(importers)))


def _link(name: str) -> str:
    return f":doc:`{name}`"


def _tests(drawn: Map, name: str) -> Iterator[str]:
    if drawn.tests is None:
        return
    found = sorted(drawn.tests.get(name, {}).items(), key=lambda x: (-x[1], x[0]))
    shown = [f"``{file}`` ({count})" for file, count in found]
    yield from _listed("Tests that execute it", shown or ["*none*"])


def _listed(title: str, found: Iterable[str]) -> Iterator[str]:
    found = list(found)
    if found:
        yield from (*_title(title, "-"), " · ".join(found), "")


def _keywords(drawn: Map) -> Iterator[str]:
    """Yield a page of words, each with the public names that it is a word of."""
    found = defaultdict[str, set[tuple[str, str]]](set)
    for module in drawn.modules.values():
        for name in module.names:
            for word in words_of(name.name):
                if len(word) >= _SHORTEST:
                    found[word].add((name.name, f"{module.name}.{name.name}"))
    yield from (":orphan:", "", *_title(f"Keywords of {drawn.package}", "="))
    for letter, words in _by(sorted(found), lambda word: word[0]).items():
        yield from _title(letter.upper(), "-")
        for word in words:
            names = sorted(found[word])
            links = (f":py:obj:`{short} <{whole}>`" for short, whole in names)
            yield from (f"**{word}**", f"   {' · '.join(links)}", "")


def _by(words: Iterable[str], key: Callable[[str], str]) -> dict[str, list[str]]:
    found = defaultdict[str, list[str]](list)
    for word in words:
        found[key(word)].append(word)
    return found
