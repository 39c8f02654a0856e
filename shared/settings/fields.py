"""Declares and parses settings. A setting is a field of the model of its capability.

    minimum_samples: Annotated[int, Bounds(1, 1000)] = setting("MinimumSamples", "whole number", 5,
        "number of samples required for a decision")

Its type and the bounds decide which texts are valid (see `shared.values.bounds`). Problems are
collected. A value that cannot be parsed is replaced by its default.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from functools import cache, partial
from typing import Any, NamedTuple, Self, TypeVar, cast, get_args, get_origin, get_type_hints

from shared.settings.schedules import parse_cron
from shared.settings.variables import QUOTED, UNRESOLVED, is_quoted, is_unresolved, resolved
from shared.values import text as texts
from shared.values.bounds import Bounds, Check, declared_by, entity_problem

T = TypeVar("T")
Number = TypeVar("Number", int, float)
Environ = Mapping[str, str]
Read = Callable[[Environ, list[str]], Any]
INTERVAL = re.compile(r"(?:[0-9]{1,4}\.)?([0-9]{1,4}):[0-5][0-9]:[0-5][0-9]")
HOURS_END = 24
HTTPS = r"https://[A-Za-z0-9.-]+(?::[0-9]{1,5})?"
LOOPBACK = r"http://(?:127\.0\.0\.1|localhost)(?::[0-9]{1,5})?"


@dataclass(frozen=True)
class Setting:
    """One app setting. ``default`` and ``example`` are text as in a settings file."""

    name: str
    form: str
    """The kind of value in a few words, or the unit of a number."""
    default: str
    meaning: str
    """One sentence, which may use Markdown."""
    used_by: str = ""
    """The functions that use the setting, or ``rules``; empty to use the section's."""
    unset: str = "none"
    """The text for docs/settings.md if there is no default."""
    secret: bool = False
    hidden: bool = False
    """If true, the value is not shown, because a part of it may be a secret."""
    example: str | None = None
    """The value in local.settings.json.example, if it differs from the default."""
    bounds: Bounds | None = None
    check: Check | None = None
    """The check of a text, or of each name in a list."""


class Section(NamedTuple):
    title: str
    used_by: str
    settings: tuple[Setting, ...]


@dataclass(frozen=True)
class RawValue:
    """A setting's text, or its default if the text is empty, and the list of all problems."""

    setting: Setting
    text: str
    environ: Environ
    problems: list[str]

    def refuse(self, bound: str, shown: str = "") -> None:
        """Report that the value, or its part ``shown``, is wrong. A secret value is left out."""
        hidden = self.setting.secret or self.setting.hidden
        value = "" if hidden else f" = {shown or repr(self.text)}"
        remedy = f"; {QUOTED}" if is_quoted(self.text) else ""
        self.problems.append(f"{self.setting.name}{value}: {bound}{remedy}")

    def with_names(self) -> RawValue:
        """The value with each ``%NAME%`` replaced by that setting, as the host does in bindings."""
        try:
            return replace(self, text=resolved(self.text, self.environ))
        except ValueError as error:
            self.refuse(str(error))
            return replace(self, text=self.setting.default)

    def matches(self, text: str) -> bool:
        if odd := texts.odd_character(text):
            self.refuse(f"must be one line of text: {odd}", repr(text))
            return False
        must = self.setting.check(text) if self.setting.check else ""
        if must:
            self.refuse(must, repr(text))
        return not must


class SettingsModel:
    """The base of a frozen dataclass whose fields are each a `setting` or a `group`."""

    @classmethod
    def read(cls, environ: Environ, problems: list[str]) -> Self:
        """All fields, parsed from the environment. Problems are appended to ``problems``."""
        declared = _declared(cast(Any, cls))
        model = cls(**{name: read(environ, problems) for name, read, _ in declared})
        problems += model.conflicts()
        return model

    def part(self, kind: type[T]) -> T:
        """A value of a capability, with those of these settings that have its fields' names."""
        names = {each.name for each in fields(cast(Any, self))}
        shared = (each.name for each in fields(cast(Any, kind)) if each.name in names)
        return kind(**{name: getattr(self, name) for name in shared})

    def conflicts(self) -> Iterable[str]:
        """The problems of values that are valid alone but not in combination."""
        return ()


def settings_of(*models: Any) -> tuple[Setting, ...]:
    """The settings of the models in order of declaration, including those of their groups."""
    return tuple(each for model in models for _, _, own in _declared(model) for each in own)


@cache
def _declared(model: Any) -> Sequence[tuple[str, Read, Sequence[Setting]]]:
    """The name of each field, the function that reads it, and its settings."""
    hints = get_type_hints(model, include_extras=True)
    return [(each.name, *each.metadata["declared"](hints[each.name])) for each in fields(model)]


def setting(
    name: str, form: str, default: str | float, meaning: str, used_by: str = "",
    parse: Callable[[RawValue], Any] | None = None, **options: Any,
) -> Any:  # fmt: skip
    """A field of a settings model. ``parse`` is needed if its type does not say how to read it. The
    options are further fields of `Setting`."""
    row = Setting(name, form, str(default), meaning, used_by, **options)

    def declared(hint: Any) -> tuple[Read, Sequence[Setting]]:
        is_list = get_origin(hint) in (tuple, frozenset)
        kind, bounds, check = declared_by(get_args(hint)[0] if is_list else hint)
        bounded = replace(row, bounds=bounds, check=check)
        usual = (LISTS if is_list else SCALARS).get(kind) or choice(get_args(kind))
        return partial(_read, bounded, parse or usual), (bounded,)

    return field(repr=not (row.secret or row.hidden), metadata={"declared": declared})


