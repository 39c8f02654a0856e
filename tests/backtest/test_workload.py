"""Reading a trace for the backtest: a missing row does not count as zero."""

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


def test_a_short_gap_gets_the_mean_of_its_neighbors(backtest: CommandLine) -> None:
    workload = read(backtest, without(csv_text([8, 8, 8, 9, 9, 4]), 4, 5))
    assert workload.arrivals.tolist() == [8, 8, 8, 6, 6, 4]
    assert workload.notices == (
        "1 gaps of up to 5 min, 2 min in all: filled with the mean of the minutes beside them",
    )


def test_a_long_gap_is_cut_out_and_later_minutes_keep_their_times(backtest: CommandLine) -> None:
    workload = read(backtest, without(csv_text(list(range(20))), *range(5, 15)))
    assert workload.arrivals.tolist() == [0, 1, 2, 3, 14, 15, 16, 17, 18, 19]
    assert workload.starts[4] == START + timedelta(minutes=14)
    assert "longer gaps (1, 10 min in all): cut out" in workload.notices[0]


def test_explicit_zeros_are_kept(backtest: CommandLine) -> None:
    workload = read(backtest, csv_text([4, 0, 0, 0, 0, 0, 0, 0, 5]))
    assert workload.arrivals.tolist() == [4, 0, 0, 0, 0, 0, 0, 0, 5]
    assert workload.notices == ()


def test_seconds_are_summed_and_missing_ones_scaled_up(backtest: CommandLine) -> None:
    text = without(csv_text([2] * 180, timedelta(seconds=1)), *range(70, 100))
    workload = read(backtest, text)
    assert workload.arrivals.tolist() == pytest.approx([120, 120, 120])
    assert any("scaled up" in notice for notice in workload.notices)
    assert "rows 1 s apart: summed into minutes" in workload.notices


@pytest.mark.parametrize("minutes", [5, 30])
def test_long_steps_are_spread_evenly(backtest: CommandLine, minutes: int) -> None:
    workload = read(backtest, csv_text([60, 120], timedelta(minutes=minutes)))
    assert workload.arrivals.tolist() == [60 / minutes] * minutes + [120 / minutes] * minutes
    assert f"rows {minutes} min apart: spread evenly over minutes" in workload.notices


def test_a_gap_between_long_steps_is_cut_out(backtest: CommandLine) -> None:
    workload = read(backtest, without(csv_text([30] * 6, timedelta(minutes=30)), 3))
    assert workload.arrivals.tolist() == [1.0] * 150
    assert "cut out" in " ".join(workload.notices)


def test_other_time_zones_are_converted(backtest: CommandLine) -> None:
    found = read(backtest, "time,arrivals\n2026-03-01T02:00:00+02:00,3\n2026-03-01T00:01:00Z,4\n")
    assert (found.starts[0], found.arrivals.tolist()) == (START, [3, 4])


def test_a_part_of_a_workload_is_a_workload(backtest: CommandLine) -> None:
    part = read(backtest, csv_text([1, 2, 3, 4])).part(1, 3)
    assert (part.minutes, part.listed, part.starts[0]) == (2, [2, 3], START + timedelta(minutes=1))
