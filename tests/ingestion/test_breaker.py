"""Each transition of the breaker, from each mode; and what holds in whatever order they come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.ingestion.breaker.breaker import (
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
RESTING = replace(OPEN, retry_at=NOW + timedelta(seconds=1))
PROBE = Probe("a", "7", NOW + timedelta(seconds=1), 3)
HALF_OPEN = Breaker(BreakerMode.HALF_OPEN, 4, ago(9), "a tries", 1, retry_at=ago(10), probe=PROBE)
SILENT = replace(HALF_OPEN, probe=replace(PROBE, until=NOW))
ISOLATED = Breaker(BreakerMode.ISOLATED, 4, ago(9), "by hand")
ROWS = {
    "closed": CLOSED,
    "open": OPEN,
    "resting": RESTING,
    "half_open": HALF_OPEN,
    "silent": SILENT,
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
        ("closed", "open", "resting", "half_open", "silent"), BreakerMode.ISOLATED
    ),
    probing: {"open": BreakerMode.HALF_OPEN, "silent": BreakerMode.HALF_OPEN},
    closing: dict.fromkeys(
        ("open", "resting", "half_open", "silent", "isolated"), BreakerMode.CLOSED
    ),
    closing_another: {},
    succeeding: {"half_open": BreakerMode.CLOSED},
    going_on: {"half_open": BreakerMode.HALF_OPEN},
    failing: {"half_open": BreakerMode.OPEN},
    intruding: {},
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("rule", TRANSITIONS)
def test_every_transition_from_every_mode(
    rule: Callable[[Breaker], Breaker | None], name: str
) -> None:
    after = rule(ROWS[name])
    assert (after.mode if after else None) == TRANSITIONS[rule].get(name)
    if after is not None:
        assert (after.probe is not None) is (after.mode is BreakerMode.HALF_OPEN)
        assert after.epoch >= ROWS[name].epoch


def test_opening_starts_an_incident_with_a_break() -> None:
    soon, later = NOW + timedelta(seconds=30), NOW + timedelta(seconds=60)
    assert tripping(CLOSED) == Breaker(
        BreakerMode.OPEN, 1, NOW, "101 failures", 1, retry_at=soon, announce_at=later
    )


def test_an_announcement_is_taken_over_once_its_time_is_over_and_only_until_it_is_done() -> None:
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


def test_of_all_that_trip_at_once_one_writes_and_the_others_find_it_done() -> None:
    row, written = CLOSED, 0
    for _ in range(4):
        seen = row
        after = tripping(seen)
        if after is not None:
            row, written = after, written + 1
    assert (written, row.epoch) == (1, 1)


def test_isolating_ends_the_validity_of_older_approvals() -> None:
    isolated = isolating(OPEN)
    assert isolated is not None
    assert close(isolated, OPEN.epoch, "an old link", NOW) is None
    assert close(isolated, isolated.epoch, "a new link", NOW) is not None


def test_an_approval_closes_once() -> None:
    closed = closing(OPEN)
    assert closed is not None
    assert (closed.closed_by, closed.breaks, closed.retry_at) == ("ann", 0, None)
    assert close(closed, 4, "replayed", NOW) is None
    again = tripping(closed)
    assert again is not None
    assert close(again, 4, "replayed", NOW) is None


def test_a_failed_probe_is_the_same_incident_and_a_longer_break() -> None:
    after = failing(HALF_OPEN)
    assert after is not None
    assert (after.epoch, after.breaks) == (4, 2)
    assert after.retry_at == NOW + timedelta(seconds=60)
    assert "timeout" in after.reason


@pytest.mark.parametrize(
    ("breaks", "seconds"), [(0, 30), (1, 60), (2, 100), (50, 100), (10**9, 100)]
)
def test_breaks_grow_up_to_a_cap(breaks: int, seconds: float) -> None:
    assert break_seconds(breaks, TIMES) == seconds


@pytest.mark.parametrize(("closed_seconds_ago", "seconds"), [(299, 60), (300, 30)])
def test_a_relapse_goes_on_growing_and_calm_forgets(
    closed_seconds_ago: float, seconds: float
) -> None:
    recovered = succeeding(HALF_OPEN)
    assert recovered is not None
    after = tripping(replace(recovered, changed_at=ago(closed_seconds_ago)))
    assert after is not None
    assert after.retry_at == NOW + timedelta(seconds=seconds)


def test_a_probe_that_saw_too_few_events_goes_on_with_those_left() -> None:
    after = going_on(HALF_OPEN)
    assert after is not None
    assert after.probe == Probe("a", "7", NOW + timedelta(seconds=60), 1)
    ended = report_probe(after, "a", 1, None, NOW, TIMES)
    assert ended is not None
    assert ended.mode is BreakerMode.CLOSED


def test_events_that_came_again_prove_nothing_and_do_not_keep_the_probe() -> None:
    assert report_probe(HALF_OPEN, "a", 0, None, NOW, TIMES) is None
    after = probing(HALF_OPEN, at=PROBE.until)
    assert after is not None
    assert after.probe is not None
    assert after.probe.partition_id == "9"


def test_what_succeeded_counts_whoever_tries_next() -> None:
    """Ten partitions with an event a minute each would else be half open for ever."""
    row, now = HALF_OPEN, NOW
    for _ in range(TIMES.probe_events):
        assert row.mode is BreakerMode.HALF_OPEN
        one = report_probe(row, row.probe.holder if row.probe else "", 1, None, now, TIMES)
        assert one is not None
        now += timedelta(seconds=TIMES.probe_seconds)
        row = start_probe(one, f"{now}", "9", now, TIMES) or one
    assert row.mode is BreakerMode.CLOSED


def test_who_crashed_with_the_probe_is_replaced_and_cannot_report_any_more() -> None:
    after = probing(SILENT)
    assert after is not None
    assert after.probe == Probe("b", "9", NOW + timedelta(seconds=60), 3)
    assert succeeding(after) is None
    assert admission(after, "a", "7", NOW).shut


@pytest.mark.parametrize(
    ("name", "instance", "partition_id", "events_max"),
    [
        ("closed", "a", "7", None),
        ("open", "a", "7", 0),
        ("resting", "a", "7", 0),
        ("isolated", "a", "7", 0),
        ("half_open", "a", "7", 3),
        ("half_open", "a", "8", 0),
        ("half_open", "b", "7", 0),
        ("silent", "a", "7", 0),
    ],
)
def test_the_gate(name: str, instance: str, partition_id: str, events_max: int | None) -> None:
    found = admission(ROWS[name], instance, partition_id, NOW)
    assert found.events_max == events_max
    assert found.shut is (events_max == 0)
    assert found.reason


# --- whatever happens -------------------------------------------------------------------------

STEPS = st.tuples(
    st.sampled_from(["trip", "isolate", "probe", "succeed", "fail", "approve", "wait"]),
    st.sampled_from("abc"),
    st.booleans(),
    st.integers(0, 400),
)


def next_row(name: str, row: Breaker, who: str, now: datetime) -> Breaker | None:
    rules: dict[str, Callable[[], Breaker | None]] = {
        "trip": lambda: trip(row, "failures", now, TIMES),
        "isolate": lambda: isolate(row, "by hand", now, TIMES),
        "probe": lambda: start_probe(row, who, who, now, TIMES),
        "succeed": lambda: report_probe(row, who, 2, None, now, TIMES),
        "fail": lambda: report_probe(row, who, 0, "bad", now, TIMES),
        "approve": lambda: close(row, row.epoch, who, now),
        "wait": lambda: None,
    }
    return rules[name]()


@given(st.lists(STEPS, max_size=60))
def test_one_opening_per_incident_and_one_probe_at_a_time(steps: list[Any]) -> None:
    """Some decide by a row that is old by then; compare-and-swap refuses what they write."""
    rows = [CLOSED]
    openings: Counter[int] = Counter()
    now = NOW
    for name, who, stale, seconds in steps:
        now += timedelta(seconds=seconds if name == "wait" else 0)
        read_version = max(0, len(rows) - 1 - stale)
        before = rows[read_version]
        after = next_row(name, before, who, now)
        if after is None or read_version != len(rows) - 1:
            continue
        if after.mode in (BreakerMode.OPEN, BreakerMode.ISOLATED) and after.epoch > before.epoch:
            openings[after.epoch] += 1
        assert after.epoch - before.epoch in (0, 1)
        assert after != before
        if after.retry_at is not None and after.mode is BreakerMode.OPEN:
            assert 30 <= (after.retry_at - now).total_seconds() <= 100
        let_through = [who for who in "abc" if not admission(after, who, who, now).shut]
        assert len(let_through) == {BreakerMode.CLOSED: 3, BreakerMode.HALF_OPEN: 1}.get(
            after.mode, 0
        )
        rows.append(after)
    assert set(openings.values()) <= {1}
    assert sorted(openings) == list(range(1, rows[-1].epoch + 1))
