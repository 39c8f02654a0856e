"""The queries of both dashboards and of the alerts name only what the functions emit.

No query is run. The words of each query are compared with the metrics, dimensions, values and log
lines of one run of all functions, and with the vocabulary below.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

import yaml

from tests.azure.receiver import Point, Received
from tests.infra.bicep import BicepFile

INFRA = Path(__file__).parents[2] / "infra"
GRAFANA: dict[str, Any] = json.loads((INFRA / "grafana/autoscaler.json").read_text("utf-8"))
WORKBOOK: dict[str, Any] = json.loads((INFRA / "workbook/autoscaler.json").read_text("utf-8"))
ALERTS = BicepFile(INFRA / "modules/monitoring.bicep").named("alerts").value
PANELS = [panel for panel in GRAFANA["panels"] if panel["type"] != "row"]
TEXT = r'"(?:[^"\\]|\\.)*"'

COMPONENT = {"timestamp", "customDimensions", "cloud_RoleName"}
COLUMNS = {
    "customMetrics": COMPONENT | {"name", "value", "valueCount", "valueSum"},
    "traces": COMPONENT | {"message", "severityLevel"},
    "requests": COMPONENT | {"name", "success", "duration", "resultCode"},
}
"""The columns of each table, by the documentation of Application Insights."""
KUSTO = """
where extend project distinct summarize parse order take render by with and or in startswith
true false asc desc bin case iff strcat tostring arg_max count countif dcount max maxif
percentile sum timechart barchart
"""
PROMQL = """
absent_over_time clamp_min count_over_time histogram_quantile label_values max rate sum by offset or
"""
PROMETHEUS_LABELS = {"job", "instance"}
"""Prometheus makes these labels of the name of the service and of the process."""
PER_UNIT = {"min": "min", "s": "second", "h": "hour"}
UNITS = {"s": "seconds", "ms": "milliseconds", "By": "bytes", "%": "percent"}


# --- the queries of the files -----------------------------------------------------------------


def grafana_queries(kind: str) -> dict[str, str]:
    """The queries to one kind of data source, by panel, variable or alert."""
    queries = {
        f"{panel['title']}, {target['refId']}": target["expr"]
        for panel in PANELS
        for target in panel["targets"]
        if target["datasource"]["type"] == kind
    }
    if kind == "prometheus":
        rules = yaml.safe_load((INFRA / "grafana/alerts.yaml").read_text("utf-8"))["groups"]
        queries |= {f"alert {each['alert']}": each["expr"] for each in rules[0]["rules"]}
    variables = [each for each in GRAFANA["templating"]["list"] if "datasource" in each]
    return queries | {
        v["name"]: v["query"]["query"] for v in variables if v["datasource"]["type"] == kind
    }


def kusto_queries() -> dict[str, str]:
    """The queries of the workbook and of the alerts, by name."""
    items = [(item["name"], item["content"]) for item in WORKBOOK["items"]]
    queries = {name: content["query"] for name, content in items if "query" in content}
    for _, content in items:
        queries |= {p["name"]: p["query"] for p in content.get("parameters", ()) if "query" in p}
    return queries | {f"alert {alert['name']}": alert["query"] for alert in ALERTS}


# --- what a query names and the telemetry lacks -----------------------------------------------


def unknown_words(query: str, known: Set[str]) -> Set[str]:
    return set(re.findall(r"(?<![.\w$])[A-Za-z_]\w*", re.sub(TEXT, "", query))) - known


def lacking_in_kusto(query: str, emitted: Received) -> Set[str]:
    """What a query of Application Insights names and no function emits."""
    query = query.replace("{Plan}", '"plan-1"').replace("{TimeRange:grain}", "5m")
    table = query.split()[0]
    if table not in COLUMNS:
        return {table}
    own = set(re.findall(r"(\w+) =(?!=)", query))
    parsed = " ".join(re.findall(r"parse \w+ with ([^|]*)", query))
    own |= set(re.findall(r"\w+", re.sub(TEXT, "", parsed)))
    lacking = set(unknown_words(query, {table} | COLUMNS[table] | {*KUSTO.split()} | own))
    if table == "customMetrics":
        lacking |= lacking_in_metrics(query, emitted)
    starts = re.findall(r'message startswith "(.*?)"', query)
    bodies = [line.body for line in emitted.lines]
    lacking |= {start for start in starts if not any(each.startswith(start) for each in bodies)}
    functions = {point.attributes.get("faas.name", "").split("/")[-1] for point in emitted.points}
    named = re.findall(r'name == "(.*?)"', query) if table == "requests" else []
    return lacking | {name for name in named if name not in functions}


def lacking_in_metrics(query: str, emitted: Received) -> Set[str]:
    """The metrics that a query names, their dimensions, and the values of these."""
    metrics = set(re.findall(r'(?<!\[)"(\w+\.[\w.]+)"', query))
    sent: dict[str, dict[str, set[str]]] = {}
    for envelope in emitted.envelopes:
        content = envelope["data"]["baseData"]
        for metric in content.get("metrics", ()):
            for dimension, value in content["properties"].items():
                sent.setdefault(metric["name"], {}).setdefault(dimension, set()).add(value)
    if not metrics or metrics - sent.keys():
        return metrics - sent.keys() or {"no metric"}
    dimensions = set(re.findall(r'customDimensions\["([\w.]+)"\]', query))
    lacking = {each for each in dimensions for name in metrics if each not in sent[name]}
    for alias, dimension in re.findall(
        r'(\w+) = tostring\(customDimensions\["([\w.]+)"\]\)', query
    ):
        known = {value for name in metrics for value in sent[name].get(dimension, ())}
        for values in re.findall(rf"\b{alias} (?:==|in) (\(.*?\)|{TEXT})", query):
            lacking |= set(re.findall(r'"(.*?)"', values)) - known
    return lacking


def lacking_in_prometheus(query: str, emitted: Received) -> Set[str]:
    """What a query of Prometheus names and no function emits."""
    query = query.replace("$service", ".+").replace("$resource", "plan-1")
    series = series_of(emitted)
    braces = re.compile(rf"(\w+)\{{((?:{TEXT}|[^}}])*)\}}")
    groups = re.findall(r"\bby \((.*?)\)|label_values\(.*, (\w+)\)$", query)
    grouped = set(re.findall(r"\w+", " ".join(map(" ".join, groups))))
    named = set(re.findall(r"\b(\w+)\{|label_values\((\w+),", query))
    names = {name for pair in named for name in pair if name}
    plain = re.sub(r"\[.*?\]|\$__\w+", "", braces.sub(r"\1", query))
    lacking = set(unknown_words(plain, {*PROMQL.split()} | series.keys() | grouped))
    lacking |= names - series.keys()
    for name in names & series.keys():
        lacking |= {label for label in grouped if label not in labels_of(name, series)}
    for name, matchers in braces.findall(query):
        for label, operator, value in re.findall(rf"(\w+)(=~|!=|=)({TEXT})", matchers):
            sent = {str(labels(point).get(label)) for point in series.get(name, ())}
            if name in series and label not in labels_of(name, series):
                lacking.add(label)
            elif label not in PROMETHEUS_LABELS and operator != "!=":
                lacking |= {
                    each for each in value[1:-1].split("|") if each not in sent | {"!poison"}
                }
    return lacking if names else {"no metric"}


def lacking_in_loki(query: str, emitted: Received) -> Set[str]:
    """What a query of Loki names and no function emits."""
    matchers = re.findall(rf"\| (\w+)=~?({TEXT})", query.replace("$resource", "plan-1"))
    return {
        f"{label} {each}"
        for label, value in matchers
        for each in value[1:-1].split("|")
        if each not in {line.attributes.get(label.replace("_", ".", 1)) for line in emitted.lines}
    }


def series_of(emitted: Received) -> Mapping[str, list[Point]]:
    """The points by the names of their series in Prometheus, by its default translation of OTLP."""
    series: dict[str, list[Point]] = {}
    for point in emitted.points:
        endings = ("_bucket", "_count", "_sum") if point.kind == "histogram" else ("",)
        for ending in endings:
            series.setdefault(translated(point) + ending, []).append(point)
    return series


def labels_of(name: str, series: Mapping[str, list[Point]]) -> Set[str]:
    bucket = {"le"} if name.endswith("_bucket") else set()
    return set().union(*map(labels, series[name])) | PROMETHEUS_LABELS | bucket


def labels(point: Point) -> Mapping[str, Any]:
    return {name.replace(".", "_"): value for name, value in point.attributes.items()}


def translated(point: Point) -> str:
    """Characters that Prometheus does not allow become underscores, and the unit is appended."""
    words = re.split(r"\W+", point.name)
    main, _, per = point.unit.partition("/")
    if main in UNITS and UNITS[main] not in words:
        words.append(UNITS[main])
    if per:
        words.append(f"per_{PER_UNIT[per]}")
    if point.kind == "sum":
        words.append("total")
    if point.kind == "gauge" and point.unit == "1":
        words.append("ratio")
    return "_".join(words)


# --- the rules --------------------------------------------------------------------------------


def test_queries_name_only_what_is_emitted(emitted: Received) -> None:
    prometheus = grafana_queries("prometheus").items()
    lacking = {name: lacking_in_prometheus(query, emitted) for name, query in prometheus}
    loki = grafana_queries("loki").items()
    lacking |= {name: lacking_in_loki(query, emitted) for name, query in loki}
    lacking |= {name: lacking_in_kusto(query, emitted) for name, query in kusto_queries().items()}
    assert {name: words for name, words in lacking.items() if words} == {}
    assert (len(prometheus), len(loki)) > (15, 0)


def test_every_metric_is_on_both_dashboards(emitted: Received) -> None:
    """A metric that no panel shows is a metric that nobody needs."""
    on_grafana = " ".join(grafana_queries("prometheus").values())
    in_workbook = " ".join(kusto_queries().values())
    unseen = {"autoscaler.sample.age"}  # its use is to find out why decisions come late
    by_host = {
        "faas.invoke_duration",
        "autoscaler.lines",
    }  # it sends the tables requests and traces
    for point in emitted.points:
        if point.name not in unseen:
            assert translated(point) in on_grafana
        if point.name not in unseen | by_host:
            assert f'"{point.name}"' in in_workbook


# --- the structure of the files ---------------------------------------------------------------


def test_data_sources_and_variables_of_grafana_are_declared() -> None:
    """An import into another Grafana must not depend on the ids of its data sources."""
    variables = {each["name"] for each in GRAFANA["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(GRAFANA["panels"])))
    assert used == variables
    for source in _of_key(GRAFANA, "datasource"):
        assert source["uid"] == f"${{{source['type']}}}"


def _of_key(value: Any, key: str) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from [value[key]] if key in value else []
    children = value.values() if isinstance(value, dict) else value
    if isinstance(value, dict | list):
        for child in children:
            yield from _of_key(child, key)
