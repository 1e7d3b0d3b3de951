"""What is public says what it does."""

from __future__ import annotations

import ast
import inspect

import pytest

import sapwood as sw
from sapwood.runtime.graphed import GraphOptions

pytestmark = pytest.mark.style

LINES_OF_A_MODULE_DOCSTRING = 10


def _is_bare(function) -> bool:
    """Whether the body is only ``...``: a Protocol's call, named after what it does."""
    body = function.body
    return (
        len(body) == 1
        and isinstance(body[0], ast.Expr)
        and isinstance(body[0].value, ast.Constant)
        and body[0].value.value is ...
    )


def _protocol_methods(sources) -> set[str]:
    return {
        node.name
        for source in sources
        for cls in source.classes
        if any(ast.unparse(base).startswith("Protocol") for base in cls.bases)
        for node in cls.body
        if isinstance(node, ast.FunctionDef)
    }


def test_modules_promise_briefly(sources):
    """Every module says in at most ten lines what it promises."""
    for source in sources:
        promise = ast.get_docstring(source.tree)
        assert promise, source.path
        if source.module == "sapwood.errors":
            continue  # its docstring is the drawing of the tree
        assert promise.count("\n") < LINES_OF_A_MODULE_DOCSTRING, source.path


def test_public_functions_and_classes_have_docstrings(sources):
    """Every function and class without an underscore says what it does or is."""
    silent = [
        f"{source.path}:{node.name}"
        for source in sources
        for node in source.tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]
    assert silent == []


def test_public_methods_have_docstrings(sources):
    """So does every public method, here or in the Protocol that it keeps."""
    promised = _protocol_methods(sources)
    silent = [
        f"{source.path}:{cls.name}.{node.name}"
        for source in sources
        for cls in source.classes
        if not cls.name.startswith("_")
        for node in cls.body
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        and node.name not in promised
        and not _is_bare(node)
        and not ast.get_docstring(node)
    ]
    assert silent == []


@pytest.mark.parametrize(
    "graph", [sw.graph, sw.Runtime.graph], ids=["default", "runtime"]
)
def test_the_options_of_graph_are_told(graph):
    """``help`` has a line for each, as the signature names none."""
    lines = inspect.getdoc(graph).splitlines()
    told = [line.split("``")[1] for line in lines if line.startswith("``")]
    assert told == list(GraphOptions.__annotations__)


def test_the_options_of_graph_are_on_their_page(root):
    """docs/graph.md has a row for each."""
    page = (root / "docs/graph.md").read_text()
    assert all(f"\n| `{name}` |" in page for name in GraphOptions.__annotations__)
