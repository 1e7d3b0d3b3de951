"""A plugin that notes which blocks of the library each test runs, nearly for nothing.

Each block of statements in a function sets a byte of its own when it is entered. That
is written into the tree of each module as it is imported, so the plugin has to be
loaded before the library is. Who enters the innermost block around a line runs it.
"""

from __future__ import annotations

import ast
import base64
import builtins
import importlib.machinery
import json
import os
import sys
import zlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "src"
FOLDER = "SAPWOOD_TOUCHED"
"""The variable that says where a process writes what it noted."""

_NAME = "_touched_"
_blocks: list[tuple[str, int, int]] = []
_touched = bytearray()


class _Marks(ast.NodeTransformer):
    """Puts a mark at the start of each block of each function of a file."""

    def __init__(self, file: str) -> None:
        self.file, self.depth = file, 0

    def _function(self, node):
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1
        said = ast.get_docstring(node, clean=False) is not None
        node.body = [*node.body[:said], self._mark(node), *node.body[said:]]
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = _function  # noqa: N815

    def generic_visit(self, node):
        super().generic_visit(node)
        if self.depth and not isinstance(node, ast.ClassDef | ast.FunctionDef):
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                if isinstance(block, list) and block:
                    block.insert(0, self._mark(*block))
        return node

    def _mark(self, *nodes):
        first, last = nodes[0], nodes[-1]
        _blocks.append((self.file, first.lineno, last.end_lineno))
        mark = ast.parse(f"{_NAME}[{len(_blocks) - 1}] = 1").body[0]
        for each in ast.walk(mark):
            ast.copy_location(each, first)
        return mark


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname):
        path = self.get_filename(fullname)
        file = str(Path(path).relative_to(ROOT / "sapwood"))
        tree = _Marks(file).visit(ast.parse(self.get_data(path), path))
        _touched.extend(bytes(len(_blocks) - len(_touched)))
        return compile(tree, path, "exec", dont_inherit=True)


class _Finder:
    """Finds this checkout's library before anybody else does."""

    @staticmethod
    def find_spec(name, path, target=None):  # noqa: ARG004 - the protocol's
        if name.partition(".")[0] != "sapwood":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path or [str(ROOT)])
        if spec is not None and isinstance(spec.loader, _Loader.__mro__[1]):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Note what a test touches, its fixtures included, and how long it takes."""
    began, _touched[:] = sum(os.times()[:4]), bytes(len(_touched))
    result = yield
    # Also of one that failed, as where a graphed function reaches marks, which write:
    # what fails without a fault is left out when it comes to one.
    if _file is not None:
        packed = base64.b64encode(zlib.compress(bytes(_touched), 1)).decode()
        row = [item.nodeid, sum(os.times()[:4]) - began, packed]
        _file.write(json.dumps(row) + "\n")
    return result


def pytest_unconfigure():
    """Say which blocks the bytes stand for."""
    if _file is not None:
        _file.write(json.dumps(_blocks) + "\n")
        _file.close()


_file = None
if FOLDER in os.environ:
    if "sapwood" in sys.modules:
        raise ImportError("what tests touch is noted from before the library is there")
    _file = Path(os.environ[FOLDER], f"{os.getpid()}.jsonl").open("w")  # noqa: SIM115
    setattr(builtins, _NAME, _touched)
    sys.meta_path.insert(0, _Finder)
