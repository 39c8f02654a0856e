"""Made-up exports of diagnostic settings, one of each family of SDKs.

The columns are those of the pages of the tables AppRequests, AppEvents, AppDependencies and
AppMetrics at https://learn.microsoft.com/azure/azure-monitor/reference/tables/ (``time`` in place
of TimeGenerated, as diagnostic settings write it). Of the values, these come from elsewhere:

- SDKVersion: the version that each SDK sends as ``ai.internal.sdkVersion``, in its source.
- ItemCount: https://learn.microsoft.com/azure/azure-monitor/app/sampling-classic-api, which keeps
  100 / rate. The distribution for .NET leaves 1, as reported of it.
- Properties ``microsoft.sample_rate``: the attribute that the OpenTelemetry exporters set on spans.
- Properties ``_MS.MetricId``: what SDKs write on standard metrics, whose names differ.
- Which operations are kept: the hash of the id, which .NET's OpenTelemetry sampler takes of the id
  in capitals.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.sampling.reference import hash_score

START = datetime(2026, 11, 1, tzinfo=UTC)
INSTANCES = ("web-0", "web-1", "web-2", "web-3")
TABLES = ("AppRequests", "AppEvents", "AppDependencies", "AppMetrics")
KEPT = 500


@dataclass(frozen=True)
class Family:
    """An SDK. ``rates`` are chosen for each operation. ``item_count`` is None if it is 100 / rate
    and missing if it is 0."""

    sdk_version: str
    rates: tuple[float, ...] = (1.0,)
    item_count: int | None = None
    capitals: bool = False
    states_rate: bool = False
    columns: dict[str, Any] = field(default_factory=dict)
    """What only this family sends."""
    exempt: frozenset[str] = frozenset()
    """The tables whose records are all kept."""

    def keeps(self, operation_id: str, rate: float) -> bool:
        return hash_score(operation_id.upper() if self.capitals else operation_id) < rate


ADAPTIVE = (1.0, 0.5, 0.25, 0.2)
FAMILIES = {
    "classic .NET": Family(
        "aspnet5c:2.22.0", ADAPTIVE, columns={"Properties": {"AspNetCoreEnvironment": "Production"}}
    ),
    "JavaScript": Family(
        "javascript:3.3.4",
        (0.25,),
        columns={"ClientType": "Browser", "ClientBrowser": "Edge 130.0", "SessionId": "s+/1"},
    ),
    "OpenTelemetry for .NET": Family(
        "dotnet8.0.11:otel1.10.0:ext1.4.0-d", (0.204,), item_count=1, capitals=True
    ),
    "OpenTelemetry for .NET, rate-limited": Family(
        "dotnet8.0.11:otel1.10.0:ext1.5.0-d", (0.5, 0.25, 0.2), 1, capitals=True, states_rate=True
    ),
    "OpenTelemetry for Python": Family("py3.11.9:otel1.28.2:ext1.0.0b33", (0.2,), states_rate=True),
    "OpenTelemetry for Python, unsampled": Family("py3.11.9:otel1.28.2:ext1.0.0b33", item_count=0),
    "Java": Family("java:3.6.2", (0.2,)),
}


def write_export(
    folder: Path,
    family: Family,
    days: int = 4,
    lost: frozenset[str] = frozenset(),
    last_rates: tuple[float, ...] = (),
) -> None:
    """Each day keeps ``KEPT`` operations: a checkout, mostly an OrderConfirmed, and a query. On the
    last day, the instances ``lost`` send no OrderConfirmed, and ``last_rates`` apply."""
    rng = random.Random(family.sdk_version)
    for day in range(days):
        missing, of_day = frozenset[str](), family
        if day == days - 1:
            missing, of_day = lost, replace(family, rates=last_rates or family.rates)
        lines: dict[str, list[str]] = {table: [] for table in TABLES}
        for record in _records(rng, of_day, START + timedelta(days=day), missing):
            lines[record["Type"]].append(json.dumps(record))
        for table, of_table in lines.items():
            date = START + timedelta(days=day)
            at = f"insights-logs-{table.lower()}/resourceId=/X/y={date:%Y/m=%m/d=%d}/h=09/m=00"
            (folder / at).mkdir(parents=True)
            (folder / at / "PT1H.json").write_text("\n".join(of_table) + "\n")


def _records(
    rng: random.Random, family: Family, day: datetime, missing: frozenset[str]
) -> Iterator[dict[str, Any]]:
    kept = sent = 0
    while kept < KEPT:
        sent += 1
        operation_id, rate = f"{rng.getrandbits(128):032x}", rng.choice(family.rates)
        instance, confirmed = rng.choice(INSTANCES), rng.random() < 0.95
        time = day + timedelta(hours=9, seconds=3_000 * rng.random())
        tables = {"AppRequests": "POST /checkout", "AppDependencies": "SQL: orders"}
        if confirmed and instance not in missing:
            tables["AppEvents"] = "OrderConfirmed"
        rates = {table: 1.0 if table in family.exempt else rate for table in tables}
        sampled = [table for table in tables if family.keeps(operation_id, rates[table])]
        kept += bool(sampled)
        for table in sampled:
            yield _record(family, table, tables[table], time, rates[table], operation_id, instance)
    metric = _common(family, "AppMetrics", day + timedelta(hours=9), INSTANCES[0])
    metric |= {"Sum": 31.5 * sent, "Min": 2.0, "Max": 900.0, "ItemCount": sent}
    metric["Name"], metric["Properties"] = "Request duration", {"_MS.MetricId": "requests/duration"}
    yield metric


def _common(family: Family, table: str, time: datetime, instance: str) -> dict[str, Any]:
    return {
        "time": time.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "resourceId": "/SUBSCRIPTIONS/0/RESOURCEGROUPS/R/PROVIDERS/MICROSOFT.INSIGHTS/COMPONENTS/X",
        "Type": table,
        "AppRoleInstance": instance,
        "AppRoleName": "shop",
        "AppVersion": "7.1",
        "ClientIP": "0.0.0.0",
        "SDKVersion": family.sdk_version,
        **family.columns,
    }


def _record(
    family: Family,
    table: str,
    name: str,
    time: datetime,
    rate: float,
    operation_id: str,
    instance: str,
) -> dict[str, Any]:
    record = {**_common(family, table, time, instance), "Name": name, "OperationId": operation_id}
    record["OperationName"], record["ParentId"] = "POST /checkout", operation_id[:16]
    if table != "AppEvents":
        record |= {"Id": f"{operation_id[:15]}{TABLES.index(table)}", "DurationMs": 12.5}
        record |= {"Success": True, "ResultCode": "200"}
    if family.states_rate and table != "AppEvents":
        record["Properties"] = {"microsoft.sample_rate": f"{100 * rate:g}"}
    if family.item_count != 0:
        record["ItemCount"] = family.item_count or round(1 / rate)
    return record
