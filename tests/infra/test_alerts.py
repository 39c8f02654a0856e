"""Alerts fire even if no function runs, and nothing that they look for is sampled away."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest

from local.functions_host.schedule import parse_schedule
from local.twins.autoscaling import MemoryStateStore
from shared.autoscaling import flows
from shared.autoscaling.declaring import Limits
from shared.autoscaling.flows import scaling_logic
from shared.autoscaling.flows.poison import PoisonMessage
from shared.autoscaling.policy import Recommendation
from shared.ingestion.breaker.announcement import closing_news, opening_news
from shared.ingestion.breaker.state import Breaker, BreakerMode
from shared.ingestion.events.ingest import log_report
from shared.ingestion.events.process_batch import Report
from shared.ingestion.model import COMPACTED, Gap
from shared.notifications.notifiers import LogNotifier
from shared.trends.datasets.flows import telemetry_arrived
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue
from shared.values.news import News
from tests.builders import NOW, TIMING, as_message, resource
from tests.infra.bicep import BicepFile

ROOT = Path(__file__).parents[2]
MONITORING = BicepFile(ROOT / "infra/modules/monitoring.bicep")
BUS = BicepFile(ROOT / "infra/modules/service_bus.bicep")
LOST = "deleted from the hub"
EXAMPLE: dict[str, str] = json.loads((ROOT / "local.settings.json.example").read_text())["Values"]


def test_every_alert_is_explained_in_the_operations_guide() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    table = page.partition("## Alerts")[2].partition("\n## ")[0]
    for alert in MONITORING.named("alerts").value:
        assert f"| {alert['name']} |" in table


class Alert(NamedTuple):
    """``above`` is the number of rows in the window above which the alert fires."""

    minutes: int
    above: int
    severity: int
    scope: str = "workspace"


ALERTS = {
    "nothing-runs": Alert(15, 0, 1, "component"),  # has all tables before their first row
    "poison": Alert(5, 0, 1),
    "events-gone": Alert(5, 0, 1),
    "breaker-opened": Alert(5, 0, 1),
    "failures": Alert(15, 5, 2),
    "at-maximum": Alert(30, 60, 2),
}


def test_each_alert_has_its_window_threshold_and_severity() -> None:
    declared = {
        each["name"]: Alert(each["minutes"], each["above"], each["severity"], each["scope"])
        for each in MONITORING.named("alerts").value
    }
    assert declared == ALERTS


def test_each_alert_is_evaluated_as_declared_and_reaches_the_people() -> None:
    (rules,) = MONITORING.resources("Microsoft.Insights/scheduledQueryRules")
    assert rules.value.over == MONITORING.named("alerts").value
    properties = dict(rules.value.body["properties"])
    (criterion,) = properties.pop("criteria")["allOf"]
    assert criterion == {
        "query": "alert.query",
        "timeAggregation": "Count",
        "operator": "GreaterThan",
        "threshold": "alert.above",
        "failingPeriods": {"numberOfEvaluationPeriods": 1, "minFailingPeriodsToAlert": 1},
    }
    assert properties == {
        "displayName": "alert.name",
        "description": "alert.description",
        "severity": "alert.severity",
        "enabled": True,
        "scopes": ["alert.scope == 'component' ? insights.id : workspace.id"],
        "skipQueryValidation": True,  # ARM refuses a query of a table that does not exist yet
        "evaluationFrequency": "PT5M",
        "windowSize": "'PT${alert.minutes}M'",
        "autoMitigate": True,
        "actions": {"actionGroups": "empty(alertEmails) ? [] : [people.id]"},
    }


def test_the_people_are_all_addresses_and_each_alert_has_the_group() -> None:
    (people,) = MONITORING.resources("Microsoft.Insights/actionGroups")
    assert (people.name, people.value["properties"]["enabled"]) == ("people", True)
    receivers = people.value["properties"]["emailReceivers"]
    assert (receivers.over, receivers.body["emailAddress"]) == ("alertEmails", "email")
    assert MONITORING.named("actionGroupIds").value == "empty(alertEmails) ? [] : [people.id]"


def test_the_alert_on_dead_letters_fires_from_the_first_and_reaches_the_people() -> None:
    (alert,) = BUS.resources("Microsoft.Insights/metricAlerts")
    assert alert.value["location"] == "global"
    properties = dict(alert.value["properties"])
    (criterion,) = properties["criteria"]["allOf"]
    (dimension,) = criterion["dimensions"]
    assert dimension == {
        "name": "EntityName",
        "operator": "Include",
        "values": ["processingQueue", "workingQueue"],
    }
    counted = ("metricName", "timeAggregation", "operator", "threshold")
    assert [criterion[each] for each in counted] == [
        "DeadletteredMessages",
        "Average",
        "GreaterThan",
        0,
    ]
    stated = ("severity", "enabled", "scopes", "evaluationFrequency", "windowSize")
    assert [properties[each] for each in stated] == [2, True, ["bus.id"], "PT5M", "PT5M"]
    actions = properties["actions"]
    assert (actions.over, actions.body) == ("actionGroupIds", {"actionGroupId": "id"})


# --- the lines that an alert counts ---------------------------------------------------------------


async def decided(capacity: int, recommended: int) -> None:
    store = MemoryStateStore(lambda: NOW)
    rule = resource(limits=Limits(1, 2), policy=lambda _: Recommendation(recommended, "busy"))
    for name, value in ((CAPACITY_METRIC, float(capacity)), ("backlog", 900.0)):
        sample = Metric("plan-1", name, MetricValue(NOW, value))
        await scaling_logic.process_samples(as_message(sample), {"plan-1": rule}, store)


async def poison_sample() -> None:
    poison = PoisonMessage("metrics", "m1", "%%%", NOW)
    await flows.poison.run_metric(poison, {}, MemoryStateStore(lambda: NOW))


async def poison_action() -> None:
    poison, store = PoisonMessage("actions", "m1", "{}", NOW), MemoryStateStore(lambda: NOW)
    await flows.poison.run_action(poison, {}, store, TIMING)


async def poison_arrival() -> None:
    telemetry_arrived.log_poison("{}", "m1")


async def gap(reason: str) -> None:
    report = Report(gaps=[Gap(3, 9, NOW, reason)], effects=1, dead_letters=2)
    log_report(Mock(), report)


async def told(news: News | None) -> None:
    assert news is not None
    await LogNotifier().tell(news)


async def quoted() -> None:
    logging.getLogger("user").warning("a handler quotes [poison], [gap] and [breaker_opened]")


OPEN = Breaker(BreakerMode.OPEN, 1, NOW, "6 failures")
CLOSED = Breaker(BreakerMode.CLOSED, 1, NOW, "a probe succeeded")
AT_MAXIMUM, BELOW = partial(decided, 2, 9), partial(decided, 2, 1)
EVERY_15_SECONDS = 0.25


@pytest.mark.parametrize(
    ("name", "logs", "minutes_ago", "fires"),
    [
        ("poison", poison_sample, [4], True),
        ("poison", poison_action, [4], True),
        ("poison", poison_arrival, [4], True),
        ("poison", poison_sample, [6], False),
        ("poison", quoted, [1], False),
        ("poison", partial(gap, LOST), [1], False),
        ("events-gone", partial(gap, LOST), [4], True),
        ("events-gone", partial(gap, LOST), [6], False),
        ("events-gone", partial(gap, COMPACTED), [1], False),
        ("events-gone", quoted, [1], False),
        ("breaker-opened", partial(told, opening_news("b", OPEN, "")), [4], True),
        ("breaker-opened", partial(told, opening_news("b", OPEN, "")), [6], False),
        ("breaker-opened", partial(told, closing_news("b", CLOSED)), [1], False),
        ("breaker-opened", quoted, [1], False),
        ("at-maximum", AT_MAXIMUM, [EVERY_15_SECONDS * n for n in range(120)], True),
        ("at-maximum", AT_MAXIMUM, [EVERY_15_SECONDS * n for n in range(60)], False),
        ("at-maximum", AT_MAXIMUM, [31 + EVERY_15_SECONDS * n for n in range(120)], False),
        ("at-maximum", partial(decided, 2, 2), [0.25 * n for n in range(120)], True),
        ("at-maximum", BELOW, [EVERY_15_SECONDS * n for n in range(120)], False),
        ("at-maximum", partial(decided, 1, 2), [0.25 * n for n in range(120)], False),
    ],
)
async def test_an_alert_fires_for_its_lines_within_its_window_and_for_no_others(
    name: str,
    logs: Callable[[], Awaitable[None]],
    minutes_ago: Sequence[float],
    fires: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A plan logs a decision every 15 s."""
    caplog.set_level(logging.INFO)
    await logs()
    lines = [{"Message": each} for each in caplog.messages]
    assert lines
    rows = [(minutes, line) for minutes in minutes_ago for line in lines]
    assert fired(name, "AppTraces", rows) is fires


