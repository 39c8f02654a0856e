"""News for operators: events from a resource's log, and lasting conditions from its state.

All functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta

from shared.autoscaling.deciding import clocks
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.measurements import CAPACITY_METRIC
from shared.autoscaling.operating.staleness import meanwhile, silent_after_seconds
from shared.autoscaling.policy import Resource, held_at_maximum
from shared.autoscaling.state import ScalingState
from shared.notifications.news import News, NewsKind, Severity

EVENTS = {
    EntryKind.CONFIRMED: (NewsKind.SCALED, Severity.INFO),
    EntryKind.FAILED: (NewsKind.SCALING_REFUSED, Severity.ERROR),
    EntryKind.POISON: (NewsKind.POISON, Severity.WARNING),
    EntryKind.OVERRIDE: (NewsKind.OVERRIDE, Severity.INFO),
    EntryKind.MANUAL_CHANGE: (NewsKind.MANUAL_CHANGE, Severity.WARNING),
}


def events(lines: Iterable[LogEntry]) -> Iterator[News]:
    """The news of those log entries that operators are notified of."""
    for line in lines:
        if line.kind not in EVENTS:
            continue
        kind, severity = EVENTS[line.kind]
        changed = line.current is not None and line.current != line.desired
        what = f"{line.current} → {line.desired}" if changed else str(line.kind).replace("_", " ")
        if changed and line.kind is EntryKind.FAILED:
            what += " failed"
        yield News(
            news_id=f"{line.resource_name}/{line.kind}/{line.entry_id}",
            kind=kind,
            subject=line.resource_name,
            time=line.time,
            headline=f"{line.resource_name}: {what}",
            text=line.reason,
            severity=severity,
            data={"current": line.current, "desired": line.desired, "epoch": line.epoch},
        )


def conditions(
    resource: Resource,
    state: ScalingState,
    lines: Sequence[LogEntry],
    now: datetime,
    at_maximum_minutes: float,
) -> list[News]:
    """The conditions that last at ``now``. ``lines`` are the newest entries of the log.

    Conditions have no id, because the notifier records when each one began.
    """
    news = list(_stale(resource, state, now))
    if told := clocks.told(state):
        subject, headline = f"{resource.name}/clock", f"{resource.name}: {told}"
        text = "Samples are dated by the clock of the storage account."
        news.append(News("", NewsKind.SOURCE_STALE, subject, now, headline, text, Severity.WARNING))
    if condition := _at_maximum(resource, state, lines, now, at_maximum_minutes):
        news.append(condition)
    return news


def _stale(resource: Resource, state: ScalingState, now: datetime) -> Iterator[News]:
    """The metrics without recent samples.

    A metric without any sample counts as silent since the first sample of any other metric.
    """
    first = [history.samples[0].time for history in state.histories.values() if history.samples]
    for name in (CAPACITY_METRIC, *resource.metrics):
        history = state.histories.get(name)
        kept = history.samples if history else ()
        since = kept[-1].time if kept else min(first, default=now)
        silent_seconds = (now - since).total_seconds()
        if silent_seconds > silent_after_seconds(resource, name):
            headline = f"{resource.name}: no sample of {name} for {silent_seconds / 60:.0f} min"
            subject, text = f"{resource.name}/{name}", meanwhile(resource, state, name, now)
            yield News("", NewsKind.SOURCE_STALE, subject, now, headline, text, Severity.WARNING)


def unreadable_state(resource: Resource, reason: str, now: datetime) -> News:
    """The condition that no decision is possible, because a row of the state cannot be read."""
    headline = f"{resource.name}: the state cannot be read, so nothing is decided"
    return News("", NewsKind.UNREADABLE, resource.name, now, headline, reason, Severity.ERROR)


def unreadable_rows(resource: Resource, reasons: Sequence[str], now: datetime) -> list[News]:
    """One condition for all unreadable rows that decisions do not need."""
    if not reasons:
        return []
    headline = f"{resource.name}: decisions ignore {len(reasons)} row(s) that cannot be read"
    text = "; ".join(reasons)
    return [News("", NewsKind.UNREADABLE, resource.name, now, headline, text, Severity.WARNING)]


def long_at_maximum(
    resource: Resource, state: ScalingState, now: datetime, minutes: float
) -> datetime | None:
    """The time since which the resource is at its maximum; None if that is less than ``minutes``
    ago.
    """
    since = _since_at_least(resource.limits.maximum, state)
    lasted = since is not None and now - since >= timedelta(minutes=minutes)
    return since if lasted and resource.limits.minimum < resource.limits.maximum else None


def _at_maximum(
    resource: Resource,
    state: ScalingState,
    lines: Sequence[LogEntry],
    now: datetime,
    minutes: float,
) -> News | None:
    """The condition that the resource has long been at its maximum and the policy recommends no
    less.
    """
    since = long_at_maximum(resource, state, now, minutes)
    decided = [line for line in lines if line.kind is EntryKind.DECISION]
    newest = max(decided, key=lambda line: line.time, default=None)
    if since is None or newest is None:
        return None
    if not held_at_maximum(newest.current, newest.candidates, resource.limits):
        return None
    maximum = resource.limits.maximum
    recommendation = newest.candidates[0]
    lasted = (now - since).total_seconds() / 60
    headline = f"{resource.name}: at its maximum of {maximum} for {lasted:.0f} min"
    text = f"The policy recommends {recommendation.capacity}: {recommendation.reason}"
    return News("", NewsKind.AT_MAXIMUM, resource.name, now, headline, text, Severity.WARNING)


def _since_at_least(capacity: int, state: ScalingState) -> datetime | None:
    """The time since which the capacity has been at least this high; None if it is lower now.

    The first sample of a run of equal capacities is always kept.
    """
    since = None
    history = state.histories.get(CAPACITY_METRIC)
    for sample in reversed(history.samples if history else ()):
        if sample.value < capacity:
            break
        since = sample.time
    return since
