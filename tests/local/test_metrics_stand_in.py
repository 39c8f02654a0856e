"""The stand-in for Azure Monitor answers metric queries as documented."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta

import pytest

from local.azure_apis.loopback_server import Reply, Request
from local.azure_apis.metrics import MetricsStandIn, MonitoredResource
from tests.builders import NOW

SUBSCRIPTION = "/subscriptions/00000000-0000-0000-0000-000000000001"
BUS = f"{SUBSCRIPTION}/resourceGroups/g/providers/Microsoft.ServiceBus/namespaces/bus"
VALID = {
    "api-version": "2024-02-01",
    "metricnames": "CompleteMessage",
    "aggregation": "total,count",
    "interval": "PT1M",
    "timespan": "2026-03-01T11:55:00Z/2026-03-01T12:00:00Z",
}
BATCH = {
    **{key: value for key, value in VALID.items() if key != "timespan"},
    "starttime": "2026-03-01T11:55:00.000Z",
    "endtime": "2026-03-01T12:00:00.000Z",
    "metricnamespace": "microsoft.servicebus/namespaces",
}


class Monitor:
    def __init__(self) -> None:
        self.metrics = MetricsStandIn()
        self.metrics.subscription_readable = True
        self.bus: MonitoredResource = self.metrics.add(BUS, "CompleteMessage")

    def one(self, **changes: str | None) -> Reply:
        query = {k: v for k, v in {**VALID, **changes}.items() if v is not None}
        return self.reply("GET", f"{BUS}/providers/Microsoft.Insights/metrics", query)

    def batch(self, ids: object, **changes: str | None) -> Reply:
        query = {k: v for k, v in {**BATCH, **changes}.items() if v is not None}
        body = json.dumps({"resourceids": ids}).encode()
        path = f"/regions/westeurope{SUBSCRIPTION}/metrics:getBatch"
        return self.reply("POST", path, query, body)

    def reply(self, method: str, path: str, query: Mapping[str, str], body: bytes = b"") -> Reply:
        reply = self.metrics.reply(Request(method, path, query, {}, body, NOW))
        assert reply is not None
        return reply

    def record(self, minutes_ago: int, *values: float, entity: str = "orders") -> None:
        for value in values:
            time = NOW - timedelta(minutes=minutes_ago)
            self.metrics.record(BUS, "CompleteMessage", time, value, entity)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"api-version": "2020-01-01"}, "api-version '2020-01-01' is not supported"),
        ({"interval": "PT2M"}, "Detected invalid time grain input: PT2M"),
        ({"metricnames": "Nothing"}, "Failed to find metric configuration for metric: Nothing"),
        ({"metricnames": ",".join("x" * n for n in range(1, 22))}, "1 to 20"),
        ({"aggregation": "median"}, "aggregation 'median' is not supported"),
        ({"timespan": "2026-03-01T12:00:00Z/2026-03-01T11:00:00Z"}, "must be before the end time"),
        ({"timespan": "yesterday/today"}, "Invalid time"),
        ({"$filter": "Color eq 'red'"}, "does not support requested dimension combination"),
        ({"$filter": "EntityName like 'o'"}, "Invalid filter"),
    ],
)
def test_invalid_queries_are_refused_like_in_azure(changes: dict[str, str], message: str) -> None:
    reply = Monitor().one(**changes)
    assert reply.status == 400
    assert message in json.loads(reply.body)["message"]


def test_a_batch_returns_each_resource_and_refuses_those_of_another_subscription() -> None:
    monitor = Monitor()
    monitor.record(1, 3)
    (value,) = json.loads(monitor.batch([BUS]).body)["values"]
    assert (value["resourceid"], value["resourceregion"]) == (BUS, "westeurope")
    reply = monitor.batch([BUS.replace("000000000001", "000000000002")])
    assert reply.status == 400
    assert "is not in subscription" in json.loads(reply.body)["error"]["message"]


def test_a_query_gets_at_most_its_last_30_days_without_a_word() -> None:
    monitor = Monitor()
    long = json.loads(monitor.one(timespan="2026-01-01T00:00Z/2026-03-01T00:00Z").body)
    assert long["timespan"] == "2026-01-30T00:00:00Z/2026-03-01T00:00:00Z"


def test_a_time_before_what_is_kept_is_refused() -> None:
    refused = Monitor().one(timespan="2025-11-01T00:00Z/2025-11-02T00:00Z")
    assert refused.status == 400
    assert "out of the Max metrics retention period" in refused.body


@pytest.mark.parametrize(("top", "series"), [(None, 10), ("11", 11), ("1000", 12)])
def test_a_query_by_dimension_gets_ten_series_unless_top_says_more(
    top: str | None, series: int
) -> None:
    monitor = Monitor()
    for entity in range(12):
        monitor.record(2, 1, entity=f"queue-{entity}")
    reply = monitor.one(**{"$filter": "EntityName eq '*'", "top": top})
    assert len(json.loads(reply.body)["value"][0]["timeseries"]) == series
