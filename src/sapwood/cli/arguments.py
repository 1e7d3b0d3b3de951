"""From argument text to verbs, and from errors to exit codes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from sapwood import knobs
from sapwood.errors import MisuseError, StoreError
from sapwood.version import __version__

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the verb that ``argv`` names; return the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read has gone; what is left must not be tried once more at the end.
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return 1
    except (MisuseError, StoreError) as error:
        print(f"sapwood: {error}", file=sys.stderr)
        return 2 if isinstance(error, MisuseError) else 1
    return code


def _doctor(arguments: argparse.Namespace) -> int:
    from sapwood.cli.doctor import doctor

    return doctor(as_json=arguments.json)


def _show(arguments: argparse.Namespace) -> int:
    from sapwood.cli.files import show

    return show(arguments.file, as_json=arguments.json)


def _run(arguments: argparse.Namespace) -> int:
    from sapwood.cli.files import run

    return run(arguments.file, arguments.input, arguments.output)


def _store(arguments: argparse.Namespace) -> int:
    from sapwood.cli import store

    with knobs.scope() as settings:
        path = arguments.path or settings.store
    if not path:
        raise MisuseError("no store was named. Give --path, or set SAPWOOD_STORE")
    match arguments.deed:
        case "ls":
            return store.ls(path, arguments.json)
        case "gc":
            changes = (
                {} if arguments.limit is None else {"store_limit": arguments.limit}
            )
            with knobs.scope(**changes) as settings:
                return store.gc(path, settings.store_limit)
        case "verify":
            return store.verify(path)
        case _:
            return store.why(path, arguments.entry, arguments.other)


def _report(arguments: argparse.Namespace) -> int:
    from sapwood.cli.report import report

    return report(arguments.snapshot, arguments.output)


def _simulate(arguments: argparse.Namespace) -> int:
    from sapwood.cli.simulate import simulate

    return simulate(
        arguments.trace,
        arguments.policy,
        device=arguments.device,
        changes=arguments.set,
        device_memory=arguments.device_memory,
        repeat=arguments.repeat,
        as_json=arguments.json,
    )


def _plan(arguments: argparse.Namespace) -> int:
    from sapwood.cli.plan import plan

    return plan(
        arguments.trace,
        arguments.output,
        capacity=arguments.capacity,
        seconds=arguments.seconds,
        alignment=arguments.alignment,
        seed=arguments.seed,
        as_json=arguments.json,
    )


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

    _json(verb("doctor", _doctor, "say what is here and what runs where"))
    show = verb("show", _show, "say what is in a file that save() wrote")
    show.add_argument("file", metavar="FILE")
    _json(show)
    _files(verb("run", _run, "call the function in a file, without its source"))
    _stores(verb("store", _store, "look after recordings that outlive the process"))
    _simulates(verb("simulate", _simulate, "say how much memory a trace would take"))
    _plans(verb("plan", _plan, "pack buffers with known lifetimes into one range"))
    report = verb("report", _report, "draw a page from a snapshot in a file")
    report.add_argument("snapshot", metavar="SNAPSHOT.json")
    report.add_argument("--output", metavar="PATH", help="default: beside the snapshot")
    return parser


def _stores(store: argparse.ArgumentParser) -> None:
    store.add_argument(
        "--path", metavar="PATH", help="the folder; default: SAPWOOD_STORE"
    )
    deeds = store.add_subparsers(required=True, metavar="DEED", dest="deed")
    _json(deeds.add_parser("ls", help="list the entries"))
    gc = deeds.add_parser("gc", help="remove what is over a limit")
    gc.add_argument("--limit", metavar="SIZE", help="default: SAPWOOD_STORE_LIMIT")
    deeds.add_parser("verify", help="read everything and say what is damaged")
    why = deeds.add_parser("why", help="say how the keys of two entries differ")
    why.add_argument("entry", metavar="DIGEST", help="its first digits")
    why.add_argument("other", metavar="OTHER", nargs="?", help="default: the nearest")


def _simulates(simulate: argparse.ArgumentParser) -> None:
    simulate.add_argument("trace", metavar="TRACE", help="lifetimes, log or snapshot")
    for option, metavar, text in (
        ("--policy", "NAME", "what serves it, again for another; default: all"),
        ("--set", "KEY=VALUE", "a setting, as in SAPWOOD_ALLOC_CONF; again for more"),
    ):
        simulate.add_argument(
            option, action="append", default=[], metavar=metavar, help=text
        )
    simulate.add_argument(
        "--device", type=_whole(0), metavar="N", help="which one's of a snapshot"
    )
    simulate.add_argument(
        "--device-memory", metavar="SIZE", help="such as 80GiB; default: enough"
    )
    simulate.add_argument(
        "--repeat", type=_whole(1), default=1, metavar="N", help="times; default: 1"
    )
    _json(simulate)


def _plans(plan: argparse.ArgumentParser) -> None:
    plan.add_argument("trace", metavar="TRACE.csv", help="columns id,lower,upper,size")
    plan.add_argument(
        "-o", "--output", metavar="OUT.csv", help="the trace with a column offset"
    )
    plan.add_argument(
        "--capacity", metavar="N", help="bytes, or such as 80GiB: end within it"
    )
    plan.add_argument(
        "--seconds", type=_seconds, metavar="S", help="default: 45, or 5 near the bound"
    )
    plan.add_argument(
        "--alignment", type=_whole(1), default=1, metavar="N", help="default: 1"
    )
    plan.add_argument("--seed", type=_whole(0), default=0, help="default: 0")
    _json(plan)


def _files(run: argparse.ArgumentParser) -> None:
    run.add_argument("file", metavar="FILE")
    for option, metavar, text in (
        (
            "--input",
            "[NAME=]PATH",
            "a .npy file for the next argument, or for that one",
        ),
        ("--output", "PATH", "where to write the next resulting array, as .npy"),
    ):
        run.add_argument(
            option, action="append", default=[], metavar=metavar, help=text
        )


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print for machines")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 0")
    return seconds


def _whole(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a whole number from {least}"
            )
        return int(text)

    return read
