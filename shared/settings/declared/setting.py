"""What a setting is, for whoever reads it, writes about it, or looks for slips in its name."""

from __future__ import annotations

from dataclasses import dataclass

NO_LIMIT = float("inf")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of a number, both ends included."""

    low: float
    high: float = NO_LIMIT

    def __str__(self) -> str:
        if self.high < NO_LIMIT:
            return f"{self.low:g} to {self.high:g}"
        return f"at least {self.low:g}"


@dataclass(frozen=True, slots=True)
class Setting:
    """One app setting. Text is as a settings file has it; ``meaning`` may use Markdown."""

    name: str
    form: str
    """What it may be, in a few words, with the unit of a number."""

    default: str
    meaning: str
    used_by: str = ""
    """Functions, or ``rules`` for scaling_rules.py; empty: as the section says."""

    bounds: Bounds | None = None
    unset: str = "none"
    """What holds where there is neither a value nor a default."""

    secret: bool = False
    example: str | None = None
    """What local.settings.json.example has, where that is not the default."""


@dataclass(frozen=True, slots=True)
class Section:
    """A table of the reference."""

    title: str
    used_by: str
    settings: tuple[Setting, ...]


def number(
    name: str, unit: str, default: str, bounds: Bounds, meaning: str, used_by: str = "",
    unset: str = "none",
) -> Setting:  # fmt: skip
    return Setting(name, unit or "number", default, meaning, used_by, bounds, unset)


def schedule(name: str, default: str, meaning: str, used_by: str) -> Setting:
    return Setting(name, "schedule", default, meaning, used_by)
