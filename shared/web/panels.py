"""Breakers, dead letters and trends as plain values for JSON and pages. All functions are pure."""

from __future__ import annotations

import base64
import codecs
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from shared.ingestion.breaker.state import Breaker, BreakerMode
from shared.ingestion.operating import presenting as dead_letters
from shared.ingestion.operating.breaker_controller import BreakerView
from shared.ingestion.store.events import StoredDeadLetter
from shared.values.news import stamp
from shared.values.text import TimeText, shown
from shared.web.board import TrendDay, TrendSeries

if TYPE_CHECKING:
    from shared.sampling.trend_rows import Trend

BODY_BYTES_SHOWN = 200


class BreakerSummary(TypedDict):
    """A circuit breaker. ``link`` leads to the page that closes it; empty if there is nothing to
    close, or no link."""

    name: str
    mode: BreakerMode
    closed: bool
    since: TimeText | None
    reason: str
    retry_at: TimeText | None
    link: str


class BreakerError(TypedDict):
    """The last error that an instance counted in an interval of ten seconds, and how many."""

    since: TimeText
    instance: str
    failures: int
    last_error: str


class PartitionBacklog(TypedDict):
    """How many events of a partition wait. ``events`` is null if it is unknown."""

    partition_id: str
    events: int | None
    remark: str


class BreakerStatus(TypedDict):
    """The state of the breaker. ``approval_url`` is a link that closes an open breaker."""

    breaker: str
    mode: BreakerMode
    epoch: int
    reason: str
    changed_at: TimeText | None
    retry_at: TimeText | None
    read_at: TimeText
    errors: list[BreakerError]
    backlog: list[PartitionBacklog]
    approval_url: NotRequired[str]


def breaker(name: str, state: Breaker, link: str) -> BreakerSummary:
    closed, since = state.mode is BreakerMode.CLOSED, state.changed_at if state.epoch else None
    others = {"name": name, "closed": closed, "since": since, "link": "" if closed else link}
    return shown(BreakerSummary, state, stamp, **others)


def status_of(view: BreakerView, approval_url: str = "") -> BreakerStatus:
    told = shown(
        BreakerStatus,
        view.breaker,
        stamp,
        breaker=view.name,
        changed_at=view.breaker.changed_at if view.breaker.epoch else None,
        read_at=view.read_at,
        errors=[shown(BreakerError, each, stamp, since=each.bucket_start) for each in view.errors],
        backlog=[shown(PartitionBacklog, each, stamp) for each in view.backlog],
        approval_url=approval_url,
    )
    if not approval_url:
        del told["approval_url"]
    return told


def dead_letter(stored: StoredDeadLetter) -> dict[str, Any]:
    """A dead letter with the start of its body, as text, or in base64 if it is not UTF-8."""
    whole = stored.letter.body
    body, is_cut = (whole or b"")[:BODY_BYTES_SHOWN], len(whole or b"") > BODY_BYTES_SHOWN
    try:
        text, _ = codecs.utf_8_decode(body, "strict", not is_cut)  # leaves out a cut character
    except UnicodeDecodeError:
        text = base64.b64encode(body).decode()
    return {**dead_letters.letter(stored), "body": None if whole is None else text}


def trends(rows: Iterable[Trend]) -> list[TrendSeries]:
    """One entry for each series, with its days in order. Series with an alarm come first."""
    series: dict[Any, list[Trend]] = defaultdict(list)
    for row in rows:
        series[row.series].append(row)
    shown = [_series(sorted(days, key=lambda day: day.date)) for days in series.values()]
    return sorted(shown, key=lambda each: (not each["alarm"], each["name"]))


def _series(days: list[Trend]) -> TrendSeries:
    newest = days[-1]
    measured = newest.measurement and any(day.adjusted_sum is not None for day in days)
    of = "sum" if measured else "count"
    return shown(
        TrendSeries,
        newest,
        stamp,
        dimensions=dict(newest.dimensions),
        alarm="lost" in newest.verdict,
        days=[_day(day, of) for day in days if day.is_readable],
    )


def _day(day: Trend, of: str) -> TrendDay:
    return shown(
        TrendDay,
        day,
        stamp,
        raw=day.records if of == "count" else day.raw_sum,
        adjusted=getattr(day, f"adjusted_{of}"),
        low=getattr(day, f"adjusted_{of}_low"),
        high=getattr(day, f"adjusted_{of}_high"),
    )
