"""What the local host tells the worker of messages and events, where the wire is not needed."""

import json
import logging
from dataclasses import replace
from typing import Any, cast

import pytest
from azure.eventhub import EventData
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


def test_a_text_without_a_character_is_lost_on_the_way_as_in_the_host() -> None:
    told = batch_invocation(trigger(cardinality="MANY"), PLACE, events("a", "", "c"))
    assert (told.trigger.type, told.trigger.value.string) == ("collection_string", ["a", "c"])
    assert len(json.loads(told.metadata["SystemPropertiesArray"].value)) == 3


def test_bytes_come_all() -> None:
    told = batch_invocation(trigger(dataType="BINARY"), PLACE, events("a", "", "c"))
    assert (told.trigger.type, told.trigger.value.bytes) == (
        "collection_bytes",
        [b"a", b"", b"c"],
    )


def test_what_has_no_value_is_not_told_of_a_single_event() -> None:
    told = event_invocation(trigger(), PLACE, EventData("a"))
    assert {"PartitionContext", "Properties", "SystemProperties"} == set(told.metadata)
    assert json.loads(told.metadata["PartitionContext"].value)["PartitionId"] == "3"


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
def test_a_body_comes_in_one_piece(message: Any, expected: bytes) -> None:
    assert body_of(message) == expected


def function(kind: str, retry: RetryPolicy | None = None) -> Function:
    return Function("f", "id", trigger(kind), (), {}, retry)


def test_the_policy_of_host_json_acts_where_the_function_has_none_and_the_trigger_honours_it() -> (
    None
):
    own, apps = RetryPolicy(FIXED_DELAY, 1, 0), RetryPolicy(FIXED_DELAY, -1, 1)
    assert acting_policy(with_default_retry(function(EVENT_HUB_TRIGGER), apps)) == apps
    assert acting_policy(with_default_retry(function(EVENT_HUB_TRIGGER, own), apps)) == own
    assert acting_policy(with_default_retry(function(QUEUE_TRIGGER), apps)) is None


@pytest.mark.parametrize(
    ("strange", "expected"),
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
def test_what_the_host_does_not_do_is_said_at_the_start(
    strange: Function, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        create_listeners(cast(Services, None), [strange], {})
    assert expected in caplog.messages


def test_a_service_bus_trigger_of_cardinality_many_is_refused() -> None:
    many = Binding(SERVICE_BUS_TRIGGER, "message", {"cardinality": "many"})
    with pytest.raises(HostStartFailed, match="not with cardinality many"):
        ServiceBusListener(cast(Services, None), Function("f", "id", many, (), {}))
