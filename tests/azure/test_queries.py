"""The queries of both dashboards and of the alerts name only what the functions emit."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.azure import kql, promql
from tests.azure.receiver import Received
from tests.infra.bicep import BicepFile

INFRA = Path(__file__).parents[2] / "infra"
GRAFANA: dict[str, Any] = json.loads((INFRA / "grafana/autoscaler.json").read_text("utf-8"))
WORKBOOK: dict[str, Any] = json.loads((INFRA / "workbook/autoscaler.json").read_text("utf-8"))
ALERTS = BicepFile(INFRA / "modules/monitoring.bicep").named("alerts").value
WORKBOOK_PARAMETERS = {"{Plan}": "'plan-1'", "{TimeRange:grain}": "5m"}
GRAFANA_VARIABLES = {"$service": ".+", "$resource": "plan-1"}


# --- the queries of the files -----------------------------------------------------------------


def grafana_panels() -> list[dict[str, Any]]:
    return [panel for panel in GRAFANA["panels"] if panel["type"] != "row"]


def grafana_queries() -> dict[str, tuple[str, str]]:
    """The kind of data source and the query, by panel or variable."""
    queries = {
        f"{panel['title']}, {target['refId']}": (target["datasource"]["type"], target["expr"])
        for panel in grafana_panels()
        for target in panel["targets"]
    }
    variables = GRAFANA["templating"]["list"]
    queries |= {
        v["name"]: ("prometheus", v["query"]["query"]) for v in variables if "datasource" in v
    }
    return queries


def kusto_queries() -> dict[str, str]:
    """The queries of the workbook and of the alerts, by name."""
    items = [(item["name"], item["content"]) for item in WORKBOOK["items"]]
    queries = {name: content["query"] for name, content in items if "query" in content}
    for _, content in items:
        queries |= {p["name"]: p["query"] for p in content.get("parameters", ()) if "query" in p}
    return queries | {f"alert {alert['name']}": alert["query"] for alert in ALERTS}


# --- what a query expects and the telemetry lacks ---------------------------------------------


def lacking_in_metrics(query: str, emitted: Received) -> list[str]:
    """What a query of Prometheus expects and no function emits."""
    for variable, value in GRAFANA_VARIABLES.items():
        query = query.replace(variable, value)
    expected, series = promql.read(query), promql.series_of(emitted.points)
    lacking = [f"metric {name}" for name in expected.series - series.keys()]
    for name in expected.series & series.keys():
        points = series[name]
        known = {*points[0].attributes, *promql.OWN_LABELS}
        known |= {"le"} if name.endswith("_bucket") else set()
        wanted = expected.labels | {label for label, _, _ in expected.matchers}
        lacking += [f"label {label} of {name}" for label in wanted - known]
        lacking += [
            f"{label}{operator}{value!r} of {name}"
            for label, operator, value in expected.matchers
            if label in points[0].attributes
            and not any(promql.matches(operator, value, p.attributes[label]) for p in points)
        ]
    return lacking


def lacking_in_lines(query: str, emitted: Received) -> list[str]:
    """What a query of Loki expects and no function emits."""
    for variable, value in GRAFANA_VARIABLES.items():
        query = query.replace(variable, value)
    lacking = []
    for label, operator, value in promql.read_logs(query).matchers - {("service_name", "=~", ".+")}:
        sent = {str(line.attributes.get(label)) for line in emitted.lines}
        for each in value.split("|"):
            if not any(promql.matches(operator, each, one) for one in sent):
                lacking.append(f"{label}{operator}{each!r}")
    return lacking


def lacking_in_insights(query: str, emitted: Received) -> list[str]:
    """What a Kusto query expects and no function emits."""
    for parameter, value in WORKBOOK_PARAMETERS.items():
        query = query.replace(parameter, value)
    expected = kql.read(query)
    dimensions = insights_dimensions(emitted)
    lacking = [f"metric {name}" for name in expected.metrics - dimensions.keys()]
    for name in expected.metrics & dimensions.keys():
        sent = dimensions[name]
        lacking += [f"dimension {d} of {name}" for d in expected.dimensions - sent.keys()]
        lacking += [
            f"{dimension} = {value!r} of {name}"
            for dimension, value in expected.values
            if value not in sent.get(dimension, ())
        ]
    functions = {point.attributes.get("function") for point in emitted.points}
    lacking += [f"function {name}" for name in expected.functions - functions]
    lines = [line.body for line in emitted.lines]
    for start in expected.starts:
        beginning = [line for line in lines if line.startswith(start)]
        if not all(any(part in line for line in beginning) for part in {"", *expected.parts}):
            lacking.append(f"line {start} {expected.parts or ''}")
    return lacking


def insights_dimensions(emitted: Received) -> dict[str, dict[str, set[str]]]:
    """The values of each dimension of each metric that Application Insights receives."""
    found: dict[str, dict[str, set[str]]] = {}
    for envelope in emitted.envelopes:
        content = envelope["data"]["baseData"]
        for metric in content.get("metrics", ()):
            of_metric = found.setdefault(metric["name"], {})
            for dimension, value in content["properties"].items():
                of_metric.setdefault(dimension, set()).add(value)
    return found


# --- the rules --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", grafana_queries())
def test_queries_of_grafana_name_only_what_is_emitted(name: str, emitted: Received) -> None:
    source, query = grafana_queries()[name]
    lacking = lacking_in_lines if source == "loki" else lacking_in_metrics
    assert lacking(query, emitted) == []


@pytest.mark.parametrize("name", kusto_queries())
def test_queries_of_the_workbook_and_of_alerts_name_only_what_is_emitted(
    name: str, emitted: Received
) -> None:
    assert lacking_in_insights(kusto_queries()[name], emitted) == []


def test_every_metric_is_on_both_dashboards(emitted: Received) -> None:
    """A metric that no panel shows is a metric that nobody needs."""
    translated = {p.name: promql.translated(p.name, p.unit, p.kind) for p in emitted.points}
    on_grafana = " ".join(query for _, query in grafana_queries().values())
    in_workbook = " ".join(kusto_queries().values())
    unseen = {"autoscaler.sample.age"}  # its use is to find out why decisions come late
    by_requests = {"functions.duration"}  # the host sends the table requests
    for name, series in translated.items():
        if name not in unseen:
            assert series in on_grafana
        if name not in unseen | by_requests:
            assert f'"{name}"' in in_workbook


@pytest.mark.parametrize(
    ("query", "lacking"),
    [
        ("max by (resource) (autoscaler_capacitty{})", ["metric autoscaler_capacitty"]),
        ("max by (plan) (autoscaler_capacity{})", ["label plan of autoscaler_capacity"]),
        ('sum (autoscaler_log_total{action="x"})', ["label action of autoscaler_log_total"]),
        ('sum (autoscaler_log_total{kind="fail"})', ["kind='fail' of autoscaler_log_total"]),
        ("sum (autoscaler_log{})", ["metric autoscaler_log"]),
        ("label_values(autoscaler_capacity, plan)", ["label plan of autoscaler_capacity"]),
    ],
)
def test_a_wrong_name_in_a_query_of_prometheus_is_found(
    query: str, lacking: list[str], emitted: Received
) -> None:
    assert lacking_in_metrics(query, emitted) == lacking


@pytest.mark.parametrize(
    "query", ["avg_over_time(autoscaler_capacity{}[5m])", "sum (autoscaler_log_total)", "1"]
)
def test_a_query_of_prometheus_that_the_test_cannot_read_is_refused(query: str) -> None:
    with pytest.raises(promql.BadQuery):
        promql.read(query)


def test_a_wrong_name_in_a_query_of_loki_is_found(emitted: Received) -> None:
    query = '{service_name=~"$service"} | action=~"decided|scaled" | plan="plan-1"'
    assert sorted(lacking_in_lines(query, emitted)) == ["action=~'scaled'", "plan='plan-1'"]


METRIC = 'customMetrics | where name == "autoscaler.log"'


@pytest.mark.parametrize(
    ("query", "lacking"),
    [
        ('customMetrics | where name == "autoscaler.logs"', ["metric autoscaler.logs"]),
        (
            f"{METRIC} | extend plan = tostring(customDimensions.plan)",
            ["dimension plan of autoscaler.log"],
        ),
        (
            f'{METRIC} | extend k = tostring(customDimensions.kind) | where k == "fail"',
            ["kind = 'fail' of autoscaler.log"],
        ),
        ('traces | where message startswith "[decision]"', ["line [decision] "]),
        (
            'AppTraces | where Message startswith "[decided]" and Message contains "the max is"',
            ["line [decided] {'the max is'}"],
        ),
        ('requests | where name == "collector"', ["function collector"]),
    ],
)
def test_a_wrong_name_in_a_kusto_query_is_found(
    query: str, lacking: list[str], emitted: Received
) -> None:
    assert lacking_in_insights(query, emitted) == lacking


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("metrics | take 5", "unknown table: metrics"),
        ("traces | where text == 'x'", "unknown column: text"),
        ("traces | project message | where timestamp > 5", "unknown column: timestamp"),
        ("traces | summarize n = count() by message | order by m desc", "unknown column: m"),
        ("traces | where strlen(message) > 5", "unknown function: strlen"),
        ("traces | mv-expand message", "unknown operator: mv"),
        ("customMetrics | where customMeasurements.x > 1", "unknown column: customMeasurements"),
        ("traces | take many", "take needs one number"),
    ],
)
def test_a_kusto_query_that_the_test_cannot_read_is_refused(query: str, problem: str) -> None:
    with pytest.raises(kql.BadQuery, match=re.escape(problem)):
        kql.read(query)


@pytest.mark.parametrize(
    ("name", "unit", "kind", "series"),
    [
        ("autoscaler.age", "s", "gauge", "autoscaler_age_seconds"),
        ("autoscaler.log", "{line}", "sum", "autoscaler_log_total"),
        ("autoscaler.throughput", "{item}/min", "gauge", "autoscaler_throughput_per_min"),
        ("autoscaler.throughput.error", "1", "gauge", "autoscaler_throughput_error_ratio"),
        ("trends.dates", "{date}", "gauge", "trends_dates"),
    ],
)
def test_names_are_translated_as_prometheus_does(
    name: str, unit: str, kind: str, series: str
) -> None:
    assert promql.translated(name, unit, kind) == series


# --- the structure of the files ---------------------------------------------------------------

UNITS = {"short", "s", "suffix:items/min"}


def test_panels_of_grafana_are_described_and_have_known_units() -> None:
    titles = [panel["title"] for panel in grafana_panels()]
    assert len(titles) == len(set(titles))
    for panel in grafana_panels():
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    ids = [panel["id"] for panel in GRAFANA["panels"]]
    assert len(ids) == len(set(ids))


def test_panels_of_grafana_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in GRAFANA["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken
        taken |= cells


def test_data_sources_and_variables_of_grafana_are_declared() -> None:
    """An import into another Grafana must not depend on the ids of its data sources."""
    variables = {each["name"] for each in GRAFANA["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(GRAFANA["panels"])))
    assert used == variables
    for source in _of_key(GRAFANA, "datasource"):
        assert source["uid"] == f"${{{source['type']}}}"


def test_legends_of_grafana_name_labels_by_which_the_query_groups() -> None:
    for panel in grafana_panels():
        for target in panel["targets"]:
            labels = set(re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", "")))
            assert not labels or labels == promql.read(target["expr"]).labels - {"le"}


def test_overrides_of_grafana_name_a_series_of_their_panel(emitted: Received) -> None:
    for panel in grafana_panels():
        legends = {target.get("legendFormat", "") for target in panel["targets"]}
        values = {str(v) for p in emitted.points for v in p.attributes.values()}
        for each in panel["fieldConfig"]["overrides"]:
            assert each["matcher"]["options"] in legends | values


def test_items_of_the_workbook_have_titles_and_unique_names() -> None:
    items = [item for item in WORKBOOK["items"] if item["type"] == 3]
    names = [item["name"] for item in WORKBOOK["items"]]
    assert len(names) == len(set(names))
    for item in items:
        assert item["content"]["title"]
        assert item["content"]["resourceType"] == "microsoft.insights/components"
        rendered = re.findall(r"\| render (\w+)", item["content"]["query"])
        shown = item["content"]["visualization"]
        assert shown == (rendered[0] if rendered else "table")


def _of_key(value: Any, key: str) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from [value[key]] if key in value else []
    children = value.values() if isinstance(value, dict) else value
    if isinstance(value, dict | list):
        for child in children:
            yield from _of_key(child, key)
