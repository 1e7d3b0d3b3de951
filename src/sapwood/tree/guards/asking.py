"""What code asks a number to which it adds, as ``o.calls % 10 == 0`` does.

The number itself decides nothing then, but each answer may. To learn the questions, a
number that listens stands in the slot while the function runs under watch; guards ask
the same questions from then on.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import CodeType
from typing import Any, Final, NamedTuple, TypeAlias

from sapwood.tree.guards.adding import offsets_of_questions

Question: TypeAlias = tuple[tuple[str, Any], ...]
"""Operators and what stands to the right of each, the first that is applied first."""

_OPERATORS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "pow": operator.pow,
    "lshift": operator.lshift,
    "or": operator.or_,
    "xor": operator.xor,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "and": operator.and_,
    "rshift": operator.rshift,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "bool": lambda value, _: bool(value),
}
_TELLING: Final = frozenset({"floordiv", "mod", "and", "rshift"})
"""Operators whose results are few, so that one may be asked for again."""

_MOST: Final = 8
"""Questions by one name: more come of what changes, too."""


def _answer(question: Question, value: Any) -> Any:
    for name, other in question:
        value = _OPERATORS[name](value, other)
    return value


class Answers(NamedTuple):
    """What a number answered to questions."""

    answers: tuple[tuple[Question, Any], ...]

    def holds(self, value: object) -> bool:
        """Return whether another value is such a number, and answers the same."""
        return type(value) is int and all(
            _answer(question, value) == answer for question, answer in self.answers
        )


class Questions:
    """What a function has asked so far, by the names of its numbers; it only grows.

    Of those in ``exact`` it wants more than answers: they are compared themselves.
    """

    def __init__(self) -> None:
        self._asked: dict[str, list[Question]] = {}
        self.exact: set[str] = set()

    def size(self) -> int:
        """Return a number that differs after every growth."""
        return len(self.exact) + sum(map(len, self._asked.values()))

    def ask(self, name: str, value: int) -> Answers | None:
        """Return what a number of this name answers; None where nothing is asked."""
        answers = ((each, _answer(each, value)) for each in self._asked.get(name, ()))
        return Answers(tuple(answers)) if name in self._asked else None

    def note(self, name: str, question: Question) -> None:
        """Note a question; one too many wants the number itself."""
        known = self._asked.setdefault(name, [])
        if question not in known:
            known.append(question)
        if len(known) > _MOST:
            self.exact.add(name)


class Listening(int):
    """A number that notes what is asked of it, and is like a plain one otherwise.

    It is ``question`` applied to the number of a slot.
    """

    name: str
    questions: Questions
    question: Question
    __hash__ = int.__hash__

    def __bool__(self) -> bool:
        """Return whether it is not 0, which is a question, too."""
        self.questions.note(self.name, (*self.question, ("bool", None)))
        return bool(int(self))

    @classmethod
    def to(
        cls, value: int, name: str, questions: Questions, question: Question = ()
    ) -> Listening:
        """Return a number that listens for a name."""
        made = cls(value)
        made.name, made.questions, made.question = name, questions, question
        return made


def _operation(name: str) -> Callable[[Listening, Any], Any]:
    operate = _OPERATORS[name]

    def operation(self: Listening, other: Any) -> Any:
        if type(other) not in (int, float):
            self.questions.exact.add(self.name)
            return operate(int(self), other)
        result, question = operate(int(self), other), (*self.question, (name, other))
        frame = sys._getframe(1)  # noqa: SLF001 - what comes next there decides
        if type(result) is int and frame.f_lasti in _offsets(frame.f_code):
            return Listening.to(result, self.name, self.questions, question)
        if type(result) is bool or name in _TELLING:
            self.questions.note(self.name, question)
        else:
            self.questions.exact.add(self.name)
        return result

    return operation


@lru_cache(maxsize=2048)
def _offsets(code: CodeType) -> frozenset[int]:
    return offsets_of_questions(code)


for _name in _OPERATORS.keys() - {"bool"}:
    setattr(Listening, f"__{_name}__", _operation(_name))
