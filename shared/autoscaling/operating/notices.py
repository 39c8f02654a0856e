"""News for operators: events from a resource's log, and lasting conditions from its state.

All functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta

from shared.autoscaling.activation import DEPLOYMENT, told
from shared.autoscaling.deciding import clocks
from shared.autoscaling.deciding.decide import (
    POLICY_UNANSWERED,
    EntryKind,
    LogEntry,
    effective_mode,
)
from shared.autoscaling.deciding.samples import known_capacity
from shared.autoscaling.declaring import Mode
from shared.autoscaling.learning.backlogs import Unfallen, unfallen
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
    news = [*_stale(resource, state, now), *_unfallen(resource, state, now)]
    decided = [line for line in lines if line.kind is EntryKind.DECISION]
    if newest := max(decided, key=lambda line: line.time, default=None):
        news += _unanswered(resource, newest, now)
        news += _at_maximum(resource, state, newest, now, at_maximum_minutes)
    rules, beside = state.rules, told(state.rules, now)
    if rules is not None and beside and now - rules.activated_at > DEPLOYMENT:
        headline = f"{resource.name}: copies of the app run with different rules"
        kind, warning = NewsKind.RULES_DIFFER, Severity.WARNING
        news.append(News("", kind, resource.name, now, headline, beside, warning))
    if difference := clocks.told(state):
        subject, headline = f"{resource.name}/clock", f"{resource.name}: {difference}"
        text = "Samples are dated by the clock of the storage account."
        news.append(News("", NewsKind.SOURCE_STALE, subject, now, headline, text, Severity.WARNING))
    return news


def _unanswered(resource: Resource, newest: LogEntry, now: datetime) -> Iterator[News]:
    """The condition that the policy does not answer."""
    if POLICY_UNANSWERED in newest.limited_by:
        name, kind = resource.name, NewsKind.POLICY_UNANSWERED
        headline = f"{name}: the policy does not answer, so the capacity is held"
        yield News("", kind, name, now, headline, newest.reason, Severity.ERROR)


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


def _unfallen(resource: Resource, state: ScalingState, now: datetime) -> Iterator[News]:
    """The backlogs that have not fallen for long."""
    for each in unfallen(resource, state):
        subject, headline = f"{resource.name}/{each.stall.metric}", f"{resource.name}: {each.text}"
        text = unfallen_text(resource, state, each, now)
        kind, severity = NewsKind.BACKLOG_UNFALLEN, Severity.WARNING
        yield News("", kind, subject, now, headline, text, severity)


def unfallen_text(resource: Resource, state: ScalingState, found: Unfallen, now: datetime) -> str:
    """How long items may have waited, and what to check.

    The text says only what was seen if the capacity cannot rise, because the backlog may then not
    fall although all instances work.
    """
    oldest_at, capacity = found.stall.oldest_at, known_capacity(state)
    waited = (
        f"The oldest item arrived at {oldest_at:%Y-%m-%d %H:%M} UTC or later." if oldest_at else ""
    )
    fixed = effective_mode(resource, state, now)[0] is not Mode.ACTIVE
    if fixed or (capacity is not None and capacity.value >= resource.limits.maximum):
        return waited
    cause = "Check that the instances process items."
    if not found.none_finished:
        cause = f"Either more work arrives than the instances finish, or they do not work. {cause}"
    return f"{waited} {cause}".lstrip()


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


def _at_maximum(
    resource: Resource,
    state: ScalingState,
    newest: LogEntry,
    now: datetime,
    minutes: float,
) -> Iterator[News]:
    """The condition that the resource has long been at its maximum and the policy recommends no
    less.
    """
    maximum = resource.limits.maximum
    since = _since_at_least(maximum, state)
    if since is None or now - since < timedelta(minutes=minutes):
        return
    if not held_at_maximum(newest.current, newest.candidates, resource.limits):
        return
    recommendation = newest.candidates[0]
    lasted = (now - since).total_seconds() / 60
    headline = f"{resource.name}: at its maximum of {maximum} for {lasted:.0f} min"
    text = f"The policy recommends {recommendation.capacity}: {recommendation.reason}"
    yield News("", NewsKind.AT_MAXIMUM, resource.name, now, headline, text, Severity.WARNING)


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
