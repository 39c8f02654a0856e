"""The log entries of which operators are notified. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.values.news import News, NewsKind, Severity

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
