"""Bounds that are declared once, on the field, and the one check of them.

    switch_cost: Annotated[float, Bounds(0, 1e6)] = 2

A field may also be annotated with a function that returns what a value must be, such as ``must be
a name``, or an empty text if the value is valid. The values of a ``Literal`` need no annotation.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import EnumType
from functools import lru_cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from shared.values.text import quoted

Check = Callable[[Any], str]
"""Returns what the value must be; empty if it is valid."""

NO_LIMIT = math.inf


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a number. They are inclusive, unless ``above`` or ``below`` excludes one."""

    low: float = -NO_LIMIT
    high: float = NO_LIMIT
    above: bool = False
    below: bool = False

    def __contains__(self, value: float) -> bool:
        too_low = value <= self.low if self.above else not value >= self.low  # also true for NaN
        too_high = value >= self.high if self.below else value > self.high
        return not (too_low or too_high)

    def __str__(self) -> str:
        shown = [str(b) if isinstance(b, int) else f"{b:g}" for b in (self.low, self.high)]
        low = f"{'above' if self.above else 'at least'} {shown[0]}"
        high = f"{'below' if self.below else 'at most'} {shown[1]}"
        if self.high == NO_LIMIT:
            return low
        if self.low == -NO_LIMIT:
            return high
        return f"{low} and {high}" if self.above or self.below else " to ".join(shown)

    def problem(self, value: object, kind: type = float) -> str:
        """What a value must be if it is no number of the kind within the bounds, such as a bool."""
        if kind is int:
            valid = type(value) is int and value in self
            of = "from" if -NO_LIMIT < self.low <= self.high < NO_LIMIT else "of"
            return "" if valid else f"must be a whole number {of} {self}"
        if not is_number(value):
            return "must be a number"
        return "" if value in self else f"must be {self}"  # type: ignore[operator]


def is_number(value: object) -> bool:
    """Whether the value is a number that a float can hold. A bool, NaN and infinity are none."""
    biggest = sys.float_info.max
    return type(value) in (int, float) and -biggest <= value <= biggest  # type: ignore[operator]


def name_problem(value: object) -> str:
    if not isinstance(value, str) or not value:
        return "must be a name"
    return "" if value == value.strip() else "must be a name without spaces at its ends"


def entity_problem(value: object) -> str:
    if "://" in str(value) or "/subscriptions/" in str(value).lower():
        return "must be only the name, neither an address nor a path or resource ID"
    return name_problem(value)


def setting_name_problem(value: object) -> str:
    is_value = "=" in str(value)
    return "must be the name of a setting, not its value" if is_value else name_problem(value)


def storage_queue_problem(value: object) -> str:
    valid = re.fullmatch(r"(?=.{3,63}$)[a-z0-9]+(-[a-z0-9]+)*", str(value))
    wrong = "" if valid else "must be 3 to 63 lower-case letters, digits and single hyphens"
    return name_problem(value) or wrong


def flag_problem(value: object) -> str:
    return "" if isinstance(value, bool) else "must be True or False"


def matching(pattern: str | re.Pattern[str], must: str = "") -> Check:
    """Accepts a text that matches the whole pattern, without spaces at its ends."""
    compiled = re.compile(pattern)

    def problem(value: object) -> str:
        matches = isinstance(value, str) and value == value.strip() and compiled.fullmatch(value)
        return "" if matches else must or f"must match {compiled.pattern}"

    return problem


def one_of(choices: Iterable[object]) -> Check:
    allowed = tuple(choices)

    def problem(value: object) -> str:
        return "" if value in allowed else f"must be one of {', '.join(map(str, allowed))}"

    return problem


Number = Annotated[float, Bounds()]
Positive = Annotated[float, Bounds(0, above=True)]
Share = Annotated[float, Bounds(0, 1, above=True)]
AtLeastOne = Annotated[int, Bounds(1)]
Flag = Annotated[bool, flag_problem]
Name = Annotated[str, name_problem]
"""A name of something outside, such as a metric. It may contain any characters."""
EntityName = Annotated[str, entity_problem]
SettingName = Annotated[str, setting_name_problem]
StorageQueueName = Annotated[str, storage_queue_problem]


