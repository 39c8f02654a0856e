"""The trip rule: how many failures of all instances, over which time, are too many."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.ingestion.breaker.failure_window import (
    Tally,
    TripRule,
    bucket_start,
    count,
    health,
    oldest_bucket,
)
from tests.builders import NOW, ago


def tally(seconds_ago: float, failures: int, successes: int = 0, slow: int = 0) -> Tally:
    return Tally(bucket_start(ago(seconds_ago), 10), "a", successes, failures, slow)


INSTANCES = [Tally(bucket_start(NOW, 10), f"i{n}", 0, 11) for n in range(10)]
COUNTED, GROWING = TripRule(failure_ratio_max=None), TripRule(failures_max=None)
RATIOS = TripRule(failures_max=None, failure_ratio_max=0.5, slow_ratio_max=0.8)
NO_MINIMUM = TripRule(failure_ratio_max=0, throughput_min=0)


@pytest.mark.parametrize(
    ("rule", "tallies", "reason"),
    [
        # more than 100 failures in 30 seconds
        (COUNTED, [], None),
        (COUNTED, [tally(0, 100)], None),
        (COUNTED, [tally(0, 101)], "101 failures in 30 s, more than 100"),
        (COUNTED, [tally(0, 50), tally(10, 51)], "101 failures in 30 s, more than 100"),
        (COUNTED, [tally(0, 50), tally(30, 51)], "101 failures in 30 s, more than 100"),
        (COUNTED, [tally(0, 50), tally(31, 51)], None),
        (COUNTED, [tally(-20, 101)], "101 failures in 30 s, more than 100"),
        (COUNTED, [tally(0, 101, successes=10**6)], "101 failures in 30 s, more than 100"),
        (COUNTED, INSTANCES, "110 failures in 30 s, more than 100"),
        # ratios apply only from a minimum number of calls
        (RATIOS, [tally(0, 19, 0, 19)], None),
        (RATIOS, [tally(0, 20)], "20 of 20 calls failed in 30 s, more than 50%"),
        (RATIOS, [tally(0, 10, 10)], None),
        (RATIOS, [tally(0, 11, 9)], "11 of 20 calls failed in 30 s, more than 50%"),
        (RATIOS, [tally(0, 0, 20, 16)], None),
        (RATIOS, [tally(0, 0, 20, 17)], "17 of 20 calls were slow in 30 s, more than 80%"),
        (NO_MINIMUM, [], None),
        # and their window grows until it holds enough calls
        (GROWING, [tally(20 * n, 2) for n in range(10)], "20 of 20 calls failed in 180 s, more"),
        (GROWING, [tally(10 * n, 1) for n in range(25)], "20 of 20 calls failed in 190 s, more"),
        (GROWING, [tally(30 * n, 1) for n in range(19)], None),
        (GROWING, [tally(30 * n, 1) for n in range(30)], "20 of 20 calls failed in 570 s, more"),
        (GROWING, [tally(33 * n, 1) for n in range(30)], None),
        (GROWING, [tally(0, 1, 19), *[tally(50 * n, 99) for n in range(1, 9)]], None),
        (GROWING, [tally(0, 3), tally(250, 0, 10), tally(260, 0, 10)], None),
    ],
)
def test_the_breaker_trips_after_too_many_failures_or_too_large_a_share(
    rule: TripRule, tallies: list[Tally], reason: str | None
) -> None:
    found = health(tallies, NOW, rule).trip_reason
    assert (found or "").startswith(reason or "none") or found is reason


def test_calls_from_before_the_last_change_do_not_trip_the_breaker_again() -> None:
    tallies = [tally(10, 200), tally(0, 5)]
    assert health(tallies, NOW, COUNTED).failures == 205
    assert health(tallies, NOW, COUNTED, since=ago(5)).failures == 5
    tallies = [tally(20 * n, 2) for n in range(10)]
    assert health(tallies, NOW, TripRule(), since=ago(100)).trip_reason is None


CALLS = st.lists(st.tuples(st.integers(0, 60), st.sampled_from("ab"), st.booleans()), max_size=80)


def rolled(calls: list[tuple[int, str, bool]]) -> list[Tally]:
    """The rows that instances leave behind. A row is rewritten until its bucket is over."""
    rows: dict[tuple[datetime, str], Tally] = {}
    for second, instance, failed in sorted(calls):
        key = bucket_start(NOW + timedelta(seconds=second), COUNTED.bucket_seconds), instance
        rows[key] = count(rows.get(key) or Tally(*key), not failed, failed, 0)
    return list(rows.values())


@given(CALLS)
def test_the_window_is_never_shorter_than_configured_and_at_most_a_bucket_longer(
    calls: list[tuple[int, str, bool]],
) -> None:
    now = NOW + timedelta(seconds=60)
    result = health(rolled(calls), now, COUNTED)
    at_least = sum(failed for second, _, failed in calls if second >= 30)
    at_most = sum(failed for second, _, failed in calls if second >= 20)
    assert at_least <= result.failures <= at_most
    assert result.calls <= len(calls)
    assert oldest_bucket(now, COUNTED) == NOW + timedelta(seconds=30)
