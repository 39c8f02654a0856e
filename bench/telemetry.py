"""Exported telemetry to measure with: eight events, one operation for every two records, and what
spoils such files in reality: copies, records that come late, lines that are cut."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

DAYS, FIRST_DAY = 4, datetime(2017, 5, 15, tzinfo=UTC)
RECORD_BYTES = 572
RESOURCE = "/SUBSCRIPTIONS/0/RESOURCEGROUPS/SHOP/PROVIDERS/MICROSOFT.INSIGHTS/COMPONENTS/APPI-SHOP"
NAMES = ("ItemViewed", "CartUpdated", "SearchPerformed", "OrderPlaced", "OrderPaid", "LoginFailed")
HUGE_SHARE = 0.25
"""Of all records in one file: hours are uneven."""


def write_export(root: Path, size_bytes: int) -> int:
    """Hourly files of some days; how many records they hold, copies included."""
    rng = random.Random(5)
    records = size_bytes // RECORD_BYTES
    hours = DAYS * 24
    written = 0
    for hour in range(hours):
        usual = int(records * (1 - HUGE_SHARE) / hours)
        count = usual + (int(records * HUGE_SHARE) if hour == 12 else 0)
        written += _write_hour(rng, root, FIRST_DAY + timedelta(hours=hour), count)
    return written


def _write_hour(rng: random.Random, root: Path, hour: datetime, count: int) -> int:
    folder = (
        root / f"insights-logs-appevents/resourceId={RESOURCE}" / f"{hour:y=%Y/m=%m/d=%d/h=%H/m=00}"
    )
    folder.mkdir(parents=True)
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
    (folder / "PT1H.json").write_text("\n".join(lines))
    return len(lines) - 1
