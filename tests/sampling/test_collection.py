"""Hours in which collection stopped, and days that end at a cap, are told from quiet hours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from shared.sampling.collection import ACCEPT_AFTER_STOPS, Collected, clock

START, DAYS = date(2017, 3, 6), 28
BERLIN, UTC = ZoneInfo("Europe/Berlin"), ZoneInfo("UTC")
LAST = DAYS - 1
Counts = Callable[[int, int], int]


def collection(
    counts: Counts,
    days: int = DAYS,
    zone: ZoneInfo = UTC,
    age: int | None = None,
    old: Callable[[int], int | None] = lambda _: 0,
) -> Collected:
    """``counts`` gives the records of a day's hours, and ``old`` the age of an hour's records."""
    dates = [START + timedelta(days=index) for index in range(days)]
    records: dict[int, Mapping[int | None, int]] = {
        hour: {old(at.hour): count}
        for index, day in enumerate(dates)
        for hour, at in clock(day, zone).items()
        if (count := counts(index, at.hour))
    }
    ages = {} if age is None else {dates[-1]: age}
    return Collected(records, dates, zone, ages)


def stops(found: Collected) -> dict[int, str]:
    return {(day - START).days: found.named(hours) for day, hours in found.stops.items()}


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        (lambda day, hour: 0 if day == LAST and hour >= 13 else 20, "from 13:00 to 24:00 (UTC)"),
        (lambda day, hour: 0 if day == LAST and hour in (3, 4, 9) else 20,
         "from 03:00 to 05:00 and from 09:00 to 10:00 (UTC)"),
        (lambda day, _: 0 if day == LAST else 20, "from 00:00 to 24:00 (UTC)"),
        (lambda day, hour: 0 if day == LAST and hour >= 13 else 20 * (hour < 20),
         "from 13:00 to 20:00 (UTC)"),  # nights are always silent
        (lambda day, hour: 0 if day in (20, LAST) and hour >= 13 else 20,
         "from 13:00 to 24:00 (UTC)"),  # an earlier stop is no excuse
        (lambda day, hour: 0 if day == LAST and hour >= 13 else 20 * (day % 7 < 6), ""),
        (lambda day, hour: 0 if day == LAST and hour == 13 else 3, ""),  # perhaps by chance
        (lambda day, hour: 20 if day < LAST else int(hour == 12), ""),  # hardly any traffic at all
        (lambda day, hour: 0 if day == 10 and hour >= 13 else 20, ""),  # too little history
    ],
)  # fmt: skip
def test_collection_stopped_in_hours_in_which_all_earlier_days_have_records(
    counts: Counts, expected: str
) -> None:
    assert stops(collection(counts)).get(LAST, "") == expected


def test_hours_are_local_and_an_hour_that_the_clocks_skip_is_not_silent() -> None:
    """The clocks of Berlin change on the day with index 20."""
    found = collection(lambda day, hour: 0 if day == LAST and hour >= 13 else 20, zone=BERLIN)
    assert stops(found) == {LAST: "from 13:00 to 24:00 (Europe/Berlin)"}
    assert len(clock(START + timedelta(days=20), BERLIN)) == 23


@pytest.mark.parametrize(("old", "age", "silent"), [(0, 0, True), (1, 0, False), (1, 1, True)])
def test_a_young_day_is_compared_with_what_had_arrived_of_earlier_days(
    old: int, age: int, silent: bool
) -> None:
    found = collection(
        lambda day, hour: 0 if day == LAST and hour >= 20 else 20,
        age=age,
        old=lambda hour: old if hour >= 20 else 0,
    )
    assert stops(found) == ({LAST: "from 20:00 to 24:00 (UTC)"} if silent else {})


def test_hours_of_unknown_age_are_not_missing_from_a_young_day() -> None:
    found = collection(lambda day, hour: 20 * (day < LAST or hour < 20), age=0, old=lambda _: None)
    assert not stops(found)


def test_hours_that_stay_silent_for_weeks_become_usual() -> None:
    days = 20 + ACCEPT_AFTER_STOPS + 10
    found = stops(collection(lambda day, hour: 20 * (day < 20 or hour < 13), days=days))
    assert list(found) == list(range(20, 20 + ACCEPT_AFTER_STOPS + 1))


FLAT, WEEK = (1.0,) * 7, (1.0, 1.05, 1.1, 1.0, 0.95, 0.5, 0.45)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("cap", "reset", "hours", "week", "level", "capped"),
    [
        (250, 0, (0, 24), WEEK, 600, True),
        (250, 6, (0, 24), WEEK, 600, True),  # the day of the cap begins at another hour
        (300, 20, (0, 24), WEEK, 600, True),
        (400, 0, (0, 24), WEEK, 600, True),  # not reached on weekends
        (30_000, 0, (0, 24), FLAT, 50_000, True),
        (None, 0, (0, 24), WEEK, 600, False),
        (None, 0, (8, 20), WEEK, 600, False),  # closed at night
        (None, 0, (8, 20), FLAT, 50_000, False),
        (None, 0, (0, 24), WEEK, 20, False),
    ],
)
def test_a_daily_cap_keeps_the_number_of_records_constant(
    cap: int | None,
    reset: int,
    hours: tuple[int, int],
    week: tuple[float, ...],
    level: int,
    capped: bool,
    seed: int,
) -> None:
    """Its hours are not reported once more, as hours in which collection stopped."""
    rng = np.random.default_rng(seed)
    shape = np.array([max(1 - abs(h - 14) / 13, 0.1) * (hours[0] <= h < hours[1])
                      for h in range(24)])  # fmt: skip
    days = level * np.array(week * 6) * np.exp(rng.normal(0, 0.04, 42))
    sent = rng.poisson(np.outer(days, shape / shape.sum())).ravel()
    for start in range(reset - 24, len(sent), 24):
        day = sent[max(start, 0) : start + 24]
        day[:] = np.diff(np.minimum(day.cumsum(), cap or day.sum()), prepend=0)
    found = collection(lambda day, hour: int(sent[24 * day + hour]), days=42)
    assert len(found.caps) >= 25 if capped else not found.caps
    silent = [hour for span in found.caps.values() for hour in span[1:]]
    assert not any(found.records.get(hour) for hour in silent)
    assert found.unknown_hours >= set(silent)
    assert not found.stops


def test_a_cap_is_known_on_the_day_on_which_it_is_reached() -> None:
    """The last date is over. The day of the cap, which begins at 06:00, is not. On two days of a
    week the cap is reached after midnight.
    """

    def counts(day: int, hour: int) -> int:
        since = day - (hour < 6)
        pace = 12 if since % 7 < 2 else 20 + since % 5 * 5
        return max(min(pace, 240 - pace * ((hour - 6) % 24)), 0)

    found = collection(counts)
    assert max(found.caps) == START + timedelta(days=LAST)


def test_a_number_that_is_the_same_each_hour_is_no_cap() -> None:
    """Such as that of a timer, which runs by day only."""
    assert not collection(lambda _, hour: 10 * (8 <= hour < 20)).caps
    assert not Collected({}, []).caps


def test_silence_between_bursts_of_records_is_not_a_stop() -> None:
    """A request writes 20 records, and there are a hundred requests a day."""
    rng = np.random.default_rng(5)
    counts = 20 * rng.poisson(100 / 24, (200, 24))
    assert (counts == 0).any(axis=1).sum() > 40
    assert not stops(collection(lambda day, hour: int(counts[day, hour]), days=200))
