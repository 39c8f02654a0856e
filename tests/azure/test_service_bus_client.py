"""How errors of the Service Bus client, and batches that it rejects, become outcomes."""

from __future__ import annotations

from typing import Any

import pytest
from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus import exceptions as client

from shared.azure.refusals import Access
from shared.messaging.encoder import encode_all
from shared.messaging.filling import fill_by_add_message
from shared.messaging.link import not_opened, outcome_of
from shared.messaging.model import Batch, BatchLimits, EncodedMessage
from shared.messaging.packing import build_request
from shared.messaging.send_state import (
    Disconnected,
    RetryBudget,
    ServerBusy,
    SizeExceeded,
    advance,
    begin,
)
from shared.values.messages import LinkFailed, Message, Order

ACCESS = Access("queue jobs of bus.example", "Azure Service Bus Data Sender")
THROTTLED = (
    "The namespace is being throttled. Error code : 50009. Please \nwait 2 seconds and try again."
)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (client.MessageSizeExceededError(), SizeExceeded()),
        (client.ServiceBusServerBusyError(message=THROTTLED), ServerBusy(2.0)),
        (client.ServiceBusServerBusyError(message="busy"), ServerBusy(None)),
        *[
            (client.ServiceBusServerBusyError(message=f"Please WAIT {text} again."), ServerBusy(s))
            for text, s in (
                ("1 second and try", 1),
                ("10 seconds and try", 10),
                ("45\n seconds and try", 45),
                ("120 seconds and try", 120),
            )
        ],
    ],
)
def test_known_errors_give_the_outcome_of_the_batch(error: Any, outcome: object) -> None:
    assert outcome_of(error, ACCESS) == outcome


@pytest.mark.parametrize(
    "error",
    [
        client.ServiceBusConnectionError(),
        client.ServiceBusCommunicationError(),
        client.OperationTimeoutError(),
        client.ServiceBusError("Handler failed"),
    ],
)
def test_after_any_other_error_the_outcome_is_unknown(error: Any) -> None:
    assert isinstance(outcome_of(error, ACCESS), Disconnected)
    assert isinstance(not_opened(error, ACCESS), ConnectionError)


@pytest.mark.parametrize(
    "error",
    [
        client.MessagingEntityNotFoundError(),
        client.MessagingEntityDisabledError(),
        client.ServiceBusAuthorizationError(),
        client.ServiceBusAuthenticationError(),
        client.ServiceBusQuotaExceededError(),
    ],
)
def test_errors_that_an_operator_must_fix_are_not_retried(error: Any) -> None:
    with pytest.raises(LinkFailed):
        outcome_of(error, ACCESS)
    assert isinstance(not_opened(error, ACCESS), LinkFailed)


def batch_of(encoded: list[EncodedMessage]) -> Batch:
    return Batch(encoded, sum(item.size_bytes for item in encoded))


def test_a_client_that_encodes_messages_larger_than_expected_reports_by_how_much() -> None:
    encoded = [
        item._replace(size_bytes=item.size_bytes - 20)  # as another version might encode
        for item in encode_all([Message(bytes(400), f"m{n}") for n in range(20)], 0)
    ]
    outcome = fill_by_add_message(ServiceBusMessageBatch(4096), batch_of(encoded))
    assert outcome == SizeExceeded(header_bytes=20)
    assert fill_by_add_message(ServiceBusMessageBatch(4096), batch_of(encoded[:8])) is None
    sending = begin(build_request(encoded), BatchLimits(4096), Order.KEPT)
    retried = advance(sending, outcome, RetryBudget())
    for chunk in retried.chunks:
        chosen = [encoded[position] for position in chunk.positions]
        assert fill_by_add_message(ServiceBusMessageBatch(4096), batch_of(chosen)) is None


def test_a_client_that_accepts_no_message_at_all_reports_no_header_size() -> None:
    encoded = encode_all([Message(bytes(5000), "m")], 0)
    outcome = fill_by_add_message(ServiceBusMessageBatch(4096), batch_of(encoded))
    assert outcome == SizeExceeded(header_bytes=0)
