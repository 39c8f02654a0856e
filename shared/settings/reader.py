"""Parses values as they are declared, and collects what is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from croniter import croniter

from shared.settings.declared import SETTINGS, Bounds
from shared.values.redaction import redacted

Number = TypeVar("Number", int, float)
INTERVAL = re.compile(r"(\d+\.)?\d{1,2}:[0-5]\d:[0-5]\d")


class SettingsError(Exception):
    """The app cannot start: the settings or scaling_rules.py are wrong."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(redacted(problem) for problem in problems)
        lines = "\n".join(f"  - {problem}" for problem in self.problems)
        super().__init__(f"{len(self.problems)} problem(s) in settings and rules:\n{lines}")


class Reader:
    """Parses values and collects what is wrong with them instead of stopping at the first.

    Defaults and bounds are those that are declared.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.problems: list[str] = []

    def raise_problems(self) -> None:
        if self.problems:
            raise SettingsError(self.problems)

    def connection(self, found: object) -> None:
        if isinstance(found, str):
            self.problems.append(found)

    def required(self, key: str, pattern: re.Pattern[str] | None = None) -> str:
        value = self._given(key)
        if not value:
            self.problems.append(f"{key} = '': must be set")
        elif pattern is not None and not pattern.fullmatch(value):
            self.problems.append(f"{key} = {value!r}: must match {pattern.pattern}")
        return value

    def text(self, key: str) -> str:
        return self._given(key) or SETTINGS[key].default

    def numbers(self, key: str) -> tuple[float, ...]:
        """Any number of numbers between commas."""
        bounds = _bounds(key)
        parts = [part.strip() for part in self._given(key).split(",") if part.strip()]
        return tuple(self._bounded(key, part, bounds.low, bounds, float) for part in parts)

    def number(self, key: str) -> float:
        return self._bounded(
            key, self._given(key), float(SETTINGS[key].default), _bounds(key), float
        )

    def optional(self, key: str) -> float | None:
        """A number that may be left out: then it is not known."""
        given, bounds = self._given(key), _bounds(key)
        return self._bounded(key, given, bounds.low, bounds, float) if given else None

    def whole(self, key: str) -> int:
        return self._bounded(key, self._given(key), int(SETTINGS[key].default), _bounds(key), int)

    def flag(self, key: str) -> bool:
        text = self._given(key).lower()
        if text not in ("true", "1", "false", "0", ""):
            self.problems.append(f"{key} = {text!r}: must be true or false")
            text = ""
        return (text or SETTINGS[key].default) in ("true", "1")

    def schedule(self, key: str) -> str:
        text = self.text(key)
        six_fields = len(text.split()) == 6 and croniter.is_valid(text, second_at_beginning=True)
        if not six_fields and not INTERVAL.fullmatch(text):
            such = f"must be 6 cron fields, seconds first, such as {SETTINGS[key].default!r}"
            self.problems.append(f"{key} = {text!r}: {such}, or hh:mm:ss")
        return text

    def endpoint(self, key: str) -> str:
        text = self.text(key).rstrip("/")
        if not re.fullmatch(r"https://[A-Za-z0-9.-]+(:\d{1,5})?", text):
            self.problems.append(f"{key} = {text!r}: must look like {SETTINGS[key].default}")
        return text

    def _given(self, key: str) -> str:
        return self.environ.get(key, "").strip()

    def _bounded(
        self, key: str, text: str, default: Number, bounds: Bounds, parse: Callable[[str], Number]
    ) -> Number:
        try:
            value = parse(text) if text else default
        except ValueError:
            kind = "a whole number" if parse is int else "a number"
            self.problems.append(f"{key} = {text!r}: must be {kind}")
            return default
        if not bounds.low <= value <= bounds.high:  # false for NaN too
            self.problems.append(f"{key} = {text}: must be {bounds}")
        return value


def _bounds(key: str) -> Bounds:
    bounds = SETTINGS[key].bounds
    assert bounds is not None
    return bounds
