"""``sapwood plan``: offsets for buffers with known lifetimes, from a table of them.

Exit codes: 0 a plan was made, within ``--capacity`` if that was given; 1 no plan within
``--capacity`` was found, and the best one is told and written all the same, or there
was none within ``--seconds``; 2 wrong usage, or a table that cannot be read; 130
interrupted, and the best plan till then, if any, is told and written.
"""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import asdict
from pathlib import Path

from sapwood import knobs
from sapwood.allocator import planner
from sapwood.allocator.lifetimes import OFFSET, Lifetimes, parse_lifetimes
from sapwood.allocator.planner import Plan
from sapwood.cli.progress import progress
from sapwood.cli.tables import counted
from sapwood.errors import InternalError, MisuseError, misuse_of_file, read_file
from sapwood.graphs.whole import replace_file
from sapwood.units import size_text


def plan(
    path: str,
    output: str | None = None,
    *,
    capacity: str | None = None,
    seconds: float | None = None,
    alignment: int = 1,
    seed: int = 0,
    as_json: bool = False,
) -> int:
    """Plan the table at ``path``; write it with offsets to ``output``, at once.

    ``capacity`` is a size as text; the others are as `sapwood.allocator.planner.plan`
    takes them. Returns 1 where the plan is not within the capacity. Raises
    `MisuseError` for what cannot be read, written or planned.
    """
    most = None if capacity is None else knobs.limit("--capacity", capacity, "1 B")
    watch = _Watch()
    with progress(lambda: f"{Path(path).stem}: {watch.now}"):
        table = parse_lifetimes(path, read_file(path, "Name a CSV file of lifetimes"))
        target = None if output is None else _target(path, output, table)
        with watch:
            made = planner.plan(
                table.buffers,
                capacity=most,
                seconds=seconds,
                alignment=alignment,
                seed=seed,
                goes_on=watch.goes_on,
            )
        wrong = planner.violations(table.buffers, made.offsets, alignment)
        if wrong:
            raise InternalError(f"a plan is sound, but {wrong[0].text}")
        if target is not None:
            _write(target, table.with_offsets(made.offsets))
    if as_json:
        print(json.dumps(_plain(path, table, made, most, alignment)))
    else:
        _tell(path, table, made)
    if most is not None and made.height > most:
        _complain(made, most)
    if watch.interrupted:
        print("sapwood: interrupted; this is the best plan till then", file=sys.stderr)
        return 130
    return int(most is not None and made.height > most)


class _Watch:
    """Knows how far a plan is; the first Control-C inside ends the search."""

    def __init__(self) -> None:
        self.now, self.interrupted = "reading", False

    def __enter__(self) -> None:
        self.now = "no plan so far"
        self._before = signal.signal(signal.SIGINT, self._interrupt)

    def __exit__(self, kind: object, *_: object) -> None:
        self.now = "checking the plan"
        signal.signal(signal.SIGINT, self._before)
        if kind is TimeoutError and self.interrupted:
            raise KeyboardInterrupt

    def _interrupt(self, *_: object) -> None:
        """End the search; once more ends the command."""
        self.interrupted = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def goes_on(self, best: int | None) -> bool:
        """Note the best height so far; return whether to go on."""
        if best is not None:
            self.now = f"{best:,} bytes so far"
        return not self.interrupted


def _target(path: str, output: str, table: Lifetimes) -> Path:
    """Return the file to write, once it is sure that it may be written there."""
    try:
        target = _real(Path(output))
        same = target == Path(path).resolve()
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or error
        raise MisuseError(
            f"{output} cannot be written: {why}. Name another file with -o"
        ) from error
    if same:
        raise MisuseError(f"the plan would replace its trace {path}. Name another file")
    if target.is_dir() or not target.parent.is_dir():
        raise MisuseError(
            f"{output} cannot be written: there is "
            f"{'a' if target.is_dir() else 'no'} folder there. Name a file in a folder "
            "that exists"
        )
    if OFFSET in (name.strip() for name in table.header):
        raise MisuseError(
            f"{path} has a column {OFFSET!r} already. Rename or remove it, so that it "
            "can be told from the new one"
        )
    return target


def _real(target: Path) -> Path:
    """Return the file that links lead to; of a pipe there is only the link."""
    found = target.resolve()
    found.is_dir()  # raises for names that no file can have
    return found if target.is_file() or not target.exists() else target


def _write(target: Path, text: str) -> None:
    """Write a file whole, or leave what was there."""
    with misuse_of_file(f"{target} cannot be written", "Name another file with -o"):
        replace_file(target, text.encode())


def _plain(
    path: str, table: Lifetimes, made: Plan, capacity: int | None, alignment: int
) -> dict[str, object]:
    told = asdict(made)
    del told["offsets"]
    about = {"trace": Path(path).stem, "buffers": len(table.buffers), **told}
    return {**about, "ratio": made.ratio, "capacity": capacity, "alignment": alignment}


def _tell(path: str, table: Lifetimes, made: Plan) -> None:
    print(
        f"{Path(path).stem}: {counted(len(table.buffers), 'buffer')} in "
        f"{made.height:,} bytes ({size_text(made.height)}), {made.ratio:.4f} of the "
        f"lower bound of {made.lower_bound:,}, in {made.seconds:.1f} s"
    )


def _complain(made: Plan, capacity: int) -> None:
    over = made.height - capacity
    if made.lower_bound > capacity:
        remedy = f"No plan can do with less than {made.lower_bound:,}: give that much"
    else:
        remedy = "There may be a plan within it: give more --seconds"
    print(
        f"sapwood: the plan ends {over:,} bytes ({size_text(over)}) above --capacity "
        f"{capacity:,}. {remedy}",
        file=sys.stderr,
    )
