"""Determines the weight of a record from its item count and sampling rate.

Classic SDKs write 100 / rate, rounded to a whole number, as ItemCount. This is exact for adaptive
sampling, whose rates are 100/k, but 10 % too low at a fixed rate of 30 %. OpenTelemetry exporters
write the rate itself as the attribute ``microsoft.sample_rate``, and some leave ItemCount at 1.
OpenCensus for Python drops records at random and never writes a rate.
"""

from __future__ import annotations

import re

from shared.sampling.fields import Fields, item_count
from shared.sampling.model import BadField, Weight

ROUNDING = 1.0
"""Item counts differ from 100 / rate by less than this, because SDKs round or truncate them."""
UNSTATED_RATES = re.compile(r"(^|:)(otel|oc\d)", re.IGNORECASE)
"""Matches versions such as ``py3.11:otel1.25:ext1.6`` and ``py3.9:oc0.11``."""


def weight_of(fields: Fields, name: str, rate_percent: float | None, sdk_version: str) -> Weight:
    """The weight of a record whose item count is in the field ``name``. If the item count cannot be
    read and there is no rate, the record counts once, and its weight is not trusted.
    """
    try:
        return weigh(item_count(fields, name), rate_percent, sdk_version)
    except BadField:
        unstated = Weight(1.0, trusted=False)
        return unstated if rate_percent is None else weigh(None, rate_percent, sdk_version)


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
