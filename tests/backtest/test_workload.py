"""Rules of reading a trace for the backtest: what is missing is not zero."""

from __future__ import annotations

from datetime import timedelta

import pytest

from backtest.workload import Workload, load_workload
from tests.backtest.arenas import START, CommandLine, csv_text


def read(backtest: CommandLine, text: str) -> Workload:
    return load_workload(backtest.file("trace.csv", text))


def without(text: str, *lines: int) -> str:
    kept = [line for number, line in enumerate(text.splitlines()) if number not in lines]
    return "\n".join((*kept, ""))


def test_a_short_hole_gets_the_mean_of_its_neighbours(backtest: CommandLine) -> None:
    found = read(backtest, without(csv_text([8, 8, 8, 9, 9, 4]), 4, 5))
    assert found.arrivals.tolist() == [8, 8, 8, 6, 6, 4]
    assert found.notices == (
        "1 holes of up to 5 min, 2 min in all: filled with the mean of the minutes beside them",
    )


def test_a_long_hole_is_cut_out_and_time_goes_on_behind_it(backtest: CommandLine) -> None:
    found = read(backtest, without(csv_text(list(range(20))), *range(5, 15)))
    assert found.arrivals.tolist() == [0, 1, 2, 3, 14, 15, 16, 17, 18, 19]
    assert found.starts[4] == START + timedelta(minutes=14)
    assert "longer holes (1, 10 min in all): cut out" in found.notices[0]


def test_zeros_that_are_written_are_zeros(backtest: CommandLine) -> None:
    found = read(backtest, csv_text([4, 0, 0, 0, 0, 0, 0, 0, 5]))
    assert found.arrivals.tolist() == [4, 0, 0, 0, 0, 0, 0, 0, 5]
    assert found.notices == ()


def test_seconds_are_summed_and_missing_ones_scaled_up(backtest: CommandLine) -> None:
    text = without(csv_text([2] * 180, timedelta(seconds=1)), *range(70, 100))
    found = read(backtest, text)
    assert found.arrivals.tolist() == pytest.approx([120, 120, 120])
    assert any("scaled up" in notice for notice in found.notices)
    assert "rows 1 s apart: summed into minutes" in found.notices


@pytest.mark.parametrize("minutes", [5, 30])
def test_long_steps_are_spread_evenly(backtest: CommandLine, minutes: int) -> None:
    found = read(backtest, csv_text([60, 120], timedelta(minutes=minutes)))
    assert found.arrivals.tolist() == [60 / minutes] * minutes + [120 / minutes] * minutes
    assert f"rows {minutes} min apart: spread evenly over minutes" in found.notices


def test_a_hole_between_long_steps_is_cut_out(backtest: CommandLine) -> None:
    found = read(backtest, without(csv_text([30] * 6, timedelta(minutes=30)), 3))
    assert found.arrivals.tolist() == [1.0] * 150
    assert "cut out" in " ".join(found.notices)


def test_other_time_zones_are_converted(backtest: CommandLine) -> None:
    found = read(backtest, "time,arrivals\n2026-03-01T02:00:00+02:00,3\n2026-03-01T00:01:00Z,4\n")
    assert (found.starts[0], found.arrivals.tolist()) == (START, [3, 4])


def test_a_part_is_a_workload(backtest: CommandLine) -> None:
    part = read(backtest, csv_text([1, 2, 3, 4])).part(1, 3)
    assert (part.minutes, part.listed, part.starts[0]) == (2, [2, 3], START + timedelta(minutes=1))
