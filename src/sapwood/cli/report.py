"""``sapwood report``: one page to look at, from a snapshot in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

from sapwood.cli.progress import progress
from sapwood.errors import MisuseError, of_file, read_file
from sapwood.units import size_text


def report(snapshot_path: str, out_path: str | None = None) -> int:
    """Write the page about the snapshot in ``snapshot_path``; return 0.

    ``out_path`` is where to; None: beside the snapshot, with ``.html`` for its ending.
    Raises `MisuseError` where the one cannot be read or is no snapshot, and where the
    other cannot be written; OSError for a full disk.
    """
    from sapwood import view

    with progress(lambda: f"drawing {snapshot_path}"):
        snapshot, source = read_snapshot(snapshot_path), Path(snapshot_path)
        target = Path(out_path) if out_path else source.with_suffix(".html")
        if target == source:
            raise MisuseError(
                f"the page would replace its snapshot {source}. Name another"
            )
        view.report(snapshot, target)
    print(f"{target} ({size_text(target.stat().st_size)}): open it in a browser")
    return 0


def read_snapshot(source: str) -> dict[str, Any]:
    """Return the snapshot in a file.

    Raises `MisuseError`, with the path, where it cannot be read or is none.
    """
    from sapwood.view.schema import validate

    remedy = "Write one with json.dump(rt.snapshot(), file)"
    try:
        text = read_file(source, remedy).decode()
        found = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        why = str(error).partition(";")[0]  # what follows is for programmers
        raise MisuseError(f"{source} is no JSON: {why}. {remedy}") from error
    with of_file(Path(source)):
        return validate(found)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
