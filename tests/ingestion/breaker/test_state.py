"""The breaker's transitions from each mode, the rows that they write, and any order of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from shared.ingestion.breaker.state import (
    Admission,
    Breaker,
    BreakerMode,
    BreakerTimes,
    Probe,
    admission,
    break_seconds,
    close,
    isolate,
    keep_probe,
    mark_announced,
    report_probe,
    start_probe,
    take_announcement,
    trip,
    unannounced,
)
from tests.builders import NOW, ago

Change = Callable[[], Breaker | None]
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


def probing(row: Breaker) -> Breaker | None:
    return start_probe(row, "b", "9", NOW, TIMES)


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


# --- the whole row that a transition writes ---------------------------------------------------

CLOSED_BY_ADA = Breaker(BreakerMode.CLOSED, 4, ago(9), "closed by ada", 1, closed_by="ada")
MINUTE = NOW + timedelta(seconds=60)
"""When a probe or an announcement that starts now is over."""
DUE = replace(OPEN, announce_at=NOW)
LONGEST = timedelta(seconds=TIMES.probe_call_seconds_max)
BEGUN = replace(HALF_OPEN, changed_at=NOW + timedelta(seconds=30) - LONGEST)


def opened(epoch: int, reason: str, breaks: int, seconds: float, **changes: Any) -> Breaker:
    retry_at = NOW + timedelta(seconds=seconds)
    return Breaker(BreakerMode.OPEN, epoch, NOW, reason, breaks, retry_at=retry_at, **changes)


def isolated(breaks: int) -> Breaker:
    row = Breaker(BreakerMode.ISOLATED, 5, NOW, "maintenance", breaks)
    return replace(row, announce_at=MINUTE)


def closed(reason: str, breaks: int, by: str) -> Breaker:
    return Breaker(BreakerMode.CLOSED, 4, NOW, reason, breaks, closed_by=by)


def tried(row: Breaker) -> Breaker:
    probe = Probe("b", "9", MINUTE, 3)
    reason = "b tries partition 9"
    return replace(row, mode=BreakerMode.HALF_OPEN, changed_at=NOW, reason=reason, probe=probe)


def until(row: Breaker, end: datetime, events_left: int = 3) -> Breaker:
    return replace(row, probe=replace(PROBE, until=end, events_left=events_left))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(
            lambda: tripping(CLOSED),
            opened(1, "101 failures", 1, 30, announce_at=MINUTE),
            id="tripping starts an incident",
        ),
        pytest.param(
            lambda: tripping(CLOSED_BY_ADA),
            opened(5, "101 failures", 2, 60, announce_at=MINUTE),
            id="tripping clears who closed the breaker",
        ),
        pytest.param(
            lambda: tripping(replace(CLOSED_BY_ADA, changed_at=ago(299))),
            opened(5, "101 failures", 2, 60, announce_at=MINUTE),
            id="an interval grows before a calm period",
        ),
        pytest.param(
            lambda: tripping(replace(CLOSED_BY_ADA, changed_at=ago(300))),
            opened(5, "101 failures", 1, 30, announce_at=MINUTE),
            id="an interval starts anew after a calm period",
        ),
        pytest.param(
            lambda: isolating(CLOSED_BY_ADA), isolated(1), id="isolating a closed breaker"
        ),
        pytest.param(lambda: isolating(OPEN), isolated(1), id="isolating ends the open interval"),
        pytest.param(lambda: isolating(HALF_OPEN), isolated(1), id="isolating ends the probe"),
        pytest.param(
            lambda: probing(OPEN), tried(OPEN), id="a probe names its holder and partition"
        ),
        pytest.param(
            lambda: probing(PROBE_EXPIRED), tried(HALF_OPEN), id="an expired probe is replaced"
        ),
        pytest.param(
            lambda: succeeding(HALF_OPEN),
            closed("the probe succeeded", 1, "a"),
            id="a probe succeeds",
        ),
        pytest.param(
            lambda: going_on(HALF_OPEN),
            until(HALF_OPEN, MINUTE, 1),
            id="too few successes continue it",
        ),
        pytest.param(
            lambda: failing(HALF_OPEN),
            opened(4, "the probe failed: timeout", 2, 60),
            id="a failed probe continues the incident, longer",
        ),
        pytest.param(
            lambda: keep_probe(HALF_OPEN, "a", NOW, TIMES),
            until(HALF_OPEN, MINUTE),
            id="a probe is kept",
        ),
        pytest.param(
            lambda: keep_probe(BEGUN, "a", NOW, TIMES),
            until(BEGUN, NOW + timedelta(seconds=30)),
            id="but at most for the longest call",
        ),
        pytest.param(
            lambda: closing(OPEN), closed("closed by ann", 0, "ann"), id="closing by hand"
        ),
        pytest.param(
            lambda: take_announcement(DUE, NOW, TIMES),
            replace(OPEN, announce_at=MINUTE),
            id="an announcement is taken over",
        ),
        pytest.param(
            lambda: take_announcement(
                replace(OPEN, announce_at=NOW + timedelta(hours=1)), NOW, TIMES
            ),
            replace(OPEN, announce_at=MINUTE),
            id="also from before the clock was set back",
        ),
        pytest.param(
            lambda: mark_announced(DUE, 4),
            replace(DUE, announced_epoch=4),
            id="it is recorded as made",
        ),
    ],
)
def test_a_transition_writes_the_whole_row(change: Change, expected: Breaker) -> None:
    assert change() == expected


@pytest.mark.parametrize("row", [OPEN, replace(HALF_OPEN, probe=None), replace(OPEN, probe=PROBE)])
def test_a_probe_that_is_not_running_is_neither_reported_nor_kept(row: Breaker) -> None:
    assert report_probe(row, "a", 3, None, NOW, TIMES) is None
    assert keep_probe(row, "a", NOW, TIMES) is None


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            lambda: report_probe(HALF_OPEN, "a", 0, None, NOW, TIMES),
            id="redelivered events neither decide nor extend a probe",
        ),
        pytest.param(lambda: succeeding(tried(OPEN)), id="a replaced holder can no longer report"),
        pytest.param(
            lambda: keep_probe(HALF_OPEN, "b", NOW, TIMES), id="only the holder keeps a probe"
        ),
        pytest.param(
            lambda: keep_probe(HALF_OPEN, "a", PROBE.until, TIMES), id="not once it has expired"
        ),
        pytest.param(
            lambda: keep_probe(until(HALF_OPEN, MINUTE), "a", NOW, TIMES), id="it lasts as long"
        ),
        pytest.param(
            lambda: keep_probe(
                until(BEGUN, NOW + timedelta(seconds=30)), "a", NOW + timedelta(seconds=20), TIMES
            ),
            id="it lasts as long as the longest call",
        ),
        pytest.param(
            lambda: close(isolated(1), 4, "an old link", NOW), id="a link before the isolation"
        ),
        pytest.param(
            lambda: close(closed("", 0, ""), 4, "replayed", NOW), id="a link is used only once"
        ),
        pytest.param(
            lambda: close(opened(5, "", 1, 30), 4, "replayed", NOW), id="a link of an incident"
        ),
        pytest.param(
            lambda: take_announcement(replace(OPEN, announce_at=MINUTE), NOW, TIMES),
            id="not yet due",
        ),
        pytest.param(
            lambda: take_announcement(replace(DUE, announced_epoch=4), NOW, TIMES),
            id="already announced",
        ),
        pytest.param(lambda: take_announcement(CLOSED, NOW, TIMES), id="nothing to announce"),
        pytest.param(
            lambda: mark_announced(replace(DUE, announced_epoch=4), 4), id="already recorded"
        ),
    ],
)
def test_a_step_without_ground_changes_nothing(change: Change) -> None:
    assert change() is None


@pytest.mark.parametrize(
    ("row", "starts"),
    [
        (replace(OPEN, retry_at=NOW + timedelta(seconds=5)), False),
        (replace(OPEN, retry_at=NOW + timedelta(seconds=60)), False),
        (replace(OPEN, retry_at=NOW + timedelta(seconds=61)), True),
        (replace(OPEN, breaks=2, retry_at=NOW + timedelta(seconds=120)), False),
        (replace(OPEN, breaks=2, retry_at=NOW + timedelta(seconds=121)), True),
        (until(HALF_OPEN, NOW + timedelta(seconds=120)), False),
        (until(HALF_OPEN, NOW + timedelta(seconds=121)), True),
    ],
)
def test_a_time_more_than_twice_its_length_ahead_is_from_before_the_clock_was_set_back(
    row: Breaker, *, starts: bool
) -> None:
    """The clocks of a store's servers differ slightly."""
    assert (probing(row) is not None) is starts


