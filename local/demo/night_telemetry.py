"""Telemetry of a fictitious shop, in the form that Application Insights exports.

Orders follow the weekday and the hour. A week ago, the SDK began to sample one operation in four,
so the raw counts fall although nothing is missing. Yesterday, most confirmations really were lost.
Every file contains duplicate lines, and the last file ends in the middle of a line.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

CONTAINER = "insights-logs-appevents"
RESOURCE = (
    "/SUBSCRIPTIONS/00000000-0000-0000-0000-000000000001/RESOURCEGROUPS/LOCAL"
    "/PROVIDERS/MICROSOFT.INSIGHTS/COMPONENTS/SHOP"
)
DAYS = 29
SAMPLED_DAYS = 7
ITEM_COUNT = 4
OPEN_HOURS = range(9, 15)
ORDERS_PER_HOUR = 60
WEEKDAYS = (1.0, 1.05, 1.1, 1.05, 1.2, 0.6, 0.5)
LOST_SHARE = 0.7
DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class HourFile:
    """The blob of one hour."""

    day: date
    path: str
    content: bytes


def files(today: date, days: int = DAYS, seed: int = 1) -> Iterator[HourFile]:
    """Yield the files of the ``days`` days before ``today``, oldest first."""
    for ago in range(days, 0, -1):
        day = today - ago * DAY
        for hour in OPEN_HOURS:
            randomly = random.Random(f"{seed} {day} {hour}")  # noqa: S311  synthetic data
            lines = list(_hour(randomly, day, hour, sampled=ago <= SAMPLED_DAYS, lossy=ago == 1))
            lines += lines[:2]  # duplicates, as the export writes them
            content = "".join(f"{line}\n" for line in lines)
            if ago == 1 and hour == OPEN_HOURS[-1]:
                content += lines[0][:200]  # an incomplete line, still being written
            path = (
                f"resourceId={RESOURCE}/y={day:%Y}/m={day:%m}/d={day:%d}/h={hour:02}/m=00/PT1H.json"
            )
            yield HourFile(day, path, content.encode())


def _hour(
    randomly: random.Random, day: date, hour: int, *, sampled: bool, lossy: bool
) -> Iterator[str]:
    """One operation is an order, placed and then confirmed. Sampling keeps or drops all of it."""
    mean = ORDERS_PER_HOUR * WEEKDAYS[day.weekday()]
    start = datetime.combine(day, time(hour), UTC)
    for _ in range(round(randomly.gauss(mean, mean**0.5))):
        operation = f"{randomly.getrandbits(128):032x}"
        placed_at = start + timedelta(seconds=randomly.uniform(0, 3590))
        amount = round(randomly.lognormvariate(3, 0.8), 2)
        kept = not sampled or randomly.random() < 1 / ITEM_COUNT
        confirmed = not lossy or randomly.random() >= LOST_SHARE
        if kept:
            count = ITEM_COUNT if sampled else 1
            yield _line(placed_at, "OrderPlaced", operation, count, {"Amount": amount})
            if confirmed:
                confirmed_at = placed_at + timedelta(seconds=2)
                yield _line(confirmed_at, "OrderConfirmed", operation, count, None)


def _line(
    at: datetime, name: str, operation: str, count: int, measurements: dict[str, float] | None
) -> str:
    """A record of the table AppEvents, with the columns that the export writes."""
    record = {
        "time": f"{at:%Y-%m-%dT%H:%M:%S.%f}0Z",
        "resourceId": RESOURCE,
        "Type": "AppEvents",
        "AppRoleName": "shop-web",
        "AppRoleInstance": "shop-web-1",
        "ClientType": "PC",
        "OperationName": "POST Orders/Place",
        "OperationId": operation,
        "ParentId": operation[:16],
        "SDKVersion": "aspnet5c:2.22.0",
        "Properties": {"tenant": "t1"},
        "Measurements": measurements,
        "Name": name,
        "ItemCount": count,
    }
    return json.dumps(record, separators=(",", ":"))
