"""Determines the weight of a record from its item count and sampling rate.

Classic SDKs write 100 / rate, rounded to a whole number, as ItemCount. This is exact for adaptive
sampling, whose rates are 100/k, but 10 % too low at a fixed rate of 30 %. OpenTelemetry exporters
write the rate itself as the attribute ``microsoft.sample_rate``, and some leave ItemCount at 1.
OpenCensus for Python drops records at random and never writes a rate.
"""

from __future__ import annotations

import re

from shared.sampling.model import Weight

ROUNDING = 1.0
"""Item counts differ from 100 / rate by less than this, because SDKs round or truncate them."""
UNSTATED_RATES = re.compile(r"(^|:)(otel|oc\d)", re.IGNORECASE)
"""Matches versions such as ``py3.11:otel1.25:ext1.6`` and ``py3.9:oc0.11``."""


def weigh(item_count: float | None, rate_percent: float | None, sdk_version: str) -> Weight:
    """The weight of a record. An argument is None if its export does not have the field."""
    if rate_percent is not None:
        return _by_rate(item_count, 100.0 / rate_percent)
    count = 1.0 if item_count is None else item_count
    return Weight(count, trusted=count != 1 or not may_not_state_rate(sdk_version))


def _by_rate(item_count: float | None, by_rate: float) -> Weight:
    if item_count is None or item_count == 1 or abs(item_count - by_rate) < ROUNDING:
        return Weight(by_rate, exact=True)
    return Weight(max(item_count, by_rate), trusted=False)


def may_not_state_rate(sdk_version: str) -> bool:
    """True for OpenTelemetry and OpenCensus, and for senders without a version, such as the
    OpenTelemetry Collector.
    """
    return not sdk_version or UNSTATED_RATES.search(sdk_version) is not None
