"""How a setting is declared and read: one field in a model of its capability.

    minimum_samples: int = setting(whole, "MinimumSamples", "whole number", 5,
        "fewer samples than this: no decision", bounds=(1, 1000))

This parses the environment, and is a row of docs/settings.md. What is wrong with a value is
collected, and its default takes its place where it cannot be parsed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, NamedTuple, Self, TypeVar, cast

from croniter import croniter

T = TypeVar("T")
Number = TypeVar("Number", int, float)
Model = TypeVar("Model", bound="SettingsModel")
Environ = Mapping[str, str]
NO_LIMIT = float("inf")
INTERVAL = re.compile(r"(\d+\.)?\d{1,2}:[0-5]\d:[0-5]\d")
HTTPS = r"https://[A-Za-z0-9.-]+(?::\d{1,5})?"
LOOPBACK = r"http://(?:127\.0\.0\.1|localhost)(?::\d{1,5})?"


class Bounds(NamedTuple):
    """Of a number, both ends included."""

    low: float
    high: float

    def __str__(self) -> str:
        if self.high < NO_LIMIT:
            return f"{self.low:g} to {self.high:g}"
        return f"at least {self.low:g}"


@dataclass(frozen=True)
class Setting:
    """One app setting. Text is as a settings file has it; ``meaning`` may use Markdown."""

    name: str
    form: str
    """What it may be, in a few words; the unit of a number."""
    default: str
    meaning: str
    used_by: str = ""
    """Functions, or ``rules`` for scaling_rules.py; empty: as the section says."""
    bounds: Bounds | None = None
    pattern: str = ".*"
    """Of a text, or of each name in a list."""
    must: str = ""
    """What is said where the pattern does not match."""
    unset: str = "none"
    """What holds where there is neither a value nor a default."""
    secret: bool = False
    hidden: bool = False
    """In no repr and no problem, because a part of it may be a secret."""
    example: str | None = None
    """What local.settings.json.example has, where that is not the default."""


class Section(NamedTuple):
    """A table of the reference."""

    title: str
    used_by: str
    settings: tuple[Setting, ...]


@dataclass(frozen=True)
class RawValue:
    """The text that a setting has, its default where it is empty, and the list of all problems."""

    setting: Setting
    text: str
    environ: Environ
    problems: list[str]

    def refuse(self, bound: str, shown: str = "") -> None:
        """Report the value, or the part of it that is shown. A secret is not repeated."""
        hidden = self.setting.secret or self.setting.hidden
        value = "" if hidden else f" = {shown or repr(self.text)}"
        self.problems.append(f"{self.setting.name}{value}: {bound}")

    def matches(self, text: str) -> bool:
        matched = re.fullmatch(self.setting.pattern, text, re.DOTALL) is not None
        if not matched:
            self.refuse(self.setting.must or f"must match {self.setting.pattern}", repr(text))
        return matched


class SettingsModel:
    """A frozen dataclass, each field of which is a `setting` or a `group` of them."""

    @classmethod
    def read(cls, environ: Environ, problems: list[str]) -> Self:
        """All fields, from the environment; what is wrong goes to ``problems``."""
        readers = {each.name: each.metadata["read"] for each in fields(cast(Any, cls))}
        found = cls(**{name: reader(environ, problems) for name, reader in readers.items()})
        problems += found.conflicts()
        return found

    def conflicts(self) -> Iterable[str]:
        """What is wrong with settings together, each of which may be right."""
        return ()


def settings_of(*models: type[SettingsModel]) -> tuple[Setting, ...]:
    """What the models declare, in order; those of a group in its place."""
    each_field = (each for model in models for each in fields(cast(Any, model)))
    return tuple(setting for each in each_field for setting in each.metadata["settings"])


def setting(
    parse: Callable[[RawValue], T], name: str, form: str, default: str | float, meaning: str,
    used_by: str = "", bounds: tuple[float, float] | None = None, **options: Any,
) -> T:  # fmt: skip
    """A field of a settings model. The options are fields of `Setting`."""
    limits = Bounds(*bounds) if bounds else None
    declared = Setting(name, form, str(default), meaning, used_by, limits, **options)

    def read(environ: Environ, problems: list[str]) -> T:
        text = environ.get(name, "").strip() or declared.default
        return parse(RawValue(declared, text, environ, problems))

    shown = not (declared.secret or declared.hidden)
    return cast(T, field(repr=shown, metadata={"read": read, "settings": (declared,)}))


def group(model: type[Model]) -> Model:
    """A field that is a model of its own."""
    return cast(Model, field(metadata={"read": model.read, "settings": settings_of(model)}))


def whole_environment() -> Environ:
    """A field that keeps what the others are read from."""
    metadata = {"read": lambda environ, _: environ, "settings": ()}
    return cast(Environ, field(repr=False, metadata=metadata))


def text(raw: RawValue) -> str:
    return raw.text if not raw.text or raw.matches(raw.text) else raw.setting.default


def address(raw: RawValue) -> str:
    return text(raw).rstrip("/")


def required(raw: RawValue) -> str:
    if not raw.text:
        raw.refuse("must be set")
    return text(raw)


def names(raw: RawValue) -> tuple[str, ...]:
    """What stands between commas."""
    return tuple(part for part in _parts(raw) if raw.matches(part))


def choice(options: Sequence[T]) -> Callable[[RawValue], T]:
    """One of them; an empty text may be one."""
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
    """A schedule of the Functions host."""
    cron_fields = len(raw.text.split())
    is_cron = cron_fields == 6 and croniter.is_valid(raw.text, second_at_beginning=True)
    if not is_cron and not INTERVAL.fullmatch(raw.text):
        such = f"such as {raw.setting.default!r}, or hh:mm:ss"
        raw.refuse(f"must be 6 cron fields, seconds first, {such}")
    return raw.text


def whole(raw: RawValue) -> int:
    return _bounded(raw, raw.text, int)


def number(raw: RawValue) -> float:
    return _bounded(raw, raw.text, float)


def optional_number(raw: RawValue) -> float | None:
    """None where it is left out: then it is not known."""
    return number(raw) if raw.text else None


def numbers(raw: RawValue) -> tuple[float, ...]:
    return tuple(_bounded(raw, part, float) for part in _parts(raw))


def duration(raw: RawValue, parse: Callable[[RawValue], float] = number) -> timedelta:
    """The unit is an argument of ``timedelta``, which bears neither NaN nor more than its limit."""
    low, high = raw.setting.bounds or (0, 0)
    return timedelta(**{raw.setting.form: min(max(low, parse(raw)), high)})


def _parts(raw: RawValue) -> Iterable[str]:
    return filter(None, map(str.strip, raw.text.split(",")))


def _bounded(raw: RawValue, text: str, parse: Callable[[str], Number]) -> Number:
    """A number out of bounds is kept, so that it is compared with others as it is."""
    bounds = raw.setting.bounds or Bounds(-NO_LIMIT, NO_LIMIT)
    try:
        value = parse(text)
    except ValueError:
        raw.refuse(f"must be a {'whole ' if parse is int else ''}number", repr(text))
        return parse(raw.setting.default or str(bounds.low))
    if not bounds.low <= value <= bounds.high:  # false for NaN too
        raw.refuse(f"must be {bounds}", text)
    return value
