"""Dates in the paths of blobs, which arrivals, the nightly run and the job must read alike."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from shared.sampling.blob_paths import date_of, hour_of, may_hold
from shared.sampling.series import UNDATED
from shared.trends.datasets.arrivals import BlobArrived
from shared.trends.datasets.processing import UnreadableMessage
from spark_jobs.read.files import SourceFile

EVENT_TIME = datetime(2026, 3, 2, 6, tzinfo=UTC)


def observed_at(path: str) -> datetime:
    return BlobArrived("container", path, EVENT_TIME).observed_at


@pytest.mark.parametrize(
    ("path", "hour"),
    [
        ("a/y=2026/m=03/d=01/h=05/m=00/PT1H.json", "2026-03-01 05"),
        ("y=2026/m=3/d=1/h=5/PT1H.json", "2026-03-01 05"),
        ("a/2026-03-01/05/x.blob", "2026-03-01 05"),
        ("namespace/hub/0/2026/03/01/05/30/00.json", "2026-03-01 05"),
        ("a/y=2026/m=03/d=01/PT1H.json", "2026-03-01 00"),
        ("a/2026-03-01/x.blob", "2026-03-01 00"),
        ("a/2026-03-01/053/x.blob", "2026-03-01 00"),
        ("2025-01-01/y=2026/m=03/d=01/h=05/m=00/PT1H.json", "2026-03-01 05"),
        ("t/year=2026/month=03/day=01/part-0.parquet", "2026-03-01 00"),
        ("t/year=2026/month=3/day=1/hour=5/part-0.parquet", "2026-03-01 05"),
        ("t/Year=2026/Month=03/Day=01/region=eu/Hour=05/x", "2026-03-01 05"),
        ("t/yyyy=2026/MM=03/dd=01/HH=05/x", "2026-03-01 05"),
        ("t/dt=2026-03-01/x", "2026-03-01 00"),
        ("t/date=2026-03-01/hour=05/x", "2026-03-01 05"),
        ("t/ds=20260301/hr=5/x", "2026-03-01 05"),
        ("t/event_date=2026-03-01/05/x", "2026-03-01 05"),
        ("t/eventDate=2026_03_01/x", "2026-03-01 00"),
        ("t/dt=2026-03-01-05/x", "2026-03-01 05"),
        ("t/2026-03-01T05/x", "2026-03-01 05"),
        ("20260301/x", "2026-03-01 00"),
        ("t/20260301/05/x", "2026-03-01 05"),
        ("t/20260301/5/x", "2026-03-01 05"),
        ("t/2026030105/x", "2026-03-01 05"),
        ("t/2026/3/1/5/x", "2026-03-01 05"),
        ("t/2026/3/15/x", "2026-03-15 00"),
        ("t/20260301/42/x", "2026-03-01 00"),
        ("t/id=20250101/dt=20260301/x", "2026-03-01 00"),
        ("y=2026/m=02/d=30/2026-03-01/x.json", "2026-03-01 00"),
        ("y=2025/m=01/d=01/h=07/2026-03-01/05/x.blob", "2026-03-01 05"),
        ("2025-01-01/2025-01-02/2026-03-01/x.blob", "2026-03-01 00"),
    ],
)
def test_all_readers_of_a_path_find_the_same_hour(path: str, hour: str) -> None:
    expected = datetime.fromisoformat(f"{hour}:00+00:00")
    assert hour_of(path) == expected
    assert date_of(path) == expected.date()
    assert observed_at(path) == expected
    assert SourceFile(path, 1).hour == expected
    assert SourceFile(path, 1).blob_date == str(expected.date())


@pytest.mark.parametrize(
    "path",
    [
        "a/day=2026/m=03/d=01/h=05/x.json",
        "a/xy=2026/m=03/d=01/h=05/x.json",
        "a/id-2026-03-01/05/x.json",
        "a/2026-03-01.json",
        "a/12026/03/01/x.json",
        "a/id=20260301/x.json",
        "a/20261301/x.json",
        "a/120260301/x.json",
        "a/202603010/x.json",
        "a/20260301.json",
        "a/year=2026/month=03/x.json",
        "customers/1042/1/7/x.json",
        "a/2026-03-01",
        "a/y=2026/m=03/x.json",
        "a/4711/99/99/x.json",
        "a/2026/13/01/x.json",
        "a/y=\u0662\u0660\u0662\u0666/m=03/d=01/x.json",
        "events.json",
    ],
)
def test_a_path_without_a_folder_of_a_date_has_no_date(path: str) -> None:
    assert hour_of(path) is None
    assert date_of(path) is None
    assert observed_at(path) == EVENT_TIME
    assert SourceFile(path, 1).blob_date == UNDATED


@pytest.mark.parametrize(
    "path",
    [
        "y=2026/m=13/d=01/h=05/x.json",
        "y=2026/m=02/d=30/h=05/x.json",
        "y=2026/m=03/d=01/h=24/x.json",
        "2026-03-01/y=2026/m=02/d=30/x.json",
        "0000-01-01/00/x.json",
        "2026-02-30/x.json",
        "dt=2026-02-30/x.json",
        "20260230/x.json",
        "year=2026/month=2/day=30/x.json",
        "date=2026-03-01/hour=24/x.json",
        "2026/02/30/05/x.json",
    ],
)
def test_a_date_that_does_not_exist_is_an_error_or_no_date(path: str) -> None:
    with pytest.raises(ValueError, match=r"must be in|out of range"):
        hour_of(path)
    assert date_of(path) is None
    with pytest.raises(UnreadableMessage, match="holds an invalid date"):
        observed_at(path)
    assert SourceFile(path, 1).blob_date == UNDATED


def test_a_folder_is_listed_only_if_it_can_contain_one_of_the_dates() -> None:
    dates = [date(2026, 3, 1)]
    assert may_hold("a/y=2026/m=3/", dates)
    assert may_hold("a/2026/", dates)
    assert may_hold("a/2026/03/", dates)
    assert may_hold("a/2026/03/01/", dates)
    assert may_hold("a/2026-03-01/", dates)
    assert may_hold("a/xy=2025/", dates)
    assert may_hold("a/year=2026/month=03/", dates)
    assert may_hold("a/20260301/", dates)
    assert not may_hold("a/Year=2025/", dates)
    assert not may_hold("a/year=2026/month=2/", dates)
    assert not may_hold("a/dt=2026-03-02/", dates)
    assert not may_hold("a/20260302/", dates)
    assert not may_hold("a/2026/03/02/", dates)
    assert not may_hold("a/2026-03-02/", dates)
    assert not may_hold("a/y=2026/m=2/", dates)


@pytest.mark.parametrize(
    ("above", "below", "day"),
    [
        ("/in/2026-11-25", "/y=2026/m=03/d=01/h=05/m=00/PT1H.json", "2026-03-01"),
        ("/in/2026-11-25", "/app/Event/2026-03-01/05/x.blob", "2026-03-01"),
        ("/in/2026/11/25", "/0/2026/03/01/05/30/00.json", "2026-03-01"),
        ("/in/2026-11-25", "/events.json", UNDATED),
        ("/in/20261125/05", "/app/events.json", UNDATED),
        ("/in/y=2025", "/y=2026/m=03/d=01/h=05/m=00/PT1H.json", "2026-03-01"),
        ("/in/y=2026/m=03/d=01/h=05/m=00/PT1H.json", "", UNDATED),
        ("/in/y=2026/m=03", "/d=01/h=05/m=00/PT1H.json", "2026-03-01"),
        ("/in/y=2026/m=03/d=01", "/h=05/m=00/PT1H.json", "2026-03-01"),
    ],
)
def test_only_a_date_that_ends_below_the_input_counts(above: str, below: str, day: str) -> None:
    assert SourceFile(above + below, 1, len(above)).blob_date == day
    assert str(date_of(above + below, len(above)) or UNDATED) == day
    assert may_hold(f"{above}/", [date(2026, 3, 1)], len(above) + 1)
