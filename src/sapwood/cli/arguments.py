"""From argument text to verbs, and from errors to exit codes."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NoReturn

from sapwood.errors import CaptureError, DriverError, MisuseError, StoreError, words
from sapwood.version import __version__

_WHOLE: Final = re.compile("[0-9]{1,40}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the verb that ``argv`` names; return the exit code."""
    if isinstance(sys.stdout, TextIOWrapper):  # whatever names and locales there are
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        arguments = _arguments(sys.argv[1:] if argv is None else argv)
        module, name = arguments.pop("verb")
        # Each verb is loaded when it is run: most need more than the others.
        verb = getattr(import_module(f"sapwood.cli.{module}"), name)
        code: int = verb(**arguments)
        print(end="", flush=True)
    except BrokenPipeError:
        # Whoever read has gone; what is left must not be tried once more at the end.
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        code, said = 130, "interrupted"
    except MisuseError as error:
        code, said = 2, str(error)
    except (CaptureError, DriverError, MemoryError, OSError, StoreError) as error:
        code, said = 1, words(error) or "there is not enough memory"
    else:
        return code
    with suppress(OSError):
        print(f"sapwood: {said}", file=sys.stderr)
    return code


def _arguments(argv: Sequence[str]) -> dict[str, Any]:
    """Return the arguments, where options may go before their verb."""
    parser = _parser()
    ordered = parser.in_order(argv)
    found, more = parser.parse_known_args(ordered)
    if more:
        verb = parser.verbs[ordered[0]]
        verb = verb.verbs.get(ordered[1], verb)
        verb.error(f"there is no use for {' '.join(more)}")
    return vars(found)


_OWN: Final = {"-h", "--help", "--version"}
_ALONE: Final = {*_OWN, "--json"}
"""The options that take no value."""


class _Parser(argparse.ArgumentParser):
    """Says in one line what it does not understand; ``verbs`` are its parsers."""

    verbs: Mapping[str, _Parser] = MappingProxyType({})

    def in_order(self, argv: Sequence[str]) -> list[str]:
        """Return the arguments with a verb before the options that stand before it.

        What stands behind an option is taken for its value, if there is another verb.
        """
        found = [at for at, word in enumerate(argv) if word in self.verbs]
        if not found:
            if self.verbs and argv and argv[0].startswith("-") and argv[0] not in _OWN:
                named = argv[0].partition("=")[0]
                known = any(named in v.options() for v in self.verbs.values())
                said = f"{named} needs a verb" if known else f"{named} is no option"
                self.error(f"{said}. The verbs are {', '.join(self.verbs)}")
            return [*argv]
        at = min(found, key=lambda at: (at > 0 and _takes_value(argv[at - 1]), at))
        if not _OWN.isdisjoint(argv[:at]):
            return [*argv]
        rest = [*argv[:at], *argv[at + 1 :]]
        return [argv[at], *self.verbs[argv[at]].in_order(rest)]

    def options(self) -> set[str]:
        """Return the options of this verb, and of those below it."""
        below = (verb.options() for verb in self.verbs.values())
        return {*self._option_string_actions}.union(*below)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}. See {self.prog} --help\n")


def _takes_value(word: str) -> bool:
    return word.startswith("-") and word not in _ALONE and "=" not in word


def _parser() -> _Parser:
    parser = _Parser(
        prog="sapwood",
        description="Record GPU work once, replay it at driver speed.",
        epilog="exit codes: 0 success, 1 failed, 2 wrong usage, 130 interrupted",
    )
    parser.add_argument("--version", action="version", version=f"sapwood {__version__}")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    parser.verbs = verbs.choices
    verb = partial(_verb, verbs.add_parser)
    _json(verb("doctor", "doctor", "say what is here and what runs where"))
    show = verb("files", "show", "say what is in a file that save() wrote")
    show.add_argument("path", metavar="FILE")
    _json(show)
    _files(verb("files", "run", "call the function in a file, without its source"))
    _stores(verb("store", "store", "look into the folder of a store, and clean it"))
    _simulates(verb("simulate", "simulate", "say how much memory a trace would take"))
    _plans(verb("plan", "plan", "pack buffers with known lifetimes into one range"))
    report = verb("report", "report", "draw a page from a snapshot in a file")
    add = report.add_argument
    add("snapshot_path", metavar="SNAPSHOT.json")
    put: dict[str, Any] = {"dest": "out_path", "type": _file, "metavar": "PATH"}
    add("-o", "--output", help="default: beside it", **put)
    diff = verb("diff", "diff", "say what happened between two snapshots in files")
    diff.add_argument("old_path", metavar="OLD.json")
    diff.add_argument("new_path", metavar="NEW.json")
    _json(diff)
    return parser


