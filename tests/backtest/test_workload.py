"""Reading a trace for the backtest: a missing row does not count as zero."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import numpy as np
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
        "read as CSV, column arrivals, 6 minutes, 28 items in the file",
        "2 missing steps of 1 min, the first before line 5: not recorded (--missing zero: no "
        "arrivals)",
        "1 gaps of up to 5 min, 2 min in all: filled with the mean of the minutes beside them",
    )


def test_a_long_gap_is_cut_out_and_later_minutes_keep_their_times(backtest: CommandLine) -> None:
    workload = read(backtest, without(csv_text(list(range(20))), *range(5, 15)))
    assert workload.arrivals.tolist() == [0, 1, 2, 3, 14, 15, 16, 17, 18, 19]
    assert workload.starts[4] == START + timedelta(minutes=14)
    assert "gaps at the ends or longer (1, 10 min in all): cut out" in workload.notices[2]


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


def sparse(counts: Sequence[float]) -> str:
    """A trace that leaves out the minutes in which nothing arrived."""
    return without(csv_text(counts), *(at + 1 for at, count in enumerate(counts) if not count))


POISSON: list[float] = np.random.default_rng(1).poisson(4, 1440).tolist()
BATCHES: list[float] = [500.0 * (minute % 60 in (0, 7)) for minute in range(1440)]
BUSY: list[float] = [200.0 + minute % 90 for minute in range(1440)]


@pytest.mark.parametrize("counts", [POISSON, BATCHES], ids=["few arrivals", "batches"])
def test_a_trace_without_its_empty_minutes_is_not_inflated(
    backtest: CommandLine, counts: list[float]
) -> None:
    workload = read(backtest, sparse(counts))
    minutes = max(np.flatnonzero(counts)) - min(np.flatnonzero(counts)) + 1
    assert workload.minutes == minutes
    assert workload.arrivals.sum() == sum(counts)
    assert "read as no arrivals, because no row of the file is 0" in workload.notices[1]
    assert "--missing gap" in workload.notices[1]


@pytest.mark.parametrize("zeros", [False, True])
def test_rows_that_were_lost_are_no_zeros(backtest: CommandLine, zeros: bool) -> None:
    counts = list(POISSON if zeros else BUSY)
    text = without(csv_text(counts), *range(100, 1000, 100), *range(1200, 1220))
    workload = read(backtest, text)
    assert workload.minutes == 1420
    assert workload.arrivals.mean() == pytest.approx(np.mean(counts), rel=0.02)
    assert "not recorded (--missing zero: no arrivals)" in workload.notices[1]


def test_values_missing_in_one_run_were_not_recorded(backtest: CommandLine) -> None:
    counts = [value or 1 for value in POISSON]
    workload = read(backtest, csv_text([*counts[:700], *[""] * 20, *counts[720:]]))
    assert workload.minutes == 1420
    assert "20 missing steps of 1 min, the first on line 702: not recorded" in workload.notices[1]


@pytest.mark.parametrize("text", [sparse(POISSON), csv_text(["null", 4, "", 0, 8, "NaN"])])
def test_the_option_missing_decides(backtest: CommandLine, text: str) -> None:
    path = backtest.file("trace.csv", text)
    zero, gap = (load_workload(path, missing=how) for how in ("zero", "gap"))
    written = sum(float(row.split(",")[1]) for row in text.split() if row[-1] in "0123456789")
    assert zero.arrivals.sum() == written
    assert gap.arrivals.sum() > written
    assert gap.minutes <= zero.minutes
    for workload, told in ((zero, "read as no arrivals"), (gap, "not recorded")):
        assert workload.notices[1].endswith(told)
