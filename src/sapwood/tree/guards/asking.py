"""What code asks a number to which it adds, as ``o.calls % 10 == 0`` does.

The number itself decides nothing then, but each answer may. To learn the questions, a
number that listens stands in the slot while the function runs under watch; guards ask
the same questions from then on. A float there notes what is added: of floats, that does
not follow from what they were and are.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Mapping
from threading import get_ident
from typing import Any, Final, NamedTuple, TypeAlias

from sapwood.tree.guards.adding import offsets_of_questions

Question: TypeAlias = tuple[tuple[str, Any], ...]
"""Operators and what stands to the right of each, the first that is applied first."""

_NAMES: Final = (
    *("add", "sub", "mul", "truediv", "pow", "lshift", "or", "xor"),
    *("floordiv", "mod", "and", "rshift", "eq", "ne", "lt", "le", "gt", "ge"),
)
_OPERATORS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    **{name: getattr(operator, f"__{name}__") for name in _NAMES},
    "bool": lambda value, _: bool(value),
}
_TELLING: Final = frozenset({"floordiv", "mod", "and", "rshift"})
"""Operators whose results are few, so that one may be asked for again."""

_MOST: Final = 8
"""Questions by one name: more come of what changes, too."""

_MOST_ANSWERS: Final = 16
"""To one question: of what has more, each call is another."""


def _answer(question: Question, value: Any) -> Any:
    try:
        for name, other in question:
            value = _OPERATORS[name](value, other)
    except (ArithmeticError, ValueError):
        return "an error"  # as of 10**400 // 2.0
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
        self._asked: dict[str, dict[Question, set[Any]]] = {}
        self.exact: set[str] = set()

    def size(self) -> int:
        """Return a number that differs after every growth."""
        return len(self.exact) + sum(map(len, self._asked.values()))

    def ask(self, name: str, value: int) -> Answers | None:
        """Return what a number of this name answers; None where nothing is asked."""
        answers = ((each, _answer(each, value)) for each in self._asked.get(name, ()))
        return Answers(tuple(answers)) if name in self._asked else None

    def note(self, name: str, question: Question, answer: Any) -> None:
        """Note a question and an answer; too many of them want the number itself."""
        asked = self._asked.setdefault(name, {})
        answers = asked.setdefault(question, set())
        answers.add(answer)
        if len(asked) > _MOST or len(answers) > _MOST_ANSWERS:
            self.exact.add(name)


class Ear:
    """Hears what numbers are asked, on one thread and for one run of a function."""

    def __init__(self, questions: Questions) -> None:
        self.questions = questions
        self.listens = True
        self._thread = get_ident()

    def hears(self) -> bool:
        """Return whether what is asked here and now is asked by the function."""
        return self.listens and get_ident() == self._thread


class Listening(int):
    """A number that tells an ear what is asked of it, and is like a plain one else.

    It is ``question`` applied to the number of a slot.
    """

    name: str
    ear: Ear
    question: Question
    __hash__ = int.__hash__

    def __bool__(self) -> bool:
        """Return whether it is not 0, which is a question, too."""
        answer = bool(int(self))
        if self.ear.hears():
            question = *self.question, ("bool", None)
            self.ear.questions.note(self.name, question, answer)
        return answer

    def __reduce_ex__(self, _: object) -> tuple[type, tuple[int]]:
        """Have copies and pickles be plain numbers."""
        return int, (int(self),)

    @classmethod
    def to(cls, value: int, name: str, ear: Ear, question: Question = ()) -> Listening:
        """Return a number of this name that tells an ear."""
        made = cls(value)
        made.name, made.ear, made.question = name, ear, question
        return made


class Summing(float):
    """A float that notes the ``terms`` added to it, and is like a plain one else."""

    name: str
    ear: Ear
    terms: tuple[int | float, ...]
    __hash__ = float.__hash__

    def __add__(self, other: Any) -> Any:
        """Return the sum, which notes one term more where it is bound in its place."""
        return self._with(other, other, float(self) + other)

    def __sub__(self, other: Any) -> Any:
        """Return the difference: as a sum, but for the sign of what is no number."""
        plain = type(other) in (int, float) and not math.isnan(other)
        return self._with(other, -other if plain else None, float(self) - other)

    def __reduce_ex__(self, _: object) -> tuple[type, tuple[float]]:
        """Have copies and pickles be plain numbers."""
        return float, (float(self),)

    def _with(self, other: Any, term: Any, total: Any) -> Any:
        if not self.ear.hears():
            return total
        frame = sys._getframe(2)  # noqa: SLF001 - what comes next there decides
        bound = frame.f_lasti in offsets_of_questions(frame.f_code)
        if term is None or type(other) not in (int, float) or not bound:
            self.ear.questions.exact.add(self.name)
            return total
        return self.to(total, self.name, self.ear, (*self.terms, term))

    @classmethod
    def to(
        cls, value: float, name: str, ear: Ear, terms: tuple[int | float, ...] = ()
    ) -> Summing:
        """Return a float of this name that tells an ear."""
        made = cls(value)
        made.name, made.ear, made.terms = name, ear, terms
        return made


def _operation(name: str) -> Callable[[Listening, Any], Any]:
    operate = _OPERATORS[name]

    def operation(self: Listening, other: Any) -> Any:
        result, questions = operate(int(self), other), self.ear.questions
        if not self.ear.hears():
            return result
        if type(other) not in (int, float):
            questions.exact.add(self.name)
            return result
        question = (*self.question, (name, other))
        frame = sys._getframe(1)  # noqa: SLF001 - what comes next there decides
        offsets = offsets_of_questions(frame.f_code)
        if type(result) is int and frame.f_lasti in offsets:
            return Listening.to(result, self.name, self.ear, question)
        if type(result) is bool or name in _TELLING:
            questions.note(self.name, question, result)
        else:
            questions.exact.add(self.name)
        return result

    return operation


for _name in _NAMES:
    setattr(Listening, f"__{_name}__", _operation(_name))
