"""The whole row that each transition of the breaker writes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from shared.ingestion.breaker.state import (
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


def test_opening_clears_who_closed_the_breaker() -> None:
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
def test_isolating_clears_the_open_interval_the_probe_and_who_closed_the_breaker(
    row: Breaker,
) -> None:
    assert isolate(row, "maintenance", NOW, TIMES) == Breaker(
        BreakerMode.ISOLATED, 5, NOW, "maintenance", row.breaks, announce_at=ANNOUNCED_BY
    )


def test_the_row_names_the_probes_start_holder_and_partition() -> None:
    assert start_probe(OPEN, "b", "9", NOW, TIMES) == replace(
        OPEN,
        mode=BreakerMode.HALF_OPEN,
        changed_at=NOW,
        reason="b tries partition 9",
        probe=Probe("b", "9", PROBED_UNTIL, 3),
    )


def test_a_successful_probe_closes_the_breaker_and_names_its_holder() -> None:
    assert report_probe(HALF_OPEN, "a", 3, None, NOW, TIMES) == Breaker(
        BreakerMode.CLOSED, 4, NOW, "the probe succeeded", 1, closed_by="a"
    )


def test_closing_names_the_person_and_resets_the_open_intervals() -> None:
    assert close(OPEN, 4, "ada", NOW) == Breaker(
        BreakerMode.CLOSED, 4, NOW, "closed by ada", 0, closed_by="ada"
    )


def test_an_announcement_that_was_taken_over_may_be_taken_over_again() -> None:
    due = replace(OPEN, announce_at=NOW)
    assert take_announcement(due, NOW, TIMES) == replace(OPEN, announce_at=ANNOUNCED_BY)


@pytest.mark.parametrize("row", [OPEN, replace(HALF_OPEN, probe=None), replace(OPEN, probe=PROBE)])
def test_a_report_without_a_running_probe_has_no_effect(row: Breaker) -> None:
    assert report_probe(row, "a", 3, None, NOW, TIMES) is None


def test_an_admission_states_its_reason() -> None:
    assert admission(CLOSED_BY_ADA, "a", "7", NOW) == Admission(None, "closed")
    assert admission(HALF_OPEN, "a", "7", NOW) == Admission(3, "probing")
    assert admission(OPEN, "a", "7", NOW) == Admission(0, "open: failures")


def test_the_open_interval_stops_growing_after_a_hundred_in_a_row() -> None:
    slowly = replace(TIMES, break_factor=1.01, break_seconds_max=1e6)
    assert break_seconds(99, slowly) < break_seconds(100, slowly) == break_seconds(101, slowly)


def test_keeping_a_probe_changes_only_its_end() -> None:
    kept = keep_probe(HALF_OPEN, "a", NOW, TIMES)
    assert kept == replace(HALF_OPEN, probe=replace(PROBE, until=PROBED_UNTIL))


def test_a_probe_is_kept_for_at_most_the_longest_duration_of_a_call() -> None:
    longest = timedelta(seconds=TIMES.probe_call_seconds_max)
    begun = replace(HALF_OPEN, changed_at=NOW + timedelta(seconds=30) - longest)
    kept = replace(begun, probe=replace(PROBE, until=NOW + timedelta(seconds=30)))
    assert keep_probe(begun, "a", NOW, TIMES) == kept
    assert keep_probe(kept, "a", NOW + timedelta(seconds=20), TIMES) is None


def test_a_probe_that_already_lasts_as_long_is_not_written_again() -> None:
    same = replace(HALF_OPEN, probe=replace(PROBE, until=PROBED_UNTIL))
    assert keep_probe(same, "a", NOW, TIMES) is None


@pytest.mark.parametrize("row", [OPEN, replace(HALF_OPEN, probe=None), replace(OPEN, probe=PROBE)])
def test_a_probe_that_is_not_running_cannot_be_kept(row: Breaker) -> None:
    assert keep_probe(row, "a", NOW, TIMES) is None


def test_only_the_holder_can_keep_a_probe_until_it_expires() -> None:
    assert keep_probe(HALF_OPEN, "b", NOW, TIMES) is None
    assert keep_probe(HALF_OPEN, "a", PROBE.until, TIMES) is None


# --- after the store's clock was set back -----------------------------------------------------


@pytest.mark.parametrize(("breaks", "length_seconds"), [(1, 30), (2, 60)])
def test_an_open_interval_with_more_than_twice_its_length_left_is_over(
    breaks: int, length_seconds: float
) -> None:
    end = NOW + timedelta(seconds=2 * length_seconds)
    row = replace(OPEN, breaks=breaks, retry_at=end)
    assert start_probe(row, "b", "9", NOW, TIMES) is None
    beyond = replace(row, retry_at=end + timedelta(seconds=1))
    assert start_probe(beyond, "b", "9", NOW, TIMES) is not None


def test_a_probe_with_more_than_twice_its_time_left_can_be_taken_over() -> None:
    end = NOW + timedelta(seconds=2 * TIMES.probe_seconds)
    row = replace(HALF_OPEN, probe=replace(PROBE, until=end))
    assert start_probe(row, "b", "9", NOW, TIMES) is None
    beyond = replace(row, probe=replace(PROBE, until=end + timedelta(seconds=1)))
    assert start_probe(beyond, "b", "9", NOW, TIMES) is not None
