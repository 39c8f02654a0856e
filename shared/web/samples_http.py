"""The operation with which senders of a ``QueueMetric`` send samples over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from shared.autoscaling.errors import BadMessage
from shared.autoscaling.flows.common import declared_samples, find
from shared.autoscaling.messages import REFUSED_SHOWN_MAX, all_refused, decode_samples
from shared.autoscaling.policy import Resource
from shared.autoscaling.ports import QueueSender
from shared.values.samples import encode_metrics
from shared.values.text import TimeText
from shared.web.board import OfResource
from shared.web.given import json_body
from shared.web.http import Refused, Request
from shared.web.operation import operation


class SampleTime(TypedDict):
    """A value and its time."""

    time: TimeText
    value: float


class SampleSent(TypedDict):
    """One sample, with ``schema_version`` 1. See docs/messages.md for version 2."""

    schema_version: int
    resource_name: str
    name: str
    value: SampleTime


class SamplesSent(TypedDict):
    """How many samples were taken, and why others were not."""

    resource: str
    accepted: int
    refused: list[str]


@dataclass(frozen=True, slots=True)
class SampleReceiver:
    """``carrying`` makes messages for the queue ``samples`` continue the trace."""

    resources: Mapping[str, Resource]
    queue: QueueSender
    carrying: Callable[[Sequence[str]], Sequence[str]]


@operation(
    "POST",
    "resources/{name}/metrics",
    404,
    document=SampleSent | list[SampleSent],
    change="the samples were sent; send them again",
)
async def push_metrics(receiver: SampleReceiver, path: OfResource, request: Request) -> SamplesSent:
    """Take samples of metrics that are declared as `QueueMetric()`."""
    resource = find(receiver.resources, path.name)
    try:
        read = decode_samples(json_body(request).decode("utf-8", "replace"), resource.name)
    except BadMessage as error:
        raise Refused(400, str(error)) from error
    metrics, refused = declared_samples(read, resource, sent=True)
    if not metrics:
        raise Refused(400, str(all_refused(refused)))
    await receiver.queue.send_texts(receiver.carrying(encode_metrics(metrics)))
    told = [str(error) for error in refused[:REFUSED_SHOWN_MAX]]
    return {"resource": resource.name, "accepted": len(metrics), "refused": told}
