"""Alerts fire even if no function runs, and nothing that they look for is sampled away."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
import yaml

from local.functions_host.schedule import parse_schedule
from local.twins.autoscaling import MemoryCapacityControl, MemoryReader, MemoryStateStore
from shared.autoscaling import flows
from shared.autoscaling.declaring import Limits
from shared.autoscaling.flows import metric_collector, scaling_logic
from shared.autoscaling.flows.poison import PoisonMessage
from shared.autoscaling.flows.reconciler import Reconciler
from shared.autoscaling.flows.scaler import Scaler
from shared.autoscaling.policy import Recommendation
from shared.ingestion.breaker.announcement import closing_news, opening_news
from shared.ingestion.breaker.state import Breaker, BreakerMode
from shared.ingestion.events.ingest import log_report
from shared.ingestion.events.process_batch import Report
from shared.ingestion.model import COMPACTED, Gap
from shared.notifications.notifiers import LogNotifier
from shared.trends.datasets.flows import log_poison
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue
from shared.values.news import News, NewsKind
from tests.builders import NOW, SOURCE, TIMING, as_message, resource
from tests.infra.bicep import BicepFile, text

ROOT = Path(__file__).parents[2]
MONITORING = BicepFile(ROOT / "infra/modules/monitoring.bicep")
BUS = BicepFile(ROOT / "infra/modules/service_bus.bicep")
MAIN = BicepFile(ROOT / "infra/main.bicep")
LOST = "deleted from the hub"
EXAMPLE: dict[str, str] = json.loads((ROOT / "local.settings.json.example").read_text())["Values"]


def test_the_page_of_monitoring_explains_every_alert() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    section = page.partition("## Alerts or notifications")[2].partition("\n### ")[0]
    declared = {alert["name"] for alert in MONITORING.named("alerts").value}
    assert set(re.findall(r"(?<!\*)\*([a-z-]+)\*(?!\*)", section)) == declared | {"dead-letters"}


class Alert(NamedTuple):
    """``above`` is the number of rows in the window above which the alert fires."""

    minutes: int
    above: int
    severity: int


ALERTS = {
    "nothing-runs": Alert(15, 0, 1),
    "poison": Alert(5, 0, 1),
    "action-failed": Alert(5, 0, 1),
    "backlog-not-falling": Alert(5, 0, 1),
    "source-failed": Alert(15, 0, 2),
    "events-gone": Alert(5, 0, 1),
    "breaker-opened": Alert(5, 0, 1),
    "failures": Alert(15, 5, 2),
    "at-maximum": Alert(45, 0, 2),
}


def test_each_alert_has_its_window_threshold_and_severity() -> None:
    declared = {
        each["name"]: Alert(each["minutes"], each["above"], each["severity"])
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
        "scopes": ["insights.id"],  # a workspace may have the rows of other apps
        "skipQueryValidation": True,  # ARM refuses a query of a table that does not exist yet
        "evaluationFrequency": "PT5M",
        "windowSize": "'PT${alert.minutes}M'",
        "autoMitigate": True,
        "actions": {"actionGroups": PEOPLE},
    }


PEOPLE = "concat(actionGroupIds, empty(alertEmails) ? [] : [mail.id])"


def test_the_people_are_all_addresses_and_all_action_groups_that_are_given() -> None:
    (mail,) = MONITORING.resources("Microsoft.Insights/actionGroups")
    assert (mail.name, mail.value["properties"]["enabled"]) == ("mail", True)
    receivers = mail.value["properties"]["emailReceivers"]
    assert (receivers.over, receivers.body["emailAddress"]) == ("alertEmails", "email")
    outputs = {each.name: each.value for each in MONITORING.of_kind("output")}
    assert outputs["actionGroupIds"] == PEOPLE


def test_a_deployment_says_that_alerts_reach_nobody() -> None:
    said = text(MAIN.named("alertsReach").node)
    condition, _, rest = said.partition("?")
    assert condition.endswith("= empty(alertEmails) && empty(actionGroupIds)\n  ")
    assert rest.startswith(" 'Nobody. Set alertEmails or actionGroupIds")
    azd = BicepFile(ROOT / "infra/azd.bicep")
    assert azd.named("ALERTS_REACH").value == "autoscaler.outputs.alertsReach"


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


# --- the same alerts for Prometheus ---------------------------------------------------------------

PROMETHEUS = {
    each["alert"]: each
    for each in yaml.safe_load((ROOT / "infra/grafana/alerts.yaml").read_text())["groups"][0][
        "rules"
    ]
}
SEVERITIES = {1: "critical", 2: "warning"}
DURATION = "faas_invoke_duration_seconds_count"
FAILED = f'{DURATION}{{error_type!=""}}'


def grown(series: str, minutes: int) -> str:
    """How much a counter has grown. The first value of a new process counts in full."""
    return f"clamp_min({series} - ({series} offset {minutes}m or 0 * {series}), 0)"


def in_prometheus(alert: Mapping[str, Any]) -> str:
    """The expression that fires when the query of the alert fires."""
    minutes, above, query = alert["minutes"], alert["above"], alert["query"]
    if query == "requests | where success == false":
        return f"sum by (job) ({grown(FAILED, minutes)}) > {above}"
    if runs := re.search(r'name == "(\w+)"', query):
        of_function = f'{DURATION}{{faas_name=~".+/{runs[1]}"}}'
        none = f"sum by (job) ({grown(of_function, minutes)}) == {above}"
        return f"{none} or absent_over_time({of_function}[{minutes}m])"
    form = LINES.fullmatch(query)
    assert form is not None
    actions = re.findall(r'startswith "\[(\w+)\]"', query)
    series = (
        f'autoscaler_lines_total{{autoscaler_action{"=~"[: len(actions)]}"{"|".join(actions)}"}}'
    )
    by = "sum by (job, autoscaler_resource)"
    if form[2] is None:
        return f"{by} ({grown(series, minutes)}) > {above}"
    counted = f"({by} ({grown(series, 1)}) > 0)[{minutes}m:1m]"
    return f"count_over_time({counted}) >= {form[2]}"


def test_prometheus_has_the_same_alerts_with_the_same_thresholds() -> None:
    declared = {each["name"]: each for each in MONITORING.named("alerts").value}
    assert PROMETHEUS.keys() == declared.keys()
    for name, alert in declared.items():
        rule = PROMETHEUS[name]
        assert rule["expr"] == in_prometheus(alert), name
        assert rule["labels"] == {"severity": SEVERITIES[alert["severity"]]}, name
        assert rule["annotations"] == {"description": alert["description"]}, name
        assert "for" not in rule, "the window is in the expression"


# --- the lines that an alert counts ---------------------------------------------------------------


async def decided(capacity: int, recommended: int, *plans: str) -> None:
    store = MemoryStateStore(lambda: NOW)
    for plan in plans or ("plan-1",):
        wish = Recommendation(recommended, "busy")
        rule = resource(plan, limits=Limits(1, 2), policy=lambda _, wish=wish: wish)
        for name, value in ((CAPACITY_METRIC, float(capacity)), ("backlog", 900.0)):
            sample = Metric(plan, name, MetricValue(NOW, value))
            await scaling_logic.process_samples(as_message(sample), {plan: rule}, store)


async def poison_sample() -> None:
    poison = PoisonMessage("metrics", "m1", "%%%", NOW)
    await flows.poison.run_metric(poison, {}, MemoryStateStore(lambda: NOW))


async def poison_action() -> None:
    poison, store = PoisonMessage("actions", "m1", "{}", NOW), MemoryStateStore(lambda: NOW)
    await flows.poison.run_action(poison, {}, store, TIMING)


async def poison_arrival() -> None:
    log_poison("{}", "m1")


async def gap(reason: str) -> None:
    report = Report(gaps=[Gap(3, 9, NOW, reason)], effects=1, dead_letters=2)
    log_report(Mock(), report)


def over(news: News) -> News:
    return replace(news, kind=f"{news.kind}.over")


async def told(news: News | None) -> None:
    assert news is not None
    await LogNotifier().tell(news)


async def acted(plans: Mapping[str, int], minutes: float) -> None:
    """A request for one more instance, the attempt to carry it out, and later the reconciler."""
    clock = [NOW]
    store = MemoryStateStore(lambda: clock[0])
    rules = {"plan-1": resource(limits=Limits(1, 2), policy=lambda _: Recommendation(2, "busy"))}
    samples = [("backlog", 900.0), (CAPACITY_METRIC, 1.0)]
    message = [Metric("plan-1", name, MetricValue(NOW, value)) for name, value in samples]
    action = await scaling_logic.process_samples(as_message(*message), rules, store)
    control = MemoryCapacityControl(lambda: clock[0], plans)
    if not plans:
        assert action is not None
        await Scaler(rules, store, control, TIMING).execute(action)
    clock[0] += timedelta(minutes=minutes)
    await Reconciler(store, control, TIMING, 5).reconcile_all(rules.values())


async def unreadable(*names: str) -> None:
    """One plan whose source fails, or many plans that fail."""
    few = len(names) < 3
    control = MemoryCapacityControl(lambda: NOW, dict.fromkeys(names, 1) if few else {})
    reader = MemoryReader(lambda: NOW, {} if few else {SOURCE: 1.0}, control)
    await metric_collector.collect([resource(name) for name in names], reader, 5)


async def quoted() -> None:
    logging.getLogger("user").warning("a handler quotes [poison], [gap] and [breaker_opened]")


OPEN = Breaker(BreakerMode.OPEN, 1, NOW, "6 failures")
CLOSED = Breaker(BreakerMode.CLOSED, 1, NOW, "a probe succeeded")
UNFALLEN = News("n1", NewsKind.BACKLOG_UNFALLEN, "plan-1", NOW, "plan-1: it has not fallen")
REFUSED, GIVEN_UP = partial(acted, {}, 0), partial(acted, {"plan-1": 1}, 60)
AT_MAXIMUM, BELOW = partial(decided, 2, 9), partial(decided, 2, 1)


def every(seconds: float, minutes: int) -> list[float]:
    """The ages in minutes of what happened at this interval during the last minutes."""
    return [n * seconds / 60 for n in range(int(minutes * 60 / seconds))]


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
        ("action-failed", REFUSED, [4], True),
        ("action-failed", REFUSED, [6], False),
        ("action-failed", GIVEN_UP, [4], True),
        ("action-failed", AT_MAXIMUM, [1], False),
        ("backlog-not-falling", partial(told, UNFALLEN), [4], True),
        ("backlog-not-falling", partial(told, UNFALLEN), [6], False),
        ("backlog-not-falling", partial(told, over(UNFALLEN)), [1], False),
        ("source-failed", partial(unreadable, "plan-1"), [1, 6, 11], True),
        ("source-failed", partial(unreadable, "plan-1"), every(15, 1), False),
        ("source-failed", partial(unreadable, *"abcdef"), [1, 6, 11], True),
        ("source-failed", partial(unreadable, "plan-1", "plan-2"), [1, 2], False),
        ("source-failed", partial(unreadable, "plan-1"), [1, 6, 16], False),
        ("at-maximum", AT_MAXIMUM, every(15, 30), True),
        ("at-maximum", AT_MAXIMUM, every(30, 30), True),
        ("at-maximum", AT_MAXIMUM, every(60, 30), True),
        ("at-maximum", AT_MAXIMUM, every(15, 29), False),
        ("at-maximum", AT_MAXIMUM, every(5, 15), False),
        ("at-maximum", AT_MAXIMUM, [46 + each for each in every(15, 30)], False),
        ("at-maximum", partial(decided, 2, 9, "plan-2", "plan-3"), every(15, 20), False),
        ("at-maximum", partial(decided, 2, 2), every(15, 30), True),
        ("at-maximum", BELOW, every(15, 30), False),
        ("at-maximum", partial(decided, 1, 2), every(15, 30), False),
    ],
)
async def test_an_alert_fires_for_its_lines_within_its_window_and_for_no_others(
    name: str,
    logs: Callable[[], Awaitable[None]],
    minutes_ago: Sequence[float],
    fires: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    await logs()
    assert caplog.messages
    assert fired(name, [(each, line) for each in minutes_ago for line in caplog.messages]) is fires


STARTS = r'message startswith "\[\w+\]"'
LINES = re.compile(
    rf"traces \| where {STARTS}(?: or {STARTS})*"
    r'(?: \| parse message with "\[" action "\] " resource ": " \*'
    r" \| summarize (\w+) = dcount\(bin\(timestamp, 1m\)\) by resource \| where \1 >= (\d+))?"
)
"""The form of a query of log lines. It names actions, may count minutes for each resource, and
reads nothing else. The host passes on the text of a line, but not its fields."""


def fired(name: str, lines: Sequence[tuple[float, str]]) -> bool:
    """Whether the alert fires, with log lines and how many minutes ago each was written."""
    (alert,) = (each for each in MONITORING.named("alerts").value if each["name"] == name)
    form = LINES.fullmatch(alert["query"])
    assert form is not None, "an alert reads the action and the resource of a line, not its words"
    starts = tuple(re.findall(r'startswith "(.*?)"', alert["query"]))
    found = [(ago, line) for ago, line in lines if ago < alert["minutes"]]
    found = [(ago, line) for ago, line in found if line.startswith(starts)]
    if form[2] is None:
        return len(found) > int(alert["above"])
    minutes: dict[str, set[int]] = {}
    for ago, line in found:
        minutes.setdefault(line.partition("] ")[2].partition(": ")[0], set()).add(int(ago))
    return sum(len(each) >= int(form[2]) for each in minutes.values()) > int(alert["above"])


def test_the_alert_failures_counts_failed_functions() -> None:
    (alert,) = (each for each in MONITORING.named("alerts").value if each["name"] == "failures")
    assert alert["query"] == "requests | where success == false"


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


TELEMETRY_TYPES = {"traces": "Trace", "requests": "Request"}
"""The name in host.json of the telemetry in each table that an alert reads."""


def test_no_telemetry_that_an_alert_reads_is_sampled() -> None:
    """Adaptive sampling could drop the only line that an alert looks for."""
    host = json.loads((ROOT / "host.json").read_text())
    sampling = host["logging"]["applicationInsights"]["samplingSettings"]
    queries = [alert["query"] for alert in MONITORING.named("alerts").value]
    read = {TELEMETRY_TYPES[query.partition("|")[0].strip()] for query in queries}
    assert read <= set(sampling["excludedTypes"].split(";"))
