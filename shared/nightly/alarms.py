"""What people are told of event trends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, time

from shared.notifications.news import News, NewsKind, Severity
from shared.sampling.trend_rows import Trend
from shared.sampling.verdict import LOST, Finding


def alarms(trends: Iterable[Trend]) -> Iterator[News]:
    """One for each event and day on which events, or values of their measurement, went missing."""
    for trend in trends:
        if trend.verdict not in LOST:
            continue
        of_sum = trend.verdict == Finding.MEASUREMENT_LOST
        what = f"values of {trend.measurement}" if of_sum else "events"
        yield News(
            news_id=f"{trend.kind}/{trend.name}/{trend.date}" + ("/sum" if of_sum else ""),
            kind=NewsKind.TREND_ALARM,
            subject=trend.name,
            time=datetime.combine(date.fromisoformat(trend.date), time(), UTC),
            headline=f"{trend.name}: {what} of {trend.date} are missing",
            text=trend.reason,
            severity=Severity.ERROR,
            source="/api/trends",
            data={
                "date": trend.date,
                "sampling_rate": trend.sampling_rate,
                "figure": trend.figure,
            },
        )