def _read(
    declared: Setting, parse: Callable[[RawValue], T], environ: Environ, problems: list[str]
) -> T:
    text = environ.get(declared.name, "").strip() or declared.default
    raw = RawValue(declared, text, environ, problems)
    if is_unresolved(text):
        raw.refuse(UNRESOLVED)
        return parse(RawValue(declared, declared.default, environ, []))
    return parse(raw)


def group() -> Any:
    """A field that is itself a settings model."""
    return field(metadata={"declared": lambda model: (model.read, settings_of(model))})


def whole_environment() -> Any:
    """A field with the environment from which the other fields are parsed."""
    declared = (lambda environ, _: environ, ())
    return field(repr=False, metadata={"declared": lambda _: declared})


def text(raw: RawValue) -> str:
    return raw.text if not raw.text or raw.matches(raw.text) else raw.setting.default


def address(raw: RawValue) -> str:
    return text(raw).rstrip("/")


def entity(raw: RawValue) -> str:
    """The name of an entity, which may contain ``%NAME%``. Neither an address nor a resource ID."""
    raw = raw.with_names()
    if raw.text and (problem := entity_problem(raw.text)):
        raw.refuse(problem)
        return raw.setting.default
    return text(raw)


def required(raw: RawValue) -> str:
    if not raw.text:
        raw.refuse("must be set")
    return entity(raw)


def names(raw: RawValue) -> tuple[str, ...]:
    """The parts between commas."""
    return tuple(part for part in _parts(raw) if raw.matches(part))


def choice(options: Sequence[T]) -> Callable[[RawValue], T]:
    """A parser that accepts the options only. One of them may be empty."""
    by_text = {str(option): option for option in options}

    def parse(raw: RawValue) -> T:
        if raw.text not in by_text:
            empty = ", or empty" if "" in by_text else ""
            raw.refuse(f"must be one of {', '.join(filter(None, by_text))}{empty}")
        return by_text.get(raw.text, by_text[raw.setting.default])

    return parse


def flag(raw: RawValue) -> bool:
    by_text = {"true": True, "1": True, "false": False, "0": False}
    if raw.text.lower() not in by_text:
        raw.refuse("must be true or false")
    return by_text.get(raw.text.lower(), by_text[raw.setting.default])


def cron(raw: RawValue) -> str:
    """A schedule for the Functions host: cron fields, or an interval."""
    raw = raw.with_names()
    interval = INTERVAL.fullmatch(raw.text)
    if interval and int(interval[1]) >= HOURS_END:
        raw.refuse(
            f"Azure reads {interval[1]} hours as days. Write 1.00:00:00 for a day, or 6 cron fields"
        )
    elif not interval or not raw.text.strip("0.:"):
        try:
            parse_cron(raw.text)
        except ValueError as error:
            such = f"such as {raw.setting.default!r}, 5 without seconds, or hh:mm:ss"
            raw.refuse(f"must be 6 cron fields, seconds first, {such}: {error}")
    return raw.text


def whole(raw: RawValue) -> int:
    return _bounded(raw, raw.text, texts.whole)


def number(raw: RawValue) -> float:
    return _bounded(raw, raw.text, texts.number)


def optional_number(raw: RawValue) -> float | None:
    """A number, or None if the setting is empty."""
    return number(raw) if raw.text else None


def numbers(raw: RawValue) -> tuple[float, ...]:
    return tuple(_bounded(raw, part, texts.number) for part in _parts(raw))


def duration(raw: RawValue, parse: Callable[[RawValue], float] = number) -> timedelta:
    """A duration, whose unit is the setting's ``form``. It is clamped to its bounds, because
    ``timedelta`` raises an error for NaN and large numbers."""
    bounds = raw.setting.bounds or Bounds(0, 0)
    return timedelta(**{raw.setting.form: min(max(bounds.low, parse(raw)), bounds.high)})


def _parts(raw: RawValue) -> Iterable[str]:
    return filter(None, map(str.strip, raw.text.split(",")))


def _bounded(raw: RawValue, text: str, parse: Callable[[str], Number]) -> Number:
    """Parse a number. If it is out of bounds, it is reported but kept, for `conflicts`."""
    bounds = raw.setting.bounds or Bounds()
    try:
        value = parse(text)
    except ValueError:
        raw.refuse(f"must be a {'whole ' if parse is texts.whole else ''}number", repr(text))
        return parse(raw.setting.default or str(bounds.low))
    if value not in bounds:
        raw.refuse(f"must be {bounds}", text)
    return value


SCALARS: Mapping[Any, Callable[[RawValue], Any]] = {
    bool: flag,
    float: optional_number,
    int: whole,
    str: text,
    timedelta: duration,
}
LISTS: Mapping[Any, Callable[[RawValue], Any]] = {str: names, float: numbers}
