"""Makes exported telemetry for measurements: six events, one operation for every two records, and
what such files really contain: copies, late records and cut lines."""

from __future__ import annotations

import random
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

DAYS, FIRST_DAY = 4, datetime(2017, 5, 15, tzinfo=UTC)
RECORD_BYTES = 572
RESOURCE = "/SUBSCRIPTIONS/0/RESOURCEGROUPS/SHOP/PROVIDERS/MICROSOFT.INSIGHTS/COMPONENTS/APPI-SHOP"
NAMES = ("ItemViewed", "CartUpdated", "SearchPerformed", "OrderPlaced", "OrderPaid", "LoginFailed")
BASE_BYTES = 200_000_000
OPERATION = re.compile(rb'"OperationId":"[0-9a-f]{8}')
HUGE_SHARE = 0.25
"""The share of all records that are in one file, because hours are uneven."""


def write_export(root: Path, size_bytes: int) -> None:
    """Writes hourly files of some days. Large files repeat their records with other operations."""
    rng = random.Random(5)
    copies = max(round(size_bytes / BASE_BYTES), 1)
    records = size_bytes // copies // RECORD_BYTES
    hours = DAYS * 24
    for number in range(hours):
        usual = int(records * (1 - HUGE_SHARE) / hours)
        count = usual + (int(records * HUGE_SHARE) if number == 12 else 0)
        hour = FIRST_DAY + timedelta(hours=number)
        _write_hour(_folder(root, hour), _hour(rng, hour, count), copies)


def _folder(root: Path, hour: datetime) -> Path:
    return (
        root / f"insights-logs-appevents/resourceId={RESOURCE}" / f"{hour:y=%Y/m=%m/d=%d/h=%H/m=00}"
    )


def _write_hour(folder: Path, text: bytes, copies: int) -> None:
    folder.mkdir(parents=True)
    with (folder / "PT1H.json").open("wb") as file:
        for copy in range(copies):
            file.write(OPERATION.sub(b'"OperationId":"%08x' % copy, text) if copy else text)
            file.write(b"\n")


def _hour(rng: random.Random, hour: datetime, count: int) -> bytes:
    operation, lines = "", []
    for number in range(count):
        operation = operation if number % 2 else f"{rng.getrandbits(128):032x}"
        late = timedelta(hours=rng.randrange(1, 49)) if rng.random() < 0.003 else timedelta()
        ticks = rng.randrange(10_000_000)
        moment = hour - late + timedelta(seconds=3_599 * number // count)
        amount = f'"Measurements":{{"Amount":{rng.randrange(9_999) / 100},"Items":{number % 9}}},'
        lines.append(
            f'{{"time":"{moment:%Y-%m-%dT%H:%M:%S}.{ticks:07d}Z","resourceId":"{RESOURCE}",'
            f'"Type":"AppEvents","AppRoleInstance":"RD0003FF{number % 12:06X}",'
            f'"AppRoleName":"shop-web","ClientIP":"0.0.0.0","ClientType":"PC",'
            f'"_BilledSize":{900 + number % 12},"OperationName":"POST Orders/Place",'
            f'"OperationId":"{operation}","SDKVersion":"aspnet5c:2.20.0",'
            f'"UserId":"u{rng.randrange(200_000)}","Properties":{{"tenant":"t{number % 50}",'
            f'"LogLevel":"Information"}},{amount if number % 20 else ""}'
            f'"Name":"{NAMES[number % len(NAMES)]}","ItemCount":{4 if hour.day % 2 else 2}}}'
        )
        if number % 2_000 == 0:
            lines.append(lines[-1])
    lines.append(lines[0][: len(lines[0]) // 2] if lines else "")
    return "\n".join(lines).encode()