@pytest.mark.parametrize(
    ("failed", "succeeded", "minutes_ago", "fires"),
    [(6, 0, 14, True), (5, 900, 14, False), (6, 0, 16, False), (0, 900, 1, False)],
)
def test_the_alert_failures_counts_failed_functions(
    failed: int, succeeded: int, minutes_ago: float, fires: bool
) -> None:
    rows = [(minutes_ago, {"Success": False})] * failed + [(1.0, {"Success": True})] * succeeded
    assert fired("failures", "AppRequests", rows) is fires


def fired(name: str, table: str, rows: Sequence[tuple[float, Mapping[str, Any]]]) -> bool:
    """Whether the alert fires, with rows of a table and how many minutes ago each was written.

    It understands the few operators of the alerts. KQL ignores case in startswith and contains.
    """
    (alert,) = (each for each in MONITORING.named("alerts").value if each["name"] == name)
    read, where = (part.strip() for part in alert["query"].split("|"))
    assert read == table
    conditions = where.removeprefix("where ").split(" and ")
    found = [
        row
        for minutes, row in rows
        if minutes < alert["minutes"] and all(holds(each, row) for each in conditions)
    ]
    return len(found) > int(alert["above"])


def holds(condition: str, row: Mapping[str, Any]) -> bool:
    column, operator, value = condition.split(" ", 2)
    text, searched = str(row[column]).lower(), value.strip('"').lower()
    return {
        "startswith": text.startswith(searched),
        "contains": searched in text,
        "==": text == searched,
    }[operator]


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
    due, schedule = NOW, parse_schedule(EXAMPLE["MetricCollectorSchedule"])
    for _ in range(RUNS_MIN):
        due = schedule.next_after(due)
    assert due <= NOW + timedelta(minutes=nothing_runs_alert()["minutes"])


TELEMETRY_TYPES = {"AppTraces": "Trace", "AppRequests": "Request", "requests": "Request"}
"""The name in host.json of the telemetry in each table that an alert reads."""


def test_no_telemetry_that_an_alert_reads_is_sampled() -> None:
    """Adaptive sampling could drop the only line that an alert looks for."""
    host = json.loads((ROOT / "host.json").read_text())
    sampling = host["logging"]["applicationInsights"]["samplingSettings"]
    queries = [alert["query"] for alert in MONITORING.named("alerts").value]
    read = {TELEMETRY_TYPES[query.partition("|")[0].strip()] for query in queries}
    assert read <= set(sampling["excludedTypes"].split(";"))
