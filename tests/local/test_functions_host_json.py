"""host.json and time spans, as the local host reads them."""

from datetime import timedelta

import pytest

from local.demo.system import APP_DIR
from local.functions_host.errors import HostStartFailed
from local.functions_host.functions import FIXED_DELAY, RetryPolicy
from local.functions_host.host_json import (
    EventHubOptions,
    HostConfig,
    QueueOptions,
    ServiceBusOptions,
    parse_host_json,
    read_host_json,
)
from local.functions_host.schedule import parse_time_span
from local.functions_host.storage_queues import MessageEncoding
from shared.adapters.service_bus.link import ATTEMPT_SECONDS
from shared.datasets.flows import process_dataset
from shared.messaging.send_state import RetryBudget
from shared.nightly.model import RunPolicy


def test_defaults_are_the_hosts() -> None:
    assert parse_host_json({"version": "2.0"}) == HostConfig(
        queues=QueueOptions(
            batch_size=16,
            new_batch_threshold=8,
            max_dequeue_count=5,
            visibility_timeout_seconds=0,
            max_polling_interval_seconds=60.0,
            message_encoding=MessageEncoding.BASE64,
        ),
        service_bus=ServiceBusOptions(16, 8, True, 300.0, 60.0),
        event_hubs=EventHubOptions(100, 300, 1, 10.0, from_start=True),
        retry=None,
        route_prefix="api",
        function_timeout_seconds=1800.0,
    )


def test_every_setting_is_read() -> None:
    queues = {
        "batchSize": 32,
        "newBatchThreshold": 4,
        "maxDequeueCount": 2,
        "visibilityTimeout": "00:00:30",
        "maxPollingInterval": "00:00:02",
        "messageEncoding": "None",
    }
    service_bus = {
        "maxConcurrentCalls": 2,
        "maxConcurrentSessions": 3,
        "autoCompleteMessages": False,
        "maxAutoLockRenewalDuration": "00:01:00",
        "sessionIdleTimeout": "00:00:20",
    }
    event_hubs = {
        "maxEventBatchSize": 10,
        "prefetchCount": 20,
        "batchCheckpointFrequency": 5,
        "loadBalancingUpdateInterval": "00:00:30",
        "partitionOwnershipExpirationInterval": "00:02:00",
        "initialOffsetOptions": {"type": "fromEnd"},
    }
    extensions = {
        "queues": queues,
        "http": {"routePrefix": "/v1/"},
        "serviceBus": service_bus,
        "eventHubs": event_hubs,
    }
    retry = {"strategy": "fixedDelay", "maxRetryCount": 2, "delayInterval": "00:00:03"}
    document = {"functionTimeout": "00:10:00", "extensions": extensions, "retry": retry}
    assert parse_host_json(document) == HostConfig(
        queues=QueueOptions(32, 4, 2, 30, 2.0, MessageEncoding.NONE),
        service_bus=ServiceBusOptions(2, 3, False, 60.0, 20.0),
        event_hubs=EventHubOptions(10, 20, 5, 30.0, 120.0, from_start=False),
        retry=RetryPolicy(FIXED_DELAY, 2, 3.0),
        route_prefix="v1",
        function_timeout_seconds=600.0,
    )


def test_the_threshold_is_half_the_batch_unless_given() -> None:
    config = parse_host_json({"extensions": {"queues": {"batchSize": 5}}})
    assert config.queues.new_batch_threshold == 2


def test_an_unlimited_timeout_is_none() -> None:
    assert parse_host_json({"functionTimeout": "-1"}).function_timeout_seconds is None


def test_mistakes_are_reported_together() -> None:
    queues = {"batchSize": 33, "maxPollingInterval": "soon", "messageEncoding": "hex"}
    with pytest.raises(HostStartFailed) as caught:
        parse_host_json(
            {
                "functionTimeout": 5,
                "retry": {"strategy": "exponentialBackoff"},
                "extensions": {
                    "queues": queues,
                    "serviceBus": {"autoCompleteMessages": "yes"},
                    "eventHubs": {"loadBalancingUpdateInterval": "00:00:20"},
                },
            }
        )
    for expected in (
        "extensions.queues.batchSize is 33, expected a whole number 1 to 32",
        "extensions.queues.maxPollingInterval: 'soon' is not a time span such as 00:05:00",
        "extensions.queues.messageEncoding: 'hex' is neither base64 nor none",
        "functionTimeout: 5 is not a text",
        "retry.strategy: 'exponentialBackoff' is not supported by the local host, only fixedDelay",
        "extensions.serviceBus.autoCompleteMessages is 'yes', expected true or false",
        "extensions.eventHubs.partitionOwnershipExpirationInterval is 0:00:30, expected twice",
    ):
        assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00:00:05", timedelta(seconds=5)),
        ("01:02:03", timedelta(hours=1, minutes=2, seconds=3)),
        ("00:00:00.25", timedelta(milliseconds=250)),
        ("1.00:00:00", timedelta(days=1)),
        ("24:00:00", timedelta(days=24)),  # as .NET reads it
    ],
)
def test_time_spans(text: str, expected: timedelta) -> None:
    assert parse_time_span(text) == expected


@pytest.mark.parametrize("text", ["", "5", "5 minutes", "00:60", "-00:01:00"])
def test_what_is_no_time_span_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time span"):
        parse_time_span(text)


def test_a_function_ends_while_it_still_has_its_message_and_before_others_take_its_work() -> None:
    """A message whose lock ends first is delivered again beside the function that is at it."""
    config = read_host_json(APP_DIR)
    seconds = config.function_timeout_seconds
    assert seconds is not None
    assert seconds <= config.service_bus.max_auto_lock_renewal_seconds
    assert timedelta(seconds=2 * seconds) < process_dataset.LEASE
    assert timedelta(seconds=2 * seconds) < RunPolicy().lease


def test_sending_is_given_up_before_the_function_that_sends_is_ended() -> None:
    """A function that exceeds its time takes all others of its worker with it."""
    patience = RetryBudget()
    pauses = sum(patience.pause(failures) for failures in range(1, patience.failures_max))
    seconds = read_host_json(APP_DIR).function_timeout_seconds
    assert seconds is not None
    assert pauses + patience.failures_max * ATTEMPT_SECONDS < seconds
