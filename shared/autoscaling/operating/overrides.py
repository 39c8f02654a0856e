"""Overrides by operators: their validation, their duration and their log entry. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.errors import OverrideRefused
from shared.autoscaling.policy import Resource
from shared.autoscaling.state import Override
from shared.values.durations import short
from shared.values.text import line_problem, quoted

DURATION_MAX = timedelta(days=366)
TEXT_LENGTH_MAX = 500


@dataclass(frozen=True, slots=True)
class Change:
    """A request to set an override, or to remove it where ``override`` is None. ``by`` names the
    operator. ``change_id`` is unique for each change."""

    override: Override | None
    by: str
    change_id: str
    lasts: timedelta | None = None
    """If None, the override lasts until it is removed."""


def check(change: Change, resource: Resource) -> None:
    """Raises OverrideRefused, which names what is wrong and what is allowed."""
    override = change.override
    reason = override.reason if override else "removed"
    for field, text in (("by", change.by), ("reason", reason)):
        if problem := line_problem(text, TEXT_LENGTH_MAX):
            raise OverrideRefused(f"{field}: {problem}")
    if override is None:
        return
    if replace(override, reason="") == Override():
        raise OverrideRefused(
            "the override changes nothing: give a mode, exact, floor or freeze_scale_in"
        )
    if override.floor is not None and override.exact is not None:
        raise OverrideRefused("floor and exact exclude each other: give one of them")
    low, high = resource.limits.minimum, resource.limits.maximum
    for field, value in (("floor", override.floor), ("exact", override.exact)):
        if value is not None and not low <= value <= high:
            raise OverrideRefused(
                f"{field} = {quoted(value)}: must be {low} to {high}, the limits of {resource.name}"
            )


def starting(change: Change, now: datetime) -> Override | None:
    """The override with the expiry that results from a start at ``now``, by the store's clock."""
    if change.override is None or change.lasts is None:
        return change.override
    return replace(change.override, expires_at=now + change.lasts)


def override_entry(
    resource: Resource, change: Change, now: datetime, present: Override | None
) -> LogEntry:
    """The entry of the decision log: the override, its author and its reason."""
    override = starting(change, now)
    what = described(override) if override or present else "no override was set; removal asked"
    text = f"{what} by {change.by}"
    return LogEntry(
        resource_name=resource.name,
        time=now,
        kind=EntryKind.OVERRIDE,
        entry_id=f"override-{change.change_id}",
        reason=f"{text}: {override.reason}" if override else text,
        evidence={"by": change.by},
    )


def described(override: Override | None) -> str:
    """The override in words, such as ``at least 3, no scale-in until 2026-03-01T18:00:00Z``."""
    if override is None:
        return "override removed"
    parts = [str(override.mode).replace("_", " ")] if override.mode else []
    if override.exact is not None:
        parts.append(f"exactly {override.exact}")
    if override.floor is not None:
        parts.append(f"at least {override.floor}")
    if override.freeze_scale_in:
        parts.append("no scale-in")
    until = f" until {override.expires_at:%Y-%m-%dT%H:%M:%SZ}" if override.expires_at else ""
    return ", ".join(parts) + until


def duration(text: str) -> timedelta:
    """The duration that a text such as ``2h`` or ``1d12h`` states. Raises OverrideRefused."""
    try:
        lasts = short(text)
    except ValueError:
        lasts = timedelta(0)
    if not timedelta(0) < lasts <= DURATION_MAX:
        raise OverrideRefused(
            f"{text!r}: must be a duration such as 90m, 2h or 1d12h, at most 366d"
        )
    return lasts
