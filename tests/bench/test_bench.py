"""The structure of the benchmarks. Tests never depend on measured figures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from backtest.arena import Arena, as_schedule
from backtest.outcome import course
from backtest.rivals import RIVALS
from bench import companion_verdicts
from bench.groups import decide, regret
from bench.made_up_operations import Happened, Shop
from bench.measurement import Measurement
from bench.pictures import rule

REQUIRED = ("name", "value", "unit", "baseline", "ratio")
OPTIONAL = ("aim", "note")


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (
            Measurement("a.b", 30, "s", 20),
            {"name": "a.b", "value": 30, "unit": "s", "baseline": 20, "ratio": 1.5},
        ),
        (Measurement("a.b", 1, "s", 2, "≤ 3", "warm"), {"aim": "≤ 3", "note": "warm"}),
        (Measurement("a.b", 123_456.7, "1/s", 3), {"value": 123_500, "ratio": 41_150}),
    ],
    ids=["no empty key", "aim and note", "four significant digits"],
)
def test_a_measurement_is_printed_as_one_line_of_json(
    measured: Measurement, expected: Mapping[str, object]
) -> None:
    line = json.loads(measured.line)
    assert expected.items() <= line.items()
    assert set(line) == {*REQUIRED, *expected}


def test_the_decide_group_yields_valid_lines() -> None:
    measurements = list(decide.measure(repeats=1, calls=5))
    names = [each.name for each in measurements]
    assert len(names) == len(set(names)) > 0
    assert all(name.startswith("decide.") for name in names)
    for each in measurements:
        line = json.loads(each.line)
        assert set(REQUIRED) <= set(line) <= {*REQUIRED, *OPTIONAL}
        assert line["value"] > 0
        assert line["baseline"] > 0


def test_the_regret_group_measures_each_mode_and_each_rival_on_traces_from_files(
    tmp_path: Path,
) -> None:
    rows = [f"2026-03-02T{m // 60:02}:{m % 60:02}:00Z,{40 + 300 * (m > 60)}" for m in range(120)]
    (tmp_path / "step.csv").write_text("\n".join(["time,arrivals", *rows]) + "\n")
    measured = list(regret.measure(traces=tmp_path, processes=1))
    names = [each.name for each in measured]
    figures = ("actions", "actions_median", "actions_an_hour_max", "late_minutes")
    statistics, modes = ("mean", "median", "worst", *figures), (*regret.MODES, *RIVALS)
    better = [f"regret.{mode}.rival_better" for mode in regret.MODES]
    cheap, costly = ([f"regret.{m}.{k}.{s}" for m in modes for s in statistics] for k in (2, 10))
    assert names == [*cheap, *better, "regret.counted.false_holds", *costly]
    assert set(regret.AIMS) <= set(names)
    settings = "1 traces of 0.1 days; a sample every 15 s, number read after 8 s"
    assert all(settings in each.note for each in measured)


def test_each_variation_has_names_and_settings_of_its_own(tmp_path: Path) -> None:
    for number in range(2):
        rows = [f"2026-03-02T00:{m:02}:00Z,{40 + 100 * number}" for m in range(60)]
        (tmp_path / f"{number}.csv").write_text("\n".join(["time,arrivals", *rows]) + "\n")
    runs = [regret.with_cost(run, 2, "slow_start") for run in regret.from_files(tmp_path)]
    measured = list(regret.measured(runs, processes=2))
    assert all(each.name.startswith("regret.slow_start.") for each in measured)
    assert all("variation slow_start" in each.note for each in measured)


@pytest.mark.parametrize(
    ("cost", "better"), [({"keda": 102.9}, True), ({"keda": 103.1}, False), ({}, False)]
)
def test_a_rival_is_better_if_its_regret_is_more_than_a_point_lower(
    cost: Mapping[str, float], better: bool
) -> None:
    load = np.array([20.0, 20.0])
    one = course(Arena(10.0), load, as_schedule([2, 2])).score(Arena(10.0))
    costs = {
        **dict.fromkeys((*RIVALS, "told"), 104.0),
        "rate_drain": 1.0,
        **cost,
        regret.BEST: 100.0,
    }
    found = {name: replace(one, J=J) for name, J in costs.items()}
    assert regret.is_rival_better(found, "told") is better


def test_the_pictures_of_the_documentation_are_those_that_the_command_draws() -> None:
    for name, text in rule.pictures().items():
        assert (rule.FOLDER / name).read_text() == text
        assert f"../images/{name}" in Path("docs/adr/0005-default-policy.md").read_text()


def test_companions_see_a_loss_that_the_count_does_not_show() -> None:
    rng = np.random.default_rng(1)
    trial = companion_verdicts.Trial([Shop(rng) for _ in range(2)], rng, each=2)
    shares = trial.shares(Happened(lost=0.1))
    assert shares["both"] == 1.0 > shares["alone"]
    assert trial.shares(Happened(renamed=True))["both"] == 0.0
    assert trial.companion_alarms() == (0.0, 0.0)
