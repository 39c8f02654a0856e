"""Checks of the policies, conditions and rules inside a policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shared.autoscaling.policy import described
from shared.values.calls import error_text
from shared.values.text import quoted


def tenfold(value: float) -> tuple[float, float]:
    """The range in which a positive parameter is tuned: from a tenth to ten times its value."""
    return value / 10, value * 10


def no_policy(name: str, value: object) -> list[str]:
    """The problem of a value that cannot be a policy."""
    if not callable(value):
        return [f"{name} = {quoted(value)}: must be callable with an Observation"]
    if isinstance(value, type):
        return [f"{name} = {value.__name__}: is a class; write {value.__name__}(…)"]
    return []


def member(name: str, policy: object) -> list[str]:
    """The problems of a policy inside another one. Each begins with the name of the member."""
    if wrong := no_policy(name, policy):
        return wrong
    try:
        problems = described(policy).problems()
    except BaseException as error:  # the check may be the rule author's code
        problems = [f"problems() raised {error_text(error)}"]
    return [f"{name}: {problem}" for problem in problems]


def label(policy: Callable[..., Any]) -> str:
    """The displayed name of a policy: the name of a function, or the class of an object."""
    return str(getattr(policy, "__name__", type(policy).__name__))
