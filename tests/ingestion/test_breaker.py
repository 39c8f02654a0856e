"""The breaker's transitions from each mode, and properties that hold for any order of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.ingestion.breaker.state import (
    Breaker,
    BreakerMode,
    BreakerTimes,
    Probe,
    admission,
    break_seconds,
    close,
    isolate,
    mark_announced,
    report_probe,
    start_probe,
    take_announcement,
    trip,
)
from tests.builders import NOW, ago

TIMES = BreakerTimes(break_seconds=30, break_factor=2, break_seconds_max=100, probe_events=3)
CLOSED = Breaker()
OPEN = Breaker(BreakerMode.OPEN, 4, ago(40), "failures", 1, retry_at=ago(10))
STILL_OPEN = replace(OPEN, retry_at=NOW + timedelta(seconds=1))
PROBE = Probe("a", "7", NOW + timedelta(seconds=1), 3)
HALF_OPEN = Breaker(BreakerMode.HALF_OPEN, 4, ago(9), "a tries", 1, retry_at=ago(10), probe=PROBE)
PROBE_EXPIRED = replace(HALF_OPEN, probe=replace(PROBE, until=NOW))
ISOLATED = Breaker(BreakerMode.ISOLATED, 4, ago(9), "by hand")
ROWS = {
    "closed": CLOSED,
    "open": OPEN,
    "still_open": STILL_OPEN,
    "half_open": HALF_OPEN,
    "probe_expired": PROBE_EXPIRED,
    "isolated": ISOLATED,
}


def tripping(row: Breaker) -> Breaker | None:
    return trip(row, "101 failures", NOW, TIMES)


def isolating(row: Breaker) -> Breaker | None:
    return isolate(row, "maintenance", NOW, TIMES)


def probing(row: Breaker, at: datetime = NOW) -> Breaker | None:
    return start_probe(row, "b", "9", at, TIMES)


def closing(row: Breaker) -> Breaker | None:
    return close(row, row.epoch, "ann", NOW)


def closing_another(row: Breaker) -> Breaker | None:
    return close(row, row.epoch - 1, "ann", NOW)


def succeeding(row: Breaker) -> Breaker | None:
    return report_probe(row, "a", 3, None, NOW, TIMES)


def going_on(row: Breaker) -> Breaker | None:
    return report_probe(row, "a", 2, None, NOW, TIMES)


def failing(row: Breaker) -> Breaker | None:
    return report_probe(row, "a", 2, "timeout", NOW, TIMES)


def intruding(row: Breaker) -> Breaker | None:
    return report_probe(row, "b", 3, None, NOW, TIMES)


TRANSITIONS: dict[Callable[[Breaker], Breaker | None], dict[str, BreakerMode]] = {
    tripping: {"closed": BreakerMode.OPEN},
    isolating: dict.fromkeys(
        ("closed", "open", "still_open", "half_open", "probe_expired"), BreakerMode.ISOLATED
    ),
    probing: {"open": BreakerMode.HALF_OPEN, "probe_expired": BreakerMode.HALF_OPEN},
    closing: dict.fromkeys(
        ("open", "still_open", "half_open", "probe_expired", "isolated"), BreakerMode.CLOSED
    ),
    closing_another: {},
    succeeding: {"half_open": BreakerMode.CLOSED},
    going_on: {"half_open": BreakerMode.HALF_OPEN},
    failing: {"half_open": BreakerMode.OPEN},
    intruding: {},
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("rule", TRANSITIONS)
def test_each_rule_changes_only_the_modes_that_it_applies_to(
    rule: Callable[[Breaker], Breaker | None], name: str
) -> None:
    after = rule(ROWS[name])
    assert (after.mode if after else None) == TRANSITIONS[rule].get(name)
    if after is not None:
        assert (after.probe is not None) is (after.mode is BreakerMode.HALF_OPEN)
        assert after.epoch >= ROWS[name].epoch


def test_tripping_opens_the_breaker_and_starts_an_incident() -> None:
    soon, later = NOW + timedelta(seconds=30), NOW + timedelta(seconds=60)
    assert tripping(CLOSED) == Breaker(
        BreakerMode.OPEN, 1, NOW, "101 failures", 1, retry_at=soon, announce_at=later
    )


def test_an_unfinished_announcement_is_taken_over_after_its_time() -> None:
    row = tripping(CLOSED)
    assert row is not None
    later = NOW + timedelta(seconds=60)
    assert take_announcement(row, later - timedelta(seconds=1), TIMES) is None
    taken = take_announcement(row, later, TIMES)
    assert taken is not None
    assert take_announcement(taken, later, TIMES) is None
    done = mark_announced(taken, 1)
    assert done is not None
    assert take_announcement(done, later + timedelta(days=1), TIMES) is None
    assert mark_announced(done, 1) is None
    assert take_announcement(CLOSED, NOW, TIMES) is None


def test_only_one_of_several_concurrent_trips_is_written() -> None:
    row, written = CLOSED, 0
    for _ in range(4):
        seen = row
        after = tripping(seen)
        if after is not None:
            row, written = after, written + 1
    assert (written, row.epoch) == (1, 1)


def test_an_isolation_invalidates_earlier_approvals() -> None:
    isolated = isolating(OPEN)
    assert isolated is not None
    assert close(isolated, OPEN.epoch, "an old link", NOW) is None
    assert close(isolated, isolated.epoch, "a new link", NOW) is not None


def test_an_approval_closes_the_breaker_only_once() -> None:
    closed = closing(OPEN)
    assert closed is not None
    assert (closed.closed_by, closed.breaks, closed.retry_at) == ("ann", 0, None)
    assert close(closed, 4, "replayed", NOW) is None
    again = tripping(closed)
    assert again is not None
    assert close(again, 4, "replayed", NOW) is None


def test_a_failed_probe_continues_the_incident_with_a_longer_open_interval() -> None:
    after = failing(HALF_OPEN)
    assert after is not None
    assert (after.epoch, after.breaks) == (4, 2)
    assert after.retry_at == NOW + timedelta(seconds=60)
    assert "timeout" in after.reason


@pytest.mark.parametrize(
    ("breaks", "seconds"), [(0, 30), (1, 60), (2, 100), (50, 100), (10**9, 100)]
)
def test_open_intervals_grow_up_to_a_maximum(breaks: int, seconds: float) -> None:
    assert break_seconds(breaks, TIMES) == seconds


@pytest.mark.parametrize(("closed_seconds_ago", "seconds"), [(299, 60), (300, 30)])
def test_the_open_interval_starts_anew_only_after_a_calm_period(
    closed_seconds_ago: float, seconds: float
) -> None:
    recovered = succeeding(HALF_OPEN)
    assert recovered is not None
    after = tripping(replace(recovered, changed_at=ago(closed_seconds_ago)))
    assert after is not None
    assert after.retry_at == NOW + timedelta(seconds=seconds)


def test_a_probe_with_too_few_successes_continues() -> None:
    after = going_on(HALF_OPEN)
    assert after is not None
    assert after.probe == Probe("a", "7", NOW + timedelta(seconds=60), 1)
    ended = report_probe(after, "a", 1, None, NOW, TIMES)
    assert ended is not None
    assert ended.mode is BreakerMode.CLOSED


def test_redelivered_events_neither_decide_nor_extend_a_probe() -> None:
    assert report_probe(HALF_OPEN, "a", 0, None, NOW, TIMES) is None
    after = probing(HALF_OPEN, at=PROBE.until)
    assert after is not None
    assert after.probe is not None
    assert after.probe.partition_id == "9"


def test_successes_of_earlier_probe_holders_count() -> None:
    """Otherwise ten partitions with one event a minute each would stay half-open without end."""
    row, now = HALF_OPEN, NOW
    for _ in range(TIMES.probe_events):
        assert row.mode is BreakerMode.HALF_OPEN
        one = report_probe(row, row.probe.holder if row.probe else "", 1, None, now, TIMES)
        assert one is not None
        now += timedelta(seconds=TIMES.probe_seconds)
        row = start_probe(one, f"{now}", "9", now, TIMES) or one
    assert row.mode is BreakerMode.CLOSED


def test_the_holder_of_an_expired_probe_is_replaced_and_can_no_longer_report() -> None:
    after = probing(PROBE_EXPIRED)
    assert after is not None
    assert after.probe == Probe("b", "9", NOW + timedelta(seconds=60), 3)
    assert succeeding(after) is None
    assert admission(after, "a", "7", NOW).is_held


@pytest.mark.parametrize(
    ("name", "instance", "partition_id", "events_max"),
    [
        ("closed", "a", "7", None),
        ("open", "a", "7", 0),
        ("still_open", "a", "7", 0),
        ("isolated", "a", "7", 0),
        ("half_open", "a", "7", 3),
        ("half_open", "a", "8", 0),
        ("half_open", "b", "7", 0),
        ("probe_expired", "a", "7", 0),
    ],
)
def test_the_breaker_admits_all_events_a_few_or_none_depending_on_its_mode(
    name: str, instance: str, partition_id: str, events_max: int | None
) -> None:
    admitted = admission(ROWS[name], instance, partition_id, NOW)
    assert admitted.events_max == events_max
    assert admitted.is_held is (events_max == 0)
    assert admitted.reason


# --- any order of events ----------------------------------------------------------------------

STEPS = st.tuples(
    st.sampled_from(["trip", "isolate", "probe", "succeed", "fail", "approve", "wait"]),
    st.sampled_from("abc"),
    st.booleans(),
    st.integers(0, 400),
)


def next_row(name: str, row: Breaker, instance: str, now: datetime) -> Breaker | None:
    rules: dict[str, Callable[[], Breaker | None]] = {
        "trip": lambda: trip(row, "failures", now, TIMES),
        "isolate": lambda: isolate(row, "by hand", now, TIMES),
        "probe": lambda: start_probe(row, instance, instance, now, TIMES),
        "succeed": lambda: report_probe(row, instance, 2, None, now, TIMES),
        "fail": lambda: report_probe(row, instance, 0, "bad", now, TIMES),
        "approve": lambda: close(row, row.epoch, instance, now),
        "wait": lambda: None,
    }
    return rules[name]()


@given(st.lists(STEPS, max_size=60))
def test_there_is_one_opening_per_incident_and_one_probe_at_a_time(steps: list[Any]) -> None:
    """Some steps decide by an outdated row; the conditional write refuses their result."""
    rows = [CLOSED]
    openings: Counter[int] = Counter()
    now = NOW
    for name, instance, stale, seconds in steps:
        now += timedelta(seconds=seconds if name == "wait" else 0)
        read_version = max(0, len(rows) - 1 - stale)
        before = rows[read_version]
        after = next_row(name, before, instance, now)
        if after is None or read_version != len(rows) - 1:
            continue
        if after.mode in (BreakerMode.OPEN, BreakerMode.ISOLATED) and after.epoch > before.epoch:
            openings[after.epoch] += 1
        assert after.epoch - before.epoch in (0, 1)
        assert after != before
        if after.retry_at is not None and after.mode is BreakerMode.OPEN:
            assert 30 <= (after.retry_at - now).total_seconds() <= 100
        let_through = [
            instance for instance in "abc" if not admission(after, instance, instance, now).is_held
        ]
        assert len(let_through) == {BreakerMode.CLOSED: 3, BreakerMode.HALF_OPEN: 1}.get(
            after.mode, 0
        )
        rows.append(after)
    assert set(openings.values()) <= {1}
    assert sorted(openings) == list(range(1, rows[-1].epoch + 1))
