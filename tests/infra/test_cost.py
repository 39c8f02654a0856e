"""The quantities in the monthly cost of docs/deployment.md follow from settings and templates."""

from __future__ import annotations

import json
import re
from pathlib import Path

from local.functions_host.host_json import read_host_json
from local.functions_host.schedule import parse_schedule
from shared.wiring.app import App
from tests.builders import NOW
from tests.infra.bicep import BicepFile
from tests.infra.test_deployment import MONITORING, deployed_settings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## What it costs")[2].partition("\n## ")[0]
EXAMPLE: dict[str, str] = json.loads((ROOT / "local.settings.json.example").read_text())["Values"]
HOST = read_host_json(ROOT)
FUNCTIONS = (ROOT / "function_app.py").read_text()
MONTH_SECONDS = 30 * 86_400
EXECUTIONS = re.findall(r"^\| ([^|]+) \| ([^|]*) \| ([\d,]+) \|$", SECTION, re.MULTILINE)
TIMES = "\N{MULTIPLICATION SIGN}"


def executions(function: str) -> int:
    return int(next(count for name, _, count in EXECUTIONS if function in name).replace(",", ""))


def test_the_executions_follow_from_the_schedules() -> None:
    scheduled = {m[1]: n for _, text, n in EXECUTIONS if (m := re.match(r"`(\w+)`", text))}
    assert set(scheduled) == {"MetricCollectorSchedule", "ReconcilerSchedule", "NotifierSchedule"}
    for setting, count in scheduled.items():
        schedule = parse_schedule(EXAMPLE[setting])
        first = schedule.next_after(NOW)
        interval = (schedule.next_after(first) - first).total_seconds()
        assert int(count.replace(",", "")) == MONTH_SECONDS / interval, setting
    resources = App(deployed_settings()).resources
    assert executions("scaling_logic") == len(resources) * executions("metric_collector")


def test_the_billed_quantities_follow_from_code_and_templates() -> None:
    together = executions("together")
    assert sum(executions(row[0]) for row in EXECUTIONS) == 2 * together
    for megabytes, unit in ((2048, 2), (512, 0.5)):
        assert re.search(rf"{together * unit:,.0f}[^,.]* with {megabytes} MB", SECTION)
    assert f"{len(MONITORING.named('alerts').value)} alerts" in SECTION
    queues = len(re.findall(r"@(?:scaling|data_sets)\.queue_trigger", FUNCTIONS))
    polls = MONTH_SECONDS / HOST.queues.max_polling_interval_seconds
    assert f"{queues} {TIMES} {polls:,.0f}" in SECTION
    timers = len(re.findall(r"@scaling\.timer_trigger", FUNCTIONS))
    renewals = MONTH_SECONDS / (HOST.singleton.lock_seconds / 2)
    assert f"{timers} {TIMES} {renewals:,.0f}" in SECTION
    assert f"3 {TIMES} {executions('scaling_logic') + executions('scaler'):,}" in SECTION
    memory = BicepFile(ROOT / "infra/main.bicep").named("instanceMemoryMB").value
    always_ready = SECTION.partition("### Always-ready instances")[2]
    assert f"{MONTH_SECONDS * memory // 1024:,} GB-seconds a month with {memory} MB" in always_ready
    functions = re.findall(r"`function:(\w+)=", always_ready)
    assert len(functions) == 2
    assert [name for name in functions if f"async def {name}(" not in FUNCTIONS] == []
