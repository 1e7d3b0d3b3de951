"""The source as the house rules see it: files, trees and modules."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Source:
    """One file of ``src``: its path there, the module's name, its text and tree."""

    path: str
    module: str
    text: str
    tree: ast.Module

    @property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        kinds = ast.FunctionDef | ast.AsyncFunctionDef
        return [node for node in ast.walk(self.tree) if isinstance(node, kinds)]

    @property
    def classes(self) -> list[ast.ClassDef]:
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef)]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def sources() -> list[Source]:
    """All Python files of ``src``."""
    found = []
    for file in sorted((ROOT / "src").rglob("*.py")):
        path = file.relative_to(ROOT / "src")
        parts = [part for part in path.with_suffix("").parts if part != "__init__"]
        text = file.read_text()
        found.append(Source(str(path), ".".join(parts), text, ast.parse(text)))
    return found
