"""From argument text to verbs, and from errors to exit codes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from sapwood.errors import MisuseError, StoreError
from sapwood.version import __version__

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the verb that ``argv`` names; return the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
    except (MisuseError, StoreError) as error:
        print(f"sapwood: {error}", file=sys.stderr)
        return 2 if isinstance(error, MisuseError) else 1
    return code


def _demo(arguments: argparse.Namespace) -> int:
    from sapwood.cli.demo import demo

    return demo(epochs=arguments.epochs, seed=arguments.seed, as_json=arguments.json)


def _doctor(arguments: argparse.Namespace) -> int:
    from sapwood.cli.doctor import doctor

    return doctor(as_json=arguments.json)


def _show(arguments: argparse.Namespace) -> int:
    from sapwood.cli.files import show

    return show(arguments.file, as_json=arguments.json)


def _run(arguments: argparse.Namespace) -> int:
    from sapwood.cli.files import run

    return run(arguments.file, arguments.input, arguments.output)


def _report(arguments: argparse.Namespace) -> int:
    from sapwood.cli.report import report

    return report(arguments.snapshot, arguments.output)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sapwood",
        description="Record GPU work once, replay it at driver speed.",
        epilog="exit codes: 0 as promised, 1 a promise was not kept, 2 wrong usage",
    )
    parser.add_argument("--version", action="version", version=f"sapwood {__version__}")
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    def verb(
        name: str, run: Callable[[argparse.Namespace], int], text: str
    ) -> argparse.ArgumentParser:
        added = verbs.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        return added

    demo = verb("demo", _demo, "train on handwritten digits, in two processes")
    demo.add_argument("--epochs", type=_whole(1), default=60, help="default: 60")
    demo.add_argument("--seed", type=_whole(0), default=0, help="default: 0")
    _json(demo)
    _json(verb("doctor", _doctor, "say what is here and what runs where"))
    show = verb("show", _show, "say what is in a file that save() wrote")
    show.add_argument("file", metavar="FILE")
    _json(show)
    run = verb("run", _run, "call the function in a file, without its source")
    run.add_argument("file", metavar="FILE")
    run.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="[NAME=]PATH",
        help="a .npy file for the next argument, or for the one of that name",
    )
    run.add_argument(
        "--output",
        action="append",
        default=[],
        metavar="PATH",
        help="where to write the next resulting array, as .npy",
    )
    report = verb("report", _report, "draw a page from a snapshot in a file")
    report.add_argument("snapshot", metavar="SNAPSHOT.json")
    report.add_argument("--output", metavar="PATH", help="default: beside the snapshot")
    return parser


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print for machines")


def _whole(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a whole number from {least}"
            )
        return int(text)

    return read
