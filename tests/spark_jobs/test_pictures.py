"""Pictures show all days of an event on one page, whatever its figures and names are."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from shared.sampling.trend_rows import Trend
from spark_jobs import event_trends
from spark_jobs.job import Done
from spark_jobs.options import parse
from spark_jobs.publish.pictures import SERIES_MAX, pictures, series_to_draw
from spark_jobs.publish.publishing import Manifest

DAY = Trend(
    date="2017-05-15",
    event="OrderPlaced",
    kind="event",
    measurement="Amount",
    records=2,
    raw_sum=10.0,
    sampling_rate=50.0,
    adjusted_count=4.0,
    adjusted_sum=20.0,
    adjusted_sum_low=10.0,
    adjusted_sum_high=30.0,
    verdict="events lost",
    reason="47% of what was expected",
)


def drawn(*trends: Trend) -> str:
    ((name, page),) = pictures(trends).items()
    assert name.endswith(".html")
    return page.decode()


def test_a_page_needs_no_other_file_and_describes_its_picture() -> None:
    page = drawn(DAY, replace(DAY, date="2017-05-16", verdict="normal"))
    for text in ("<svg", "events lost</b> 47% of what was expected", "as recorded", "kept, %"):
        assert text in page
    assert 'src="' not in page


def test_names_of_events_are_escaped() -> None:
    page = drawn(replace(DAY, event="<script>x</script> $a$ 事件"))
    assert "<script>" not in page
    assert "事件" in page


def test_a_series_that_cannot_be_drawn_gets_a_page_and_the_others_are_drawn() -> None:
    beyond = replace(DAY, event="huge", adjusted_sum=-1e308, adjusted_sum_high=1e308)
    found = pictures([beyond, DAY])
    assert len(found) == 2
    (page,) = [content for name, content in found.items() if name.startswith("huge")]
    assert b"Cannot be drawn" in page
    assert b"2017-05-15" in page


def test_of_too_many_series_those_with_a_loss_are_drawn_first() -> None:
    calm = [replace(DAY, event=f"e{n}", verdict="normal", adjusted_count=9) for n in range(60)]
    assert series_to_draw([*calm, DAY])[0] == [DAY]
    assert len(series_to_draw([*calm, DAY])) == SERIES_MAX


def test_the_number_of_series_that_were_not_drawn_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    trends = [replace(DAY, event=f"e{n}") for n in range(SERIES_MAX + 11)]
    done = Done(Manifest(), (), trends, {}, "")
    given = ["--input", "in", "--output", "out"]
    event_trends._print(parse(given, date(2017, 7, 1)), done)
    assert f"{SERIES_MAX} series were drawn, 11 were not" in capsys.readouterr().err
    event_trends._print(parse([*given, "--no-pictures"], date(2017, 7, 1)), done)
    assert not capsys.readouterr().err
