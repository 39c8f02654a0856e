"""Reads a month of a plan from Azure Monitor, with the reader's own login. It changes nothing.

One query reads one day, because a query of more than 30 days silently answers the last 30. The
autoscale setting counts the instances (``ObservedCapacity``); a plan has no such metric. Without a
setting, the series of its ``CpuPercentage`` are counted, of which Azure answers ten by default.
https://learn.microsoft.com/azure/azure-monitor/reference/supported-metrics/metrics-index
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from azure.core.exceptions import AzureError, HttpResponseError
from azure.core.rest import HttpRequest

from backtest.audit_month import DAY_MINUTES, Month
from backtest.errors import BacktestError
from backtest.traces.samples import MINUTE
from shared.autoscaling.azure_monitor.client import request_of
from shared.azure import credentials
from shared.azure.arm import ArmClient, arm_client
from shared.azure.budget import ArmBudget
from shared.azure.credentials import NoLogin
from shared.azure.transport import retry_after_seconds, server_time
from shared.values.text import one_line

AUTOSCALE = "Microsoft.Insights/autoscalesettings"
AUTOSCALE_VERSION = "2022-10-01"
PUBLISHED_AFTER = timedelta(minutes=10)
"""Minutes that are younger may not be published yet."""
ATTEMPTS_MAX, WAIT_SECONDS, WAIT_SECONDS_MAX = 8, 5.0, 300.0
TRANSIENT = (408, 429, 500, 502, 503, 504, 529)
PAGES_MAX = 100
OF_ENTITY = {
    "active": ("ActiveMessages", "average"),
    "active_max": ("ActiveMessages", "maximum"),
    "incoming": ("IncomingMessages", "total"),
    "completed": ("CompleteMessage", "total"),
    "abandoned": ("AbandonMessage", "total"),
}
Columns = dict[str, list[float | None]]
Point = Mapping[str, Any]


class Reader:
    """Resource Manager, asked one thing at a time. ``told`` gets what it waits for."""

    def __init__(
        self,
        endpoint: str,
        told: Callable[[str], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._endpoint, self._told, self._sleep = endpoint.rstrip("/"), told, sleep
        self._client: ArmClient = arm_client(self._endpoint, budget=ArmBudget())

    async def close(self) -> None:
        await self._client.close()
        await credentials.close()

    async def setting_of(self, plan: str) -> dict[str, Any] | None:
        """The autoscale setting of the plan in its resource group."""
        group = re.split("/providers/", plan, flags=re.IGNORECASE)[0]
        url = f"{self._endpoint}{group}/providers/{AUTOSCALE}?api-version={AUTOSCALE_VERSION}"
        for _ in range(PAGES_MAX):
            page = await self._json(HttpRequest("GET", url), f"the autoscale settings of {group}")
            for each in page["value"]:
                target = each.get("properties", {}).get("targetResourceUri") or ""
                if target.rstrip("/").lower() == plan.rstrip("/").lower():
                    return dict(each)
            url = page.get("nextLink") or ""
            if not url.startswith(f"{self._endpoint}/"):  # its token is for nobody else
                return None
        return None

    def newest(self) -> datetime:
        """The first minute that may not be published yet, by the clock of the last answer."""
        return (server_time() - PUBLISHED_AFTER).replace(second=0, microsecond=0)

    async def day(self, month: Month) -> Columns:
        """The day that follows what was read."""
        start = month.start + MINUTE * month.minutes
        entity = month.entity.replace("'", "''")
        counts = await self._metrics(
            month.namespace, start, OF_ENTITY.values(), f"EntityName eq '{entity}'"
        )
        columns = {name: _column(counts[m], a, start) for name, (m, a) in OF_ENTITY.items()}
        cpu = ("CpuPercentage", "average")
        found = await self._metrics(month.plan, start, [cpu], "Instance eq '*'")
        series = [_column([each], "average", start) for each in found["CpuPercentage"]]
        known = [[v for v in minute if v is not None] for minute in zip(*series, strict=True)]
        known = known or [[] for _ in range(DAY_MINUTES)]
        columns["cpu"] = [sum(values) / len(values) if values else None for values in known]
        columns["instances"] = [float(len(values)) or None for values in known]
        if month.setting_id:
            observed = ("ObservedCapacity", "average")
            found = await self._metrics(month.setting_id, start, [observed])
            columns["instances"] = _column(found["ObservedCapacity"], "average", start)
        return columns

    async def _metrics(
        self, resource: str, start: datetime, asked: Any, condition: str = ""
    ) -> dict[str, list[Sequence[Point]]]:
        """The series of each metric."""
        pairs = list(asked)
        parameters = {
            "metricnames": ",".join(dict.fromkeys(name for name, _ in pairs)),
            "aggregation": ",".join(dict.fromkeys(aggregation for _, aggregation in pairs)),
            "interval": "PT1M",
            "timespan": f"{_text(start)}/{_text(start + MINUTE * DAY_MINUTES)}",
            "$filter": condition,
            "top": "1000" if condition else "",
        }
        url = f"{self._endpoint}{resource}/providers/Microsoft.Insights/metrics"
        what = f"the metrics of {resource}"
        body = await self._json(request_of(url, parameters), what)
        try:
            found = {each["name"]["value"]: each["timeseries"] for each in body["value"]}
            return {name: [series["data"] for series in found[name]] for name, _ in pairs}
        except (LookupError, TypeError) as error:
            raise BacktestError(f"{what}: the answer does not describe them: {error}") from error

    async def _json(self, request: HttpRequest, what: str) -> Any:
        """The answer. Waits as long as Azure says where it throttles, and says so."""
        for attempt in range(ATTEMPTS_MAX):
            wait = min(WAIT_SECONDS * 2**attempt, WAIT_SECONDS_MAX)
            try:
                response = await self._client.send_request(request)
                if response.status_code == 200:
                    return response.json()
                error: AzureError = HttpResponseError(response=response)
                if response.status_code not in TRANSIENT:
                    break
                said = f"Azure answered {response.status_code}"
                wait = min(retry_after_seconds(response) or wait, WAIT_SECONDS_MAX)
            except NoLogin as refused:
                raise BacktestError(str(refused)) from refused
            except (AzureError, ValueError) as failed:
                error = failed if isinstance(failed, AzureError) else AzureError(str(failed))
                said = one_line(str(failed))
            if attempt < ATTEMPTS_MAX - 1:
                self._told(f"{what}: {said}; the next attempt is in {wait:.0f} s")
                await self._sleep(wait)
        status = getattr(error, "status_code", None)
        text = f"{what}: {status or type(error).__name__}: {one_line(error.message)}"
        raise BacktestError(f"{text}. {ADVICE.get(status or 0, AGAIN)}") from error


ADVICE = {
    401: "Your login needs the role Monitoring Reader on it",
    403: "Your login needs the role Monitoring Reader on it",
    404: "Check the resource ID. For a namespace of another group, give --queue ID/QUEUE",
}
AGAIN = "Run the command again: with --export FILE, it continues where it stopped"


async def new_month(
    reader: Reader, plan: str, entity: tuple[str, str, str], days: int, setting: Any
) -> Month:
    """A month of which nothing was read. ``entity`` is its namespace, kind and name."""
    found = await reader.setting_of(plan)
    given = setting if isinstance(setting, dict) else {}
    setting_id = str((found or given).get("id") or "")
    namespace, kind, name = entity
    return Month(
        plan=plan,
        namespace=namespace,
        entity=name,
        kind=kind,  # type: ignore[arg-type]  # the command line has only these
        setting=setting or found,
        setting_id=setting_id,
        start=reader.newest() - MINUTE * DAY_MINUTES * days,
        days=days,
        columns={name: [] for name in (*OF_ENTITY, "instances", "cpu")},
    )


def _column(
    series: Sequence[Sequence[Point]], aggregation: str, start: datetime
) -> list[float | None]:
    """The values of a day. Of several series there is one for each minute, as of one entity."""
    column: list[float | None] = [None] * DAY_MINUTES
    for point in (point for data in series for point in data):
        at = (datetime.fromisoformat(point["timeStamp"]) - start) // MINUTE
        value = point.get(aggregation)
        if 0 <= at < DAY_MINUTES and value is not None:
            column[at] = float(value)
    return column


def _text(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")
