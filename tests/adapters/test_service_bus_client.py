"""What the client's errors mean, and what its own batches teach a sender."""

from __future__ import annotations

from typing import Any

import pytest
from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus import exceptions as client

from shared.adapters.service_bus.encoder import encode_all
from shared.adapters.service_bus.filling import fill_by_add_message
from shared.adapters.service_bus.link import not_opened, outcome_of
from shared.messaging.errors import LinkFailed
from shared.messaging.model import Batch, BatchLimits, Message, Order, Parcel
from shared.messaging.packing import cargo_of
from shared.messaging.sending import (
    Disconnected,
    RetryBudget,
    ServerBusy,
    SizeExceeded,
    advance,
    begin,
)

THROTTLED = (
    "The namespace is being throttled. Error code : 50009. Please \nwait 2 seconds and try again."
)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (client.MessageSizeExceededError(), SizeExceeded()),
        (client.ServiceBusServerBusyError(message=THROTTLED), ServerBusy(2.0)),
        (client.ServiceBusServerBusyError(message="busy"), ServerBusy(None)),
    ],
)
def test_errors_with_a_name_say_what_became_of_the_batch(error: Any, outcome: object) -> None:
    assert outcome_of(error) == outcome


@pytest.mark.parametrize(
    "error",
    [
        client.ServiceBusConnectionError(),
        client.ServiceBusCommunicationError(),
        client.OperationTimeoutError(),
        client.ServiceBusError("Handler failed"),
    ],
)
def test_after_any_other_error_nobody_knows(error: Any) -> None:
    assert isinstance(outcome_of(error), Disconnected)
    assert isinstance(not_opened(error), ConnectionError)


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
def test_some_errors_are_for_people(error: Any) -> None:
    with pytest.raises(LinkFailed):
        outcome_of(error)
    assert isinstance(not_opened(error), LinkFailed)


def batch_of(parcels: list[Parcel]) -> Batch:
    return Batch(parcels, sum(parcel.size_bytes for parcel in parcels))


def test_a_client_that_encodes_larger_than_foretold_says_by_how_much() -> None:
    parcels = [
        parcel._replace(size_bytes=parcel.size_bytes - 20)  # as another version might encode
        for parcel in encode_all([Message(bytes(400), f"m{n}") for n in range(20)], 0)
    ]
    told = fill_by_add_message(ServiceBusMessageBatch(4096), batch_of(parcels))
    assert told == SizeExceeded(header_bytes=20)
    assert fill_by_add_message(ServiceBusMessageBatch(4096), batch_of(parcels[:8])) is None
    sending = begin(cargo_of(parcels), BatchLimits(4096), Order.KEPT)
    wiser = advance(sending, told, RetryBudget())
    for chunk in wiser.chunks:
        chosen = [parcels[position] for position in chunk.positions]
        assert fill_by_add_message(ServiceBusMessageBatch(4096), batch_of(chosen)) is None


def test_a_client_that_takes_not_even_one_message_says_nothing_about_headers() -> None:
    parcels = encode_all([Message(bytes(5000), "m")], 0)
    told = fill_by_add_message(ServiceBusMessageBatch(4096), batch_of(parcels))
    assert told == SizeExceeded(header_bytes=0)
