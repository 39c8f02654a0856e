"""The values in host.json that the app needs to work as documented."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from local.demo.system import APP_DIR
from local.functions_host.host_json import read_host_json
from local.functions_host.schedule import parse_schedule
from shared.autoscaling import AzureMonitorMetric
from shared.azure import invocation
from shared.azure.invocation import INVOCATION_SECONDS_MAX, InvocationGuard
from shared.messaging.link import ATTEMPT_SECONDS
from shared.messaging.send_state import RetryBudget
from shared.notifications.flow import SENDING_SECONDS_MAX
from shared.settings import SETTINGS
from shared.trends.nightly.model import RunPolicy
from shared.values.durations import time_span
from shared.wiring.ingestion import BATCH_SECONDS_MAX
from shared.wiring.scaling import SEND_SECONDS_MAX
from tests.builders import NOW

HOST_JSON = json.loads((Path(__file__).parents[2] / "host.json").read_text(encoding="utf-8"))
LOCK_LASTS = timedelta(seconds=15)
"""How long a timer's lock remains after its host crashed: `singleton.listenerLockPeriod`."""
POLLING_MIN = timedelta(seconds=15)
"""The lowest value that the host accepts. With a lower one it does not start."""
PAUSE_MAX = timedelta(seconds=30)
"""How long timers may pause after a crash: less than the minute without metrics that is allowed."""

VALUES = {
    "version": ("2.0", "the only one that the host reads"),
    "functionTimeout": ("00:05:00", "a hang ends within minutes; see the test below"),
    "singleton.listenerLockRecoveryPollingInterval": ("00:00:15", "see the test below"),
    "extensionBundle.id": ("Microsoft.Azure.Functions.ExtensionBundle", "the triggers"),
    "extensionBundle.version": ("[4.*, 5.0.0)", "sessions and batches of events need 4"),
    "extensions.eventHubs.maxEventBatchSize": (99, "a table transaction has 100 rows"),
    "extensions.queues.batchSize": (16, "the samples of all resources at once"),
    "extensions.queues.newBatchThreshold": (16, "a slow message holds back no other"),
    "extensions.queues.maxDequeueCount": (5, "see the test of outages below"),
    "extensions.queues.visibilityTimeout": ("00:00:15", "the wait after a failure; see below"),
    "extensions.queues.maxPollingInterval": ("00:00:02", "a decision waits for no poll"),
    "extensions.queues.messageEncoding": ("none", "each message reaches a function: ADR 0002"),
    "logging.applicationInsights.samplingSettings.isEnabled": (True, "the cost is bounded"),
    "logging.applicationInsights.samplingSettings.excludedTypes": (
        "Request;Exception;Trace",
        "alerts count them",
    ),
    "logging.logLevel.default": ("Information", "alerts and the workbook read these lines"),
    "logging.logLevel.Azure.Core": ("Warning", "the clients log each request"),
}
"""Each value in host.json, with the reason."""


def leaves(section: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def test_each_value_of_the_host_has_a_reason() -> None:
    assert dict(leaves(HOST_JSON)) == {name: value for name, (value, _) in VALUES.items()}


def test_timers_run_again_within_half_a_minute_after_a_crash_or_restart() -> None:
    """A host that cannot get a timer's lock tries again after an interval, by default a minute."""
    # In version 2.0 it is at the top level. Below `extensions`, the host silently ignores it.
    assert HOST_JSON["version"] == "2.0"
    interval = time_span(HOST_JSON["singleton"]["listenerLockRecoveryPollingInterval"])
    assert interval >= POLLING_MIN
    assert LOCK_LASTS + interval <= PAUSE_MAX


def test_no_message_becomes_poison_by_an_outage_of_half_a_minute() -> None:
    """Its first attempt may fail at the start of the outage, and each attempt at once. A message
    that fails waits no longer than it takes until the next samples arrive."""
    queues = read_host_json(APP_DIR).queues
    span = (queues.max_dequeue_count - 1) * queues.visibility_timeout_seconds
    assert timedelta(seconds=span) >= 2 * timedelta(seconds=30)
    every = parse_schedule(SETTINGS["MetricCollectorSchedule"].default)
    assert NOW + timedelta(seconds=queues.visibility_timeout_seconds) <= every.next_after(NOW)


def test_a_hang_costs_minutes_and_every_function_ends_before_its_worker_is_replaced() -> None:
    """The other invocations of a replaced worker fail only after their own functionTimeout."""
    allowed = time_span(HOST_JSON["functionTimeout"])
    assert timedelta(minutes=3) <= allowed <= timedelta(minutes=5)
    assert allowed.total_seconds() - 30 >= INVOCATION_SECONDS_MAX
    scale, read = (
        bounds.high
        for name in ("ArmTimeoutSeconds", "SourceTimeoutSeconds")
        if (bounds := SETTINGS[name].bounds)
    )
    collect = AzureMonitorMetric.time_limits * read + SEND_SECONDS_MAX
    for seconds in (BATCH_SECONDS_MAX, scale, collect, SENDING_SECONDS_MAX):
        assert seconds <= INVOCATION_SECONDS_MAX - 30


async def test_a_function_that_hangs_stops_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invocation, "INVOCATION_SECONDS_MAX", 0.05)

    @InvocationGuard()
    async def hanging() -> None:
        await asyncio.Event().wait()

    @InvocationGuard()
    async def failing() -> None:
        raise TimeoutError("no answer")

    with pytest.raises(TimeoutError, match=r"hanging was still running after 0\.05 s"):
        await hanging()
    with pytest.raises(TimeoutError, match="no answer"):
        await failing()


def test_the_function_timeout_is_shorter_than_message_locks_and_leases() -> None:
    """If a lock expired first, the message would be redelivered while its function still runs."""
    config = read_host_json(APP_DIR)
    seconds = config.function_timeout_seconds
    assert seconds is not None
    assert seconds <= config.service_bus.max_auto_lock_renewal_seconds
    assert timedelta(seconds=2 * seconds) < RunPolicy().lease


def test_sending_is_given_up_before_the_function_times_out() -> None:
    """A function that exceeds its timeout also ends all other invocations of its worker."""
    budget = RetryBudget()
    pauses = sum(budget.pause(failures) for failures in range(1, budget.failures_max))
    seconds = read_host_json(APP_DIR).function_timeout_seconds
    assert seconds is not None
    assert pauses + budget.failures_max * ATTEMPT_SECONDS < seconds
