"""What the local host passes to the worker for messages and events, without a broker."""

import json
import logging
from dataclasses import replace
from typing import Any, cast

import pytest
from azure.eventhub import EventData
from azure.eventhub.amqp import AmqpAnnotatedMessage as EventMessage
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage

from local.functions_host.errors import HostStartFailed
from local.functions_host.event_hub_invocation import (
    PartitionPlace,
    batch_invocation,
    event_invocation,
)
from local.functions_host.functions import (
    EVENT_HUB_TRIGGER,
    FIXED_DELAY,
    QUEUE_TRIGGER,
    SERVICE_BUS_TRIGGER,
    Binding,
    Function,
    RetryPolicy,
)
from local.functions_host.listeners import create_listeners
from local.functions_host.retries import acting_policy, with_default_retry
from local.functions_host.service_bus_invocation import body_of
from local.functions_host.service_bus_listener import ServiceBusListener
from local.functions_host.services import Services

PLACE = PartitionPlace("namespace", "hub", "$Default", "3")


def trigger(kind: str = EVENT_HUB_TRIGGER, **properties: str) -> Binding:
    return Binding(kind, "events", properties)


def events(*bodies: str) -> list[EventData]:
    return [EventData(body) for body in bodies]


def test_an_empty_string_is_lost_from_a_batch_as_in_the_real_host() -> None:
    invocation = batch_invocation(trigger(cardinality="MANY"), PLACE, events("a", "", "c"))
    texts = invocation.trigger
    assert (texts.type, texts.value.string) == ("collection_string", ["a", "c"])
    assert len(json.loads(invocation.metadata["SystemPropertiesArray"].value)) == 3


def test_no_byte_string_is_lost_from_a_batch() -> None:
    invocation = batch_invocation(trigger(dataType="BINARY"), PLACE, events("a", "", "c"))
    assert (invocation.trigger.type, invocation.trigger.value.bytes) == (
        "collection_bytes",
        [b"a", b"", b"c"],
    )


def test_a_body_that_is_an_amqp_value_cannot_be_bound_as_in_the_real_host() -> None:
    null = EventData(b"")
    null._raw_amqp_message = EventMessage(value_body=None, annotations={})
    with pytest.raises(ValueError, match="has a body of the AMQP type VALUE"):
        batch_invocation(trigger(dataType="BINARY"), PLACE, [*events("a"), null])


def test_metadata_of_an_event_leaves_out_fields_without_a_value() -> None:
    metadata = event_invocation(trigger(), PLACE, EventData("a")).metadata
    assert {"PartitionContext", "Properties", "SystemProperties"} == set(metadata)
    assert json.loads(metadata["PartitionContext"].value)["PartitionId"] == "3"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (ServiceBusMessage("text"), b"text"),
        (ServiceBusMessage(b"bytes"), b"bytes"),
        (ServiceBusMessage(None), b""),
        (AmqpAnnotatedMessage(data_body=[b"in ", b"pieces"]), b"in pieces"),
        (AmqpAnnotatedMessage(value_body={b"a": [b"b"]}), b'{"a": ["b"]}'),
        (AmqpAnnotatedMessage(value_body=7), b"7"),
        (AmqpAnnotatedMessage(value_body="text"), b"text"),
        (AmqpAnnotatedMessage(sequence_body=[[1, 2]]), b"[[1, 2]]"),
    ],
)
def test_a_body_is_joined_into_one_byte_string(message: Any, expected: bytes) -> None:
    assert body_of(message) == expected


def function(kind: str, retry: RetryPolicy | None = None) -> Function:
    return Function("f", "id", trigger(kind), (), {}, retry)


def test_host_json_retries_apply_to_supported_triggers_without_their_own_policy() -> None:
    own, apps = RetryPolicy(FIXED_DELAY, 1, 0), RetryPolicy(FIXED_DELAY, -1, 1)
    assert acting_policy(with_default_retry(function(EVENT_HUB_TRIGGER), apps)) == apps
    assert acting_policy(with_default_retry(function(EVENT_HUB_TRIGGER, own), apps)) == own
    assert acting_policy(with_default_retry(function(QUEUE_TRIGGER), apps)) is None


@pytest.mark.parametrize(
    ("unsupported", "expected"),
    [
        (
            replace(function(EVENT_HUB_TRIGGER), retry=RetryPolicy("exponential_backoff", 3, 0)),
            "f: exponential_backoff retries are not supported locally",
        ),
        (
            replace(function(QUEUE_TRIGGER), retry=RetryPolicy(FIXED_DELAY, 3, 0)),
            "f: retries of this trigger are not supported by the Functions host, here or in Azure",
        ),
        (
            replace(function(QUEUE_TRIGGER), outputs={"row": Binding("table", "row", {})}),
            "f: an invocation that sets row (table) fails",
        ),
    ],
)
def test_unsupported_features_are_logged_at_the_start(
    unsupported: Function, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        create_listeners(cast(Services, None), [unsupported], {})
    assert expected in caplog.messages


def test_a_service_bus_trigger_of_cardinality_many_is_refused() -> None:
    many = Binding(SERVICE_BUS_TRIGGER, "message", {"cardinality": "many"})
    with pytest.raises(HostStartFailed, match="Remove cardinality many"):
        ServiceBusListener(cast(Services, None), Function("f", "id", many, (), {}))
