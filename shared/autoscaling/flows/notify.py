"""Collects the news of all resources for the notifier: recent events and lasting conditions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from functools import partial

from shared.autoscaling.deciding.decide import EntryKind, LogEntry, effective_override
from shared.autoscaling.declaring import Mode
from shared.autoscaling.errors import StateUnreadable
from shared.autoscaling.flows.poison import UNATTRIBUTED
from shared.autoscaling.flows.status import AT_ONCE_MAX
from shared.autoscaling.operating.conditions import conditions, state_unreadable
from shared.autoscaling.policy import Resource
from shared.autoscaling.ports import StateStore
from shared.autoscaling.state import Override
from shared.notifications.ports import Observed
from shared.values.concurrency import gathered
from shared.values.news import News, NewsKind, Severity

ENTRIES_MAX = 20_000


async def collect_news(
    resources: Iterable[Resource],
    store: StateStore,
    since: datetime,
    now: datetime,
    at_maximum_minutes: float,
) -> Observed:
    """The events since ``since``, also of poison messages that name no declared resource, and the
    conditions at ``now``."""
    log_of = partial(store.log, limit=ENTRIES_MAX, since=since, changes_only=True)

    async def observed(resource: Resource) -> Observed:
        recent = list(events(await log_of(resource.name)))
        try:
            snapshot = replace(await store.load(resource.name), read_at=now)
        except StateUnreadable as error:
            unreadable = state_unreadable(resource.name, str(error))
            return Observed(recent, [unreadable], [resource.name])
        if _is_quiet(effective_override(snapshot.state, now)):
            return Observed(recent, [], [resource.name])
        return Observed(recent, conditions(resource, snapshot, at_maximum_minutes))

    answers = await gathered(observed, resources, AT_ONCE_MAX)
    unattributed = events(await log_of(UNATTRIBUTED))
    return Observed(
        [*[news for answer in answers for news in answer.events], *unattributed],
        [found for answer in answers for found in answer.conditions],
        [name for answer in answers for name in answer.unread],
    )


def _is_quiet(override: Override | None) -> bool:
    """Whether an operator has paused the resource for a time, such as that of a deployment. A pause
    without an end, which may be forgotten, silences nothing."""
    return bool(override and override.mode is Mode.PAUSED and override.expires_at)


EVENTS = {
    EntryKind.CONFIRMED: (NewsKind.SCALED, Severity.INFO),
    EntryKind.FAILED: (NewsKind.SCALING_REFUSED, Severity.ERROR),
    EntryKind.POISON: (NewsKind.POISON, Severity.WARNING),
    EntryKind.OVERRIDE: (NewsKind.OVERRIDE, Severity.INFO),
    EntryKind.MANUAL_CHANGE: (NewsKind.MANUAL_CHANGE, Severity.WARNING),
}


def events(entries: Iterable[LogEntry]) -> Iterator[News]:
    """The news of those log entries that operators are notified of."""
    for each in entries:
        if each.kind not in EVENTS:
            continue
        kind, severity = EVENTS[each.kind]
        changed = each.current is not None and each.current != each.desired
        what = f"{each.current} → {each.desired}" if changed else str(each.kind).replace("_", " ")
        if changed and each.kind is EntryKind.FAILED:
            what += " failed"
        yield News(
            news_id=f"{each.resource_name}/{each.kind}/{each.entry_id}",
            kind=kind,
            subject=each.resource_name,
            time=each.time,
            headline=f"{each.resource_name}: {what}",
            text=each.reason,
            severity=severity,
            data={"current": each.current, "desired": each.desired, "epoch": each.epoch},
        )
