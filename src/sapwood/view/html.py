"""One HTML page from a snapshot, with styles, script and data inside.

The page may load nothing and run nothing but its own script, by a policy that names
the script's and the style's digests. The data are a block that is never run, in which
no character can begin markup.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from sapwood.errors import misuse_of_file
from sapwood.graphs.whole import replace_file
from sapwood.view.schema import validate

_STYLES: Final = ("colours.css", "page.css", "parts.css")
_SCRIPTS: Final = (
    *("make.js", "words.js", "model.js", "state.js", "pointer.js", "summary.js"),
    *("timeline.js", "chart.js", "memory.js", "tree.js", "list.js", "detail.js"),
    *("pages.js", "misses.js", "ledger.js", "start.js"),
)
"""In this order they are one module: each may use the names of those before it."""

POLICY: Final = (
    "default-src 'none'; script-src {script}; style-src {style}; base-uri 'none'; "
    "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)


def report(snapshot: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write the page about ``snapshot`` to ``path``, whole or not at all.

    Raises `MisuseError` for a snapshot that is not as docs/snapshot.md says, and where
    ``path`` cannot be written; `OSError` where a disk is full.
    """
    page = render(snapshot).encode()
    target = Path(path)
    remedy = "Give a file in a directory that exists and that you may write to"
    with misuse_of_file(f"the report cannot be written to {target}", remedy):
        replace_file(target, page)


def render(snapshot: Mapping[str, Any]) -> str:
    """Return the page about ``snapshot``: HTML in UTF-8, with all that it needs.

    Raises `MisuseError` for a snapshot that is not as docs/snapshot.md says.
    """
    data = _embed(validate(snapshot))
    style = "\n".join(map(_resource, _STYLES))
    script = "\n".join(map(_resource, _SCRIPTS))
    policy = POLICY.format(script=_digest(script), style=_digest(style))
    parts = {"POLICY": policy, "STYLE": style, "SCRIPT": script, "DATA": data}
    page = _resource("page.html")
    for name, text in parts.items():  # the data last: nothing is looked for in them
        before, after = page.split(f"{{{{{name}}}}}")
        page = before + text + after
    return page


def _embed(data: Mapping[str, Any]) -> str:
    """Return JSON in which nothing ends a script block, nor a line of script."""
    plain = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _resource(name: str) -> str:
    return (files("sapwood.view") / "page" / name).read_text(encoding="utf-8")
