"""Checks of a policy's parameters: each problem with name, value and bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from shared.autoscaling.policy import described


def number(
    name: str,
    value: object,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
) -> list[str]:
    """A finite number, bool excluded, over its bound."""
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
    """A number above 0 and of at most 1."""
    return number(name, value, above=0, at_most=1)


def whole(name: str, value: object, at_least: int) -> list[str]:
    if type(value) is not int or value < at_least:
        return [f"{name} = {value!r}: must be a whole number of at least {at_least}"]
    return []


def tenfold(value: float) -> tuple[float, float]:
    """From a tenth of a positive number to ten times it: the range in which to tune it."""
    return value / 10, value * 10


def text(name: str, value: object) -> list[str]:
    return [] if isinstance(value, str) and value else [f"{name} = {value!r}: must be a name"]


def one_of(name: str, value: object, choices: Sequence[str]) -> list[str]:
    return [] if value in choices else [f"{name} = {value!r}: must be one of {', '.join(choices)}"]


def member(name: str, policy: object) -> list[str]:
    """The problems of a policy inside another one, each behind the member's name."""
    if not callable(policy):
        return [f"{name} = {policy!r}: must be callable with an Observation"]
    if isinstance(policy, type):
        return [f"{name} = {policy.__name__}: is a class; write {policy.__name__}(…)"]
    try:
        problems = described(policy).problems()
    except Exception as error:  # a member's check is the user's code too
        problems = [f"problems() raised {type(error).__name__}: {error}"]
    return [f"{name}: {problem}" for problem in problems]


def label(policy: Callable[..., Any]) -> str:
    """What to call a policy: a function by its name, a policy object by its class."""
    return str(getattr(policy, "__name__", type(policy).__name__))
