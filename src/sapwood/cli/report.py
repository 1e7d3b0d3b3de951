"""``sapwood report``: one page to look at, from a snapshot in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

from sapwood.cli.progress import progress
from sapwood.errors import MisuseError, read_file
from sapwood.units import size_text


def report(snapshot_path: str, out_path: str | None = None) -> int:
    """Write the page about the snapshot in ``snapshot_path``; return 0.

    ``out_path`` is where to; None: beside the snapshot, with ``.html`` for its ending.
    Raises `MisuseError` where the one cannot be read or is no snapshot, and where the
    other cannot be written.
    """
    from sapwood import view

    source = Path(snapshot_path)
    target = Path(out_path) if out_path else source.with_suffix(".html")
    if target == source:
        raise MisuseError(f"the page would replace its snapshot {source}. Name another")
    with progress(lambda: f"drawing {target}"):
        view.report(_read(source), target)
    print(f"{target} ({size_text(target.stat().st_size)}): open it in a browser")
    return 0


def _read(source: Path) -> Any:
    remedy = "Write one with json.dump(rt.snapshot(), file)"
    try:
        text = read_file(source, remedy).decode()
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise MisuseError(f"{source} is no JSON: {error}. {remedy}") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
