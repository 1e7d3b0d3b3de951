"""Tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number of things in words: ``many`` where that is not ``one`` and s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]
) -> None:
    """Print rows under the names of columns; no text in them is markup.

    Columns whose names begin with ``>`` are numbers, and never folded.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title))
    for name in columns:
        if name.startswith(">"):
            table.add_column(name[1:], justify="right", no_wrap=True)
        else:
            table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    Console().print(table)
