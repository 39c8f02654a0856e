"""The structure of the benchmarks. Tests never depend on measured figures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from backtest.rivals import RIVALS
from bench.groups import decide, regret
from bench.measurement import Measurement

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
    names = [each.name for each in regret.measure(traces=tmp_path)]
    statistics = ("mean", "median", "worst", "actions", "late_minutes")
    modes = (*regret.MODES, *RIVALS)
    expected = [f"regret.{m}.{k}.{s}" for k in (2, 10) for m in modes for s in statistics]
    assert names == expected
    assert set(regret.AIMS) <= set(names)
