"""Each transition of the breaker as the whole row that it writes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from shared.ingestion.breaker.breaker import (
    Admission,
    Breaker,
    BreakerMode,
    Probe,
    admission,
    break_seconds,
    close,
    isolate,
    keep_probe,
    report_probe,
    start_probe,
    take_announcement,
    trip,
)
from tests.builders import NOW, ago
from tests.ingestion.test_breaker import HALF_OPEN, OPEN, PROBE, TIMES

CLOSED_BY_ADA = Breaker(BreakerMode.CLOSED, 4, ago(9), "closed by ada", 1, closed_by="ada")
ANNOUNCED_BY = NOW + timedelta(seconds=TIMES.announce_seconds)
PROBED_UNTIL = NOW + timedelta(seconds=TIMES.probe_seconds)


def test_an_opened_breaker_forgets_who_closed_it_last() -> None:
    assert trip(CLOSED_BY_ADA, "6 failures", NOW, TIMES) == Breaker(
        BreakerMode.OPEN,
        5,
        NOW,
        "6 failures",
        2,
        retry_at=NOW + timedelta(seconds=60),
        announce_at=ANNOUNCED_BY,
    )


@pytest.mark.parametrize("row", [CLOSED_BY_ADA, OPEN, HALF_OPEN])
def test_an_isolated_breaker_has_no_break_no_probe_and_nobody_who_closed_it(row: Breaker) -> None:
    assert isolate(row, "maintenance", NOW, TIMES) == Breaker(
        BreakerMode.ISOLATED, 5, NOW, "maintenance", row.breaks, announce_at=ANNOUNCED_BY
    )


def test_a_probe_says_since_when_who_tries_what() -> None:
    assert start_probe(OPEN, "b", "9", NOW, TIMES) == replace(
        OPEN,
        mode=BreakerMode.HALF_OPEN,
        changed_at=NOW,
        reason="b tries partition 9",
        probe=Probe("b", "9", PROBED_UNTIL, 3),
    )


def test_a_probe_that_succeeded_closes_and_says_whose_it_was() -> None:
    assert report_probe(HALF_OPEN, "a", 3, None, NOW, TIMES) == Breaker(
        BreakerMode.CLOSED, 4, NOW, "the probe succeeded", 1, closed_by="a"
    )


def test_a_person_who_closes_it_is_named_and_breaks_start_anew() -> None:
    assert close(OPEN, 4, "ada", NOW) == Breaker(
        BreakerMode.CLOSED, 4, NOW, "closed by ada", 0, closed_by="ada"
    )


def test_an_announcement_that_is_taken_over_may_be_taken_over_again_later() -> None:
    due = replace(OPEN, announce_at=NOW)
    assert take_announcement(due, NOW, TIMES) == replace(OPEN, announce_at=ANNOUNCED_BY)


@pytest.mark.parametrize("row", [OPEN, replace(HALF_OPEN, probe=None), replace(OPEN, probe=PROBE)])
def test_nobody_reports_a_probe_that_does_not_run(row: Breaker) -> None:
    assert report_probe(row, "a", 3, None, NOW, TIMES) is None


def test_what_passes_the_gate_says_why() -> None:
    assert admission(CLOSED_BY_ADA, "a", "7", NOW) == Admission(None, "closed")
    assert admission(HALF_OPEN, "a", "7", NOW) == Admission(3, "probing")
    assert admission(OPEN, "a", "7", NOW) == Admission(0, "open: failures")


def test_after_a_hundred_breaks_in_a_row_the_next_one_is_no_longer() -> None:
    slowly = replace(TIMES, break_factor=1.01, break_seconds_max=1e6)
    assert break_seconds(99, slowly) < break_seconds(100, slowly) == break_seconds(101, slowly)


def test_who_is_at_work_keeps_the_probe_for_as_long_again_and_nothing_else_changes() -> None:
    kept = keep_probe(HALF_OPEN, "a", NOW, TIMES)
    assert kept == replace(HALF_OPEN, probe=replace(PROBE, until=PROBED_UNTIL))


def test_no_probe_is_kept_for_longer_than_a_call_may_take_from_when_it_began() -> None:
    longest = timedelta(seconds=TIMES.probe_call_seconds_max)
    begun = replace(HALF_OPEN, changed_at=NOW + timedelta(seconds=30) - longest)
    kept = replace(begun, probe=replace(PROBE, until=NOW + timedelta(seconds=30)))
    assert keep_probe(begun, "a", NOW, TIMES) == kept
    assert keep_probe(kept, "a", NOW + timedelta(seconds=20), TIMES) is None


def test_a_probe_that_lasts_as_long_already_is_not_written_again() -> None:
    same = replace(HALF_OPEN, probe=replace(PROBE, until=PROBED_UNTIL))
    assert keep_probe(same, "a", NOW, TIMES) is None


@pytest.mark.parametrize("row", [OPEN, replace(HALF_OPEN, probe=None), replace(OPEN, probe=PROBE)])
def test_nobody_keeps_a_probe_that_does_not_run(row: Breaker) -> None:
    assert keep_probe(row, "a", NOW, TIMES) is None


def test_only_its_holder_keeps_a_probe_and_only_until_it_runs_out() -> None:
    assert keep_probe(HALF_OPEN, "b", NOW, TIMES) is None
    assert keep_probe(HALF_OPEN, "a", PROBE.until, TIMES) is None


# --- after the store's clock was set back -----------------------------------------------------


@pytest.mark.parametrize(("breaks", "length_seconds"), [(1, 30), (2, 60)])
def test_a_break_with_more_than_twice_its_length_to_go_is_over(
    breaks: int, length_seconds: float
) -> None:
    end = NOW + timedelta(seconds=2 * length_seconds)
    row = replace(OPEN, breaks=breaks, retry_at=end)
    assert start_probe(row, "b", "9", NOW, TIMES) is None
    beyond = replace(row, retry_at=end + timedelta(seconds=1))
    assert start_probe(beyond, "b", "9", NOW, TIMES) is not None


def test_a_probe_with_more_than_twice_its_time_to_go_is_free_for_others() -> None:
    end = NOW + timedelta(seconds=2 * TIMES.probe_seconds)
    row = replace(HALF_OPEN, probe=replace(PROBE, until=end))
    assert start_probe(row, "b", "9", NOW, TIMES) is None
    beyond = replace(row, probe=replace(PROBE, until=end + timedelta(seconds=1)))
    assert start_probe(beyond, "b", "9", NOW, TIMES) is not None
