"""The recent handler calls of all instances, and the rule by which they trip the breaker. Calls are
counted in buckets of the store's time; each instance has its own row for each bucket."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from shared.ingestion.model import storable

TALLIES_KEPT = timedelta(hours=1)
"""Rows that are older than the newest one by more than this may be dropped."""
ERROR_CHARACTERS_MAX = 500
WINDOW_SECONDS_MAX = 600
"""How far back the ratios look if the window holds too few calls because they are slow."""


@dataclass(frozen=True, slots=True)
class Tally:
    """The calls of one instance in one bucket. A slow call is also a success or a failure."""

    bucket_start: datetime
    instance: str
    successes: int = 0
    failures: int = 0
    slow: int = 0
    last_error: str = ""


@dataclass(frozen=True, slots=True)
class TripRule:
    """When the breaker trips. A limit of None does not apply. The ratios need at least
    ``throughput_min`` calls; if the window holds fewer, it grows up to ``WINDOW_SECONDS_MAX``."""

    window_seconds: float = 30
    bucket_seconds: int = 10
    failures_max: int | None = 100
    failure_ratio_max: float | None = 0.5
    slow_ratio_max: float | None = None
    slow_seconds: float = 10
    throughput_min: int = 20
    counts_bad_events: bool = True
    """Whether an event that raises BadEvent counts as a failed call, or not at all."""


@dataclass(frozen=True, slots=True)
class Health:
    """The sums over the window, and why the breaker should trip; None if it should not."""

    calls: int
    failures: int
    slow: int
    trip_reason: str | None = None


def bucket_start(now: datetime, bucket_seconds: int) -> datetime:
    """The start of the bucket that contains ``now``. Buckets are aligned to 1970-01-01, UTC."""
    seconds = int(now.timestamp()) // bucket_seconds * bucket_seconds
    return datetime.fromtimestamp(seconds, UTC)


def count(tally: Tally, successes: int, failures: int, slow: int, last_error: str = "") -> Tally:
    """The tally with a batch's calls added."""
    return replace(
        tally,
        successes=tally.successes + successes,
        failures=tally.failures + failures,
        slow=tally.slow + slow,
        last_error=storable(last_error[:ERROR_CHARACTERS_MAX]) or tally.last_error,
    )


def oldest_bucket(now: datetime, rule: TripRule, seconds_min: float = 0) -> datetime:
    """The first bucket that overlaps the window, or the last ``seconds_min`` if these are more."""
    seconds = max(rule.window_seconds, seconds_min)
    return bucket_start(now - timedelta(seconds=seconds), rule.bucket_seconds)


def health(
    tallies: Iterable[Tally], now: datetime, rule: TripRule, since: datetime | None = None
) -> Health:
    """Sum up the window, and decide whether the breaker should trip. A bucket that overlaps the
    window counts in full, unless it began before ``since``, when the breaker last changed."""
    known = [each for each in tallies if since is None or each.bucket_start >= since]
    first, longest = oldest_bucket(now, rule), oldest_bucket(now, rule, WINDOW_SECONDS_MAX)
    window = grown = _sums(known, first)
    seconds = rule.window_seconds
    older = {each.bucket_start for each in known if longest <= each.bucket_start < first}
    for start in sorted(older, reverse=True):
        if grown.calls >= rule.throughput_min:
            break
        grown, seconds = _sums(known, start), (now - start).total_seconds()
    reason = _too_many(window.failures, rule) or _too_large_a_share(grown, rule, seconds)
    return replace(window, trip_reason=reason)


def _sums(tallies: Iterable[Tally], first: datetime) -> Health:
    counted = [each for each in tallies if each.bucket_start >= first]
    failures = sum([each.failures for each in counted])
    successes = sum([each.successes for each in counted])
    return Health(failures + successes, failures, sum([each.slow for each in counted]))


def _too_many(failures: int, rule: TripRule) -> str | None:
    if rule.failures_max is None or failures <= rule.failures_max:
        return None
    return f"{failures} failures in {rule.window_seconds:g} s, more than {rule.failures_max}"


def _too_large_a_share(window: Health, rule: TripRule, seconds: float) -> str | None:
    if window.calls < max(rule.throughput_min, 1):
        return None
    for description, number, limit in (
        ("failed", window.failures, rule.failure_ratio_max),
        ("were slow", window.slow, rule.slow_ratio_max),
    ):
        if limit is not None and number / window.calls > limit:
            share = f"{number} of {window.calls} calls {description}"
            return f"{share} in {seconds:.0f} s, more than {limit:.0%}"
    return None