SLOWLY = replace(TIMES, break_factor=1.01, break_seconds_max=1e6)


@pytest.mark.parametrize(
    ("breaks", "seconds"), [(0, 30), (1, 60), (2, 100), (50, 100), (10**9, 100)]
)
def test_open_intervals_grow_up_to_a_maximum(breaks: int, seconds: float) -> None:
    assert break_seconds(breaks, TIMES) == seconds
    assert break_seconds(99, SLOWLY) < break_seconds(100, SLOWLY) == break_seconds(101, SLOWLY)


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


def test_a_probe_that_hangs_is_given_up_in_the_end() -> None:
    row, now = HALF_OPEN, HALF_OPEN.changed_at
    while row.probe is not None and now < row.probe.until:
        row, now = keep_probe(row, "a", now, TIMES) or row, now + timedelta(seconds=1)
    assert now == HALF_OPEN.changed_at + LONGEST


def test_an_incident_that_was_not_announced_is_announced_together_with_the_next_one() -> None:
    row = replace(OPEN, announced_epoch=2)
    assert [(each.epoch, each.reason) for each in unannounced(row)] == [
        (3, "this earlier incident ended before it could be announced"),
        (4, "failures"),
    ]
    assert [each.epoch for each in unannounced(replace(row, announced_epoch=4))] == [4]


@pytest.mark.parametrize(
    ("name", "instance", "partition_id", "expected"),
    [
        ("closed", "a", "7", Admission(None, "closed")),
        ("open", "a", "7", Admission(0, "open: failures")),
        ("still_open", "a", "7", Admission(0, "open: failures")),
        ("isolated", "a", "7", Admission(0, "isolated: by hand")),
        ("half_open", "a", "7", Admission(3, "probing")),
        ("half_open", "a", "8", Admission(0, "half_open: a tries")),
        ("half_open", "b", "7", Admission(0, "half_open: a tries")),
        ("probe_expired", "a", "7", Admission(0, "half_open: a tries")),
    ],
)
def test_the_breaker_admits_all_events_a_few_or_none_depending_on_its_mode(
    name: str, instance: str, partition_id: str, expected: Admission
) -> None:
    admitted = admission(ROWS[name], instance, partition_id, NOW)
    assert (admitted, admitted.is_held) == (expected, expected.events_max == 0)
