"""Checks of a policy's parameters. Each problem states the name, the value and the bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from shared.autoscaling.policy import described
from shared.values.calls import error_text
from shared.values.text import quoted


def number(
    name: str,
    value: object,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
) -> list[str]:
    """The problem of a value that is not a finite number within the bounds. A bool is no number."""
    if not is_number(value):
        return [f"{name} = {value!r}: must be a number"]
    if above is not None and not value > above:  # type: ignore[operator]
        return [f"{name} = {value}: must be above {above:g}"]
    if at_least is not None and not value >= at_least:  # type: ignore[operator]
        return [f"{name} = {value}: must be at least {at_least:g}"]
    if at_most is not None and not value <= at_most:  # type: ignore[operator]
        return [f"{name} = {value}: must be at most {at_most:g}"]
    return []


def is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


def number_or_none(
    name: str,
    value: object,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
) -> list[str]:
    if value is None:
        return []
    return number(name, value, above=above, at_least=at_least, at_most=at_most)


def fraction(name: str, value: object) -> list[str]:
    """The problem of a value that is not a number above 0 and at most 1."""
    return number(name, value, above=0, at_most=1)


def whole(name: str, value: object, at_least: int) -> list[str]:
    if type(value) is not int or value < at_least:
        return [f"{name} = {value!r}: must be a whole number of at least {at_least}"]
    return []


def tenfold(value: float) -> tuple[float, float]:
    """The range in which a positive parameter is tuned: from a tenth to ten times its value."""
    return value / 10, value * 10


def text(name: str, value: object) -> list[str]:
    if not isinstance(value, str) or not value:
        return [f"{name} = {value!r}: must be a name"]
    if value != value.strip():
        return [f"{name} = {value!r}: must be a name without spaces at its ends"]
    return []


def one_of(name: str, value: object, choices: Sequence[str]) -> list[str]:
    return [] if value in choices else [f"{name} = {value!r}: must be one of {', '.join(choices)}"]


def member(name: str, policy: object) -> list[str]:
    """The problems of a policy inside another one. Each begins with the name of the member."""
    if not callable(policy):
        return [f"{name} = {quoted(policy)}: must be callable with an Observation"]
    if isinstance(policy, type):
        return [f"{name} = {policy.__name__}: is a class; write {policy.__name__}(…)"]
    try:
        problems = described(policy).problems()
    except BaseException as error:  # the check may be the rule author's code
        problems = [f"problems() raised {error_text(error)}"]
    return [f"{name}: {problem}" for problem in problems]


def label(policy: Callable[..., Any]) -> str:
    """The displayed name of a policy: the name of a function, or the class of an object."""
    return str(getattr(policy, "__name__", type(policy).__name__))
