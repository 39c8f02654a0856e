"""How errors of the Service Bus client become outcomes."""

from __future__ import annotations

from typing import Any

import pytest
from azure.servicebus import exceptions as client

from shared.azure.refusals import Access
from shared.messaging.link import not_opened, outcome_of
from shared.messaging.send_state import BatchRefused, Disconnected, ServerBusy, SizeExceeded
from shared.values.messages import LinkFailed

ACCESS = Access("queue jobs of bus.example", "Azure Service Bus Data Sender")
THROTTLED = (
    "The namespace is being throttled. Error code : 50009. Please \nwait 2 seconds and try again."
)


def busy(text: str) -> client.ServiceBusServerBusyError:
    return client.ServiceBusServerBusyError(message=text)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (client.MessageSizeExceededError(), SizeExceeded()),
        (busy(THROTTLED), ServerBusy(2.0)),
        (busy("busy"), ServerBusy(None)),
        (busy("Please WAIT 1 second and try again."), ServerBusy(1)),
        (busy("Please WAIT 45\n seconds and try again."), ServerBusy(45)),
        (busy("Please WAIT 120 seconds and try again."), ServerBusy(120)),
    ],
)
def test_known_errors_give_the_outcome_of_the_batch(error: Any, outcome: object) -> None:
    assert outcome_of(error, ACCESS) == outcome


@pytest.mark.parametrize(
    ("kind", "is_fixed_by_operator"),
    [
        *[(client.ServiceBusConnectionError, False), (client.ServiceBusError, False)],
        *[(client.ServiceBusCommunicationError, False), (client.OperationTimeoutError, False)],
        *[(client.MessagingEntityNotFoundError, True), (client.MessagingEntityDisabledError, True)],
        *[(client.ServiceBusAuthorizationError, True), (client.ServiceBusQuotaExceededError, True)],
        (client.ServiceBusAuthenticationError, True),
    ],
)
def test_only_errors_that_an_operator_must_fix_are_not_retried(
    kind: type[Any], is_fixed_by_operator: bool
) -> None:
    error = kind(message="Handler failed")
    assert isinstance(not_opened(error, ACCESS), LinkFailed) is is_fixed_by_operator
    if is_fixed_by_operator:
        with pytest.raises(LinkFailed):
            outcome_of(error, ACCESS)
    else:
        assert isinstance(outcome_of(error, ACCESS), Disconnected)
        assert isinstance(not_opened(error, ACCESS), ConnectionError)


@pytest.mark.parametrize(
    ("condition", "refused", "closed"),
    [
        *[("amqp:not-allowed", True, True), ("amqp:invalid-field", True, True)],
        *[("com.microsoft:argument-error", True, True), ("amqp:decode-error", True, True)],
        *[
            ("com.microsoft:argument-out-of-range", True, True),
            ("amqp:not-implemented", True, True),
        ],
        *[("com.microsoft:not-known-yet", True, False), ("amqp:link:detach-forced", False, False)],
        *[("amqp:internal-error", False, False), ("com.microsoft:timeout", False, False)],
    ],
)
def test_a_condition_that_blames_the_messages_is_certain(
    condition: str, refused: bool, closed: bool
) -> None:
    """A rejection blames them unless it is known to pass; the end of a link must blame them."""
    error: Any = client.ServiceBusError("Handler failed")
    assert isinstance(outcome_of(error, ACCESS, condition), BatchRefused) is closed
    error._condition = condition
    assert isinstance(outcome_of(error, ACCESS), BatchRefused) is refused
