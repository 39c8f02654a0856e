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

RULE = TripRule(failure_ratio_max=None)
RATIOS = TripRule(failures_max=None, failure_ratio_max=0.5, slow_ratio_max=0.8)


def tally(seconds_ago: float, failures: int, successes: int = 0, slow: int = 0) -> Tally:
    return Tally(bucket_start(ago(seconds_ago), 10), "a", successes, failures, slow)


@pytest.mark.parametrize(
    ("tallies", "trips"),
    [
        ([], False),
        ([tally(0, 100)], False),
        ([tally(0, 101)], True),
        ([tally(0, 50), tally(10, 51)], True),
        ([tally(0, 50), tally(30, 51)], True),
        ([tally(0, 50), tally(31, 51)], False),
        ([tally(-20, 101)], True),
        ([tally(0, 101, successes=10**6)], True),
    ],
)
def test_more_than_100_failures_in_30_seconds_trip_the_breaker(
    tallies: list[Tally], trips: bool
) -> None:
    assert (health(tallies, NOW, RULE).trip_reason is not None) is trips


@pytest.mark.parametrize(
    ("failures", "successes", "slow", "trips"),
    [
        (19, 0, 19, None),
        (20, 0, 0, "20 of 20 calls failed"),
        (10, 10, 0, None),
        (11, 9, 0, "11 of 20 calls failed"),
        (0, 20, 16, None),
        (0, 20, 17, "17 of 20 calls were slow"),
    ],
)
def test_ratios_apply_only_from_a_minimum_number_of_calls(
    failures: int, successes: int, slow: int, trips: str | None
) -> None:
    reason = health([tally(0, failures, successes, slow)], NOW, RATIOS).trip_reason
    assert (reason is None) if trips is None else trips in (reason or "")


@pytest.mark.parametrize(
    ("tallies", "reason"),
    [
        ([tally(20 * n, 2) for n in range(10)], "20 of 20 calls failed in 180 s, more than 50%"),
        ([tally(10 * n, 1) for n in range(25)], "20 of 20 calls failed in 190 s, more than 50%"),
        ([tally(30 * n, 1) for n in range(19)], None),
        ([tally(30 * n, 1) for n in range(30)], "20 of 20 calls failed in 570 s, more than 50%"),
        ([tally(33 * n, 1) for n in range(30)], None),
        ([tally(0, 1, 19), *[tally(50 * n, 99) for n in range(1, 9)]], None),
        ([tally(0, 3), tally(250, 0, 10), tally(260, 0, 10)], None),
    ],
)
def test_the_window_of_the_ratios_grows_until_it_holds_enough_calls(
    tallies: list[Tally], reason: str | None
) -> None:
    assert health(tallies, NOW, TripRule(failures_max=None)).trip_reason == reason


def test_the_window_does_not_grow_into_an_earlier_incident() -> None:
    tallies = [tally(20 * n, 2) for n in range(10)]
    assert health(tallies, NOW, TripRule(), since=ago(100)).trip_reason is None


def test_without_calls_the_breaker_does_not_trip_even_without_a_minimum() -> None:
    rule = TripRule(failure_ratio_max=0, throughput_min=0)
    assert health([], NOW, rule).trip_reason is None


def test_the_reason_states_the_numbers() -> None:
    reason = health([tally(0, 101)], NOW, RULE).trip_reason
    assert reason == "101 failures in 30 s, more than 100"


def test_failures_from_before_the_last_change_do_not_trip_the_breaker_again() -> None:
    tallies = [tally(10, 200), tally(0, 5)]
    assert health(tallies, NOW, RULE).failures == 205
    assert health(tallies, NOW, RULE, since=ago(5)).failures == 5


def test_the_calls_of_all_instances_are_added_up() -> None:
    each = [Tally(bucket_start(NOW, 10), f"i{n}", 0, 11) for n in range(10)]
    assert health(each, NOW, RULE).trip_reason is not None


CALLS = st.lists(st.tuples(st.integers(0, 60), st.sampled_from("ab"), st.booleans()), max_size=80)


def rolled(calls: list[tuple[int, str, bool]]) -> list[Tally]:
    """The rows that instances leave behind. A row is rewritten until its bucket is over."""
    rows: dict[tuple[datetime, str], Tally] = {}
    newest: dict[str, Tally | None] = {"a": None, "b": None}
    for second, instance, failed in sorted(calls):
        at = NOW + timedelta(seconds=second)
        row = count(newest[instance], instance, at, RULE, successes=not failed, failures=failed)
        newest[instance] = rows[row.bucket_start, instance] = row
    return list(rows.values())


@given(CALLS)
def test_the_window_is_never_shorter_than_configured_and_at_most_a_bucket_longer(
    calls: list[tuple[int, str, bool]],
) -> None:
    now = NOW + timedelta(seconds=60)
    result = health(rolled(calls), now, RULE)
    at_least = sum(failed for second, _, failed in calls if second >= 30)
    at_most = sum(failed for second, _, failed in calls if second >= 20)
    assert at_least <= result.failures <= at_most
    assert result.calls <= len(calls)
    assert oldest_bucket(now, RULE) == NOW + timedelta(seconds=30)
