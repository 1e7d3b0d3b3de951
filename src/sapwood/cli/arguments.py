"""From argument text to verbs, and from errors to exit codes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from sapwood.errors import MisuseError
from sapwood.version import __version__

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the verb that ``argv`` names; return the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        if arguments.verb == "doctor":
            from sapwood.cli.doctor import doctor

            return doctor(as_json=arguments.json)
        from sapwood.cli.demo import demo

        return demo(
            epochs=arguments.epochs, seed=arguments.seed, as_json=arguments.json
        )
    except MisuseError as error:
        print(f"sapwood: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sapwood",
        description="Record GPU work once, replay it at driver speed.",
        epilog="exit codes: 0 as promised, 1 a promise was not kept, 2 wrong usage",
    )
    parser.add_argument("--version", action="version", version=f"sapwood {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True)
    doctor = verbs.add_parser("doctor", help="say what is here and what runs where")
    demo = verbs.add_parser("demo", help="train on handwritten digits, three ways")
    demo.add_argument("--epochs", type=_whole(1), default=60, help="default: 60")
    demo.add_argument("--seed", type=_whole(0), default=0, help="default: 0")
    for verb in (doctor, demo):
        verb.add_argument("--json", action="store_true", help="print for machines")
    return parser


def _whole(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a whole number from {least}"
            )
        return int(text)

    return read
