"""Overrides by people: what may be set, for how long, and the log line it leaves. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.errors import OverrideRefused
from shared.autoscaling.policy import Resource
from shared.autoscaling.state import Override
from shared.values.text import shown

DURATION = re.compile(r"(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,6})s)?")
DURATION_MAX = timedelta(days=366)
TEXT_LENGTH_MAX = 500


@dataclass(frozen=True, slots=True)
class Change:
    """What a person wants to hold from now on. None takes back whatever was said before.

    ``change_id`` is the caller's, one for each change.
    """

    override: Override | None
    by: str
    change_id: str
    lasts: timedelta | None = None
    """None: until it is taken back."""


def check(change: Change, resource: Resource) -> None:
    """Raises OverrideRefused, which names what is wrong and what would do."""
    for field, text in (("by", change.by), ("reason", _reason(change))):
        if not text.strip() or len(text) > TEXT_LENGTH_MAX or not text.isprintable():
            raise OverrideRefused(
                f"{field}: 1 to {TEXT_LENGTH_MAX} characters in one line are needed"
            )
    override = change.override
    if override is None:
        return
    if replace(override, reason="") == Override():
        raise OverrideRefused("nothing is asked for: give a mode, exact, floor or freeze_scale_in")
    if override.floor is not None and override.exact is not None:
        raise OverrideRefused("floor and exact: give one of them")
    low, high = resource.limits.minimum, resource.limits.maximum
    for field, wanted in (("floor", override.floor), ("exact", override.exact)):
        if wanted is not None and not low <= wanted <= high:
            raise OverrideRefused(
                f"{field} = {shown(wanted)}: must be {low} to {high}, the limits of {resource.name}"
            )


def starting(change: Change, now: datetime) -> Override | None:
    """The override as it is written: its duration ends at a time of the store's clock."""
    if change.override is None or change.lasts is None:
        return change.override
    return replace(change.override, expires_at=now + change.lasts)


def line(resource: Resource, change: Change, now: datetime) -> LogEntry:
    """Who said what, and why, for the decision log."""
    override = starting(change, now)
    text = f"{described(override)} by {change.by}"
    return LogEntry(
        resource_name=resource.name,
        time=now,
        kind=EntryKind.OVERRIDE,
        entry_id=f"override-{change.change_id}",
        reason=f"{text}: {override.reason}" if override else text,
        evidence={"by": change.by},
    )


def described(override: Override | None) -> str:
    """In words, such as ``floor 3, no scale-in until 2026-03-01T18:00:00Z``."""
    if override is None:
        return "back to the rules"
    said = [str(override.mode).replace("_", " ")] if override.mode else []
    if override.exact is not None:
        said.append(f"exactly {override.exact}")
    if override.floor is not None:
        said.append(f"at least {override.floor}")
    if override.freeze_scale_in:
        said.append("no scale-in")
    until = f" until {override.expires_at:%Y-%m-%dT%H:%M:%SZ}" if override.expires_at else ""
    return ", ".join(said) + until


def duration(text: str) -> timedelta:
    """``2h``, ``90m``, ``1d12h``. Raises OverrideRefused."""
    parts = DURATION.fullmatch(text.strip())
    counts = [int(count or 0) for count in parts.groups()] if parts else [0]
    days, hours, minutes, seconds = (*counts, 0, 0, 0)[:4]
    lasts = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    if not timedelta(0) < lasts <= DURATION_MAX:
        raise OverrideRefused(f"{text!r}: a duration such as 90m, 2h or 1d12h, at most 366d")
    return lasts


def _reason(change: Change) -> str:
    return change.override.reason if change.override else "taken back"