def problems_of(declared: object, place: str = "") -> list[str]:
    """A problem for each field of a dataclass whose value is not what the field declares: the field
    after ``place``, its value, and what the value must be. Objects of other dataclasses in it are
    checked, too. A class with an annotation that cannot be resolved, such as a name that is only
    imported for type checkers, is not checked."""
    checks = _checks(cast(Any, type(declared))).items()
    found = (check(f"{place}{name}", getattr(declared, name)) for name, check in checks)
    return [problem for problems in found for problem in problems]


PlacedCheck = Callable[[str, Any], list[str]]
"""Returns the problems of a value, each with its place."""


@lru_cache(maxsize=256)  # reading the annotations of a class takes longer than the checks
def _checks(kind: type) -> Mapping[str, PlacedCheck]:
    if not is_dataclass(kind):
        return {}
    try:
        hints = get_type_hints(kind, include_extras=True)
    except NameError:
        return {}
    found = {each.name: _check(hints[each.name]) for each in fields(kind)}
    return {name: check for name, check in found.items() if check}


def _check(hint: Any) -> PlacedCheck | None:
    """The check that an annotation declares. The value of an optional field may be None."""
    kind, bounds, single = declared_by(hint)
    single = partial(bounds.problem, kind=kind) if bounds else single
    check = partial(_placed, single) if single else _class_check(kind)
    if check and NoneType in get_args(hint):
        return lambda place, value: [] if value is None else check(place, value)
    return check


def _placed(check: Check, place: str, value: object) -> list[str]:
    must = check(value)
    return [f"{place} = {quoted(value)}: {must}"] if must else []


def _class_check(hint: Any) -> PlacedCheck | None:
    """The check of an enumeration or a dataclass, and of a tuple or a mapping of dataclasses."""
    if isinstance(hint, EnumType):
        names = " or ".join(f"{hint.__name__}.{name}" for name in hint.__members__)
        return partial(_placed, lambda value: "" if isinstance(value, hint) else f"must be {names}")
    container, of = get_origin(hint), get_args(hint)
    is_tuple = container is tuple and of[-1] is ...
    kind = of[0] if is_tuple else of[1] if container is Mapping else hint
    return partial(_objects, container, kind) if is_dataclass(kind) else None


def _objects(container: type | None, kind: Any, place: str, value: Any) -> list[str]:
    """The problems of an object, or of the objects in a tuple or a mapping."""
    if container is None and isinstance(value, kind):
        own = getattr(value, "problems", partial(problems_of, value))
        return [f"{place}.{problem}" for problem in own()]
    if container is tuple and isinstance(value, tuple | list):
        parts = list(enumerate(value))
    elif container is Mapping and isinstance(value, Mapping):
        parts = list(value.items())
    else:
        return [f"{place} = {quoted(value)}: must be {_form(container, kind)}"]
    return [p for key, part in parts for p in _objects(None, kind, f"{place}[{key!r}]", part)]


def _form(container: type | None, kind: Any) -> str:
    """How the value is written, with the fields that have no default."""
    needed = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    form = f"{kind.__name__}({', '.join(needed) or '…'})"
    if container is tuple:
        return f"a tuple; one of a single element is ({form},)"
    return f"a dict such as {{'name': {form}}}" if container else form


def declared_by(hint: Any) -> tuple[Any, Bounds | None, Check | None]:
    """The type, the bounds and the check that an annotation declares, also of an optional field."""
    if get_origin(hint) in (Union, UnionType):
        options = [each for each in get_args(hint) if each is not NoneType]
        return declared_by(options[0]) if len(options) == 1 else (hint, None, None)
    if get_origin(hint) is Literal:
        return hint, None, one_of(get_args(hint))
    kind, *declared = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    bounds = next((each for each in declared if isinstance(each, Bounds)), None)
    return kind, bounds, next((cast(Check, each) for each in declared if callable(each)), None)
