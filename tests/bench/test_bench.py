"""The bench's own structure; what it measures is never a condition of anything."""

from __future__ import annotations

import json

import pytest

from bench import __main__ as bench
from bench import registry
from bench.groups import decide
from bench.measurement import Measurement

REQUIRED = ("name", "value", "unit", "baseline", "ratio")
OPTIONAL = ("aim", "note")


def test_a_line_has_every_key_and_no_empty_one() -> None:
    line = json.loads(Measurement("a.b", 30, "s", 20).line)
    assert line == {"name": "a.b", "value": 30, "unit": "s", "baseline": 20, "ratio": 1.5}


def test_aim_and_note_are_shown_where_there_is_one() -> None:
    line = json.loads(Measurement("a.b", 1, "s", 2, "≤ 3", "warm").line)
    assert (line["aim"], line["note"]) == ("≤ 3", "warm")


def test_figures_are_rounded_to_what_they_can_tell() -> None:
    line = json.loads(Measurement("a.b", 123_456.7, "1/s", 3).line)
    assert (line["value"], line["ratio"]) == (123_500, 41_150)


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


def test_every_group_has_a_module_and_its_own_name() -> None:
    assert len(set(registry.GROUPS)) == len(registry.GROUPS)
    assert [name for name in registry.GROUPS if not callable(registry.measurer(name))] == []


def test_an_unknown_group_is_named_beside_those_that_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main(["decide", "speed"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "unknown group: speed" in said
    assert all(name in said for name in registry.GROUPS)
