"""The monthly cost in docs/deployment.md follows from the schedules of the settings."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path

import pytest
from croniter import croniter

from tests.builders import NOW
from tests.infra.bicep import BicepFile

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
EXAMPLE: dict[str, str] = json.loads((ROOT / "local.settings.json.example").read_text())["Values"]
MONTH_SECONDS = 30 * 86_400
GB_SECOND, EXECUTION = 0.000026, 0.40 / 1e6
FREE_GB_SECONDS, FREE_EXECUTIONS = 100_000, 250_000
ALWAYS_READY_GB_SECOND, ALWAYS_READY_EXECUTION_GB_SECOND = 0.000004, 0.000016

ROWS = re.findall(r"^\| ([^|]+) \| ([^|]*) \| ([\d,]+) \|$", PAGE, re.MULTILINE)


def number(text: str) -> int:
    return int(text.replace(",", ""))


def interval_seconds(setting: str) -> float:
    due = croniter(EXAMPLE[setting], NOW, second_at_beginning=True)
    first, second = due.get_next(datetime), due.get_next(datetime)
    return float((second - first).total_seconds())


def executions() -> int:
    return number(next(count for name, _, count in ROWS if name == "together"))


def test_the_executions_follow_from_the_schedules() -> None:
    scheduled = {why[1]: count for _, text, count in ROWS if (why := re.match("`(\\w+)`", text))}
    assert set(scheduled) == {"MetricCollectorSchedule", "ReconcilerSchedule", "NotifierSchedule"}
    for setting, count in scheduled.items():
        assert number(count) == MONTH_SECONDS / interval_seconds(setting), setting
    counts = {name.strip("`"): number(count) for name, _, count in ROWS}
    assert counts["scaling_logic"] == 2 * counts["metric_collector"]
    assert sum(counts.values()) == 2 * executions()


@pytest.mark.parametrize("memory_mb", [2048, 512])
def test_the_price_follows_from_the_executions_and_the_memory(memory_mb: int) -> None:
    billed = executions() * memory_mb / 1024 - FREE_GB_SECONDS
    price = billed * GB_SECOND + (executions() - FREE_EXECUTIONS) * EXECUTION
    assert f"{billed:,.0f} GB-s \u00d7 $0.000026" in PAGE
    assert f"**${price:.2f} a month**" in PAGE


def test_the_default_memory_is_the_one_whose_price_is_given_first() -> None:
    default = BicepFile(ROOT / "infra/main.bicep").named("instanceMemoryMB").value
    assert PAGE.index(f"`instanceMemoryMB` {default}") < PAGE.index("With 512 it is")


def test_an_always_ready_instance_costs_more_than_the_timers_on_demand() -> None:
    baseline = MONTH_SECONDS * 2 * ALWAYS_READY_GB_SECOND
    assert f"${baseline:.2f}" in PAGE
    pays_from = ALWAYS_READY_GB_SECOND / (GB_SECOND - ALWAYS_READY_EXECUTION_GB_SECOND)
    busy = 1 / interval_seconds("MetricCollectorSchedule")
    assert f"{pays_from:.0%}".replace("%", " %") in PAGE
    assert f"which is {busy:.0%}".replace("%", " %") in PAGE
    assert busy < pays_from
