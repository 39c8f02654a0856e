"""Alerts fire even if no function runs, and nothing that they look for is sampled away."""

from __future__ import annotations

import json
import logging
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from shared.adapters.memory.autoscaling import MemoryStateStore
from shared.autoscaling.declaring import Limits
from shared.autoscaling.flows import scaling_logic
from shared.autoscaling.measurements import CAPACITY_METRIC, Metric, MetricValue
from shared.autoscaling.policy import Recommendation
from shared.settings.schedules import parse_cron
from tests.builders import NOW, resource
from tests.infra.bicep import BicepFile, Expression

ROOT = Path(__file__).parents[2]
MONITORING = BicepFile(ROOT / "infra/modules/monitoring.bicep")
EXAMPLE: dict[str, str] = json.loads((ROOT / "local.settings.json.example").read_text())["Values"]


def test_every_alert_is_explained_in_the_operations_guide() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    table = page.partition("## Alerts")[2].partition("\n## ")[0]
    for alert in MONITORING.named("alerts").value:
        assert f"| {alert['name']} |" in table


@pytest.mark.parametrize(
    ("capacity", "recommended", "found"), [(2, 9, True), (2, 2, True), (2, 1, False), (1, 2, False)]
)
async def test_the_alert_at_maximum_counts_decisions_at_the_maximum_that_recommend_no_less(
    capacity: int, recommended: int, found: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The default rule never recommends more than the maximum."""
    caplog.set_level(logging.INFO)
    store = MemoryStateStore(lambda: NOW)
    rule = resource(limits=Limits(1, 2), policy=lambda _: Recommendation(recommended, "busy"))
    for name, value in ((CAPACITY_METRIC, float(capacity)), ("backlog", 900.0)):
        sample = Metric("plan-1", name, MetricValue(NOW, value))
        await scaling_logic.process_sample(sample, {"plan-1": rule}, store)
    alerts = MONITORING.named("alerts").value
    (query,) = (each["query"] for each in alerts if each["name"] == "at-maximum")
    start, part = re.findall(r'"([^"]+)"', query)
    assert caplog.messages[-1].startswith(start)
    assert (part in caplog.messages[-1]) is found


# --- the alert nothing-runs: an app with wrong settings runs no function and writes no log ----

RUNS_MIN = 10
"""How often the timer is due in the alert's window, so that one late run raises no alert."""


def nothing_runs_alert() -> dict[str, Any]:
    (alert,) = (each for each in MONITORING.named("alerts").value if each["name"] == "nothing-runs")
    return dict(alert)


def test_an_alert_fires_if_no_function_runs() -> None:
    """Without runs there are no rows, so the query returns a row for a count of 0."""
    table, *steps = (step.strip() for step in nothing_runs_alert()["query"].split("|"))
    assert table == "requests"
    assert steps == [
        'where name == "metric_collector"',
        "summarize runs = count()",  # without `by`, the result has a row even if the count is 0
        "where runs == 0",
    ]
    assert nothing_runs_alert()["above"] == 0


def test_the_alert_nothing_runs_counts_runs_of_a_timer_that_always_exists() -> None:
    (name,) = re.findall(r'name == "(\w+)"', nothing_runs_alert()["query"])
    source = (ROOT / "function_app.py").read_text()
    declared = re.search(rf"@scaling\.timer_trigger\((.+)\)\n(?:@.+\n)*async def {name}\(", source)
    assert declared is not None, "the timer must exist whatever the settings leave out"
    registered = "if failure is not None:\n    functions.register_functions(refused)\nelse:\n"
    assert f"{registered}    functions.register_functions(scaling)\n" in source
    assert "settings.metric_collector_schedule" in declared[1]
    due, schedule = NOW, parse_cron(EXAMPLE["MetricCollectorSchedule"])
    for _ in range(RUNS_MIN):
        due = schedule.next_after(due)
    assert due <= NOW + timedelta(minutes=nothing_runs_alert()["minutes"])


def test_the_alert_nothing_runs_queries_a_table_that_exists_before_the_first_run() -> None:
    """The workspace creates a table with its first row. The component has all tables at once."""
    assert nothing_runs_alert()["scope"] == "component"
    (rules,) = MONITORING.resources("Microsoft.Insights/scheduledQueryRules")
    properties = rules.value.body["properties"]
    component = "alert.scope == 'component' ? insights.id : workspace.id"
    assert properties["scopes"] == [Expression(component)]
    assert properties["skipQueryValidation"] is True
    (criterion,) = properties["criteria"]["allOf"]
    assert (criterion["timeAggregation"], criterion["operator"]) == ("Count", "GreaterThan")


TELEMETRY_TYPES = {"AppTraces": "Trace", "AppRequests": "Request", "requests": "Request"}
"""The name in host.json of the telemetry in each table that an alert reads."""


def test_no_telemetry_that_an_alert_reads_is_sampled() -> None:
    """Adaptive sampling could drop the only line that an alert looks for."""
    host = json.loads((ROOT / "host.json").read_text())
    sampling = host["logging"]["applicationInsights"]["samplingSettings"]
    queries = [alert["query"] for alert in MONITORING.named("alerts").value]
    read = {TELEMETRY_TYPES[query.partition("|")[0].strip()] for query in queries}
    assert read <= set(sampling["excludedTypes"].split(";"))


def test_alerts_on_a_workspace_are_accepted_before_its_tables_exist() -> None:
    """ARM refuses a query of a table that does not exist yet, unless it skips the validation."""
    (rules,) = MONITORING.resources("Microsoft.Insights/scheduledQueryRules")
    assert rules.value.body["properties"]["skipQueryValidation"] is True
