"""The usual week as the row that the scaling rules read as a floor."""

from __future__ import annotations

import json
from typing import Any

from shared.sampling.profile import NoProfile, UsualWeek

ROW_KEY = "profile"
DIGITS = 6


def profile_row(resource_name: str, profile: UsualWeek | NoProfile) -> dict[str, Any]:
    """Of the table of scaling state: one row a scaled resource. A missing hour is null."""
    row = {"PartitionKey": resource_name, "RowKey": ROW_KEY, "time_zone": profile.time_zone}
    if isinstance(profile, NoProfile):
        return {**row, "absent": profile.reason}
    items = [
        None if value is None else float(f"{value:.{DIGITS}g}")
        for value in profile.items_per_minute
    ]
    return {
        **row,
        "items_per_minute_0": json.dumps(items),
        "weeks": json.dumps(profile.weeks),
    }
