"""Declares and parses settings. A setting is a field of the model of its capability.

    minimum_samples: int = setting(whole, "MinimumSamples", "whole number", 5,
        "number of samples required for a decision", bounds=(1, 1000))

The declaration defines how the environment is parsed, and becomes a row of docs/settings.md.
Problems are collected. A value that cannot be parsed is replaced by its default.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import Any, NamedTuple, Self, TypeVar, cast

from shared.settings.schedules import parse_cron
from shared.settings.variables import QUOTED, UNRESOLVED, is_quoted, is_unresolved, resolved
from shared.values import text as texts

T = TypeVar("T")
Number = TypeVar("Number", int, float)
Model = TypeVar("Model", bound="SettingsModel")
Environ = Mapping[str, str]
NO_LIMIT = float("inf")
INTERVAL = re.compile(r"(?:[0-9]{1,4}\.)?([0-9]{1,4}):[0-5][0-9]:[0-5][0-9]")
HOURS_END = 24
HTTPS = r"https://[A-Za-z0-9.-]+(?::[0-9]{1,5})?"
LOOPBACK = r"http://(?:127\.0\.0\.1|localhost)(?::[0-9]{1,5})?"


class Bounds(NamedTuple):
    """The bounds of a number, both inclusive."""

    low: float
    high: float

    def __str__(self) -> str:
        if self.high < NO_LIMIT:
            return f"{self.low:g} to {self.high:g}"
        return f"at least {self.low:g}"


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
    """The functions that use the setting, or ``rules`` for scaling_rules.py; empty to use the
    section's.
    """
    bounds: Bounds | None = None
    pattern: str = ".*"
    """The pattern of a text, or of each name in a list."""
    must: str = ""
    """The problem that is reported if the pattern does not match, such as "must be a URL"."""
    unset: str = "none"
    """The text for docs/settings.md if there is no default."""
    secret: bool = False
    hidden: bool = False
    """If true, the value is not shown in reprs and problems, because a part of it may be a secret.
    """
    example: str | None = None
    """The value in local.settings.json.example, if it differs from the default."""


class Section(NamedTuple):
    """A table of docs/settings.md."""

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
        """The value with each ``%NAME%`` replaced by that setting, as the host does in bindings. If
        one is missing, the value is the default."""
        try:
            return replace(self, text=resolved(self.text, self.environ))
        except ValueError as error:
            self.refuse(str(error))
            return replace(self, text=self.setting.default)

    def matches(self, text: str) -> bool:
        if odd := texts.odd_character(text):
            self.refuse(f"must be one line of text: {odd}", repr(text))
            return False
        matched = re.fullmatch(self.setting.pattern, text, re.DOTALL) is not None
        if not matched:
            self.refuse(self.setting.must or f"must match {self.setting.pattern}", repr(text))
        return matched


class SettingsModel:
    """The base of a frozen dataclass whose fields are each a `setting` or a `group`."""

    @classmethod
    def read(cls, environ: Environ, problems: list[str]) -> Self:
        """All fields, parsed from the environment. Problems are appended to ``problems``."""
        readers = {each.name: each.metadata["read"] for each in fields(cast(Any, cls))}
        model = cls(**{name: reader(environ, problems) for name, reader in readers.items()})
        problems += model.conflicts()
        return model

    def conflicts(self) -> Iterable[str]:
        """The problems of values that are valid alone but not in combination."""
        return ()


def settings_of(*models: type[SettingsModel]) -> tuple[Setting, ...]:
    """The settings of the models in order of declaration, including those of their groups."""
    each_field = (each for model in models for each in fields(cast(Any, model)))
    return tuple(setting for each in each_field for setting in each.metadata["settings"])


def setting(
    parse: Callable[[RawValue], T], name: str, form: str, default: str | float, meaning: str,
    used_by: str = "", bounds: tuple[float, float] | None = None, **options: Any,
) -> T:  # fmt: skip
    """A field of a settings model. The options are further fields of `Setting`."""
    limits = Bounds(*bounds) if bounds else None
    declared = Setting(name, form, str(default), meaning, used_by, limits, **options)

    def read(environ: Environ, problems: list[str]) -> T:
        raw = RawValue(
            declared, environ.get(name, "").strip() or declared.default, environ, problems
        )
        if is_unresolved(raw.text):
            raw.refuse(UNRESOLVED)
            return parse(RawValue(declared, declared.default, environ, []))
        return parse(raw)

    shown = not (declared.secret or declared.hidden)
    return cast(T, field(repr=shown, metadata={"read": read, "settings": (declared,)}))


def group(model: type[Model]) -> Model:
    """A field that is itself a settings model."""
    return cast(Model, field(metadata={"read": model.read, "settings": settings_of(model)}))


def whole_environment() -> Environ:
    """A field with the environment from which the other fields are parsed."""
    metadata = {"read": lambda environ, _: environ, "settings": ()}
    return cast(Environ, field(repr=False, metadata=metadata))


def text(raw: RawValue) -> str:
    return raw.text if not raw.text or raw.matches(raw.text) else raw.setting.default


def address(raw: RawValue) -> str:
    return text(raw).rstrip("/")


def entity(raw: RawValue) -> str:
    """The name of an entity, which may contain ``%NAME%``. Neither an address nor a resource ID."""
    raw = raw.with_names()
    if "://" in raw.text or "/subscriptions/" in raw.text.lower():
        raw.refuse("must be only the name, neither an address nor a path or resource ID")
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
    """A duration. The setting's ``form`` is its unit, by the name of an argument of ``timedelta``.
    The value is clamped to its bounds, because ``timedelta`` raises an error for NaN and large
    numbers.
    """
    low, high = raw.setting.bounds or (0, 0)
    return timedelta(**{raw.setting.form: min(max(low, parse(raw)), high)})


def _parts(raw: RawValue) -> Iterable[str]:
    return filter(None, map(str.strip, raw.text.split(",")))


def _bounded(raw: RawValue, text: str, parse: Callable[[str], Number]) -> Number:
    """Parse a number. If it is out of bounds, it is reported but kept, for `conflicts` to
    compare."""
    bounds = raw.setting.bounds or Bounds(-NO_LIMIT, NO_LIMIT)
    try:
        value = parse(text)
    except ValueError:
        raw.refuse(f"must be a {'whole ' if parse is texts.whole else ''}number", repr(text))
        return parse(raw.setting.default or str(bounds.low))
    if not bounds.low <= value <= bounds.high:  # false for NaN too
        raw.refuse(f"must be {bounds}", text)
    return value
