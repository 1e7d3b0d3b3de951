"""What one module says of itself, read from its text: nothing is imported.

A name is public where `__all__` lists it, or, in a module without, where it has no
leading underscore and is defined there. Comments and strings are no code: the text is
parsed, never searched.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

_TYPES: Final = {"NewType", "TypeVar", "TypeAliasType", "ParamSpec"}
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True)
class Name:
    """A public name: its ``kind`` is a type of object of Sphinx's Python domain."""

    name: str
    kind: str
    line: int
    signature: str
    promise: str
    members: tuple[Name, ...] = ()

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Self:
        """Return what `dataclasses.asdict` made a dictionary of."""
        members = tuple(map(cls.from_json, found["members"]))
        return cls(**found | {"members": members})


@dataclass(frozen=True, slots=True)
class Module:
    """A module: its text's digest, first sentence, names, words, and lines.

    ``words`` are those that its identifiers and docstrings are made of, in lower case.
    """

    name: str
    path: str
    digest: str
    is_package: bool
    promise: str
    names: tuple[Name, ...]
    words: frozenset[str]
    lines: int

    def to_json(self) -> dict[str, Any]:
        """Return plain values, for a cache."""
        return asdict(self) | {"words": sorted(self.words)}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Self:
        """Return what `to_json` made plain values of."""
        names = tuple(map(Name.from_json, found["names"]))
        return cls(**found | {"names": names, "words": frozenset(found["words"])})


def files(root: Path, package: str) -> Iterator[tuple[str, Path]]:
    """Yield the name and the path of each module of a package that lies in ``root``.

    Raises `FileNotFoundError` where there is no such package.
    """
    top = root.joinpath(*package.split("."))
    if not (top / "__init__.py").is_file():
        raise FileNotFoundError(f"{root} has no package {package}")
    for path in sorted(top.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def digest(text: bytes) -> str:
    """Return what tells two texts of a module apart."""
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def read(name: str, path: Path, text: bytes) -> Module:
    """Return what a module says of itself. Raises `SyntaxError` where it is none."""
    tree = ast.parse(text, str(path))
    return Module(
        name,
        str(path),
        digest(text),
        path.name == "__init__.py",
        _promise(tree),
        tuple(_public(tree)),
        frozenset(_words(tree)),
        len(text.splitlines()),
    )


def words_of(name: str) -> list[str]:
    """Return the words of an identifier: those of `FastReplay` are fast and replay."""
    return [word.lower() for word in _WORD.findall(name)]


def _promise(node: ast.Module | Defined) -> str:
    """Return the first paragraph of a docstring; "" where there is none."""
    text = ast.get_docstring(node) or ""
    return " ".join(text.split("\n\n")[0].split())


def _public(tree: ast.Module) -> Iterator[Name]:
    listed, seen = _listed(tree), set()
    for statement in _statements(tree.body):
        for name in _names(statement):
            hidden = name.name.startswith("_")
            wanted = not hidden if listed is None else name.name in listed
            if wanted and name.name not in seen:
                seen.add(name.name)
                yield name


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield what a body defines, also where it depends on a condition.

    But for what it does only where it is a program: an import defines none of that.
    """
    for statement in body:
        yield statement
        if isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test):
            continue
        if isinstance(statement, ast.If | ast.Try):
            yield from _statements(statement.body)
            yield from _statements(statement.orelse)


def _listed(tree: ast.Module) -> set[str] | None:
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            targets, value = statement.targets, statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets, value = [statement.target], statement.value
        else:
            continue
        if any(isinstance(x, ast.Name) and x.id == "__all__" for x in targets):
            try:
                return set(map(str, ast.literal_eval(value)))
            except ValueError:
                return None  # it is computed
    return None


def _names(statement: ast.stmt) -> Iterator[Name]:
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield _function(statement, "function")
        case ast.ClassDef():
            yield _class(statement)
        case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
            kind = "type" if "TypeAlias" in ast.unparse(annotation) else "data"
            yield Name(name, kind, statement.lineno, _shortly(statement), "")
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            if name != "__all__":
                kind = "type" if _is_type(name, value) else "data"
                yield Name(name, kind, statement.lineno, _shortly(statement), "")


def _is_type(name: str, value: ast.expr) -> bool:
    """Return whether a value is an alias, or makes a type."""
    match value:
        case ast.Call(func=ast.Name(id=made) | ast.Attribute(attr=made)):
            return made in _TYPES
        case ast.BinOp(op=ast.BitOr()) | ast.Subscript():
            return name[:1].isupper() and not name.isupper()
    return False


def _shortly(statement: ast.stmt) -> str:
    text = ast.unparse(statement)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, kind: str) -> Name:
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    signature = f"{word} {node.name}({ast.unparse(node.args)}){result}"
    return Name(node.name, kind, node.lineno, signature, _promise(node))


def _class(node: ast.ClassDef) -> Name:
    bases = ", ".join(ast.unparse(each) for each in (*node.bases, *node.keywords))
    members = {
        each.name: _function(each, "method")
        for each in node.body
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        and not each.name.startswith("_")
    }
    exception = any(re.search(r"(Error|Exception|Warning)$", x) for x in _bases(node))
    return Name(
        node.name,
        "exception" if exception else "class",
        node.lineno,
        f"class {node.name}({bases})" if bases else f"class {node.name}",
        _promise(node),
        tuple(members.values()),
    )


def _bases(node: ast.ClassDef) -> Iterator[str]:
    yield node.name
    for base in node.bases:
        yield ast.unparse(base)


def _words(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield from words_of(name)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield from words_of(node.name)
                yield from words_of(ast.get_docstring(node) or "")
            case ast.Module():
                yield from words_of(ast.get_docstring(node) or "")
