"""What a run computes: results of one shape can be added up, those of different shapes cannot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ROLE = "AppRoleName"


@dataclass(frozen=True, slots=True)
class Shape:
    """``measurement`` empty: each record counts 1. Dates are those of the time zone."""

    measurement: str = ""
    dimensions: tuple[str, ...] = ()
    time_zone: str = "UTC"


def shape_of(found: Mapping[str, Any]) -> Shape:
    return Shape(found["measurement"], tuple(found["dimensions"]), found["time_zone"])
