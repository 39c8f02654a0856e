"""The path from lines of telemetry to verdicts, through all steps of shared/sampling."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import UTC, date, datetime, timedelta

import pytest

from shared.sampling.comparison import Day, day_of
from shared.sampling.model import Quarantined, Record, Weight
from shared.sampling.records import read_lines
from shared.sampling.verdict import VerdictKind, judge_all
from tests.sampling.reference import Item, figures

START = datetime(2017, 5, 1, tzinfo=UTC)
DAYS, CHANGED, LOST = 35, 28, 32


def lines_of(day: int) -> list[str]:
    """100 operations with two events each. From day CHANGED on, one operation in 4 is kept, and on
    day LOST, one in 20."""
    k = 4 if day >= CHANGED else 1
    lost = day == LOST
    lines = []
    for operation in range(0, 100 + day % 3, k * (5 if lost else 1)):
        for part in range(2):
            time = START + timedelta(days=day, minutes=operation, seconds=part)
            event: dict[str, object] = {
                "Type": "AppEvents",
                "time": time.isoformat(),
                "Name": "PointsReceived",
            }
            event |= {"OperationId": f"{day}-{operation}", "ItemCount": k}
            lines.append(json.dumps(event | {"Measurements": {"Points": 10 + part}}))
    return [*lines, lines[0], lines[1][:40]]  # with a duplicate and a truncated line


def read_days() -> tuple[list[Day], int]:
    """The figures of all days, read from two files a day without duplicates, and the number of
    quarantined lines."""
    quarantined, seen = 0, set()
    items: dict[date, list[Item]] = defaultdict(list)
    for index in range(DAYS):
        lines = lines_of(index)
        for file in (lines[::2], lines[1::2]):
            for outcome in read_lines(file):
                quarantined += isinstance(outcome, Quarantined)
                if isinstance(outcome, Record) and outcome.key not in seen:
                    seen.add(outcome.key)
                    points = outcome.measurements.get("Points")
                    items[(START + timedelta(days=index)).date()].append(
                        Item(outcome.weight, points, outcome.operation_id)
                    )
    return [day_of(figures(of_day), day) for day, of_day in items.items()], quarantined


def test_verdicts_from_lines_tell_a_sampling_change_from_a_loss() -> None:
    days, quarantined = read_days()
    assert quarantined == DAYS
    assert days[0].value == 200
    assert days[CHANGED].value == pytest.approx(200, abs=8)
    assert days[CHANGED].sampling_rate_percent == 25
    kinds = [verdict.kind for verdict in judge_all(days)]
    assert set(kinds[21:CHANGED]) == {VerdictKind.NORMAL}
    assert kinds[CHANGED] is VerdictKind.SAMPLING_CHANGED
    assert kinds[LOST] is VerdictKind.EVENTS_LOST


def test_a_day_can_have_the_adjusted_sum_as_its_value() -> None:
    weight = Weight(4.0)
    estimates = figures([Item(weight, 2.5, "a")])
    day = day_of(estimates, START.date(), "total", control=7)
    assert (day.value, day.control) == (10, 7)
    assert day.standard_error == estimates.total.standard_error


@pytest.mark.parametrize(("doubtful", "trusted"), [(0, True), (1, True), (20, False), (100, False)])
def test_a_day_with_too_many_doubtful_weights_is_not_trusted(doubtful: int, trusted: bool) -> None:
    items = [Item(Weight(1.0, trusted=False))] * doubtful
    items += [Item(Weight(1.0))] * (100 - doubtful)
    assert day_of(figures(items), START.date()).trusted is trusted
