"""Rules whose metrics arrive minutes late scale out and back in."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backtest.autoscale_setting import STATISTICS, UNITS
from bench.groups.sources import resources
from bench.imported_settings import SETTINGS, imported
from bench.returning import DELAYS_MINUTES, may_lag, replay
from shared.autoscaling.azure_monitor import source

ALL = resources()
LAGGING = [name for name, resource in ALL.items() if may_lag(resource)]
SOME_MINUTES = (DELAYS_MINUTES[0], 4, DELAYS_MINUTES[-1])
"""The group `sources` of `make bench` measures every delay between them, too."""


@pytest.mark.parametrize("name", LAGGING)
def test_the_capacity_goes_out_and_comes_back_however_late_its_metrics_are(name: str) -> None:
    courses = {minutes: replay(ALL[name], minutes) for minutes in SOME_MINUTES}
    assert [minutes for minutes, course in courses.items() if not course.returned] == [], courses


@pytest.mark.parametrize("name", sorted(set(ALL) - set(LAGGING)))
def test_sources_that_are_read_directly_bring_the_capacity_out_and_back(name: str) -> None:
    assert replay(ALL[name], 0).returned


def test_the_capacity_comes_back_with_streamed_metrics_too() -> None:
    pulled = imported("average")
    metrics = {n: replace(s, streamed=True) for n, s in pulled.metrics.items() if s.series}  # type: ignore[type-var]
    streamed = replace(pulled, metrics=metrics)
    assert all(source.pushed for source in metrics.values())
    assert [m for m in SOME_MINUTES if not replay(streamed, m).returned] == []


def test_without_the_known_lag_late_metrics_never_let_the_capacity_back_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source, "LAG_SECONDS_MAX", 0.0)
    course = replay(imported("short_window"), 10)
    assert not course.returned


def test_there_is_a_setting_for_every_statistic_and_every_kind_of_change() -> None:
    rules = [r for each in SETTINGS.values() for p in each["profiles"] for r in p["rules"]]
    assert {rule["metricTrigger"]["statistic"].lower() for rule in rules} == set(STATISTICS)
    assert {rule["scaleAction"]["type"].lower() for rule in rules} == set(UNITS)
