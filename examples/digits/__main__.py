"""``python -m examples.digits``: train on handwritten digits, in two processes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from examples.digits.demo import demo
from sapwood.errors import MisuseError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; return 0 as promised, 1 where a promise is not kept, else 2."""
    parser = argparse.ArgumentParser(
        prog="scripts/demo",
        description="Train on handwritten digits, replayed, and compare.",
        epilog="exit codes: 0 as promised, 1 a promise was not kept, 2 wrong usage",
    )
    parser.add_argument("--epochs", type=_whole(1), default=60, help="default: 60")
    parser.add_argument("--seed", type=_whole(0), default=0, help="default: 0")
    parser.add_argument("--json", action="store_true", help="print for machines")
    arguments = parser.parse_args(argv)
    try:
        return demo(
            epochs=arguments.epochs, seed=arguments.seed, as_json=arguments.json
        )
    except MisuseError as error:
        print(f"scripts/demo: {error}", file=sys.stderr)
        return 2


def _whole(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a whole number from {least}"
            )
        return int(text)

    return read


if __name__ == "__main__":
    sys.exit(main())
