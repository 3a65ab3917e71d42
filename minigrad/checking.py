"""What the cells of an exercise call: `check` says at once why an answer is wrong, `grade` gives
the points for it. `predicted` and `chosen` look at answers in words, `forbid` at how a function
goes about it, and `score` shows what it cost.

A cell that is content prints one line. One that is not raises WrongAnswer, with one sentence.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from numbers import Real
from types import CodeType, FunctionType
from typing import Any

from minigrad.explain import explain

SAVED, THERE = "saved: ", "your sentence is there"  # how the lines of what is not judged begin
DETOURS = ("eval", "exec", "globals", "getattr", "__import__")


class WrongAnswer(AssertionError):
    """An answer that is wrong, and why. `rule` is the name of the reason, for partial credit."""

    def __init__(self, rule: str, sentence: str) -> None:
        super().__init__(sentence)
        self.rule = rule

    def _render_traceback_(self) -> list[str]:  # Jupyter then shows the sentence alone
        return [f"Not yet: {self}"]


def check(expected: Any, found: Any, name: str = "", **context: Any) -> None:
    """Is `found` what was `expected`? Raises WrongAnswer with the reason if not.

    name: what is looked at, for the sentence. context: as in `explain`.
    """
    reason = explain(expected, found, **context)
    if reason is not None:
        said = f"{name}: {reason.sentence}" if name else reason.sentence
        raise WrongAnswer(reason.rule, said)
    print(f"{name or 'your answer'}: right")


def grade(
    points: float, *checks: Callable[[], Any], partial: Mapping[str, float] | None = None
) -> float:
    """The points that an answer earns: all, if every check is content.

    partial: the points for answers that are wrong for a reason of this name; the reason is printed.
    Any other wrong answer raises. A cell of a course ends in this number, which nbgrader reads.
    """
    for one in checks:
        try:
            one()
        except WrongAnswer as answer:
            if not partial or answer.rule not in partial:
                raise
            print(f"{partial[answer.rule]} of {points} points: {answer}")
            return partial[answer.rule]
    return points


def predicted(value: Any, among: Sequence[Any] | None = None) -> None:
    """Is there a prediction, a number or one of `among`? Right or wrong: the run will tell."""
    if value is None or value is ...:
        what = f"one of {', '.join(map(repr, among))}" if among else "a number"
        raise WrongAnswer("no prediction", f"there is no prediction yet: write {what}, then go on")
    if among is not None and not (isinstance(value, Hashable) and value in among):
        what = f"your answer is {value!r}, expected one of {', '.join(map(repr, among))}"
        raise WrongAnswer("no choice", what)
    is_number = isinstance(value, Real) and not isinstance(value, bool) and value == value  # no NaN
    if among is None and not is_number:
        raise WrongAnswer("no number", f"your answer is {value!r}, expected a number")
    print(f"{SAVED}{value!r}")


def corrected(sentence: Any, words: int = 6) -> None:
    """Is there a sentence of at least so many words? Only the words are counted."""
    found = len(sentence.split()) if isinstance(sentence, str) else 0
    if found < words:
        what = f"your sentence has {found} words, expected {words} or more"
        raise WrongAnswer("no sentence", f"{what}: what happened, and why?")
    print(f"{THERE}; only a person can tell whether it is right")


def chosen(expected: str, found: Any, because: Mapping[str, str]) -> None:
    """Is it the right one of several? because: for each choice that is wrong, why it is not it."""
    choices = ", ".join(map(repr, sorted({expected, *because})))
    found = str.__str__(found) if isinstance(found, str) else found  # as plain as the choices
    if not isinstance(found, str) or found not in {expected, *because}:
        raise WrongAnswer("no choice", f"your choice is {found!r}, expected one of {choices}")
    if found != expected:
        raise WrongAnswer(found, because[found])
    print(f"{expected!r}: right")


def forbid(function: Any, *names: str) -> None:
    """Refuse a function that calls what it is to write itself: mg.train_step, say.

    Functions of the same notebook that it calls are looked into as well, and ways to reach a name
    without writing it down are refused.
    """
    function = inspect.unwrap(function)  # what stands below a decorator
    if not isinstance(function, FunctionType):
        what = f"your answer is a {type(function).__name__}, expected a function: def ..."
        raise WrongAnswer("no function", what)
    used = _names(function, set())
    if function.__module__ != "__main__":  # it is the library's own, by another name
        used.add(function.__name__)
    for name in (*names, *DETOURS):
        if name in used:
            what = f"{function.__name__}() uses {name}, which it is to do by itself"
            raise WrongAnswer("forbidden", f"{what}: write it in your own lines")


def _names(function: FunctionType, seen: set[CodeType]) -> set[str]:
    """All names that a function uses, and functions of its module that it calls use.

    What a name stands for has a name too: `f = mg.train_step` is known again behind `f`.
    """
    found, codes = set(), [function.__code__]
    while codes:
        code = codes.pop()
        if code in seen:
            continue
        seen.add(code)
        found |= {*code.co_names}
        codes += [c for c in code.co_consts if isinstance(c, CodeType)]
    values = [function.__globals__.get(name) for name in found]
    for value in [*values, *(function.__defaults__ or ())]:
        if isinstance(value, FunctionType) and value.__globals__ is function.__globals__:
            found |= _names(value, seen)
        else:
            found.add(getattr(value, "__name__", ""))
    return found


def score(what: str, found: float, reference: float, unit: str = "") -> None:
    """Show what an answer cost beside what the reference costs."""
    print(f"{what}: yours {found:,.0f}{unit}, the reference {reference:,.0f}{unit}")