def _verb(add: Callable[..., _Parser], module: str, name: str, text: str) -> _Parser:
    """Add a parser, which parses the arguments of a function in a module here."""
    parser = add(name, help=text, description=text)
    parser.set_defaults(verb=(module, name))
    return parser


def _stores(store: _Parser) -> None:
    store.add_argument(
        "--path", metavar="PATH", help="the folder; default: SAPWOOD_STORE"
    )
    commands = store.add_subparsers(required=True, metavar="COMMAND")
    store.verbs = commands.choices

    def command(name: str, text: str) -> _Parser:
        parser = _verb(commands.add_parser, "store", name, text)
        # Behind the command as well; left out there, what stands before it holds.
        parser.add_argument("--path", default=argparse.SUPPRESS, help="the folder")
        return parser

    _json(command("ls", "list the entries"))
    gc = command("gc", "remove what is over a limit")
    gc.add_argument("--limit", metavar="SIZE", help="default: SAPWOOD_STORE_LIMIT")
    command("verify", "read everything and say what is damaged")
    why = command("why", "say how the keys of two entries differ")
    why.add_argument("digest", metavar="DIGEST", help="its first digits")
    why.add_argument("other", metavar="OTHER", nargs="?", help="default: the nearest")


def _simulates(simulate: argparse.ArgumentParser) -> None:
    add = simulate.add_argument
    add("path", metavar="TRACE", help="lifetimes, log or snapshot")
    policy = "such as classic or planned, again for another; default: all"
    _several(simulate, "--policy", "policies", "NAME", policy)
    change = "a setting, as in SAPWOOD_ALLOC_CONF; again for more"
    _several(simulate, "--set", "changes", "KEY=VALUE", change)
    add("--device", type=_whole(0), metavar="N", help="which one's of a snapshot")
    add("--device-memory", metavar="SIZE", help="such as 80GiB; default: enough")
    add("--repeat", type=_whole(1), default=1, metavar="N", help="times; default: 1")
    _json(simulate)


def _plans(plan: argparse.ArgumentParser) -> None:
    add = plan.add_argument
    add("path", metavar="TRACE.csv", help="columns id,lower,upper,size")
    told = "the trace with a column offset"
    add("-o", "--output", type=_file, metavar="OUT.csv", help=told)
    add("--capacity", metavar="N", help="bytes, or such as 80GiB: end within it")
    add(
        "--seconds", type=_seconds, metavar="S", help="default: 45, or 5 near the bound"
    )
    add("--alignment", type=_whole(1), default=1, metavar="N", help="default: 1")
    add("--seed", type=_whole(0), default=0, help="default: 0")
    _json(plan)


def _files(run: argparse.ArgumentParser) -> None:
    run.add_argument("path", metavar="FILE")
    given = "a .npy file for the next argument, or for that one"
    _several(run, "--input", "inputs", "[NAME=]PATH", given, _file)
    result = "where to write the next resulting array, as .npy"
    _several(run, "--output", "outputs", "PATH", result, _file)


def _several(
    parser: argparse.ArgumentParser,
    option: str,
    dest: str,
    metavar: str,
    text: str,
    read: Callable[[str], str] = str,
) -> None:
    """Add an option that may be given again and again."""
    how: dict[str, Any] = {"action": "append", "default": [], "type": read}
    parser.add_argument(option, dest=dest, metavar=metavar, help=text, **how)


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", dest="as_json", action="store_true", help="print for machines"
    )


def _file(text: str) -> str:
    """Return a path that may be a file's."""
    if not text.rpartition("=")[2] or text.endswith(("/", os.sep)):
        raise argparse.ArgumentTypeError(f"{text!r} names no file")
    return text


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
        if not _WHOLE.fullmatch(text) or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"{text[:50]!r} is not a whole number from {least}, of up to 40 digits"
            )
        return int(text)

    return read
