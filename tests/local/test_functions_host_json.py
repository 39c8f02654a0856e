"""How the local host reads host.json and time spans."""

from datetime import timedelta
from pathlib import Path

import pytest

from local.demo.system import APP_DIR
from local.functions_host.errors import HostStartFailed
from local.functions_host.functions import FIXED_DELAY, RetryPolicy
from local.functions_host.host import FunctionsHost
from local.functions_host.host_json import (
    EventHubOptions,
    HostConfig,
    QueueOptions,
    ServiceBusOptions,
    SingletonOptions,
    parse_host_json,
    read_host_json,
)
from local.functions_host.storage_queues import MessageEncoding
from shared.messaging.link import ATTEMPT_SECONDS
from shared.messaging.send_state import RetryBudget
from shared.trends.datasets.flows import process_dataset
from shared.trends.nightly.model import RunPolicy


def test_defaults_equal_those_of_the_real_host() -> None:
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
        singleton=SingletonOptions(15, 60.0),
        retry=None,
        route_prefix="api",
        function_timeout_seconds=1800.0,
    )


def test_every_supported_setting_is_read() -> None:
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
    singleton = {
        "listenerLockPeriod": "00:00:20",
        "listenerLockRecoveryPollingInterval": "00:00:15",
    }
    document = {
        "functionTimeout": "00:10:00",
        "extensions": extensions,
        "singleton": singleton,
        "retry": retry,
    }
    assert parse_host_json(document) == HostConfig(
        queues=QueueOptions(32, 4, 2, 30, 2.0, MessageEncoding.NONE),
        service_bus=ServiceBusOptions(2, 3, False, 60.0, 20.0),
        event_hubs=EventHubOptions(10, 20, 5, 30.0, 120.0, from_start=False),
        singleton=SingletonOptions(20, 15.0),
        retry=RetryPolicy(FIXED_DELAY, 2, 3.0),
        route_prefix="v1",
        function_timeout_seconds=600.0,
    )


def test_settings_that_the_local_host_ignores_are_named() -> None:
    document = {
        "version": "2.0",
        "functionTimeout": "00:05:00",
        "logging": {"logLevel": {"default": "Information"}},
        "extensions": {
            "queues": {"batchSize": 5, "batchSise": 5},
            "http": {"maxConcurrentRequests": 5, "routePrefix": "api"},
            "cosmosDB": {},
        },
        "singleton": {"lockPeriod": "00:00:15"},
    }
    assert parse_host_json(document).ignored == (
        "logging",
        "extensions.queues.batchSise",
        "extensions.http.maxConcurrentRequests",
        "extensions.cosmosDB",
        "singleton.lockPeriod",
    )


async def test_the_ignored_settings_of_host_json_are_logged_at_the_start(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "host.json").write_text('{"version": "2.0", "watchDirectories": ["x"]}')
    (tmp_path / "function_app.py").write_text(
        "import azure.functions\napp = azure.functions.FunctionApp()\n"
    )
    async with FunctionsHost(tmp_path):
        assert "host.json: no effect here: watchDirectories" in caplog.messages


def test_the_new_batch_threshold_defaults_to_half_the_batch_size() -> None:
    config = parse_host_json({"extensions": {"queues": {"batchSize": 5}}})
    assert config.queues.new_batch_threshold == 2


def test_a_timeout_of_minus_one_means_no_limit() -> None:
    assert parse_host_json({"functionTimeout": "-1"}).function_timeout_seconds is None


def test_all_mistakes_are_reported_together() -> None:
    queues = {"batchSize": 33, "maxPollingInterval": "soon", "messageEncoding": "hex"}
    with pytest.raises(HostStartFailed) as caught:
        parse_host_json(
            {
                "functionTimeout": 5,
                "singleton": {
                    "listenerLockPeriod": "00:01:01",
                    "listenerLockRecoveryPollingInterval": "00:00:14",
                },
                "retry": {"strategy": "exponentialBackoff"},
                "extensions": {
                    "queues": queues,
                    "serviceBus": {"autoCompleteMessages": "yes"},
                    "eventHubs": {"loadBalancingUpdateInterval": "00:00:20"},
                },
            }
        )
    for expected in (
        "extensions.queues.batchSize is 33, expected a whole number from 1 to 32",
        "extensions.queues.maxPollingInterval: 'soon' is not a time span such as 00:05:00",
        "extensions.queues.messageEncoding: 'hex' is neither base64 nor none",
        "functionTimeout: 5 is not a string",
        "singleton.listenerLockPeriod is 0:01:01, expected 00:00:15 to 00:01:00",
        "singleton.listenerLockRecoveryPollingInterval is 0:00:14, expected at least 00:00:15",
        "retry.strategy: 'exponentialBackoff' is not supported by the local host, only fixedDelay",
        "extensions.serviceBus.autoCompleteMessages is 'yes', expected true or false",
        "extensions.eventHubs.partitionOwnershipExpirationInterval is 0:00:30, expected at "
        "least twice",
    ):
        assert expected in str(caught.value)


def test_the_function_timeout_is_shorter_than_message_locks_and_leases() -> None:
    """If a lock expired first, the message would be redelivered while its function still runs."""
    config = read_host_json(APP_DIR)
    seconds = config.function_timeout_seconds
    assert seconds is not None
    assert seconds <= config.service_bus.max_auto_lock_renewal_seconds
    assert timedelta(seconds=2 * seconds) < process_dataset.LEASE
    assert timedelta(seconds=2 * seconds) < RunPolicy().lease


def test_sending_is_given_up_before_the_function_times_out() -> None:
    """A function that exceeds its timeout also ends all other invocations of its worker."""
    budget = RetryBudget()
    pauses = sum(budget.pause(failures) for failures in range(1, budget.failures_max))
    seconds = read_host_json(APP_DIR).function_timeout_seconds
    assert seconds is not None
    assert pauses + budget.failures_max * ATTEMPT_SECONDS < seconds
