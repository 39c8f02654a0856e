"""Checks that the event hub and its consumer groups exist and can be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shared.ingestion.ports import HubReader
from shared.values.calls import check


async def check_hub(
    hub: HubReader, name: str, groups: Sequence[str], timeout_seconds: float
) -> list[dict[str, Any]]:
    """A result for the hub, and one for each group; see ``check_connections``."""
    subject, partition_ids = f"event hub {name}", list[str]()

    async def partitions() -> str:
        partition_ids.extend(await hub.partition_ids())
        return f"has {len(partition_ids)} partition(s)"

    async def group(consumer_group: str) -> str:
        await hub.check_group(consumer_group, partition_ids[0])
        return "exists and may be read"

    results = [await check(timeout_seconds, subject, "partitions", partitions())]
    if partition_ids:
        for each in dict.fromkeys(groups):
            what = f"consumer group {each}"
            results.append(await check(timeout_seconds, subject, what, group(each)))
    return results
