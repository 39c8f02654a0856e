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
