"""How calls went of late, over all instances: counted in buckets that nobody contends for.

Each instance keeps one row per bucket of time, so that no two write the same row; whoever wants
to know reads all rows of the window and adds them up. Times are the store's, not an instance's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from shared.ingestion.model import storable

TALLIES_KEPT = timedelta(hours=1)
"""Stores drop what is older than the newest by so much: more than any window needs."""
ERROR_CHARACTERS_MAX = 500


@dataclass(frozen=True, slots=True)
class Tally:
    """What one instance counted in one bucket. A slow call counts as success or failure too."""

    bucket_start: datetime
    instance: str
    successes: int = 0
    failures: int = 0
    slow: int = 0
    last_error: str = ""


@dataclass(frozen=True, slots=True)
class TripRule:
    """When too much fails. A limit that is None does not apply.

    Ratios count only from ``throughput_min`` calls in the window on: one of two proves nothing.
    """

    window_seconds: float = 30
    bucket_seconds: int = 10
    failures_max: int | None = 100
    failure_ratio_max: float | None = None
    slow_ratio_max: float | None = None
    slow_seconds: float = 10
    throughput_min: int = 20
    counts_bad_events: bool = True
    """Whether an event that is found to be nonsense is a failed call, or none at all."""


@dataclass(frozen=True, slots=True)
class Health:
    """The window's sums, and why they are too bad; None where they are not."""

    calls: int
    failures: int
    slow: int
    trip_reason: str | None


def bucket_start(now: datetime, bucket_seconds: int) -> datetime:
    """The start of the bucket that ``now`` is in; buckets are aligned to the epoch."""
    seconds = int(now.timestamp()) // bucket_seconds * bucket_seconds
    return datetime.fromtimestamp(seconds, UTC)


def count(
    tally: Tally | None,
    instance: str,
    now: datetime,
    rule: TripRule,
    *,
    successes: int = 0,
    failures: int = 0,
    slow: int = 0,
    last_error: str = "",
) -> Tally:
    """The tally with a batch's calls: the same row, or a new one where its bucket is over.

    Once per batch, not per call, so that it costs an event next to nothing.
    """
    start = bucket_start(now, rule.bucket_seconds)
    if tally is None or tally.bucket_start != start:
        tally = Tally(start, instance)
    return Tally(
        start,
        instance,
        tally.successes + successes,
        tally.failures + failures,
        tally.slow + slow,
        storable(last_error[:ERROR_CHARACTERS_MAX]) or tally.last_error,
    )


def oldest_bucket(now: datetime, rule: TripRule) -> datetime:
    """The first bucket that reaches into the window; rows before it can be purged."""
    return bucket_start(now - timedelta(seconds=rule.window_seconds), rule.bucket_seconds)


def health(
    tallies: Iterable[Tally], now: datetime, rule: TripRule, since: datetime | None = None
) -> Health:
    """Sum up the window, and say whether it is too bad.

    A bucket counts whole if it reaches into the window, so the window is up to one bucket longer
    than it says and never shorter. ``since`` is when the breaker closed last: a bucket that began
    before is of another incident. What instances say of the future counts too, for it happened.
    """
    first = oldest_bucket(now, rule)
    counted = [
        tally
        for tally in tallies
        if tally.bucket_start >= first and (since is None or tally.bucket_start >= since)
    ]
    failures = sum([tally.failures for tally in counted])
    slow = sum([tally.slow for tally in counted])
    calls = failures + sum([tally.successes for tally in counted])
    return Health(calls, failures, slow, _trip_reason(calls, failures, slow, rule))


def _trip_reason(calls: int, failures: int, slow: int, rule: TripRule) -> str | None:
    window = f"in {rule.window_seconds:g} s"
    if rule.failures_max is not None and failures > rule.failures_max:
        return f"{failures} failures {window}, more than {rule.failures_max}"
    if calls < max(rule.throughput_min, 1):
        return None
    for what, number, limit in (
        ("failed", failures, rule.failure_ratio_max),
        ("were slow", slow, rule.slow_ratio_max),
    ):
        if limit is not None and number / calls > limit:
            return f"{number} of {calls} calls {what} {window}, more than {limit:.0%}"
    return None
