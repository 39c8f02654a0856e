"""Describes how the rate per instance of a resource becomes known, or is checked. Pure."""

from __future__ import annotations

from shared.autoscaling.learning.counts import counting_series, why_not_counted
from shared.autoscaling.policies.queue_age import UNSURE_GROWTH_MAX, QueueAge
from shared.autoscaling.policy import Resource, members

PLANS = (
    "Until the app has seen work, until_known decides. Then QueueAge plans with the low end of an "
    f"estimate from the backlog, and multiplies the capacity by at most {UNSURE_GROWTH_MAX} at a "
    "time until the estimate is sure."
)
COMPARED = "The app compares it with the course of the backlog, and with counts if there are any."
WAITS = "The app estimates it from the backlog. A policy that needs it waits until it is sure."


def first_hour(resource: Resource) -> str:
    """A text that explains how the app learns the rate per instance, or with what it compares the
    one that is set; empty if that is trusted, or if the resource reads no queue."""
    queues = [name for name, source in resource.metrics.items() if source.counts_backlog]
    if not queues or resource.throughput.rate_trusted:
        return ""
    told = resource.throughput.rate_per_instance_minute is not None
    known, done = ("set", "compared with what is seen") if told else ("not set", "learned")
    text = f"The rate per instance is {known}."
    if resource.backlog_metric is None:
        return f"{text} It cannot be {done}, because {why_not_counted(resource)}."
    plans = any(isinstance(member, QueueAge) for member in members(resource.policy))
    how = COMPARED if told else PLANS if plans else WAITS
    return f"{text} {how} {_counts(resource)}"


def _counts(resource: Resource) -> str:
    series, declared = counting_series(resource), resource.throughput.counted_metric
    if series is not None:
        namespace = series.resource_id.rpartition("/")[2]
        return (
            f"Azure Monitor counts completed messages in {namespace}, one to four minutes late. "
            "The app is sure after three counted minutes in which all instances were busy."
        )
    if declared is not None:
        return f"With the metric {declared}, the app is sure sooner."
    return f"Completed messages are not counted: {why_not_counted(resource)}."
