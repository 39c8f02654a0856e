"""What of a resource's log and state people may want to know, and what lasts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta

from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.measurements import CAPACITY_METRIC
from shared.autoscaling.operating.staleness import meanwhile, silent_after_seconds
from shared.autoscaling.policy import Resource
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
    """One for each line that tells of something that happened."""
    for line in lines:
        if line.kind not in EVENTS:
            continue
        kind, severity = EVENTS[line.kind]
        changed = line.current is not None and line.current != line.desired
        what = f"{line.current} → {line.desired}" if changed else str(line.kind).replace("_", " ")
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
    """What lasts at ``now``; ``lines`` are the newest of the log.

    Without an id: who tells them knows when they began.
    """
    news = list(_stale(resource, state, now))
    if condition := _at_maximum(resource, state, lines, now, at_maximum_minutes):
        news.append(condition)
    return news


def _stale(resource: Resource, state: ScalingState, now: datetime) -> Iterator[News]:
    """A source that never answered is stale from the first sample of another one on."""
    seen = [history.samples[0].time for history in state.histories.values() if history.samples]
    for name in (CAPACITY_METRIC, *resource.metrics):
        history = state.histories.get(name)
        kept = history.samples if history else ()
        since = kept[-1].time if kept else min(seen, default=now)
        silent_seconds = (now - since).total_seconds()
        if silent_seconds > silent_after_seconds(resource, name):
            headline = f"{resource.name}: {name} has no sample for {silent_seconds / 60:.0f} min"
            subject, text = f"{resource.name}/{name}", meanwhile(resource, name)
            yield News("", NewsKind.SOURCE_STALE, subject, now, headline, text, Severity.WARNING)


def unreadable_state(resource: Resource, reason: str, now: datetime) -> News:
    """Nothing can be decided while a row of the state that decisions depend on is unreadable."""
    headline = f"{resource.name}: its state cannot be read, nothing is decided"
    return News("", NewsKind.UNREADABLE, resource.name, now, headline, reason, Severity.ERROR)


def unreadable_rows(resource: Resource, reasons: Sequence[str], now: datetime) -> list[News]:
    """Rows that the resource does without, as one condition."""
    if not reasons:
        return []
    headline = f"{resource.name}: goes on without what it cannot read"
    text = "; ".join(reasons)
    return [News("", NewsKind.UNREADABLE, resource.name, now, headline, text, Severity.WARNING)]


def long_at_maximum(
    resource: Resource, state: ScalingState, now: datetime, minutes: float
) -> datetime | None:
    """Since when the resource is at its maximum, where that has lasted for so long."""
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
    """At the maximum for so long, and the newest decision's rule wants no less.

    Whether it wants more is not always known: rules that know the limits stay within them.
    """
    maximum = resource.limits.maximum
    since = long_at_maximum(resource, state, now, minutes)
    decided = [line for line in lines if line.kind is EntryKind.DECISION]
    newest = max(decided, key=lambda line: line.time, default=None)
    if since is None or newest is None or (newest.current or 0) < maximum:
        return None
    wish = newest.candidates
    if not wish or wish[0].capacity < maximum:
        return None
    lasted = (now - since).total_seconds() / 60
    headline = f"{resource.name}: at its maximum of {maximum} for {lasted:.0f} min"
    text = f"The rule wants {wish[0].capacity}: {wish[0].reason}"
    return News("", NewsKind.AT_MAXIMUM, resource.name, now, headline, text, Severity.WARNING)


def _since_at_least(capacity: int, state: ScalingState) -> datetime | None:
    """From when on there were so many instances. Runs of equal capacities keep their beginning."""
    since = None
    history = state.histories.get(CAPACITY_METRIC)
    for sample in reversed(history.samples if history else ()):
        if sample.value < capacity:
            break
        since = sample.time
    return since
