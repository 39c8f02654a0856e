"""Builders of small values for tests."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, TypeVar

from shared.autoscaling import (
    AppServicePlan,
    Cooldown,
    Limits,
    Resource,
    ServiceBusSubscription,
    Threshold,
)
from shared.autoscaling.acting.actions import ActionTiming
from shared.autoscaling.messages import Samples, decode_samples
from shared.autoscaling.ports import CapacityControl
from shared.autoscaling.sources import Reading, Services, Source
from shared.autoscaling.state import ActionStatus, Desired, ScalingState
from shared.sampling.trend_rows import Trend
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue, Window
from shared.values.samples import encode_samples

T = TypeVar("T")
TIMING = ActionTiming(
    resend_seconds=60, retry_seconds=15, failure_hold_seconds=60, deadline_seconds=600
)
NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
SOURCE = ServiceBusSubscription("orders", "billing")


async def read(source: Source, services: Services) -> MetricValue:
    """The one sample of a source."""
    found = await source.read(Reading(services))
    assert isinstance(found, MetricValue)
    return found


def not_asked() -> NoReturn:
    raise AssertionError("nothing reads this part")


async def thrice(attempt: Callable[[], Awaitable[T]], worth: Callable[[Exception], bool]) -> T:
    """Makes at most three attempts, without waits, while ``worth`` says so of their errors."""
    for _ in range(2):
        try:
            return await attempt()
        except Exception as error:
            if not worth(error):
                raise
    return await attempt()


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def sample(value: float, seconds_ago: float = 0) -> MetricValue:
    return MetricValue(ago(seconds_ago), value)


def metric(value: float, seconds_ago: float = 0, name: str = "backlog") -> Metric:
    return Metric("plan-1", name, sample(value, seconds_ago))


def as_message(*metrics: Metric) -> Samples:
    """The samples as the message of one resource."""
    return Samples(metrics[0].resource_name, metrics)


def encode_metric(metric: Metric) -> str:
    """The text of a message with a single sample."""
    return encode_samples([metric])


def decode_metric(body: str) -> Metric:
    """The only sample of a message."""
    (metric,) = decode_samples(body).metrics
    return metric


def plan(name: str = "plan-1") -> AppServicePlan:
    return AppServicePlan("00000000-0000-0000-0000-000000000001", "group-1", name)


def resource(name: str = "plan-1", **changes: Any) -> Resource:
    fields: dict[str, Any] = {
        "name": name,
        "target": plan(name),
        "metrics": {"backlog": SOURCE},
        "policy": Threshold("backlog", upper=100, lower=10),
        "limits": Limits(1, 5),
        "cooldown": Cooldown(600, 600),
    }
    return Resource(**{**fields, **changes})


def history(values: Sequence[float], every_seconds: float = 60) -> Window:
    """A window of evenly spaced samples, oldest first, of which the last is taken now."""
    last = len(values) - 1
    return Window(tuple(sample(v, (last - i) * every_seconds) for i, v in enumerate(values)))


def state(
    backlog: Sequence[float] = (),
    capacity: int | None = 2,
    desired: Desired | None = None,
    **changes: Any,
) -> ScalingState:
    histories: Mapping[str, Window] = {"backlog": history(backlog)}
    if capacity is not None:
        histories = {**histories, CAPACITY_METRIC: Window((sample(capacity),))}
    return ScalingState(histories, desired, **changes)


def desired(**changes: Any) -> Desired:
    fields: dict[str, Any] = {
        "target": 3,
        "epoch": 7,
        "reason": "mean backlog 200 > 100",
        "requested_at": ago(30),
        "previous": 2,
        "sent_at": ago(30),
    }
    return Desired(**{**fields, **changes})


def confirmed(seconds_ago: float, target: int = 2, **changes: Any) -> Desired:
    return desired(
        target=target,
        status=ActionStatus.CONFIRMED,
        changed_at=ago(seconds_ago),
        requested_at=ago(seconds_ago + 5),
        **changes,
    )


def trend_from_json(line: str | bytes) -> Trend:
    """The trend that ``as_json`` wrote, as a reader of the published results reads it."""
    read = json.loads(line)
    fields = {name: value for name, value in read.items() if name in Trend.__slots__}
    return Trend(**{**fields, "warnings": tuple(fields["warnings"])})


async def set_capacity(
    control: CapacityControl, target: AppServicePlan, capacity: int
) -> int | None:
    """Change the capacity as the scaler does: the plan is read before."""
    return await control.change(target, capacity, await control.read(target))
