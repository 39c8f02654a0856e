"""The stand-in for Service Bus and Event Hubs checks tokens of Microsoft Entra ID if told to."""

from __future__ import annotations

from datetime import timedelta

import pytest

from local.amqp_broker import VirtualClock
from local.amqp_broker.authorization import EntraTokens
from local.amqp_broker.broker import Broker
from local.amqp_broker.model.errors import Unauthorized
from local.amqp_broker.requests import ManagementRequest
from local.tokens import EVENT_HUBS, SERVICE_BUS, STORAGE
from tests.deployed.services import new_token

HOUR = timedelta(hours=1)
QUEUE, HUB = "jobs", "telemetry"


class Tokens:
    """The tokens of one connection, at a clock that the test moves."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        broker = Broker()
        broker.namespace.declare_queue(QUEUE)
        broker.declare_hub(HUB)
        self._tokens = EntraTokens(broker, self.clock)

    def put(self, name: str, token: str, kind: str = "jwt") -> int:
        properties = {"name": f"sb://bus.example/{name}", "type": kind}
        return self._tokens.put_token(ManagementRequest(properties, {}, token)).status

    def allow(self, path: str) -> bool:
        try:
            self._tokens.check(path)
        except Unauthorized:
            return False
        return True


@pytest.fixture
def tokens() -> Tokens:
    return Tokens()


@pytest.mark.parametrize(
    ("name", "audience", "accepted"),
    [
        (QUEUE, SERVICE_BUS, True),
        (QUEUE, f"{SERVICE_BUS}/", True),
        (QUEUE, EVENT_HUBS, False),
        (QUEUE, STORAGE, False),
        (HUB, EVENT_HUBS, True),
        (f"{HUB}/consumergroups/g", SERVICE_BUS, True),
        (HUB, STORAGE, False),
    ],
)
def test_a_token_must_be_for_the_service(
    name: str, audience: str, accepted: bool, tokens: Tokens
) -> None:
    assert (tokens.put(name, new_token(audience, HOUR)) == 202) is accepted
    assert tokens.allow(name) is accepted


@pytest.mark.parametrize("token", [new_token(SERVICE_BUS, -HOUR), "", "no token", "a.b.c"])
def test_an_expired_or_unreadable_token_is_refused(token: str, tokens: Tokens) -> None:
    assert tokens.put(QUEUE, token) == 401
    assert not tokens.allow(QUEUE)


def test_hub_information_needs_a_token_for_some_entity(tokens: Tokens) -> None:
    assert not tokens.allow("$management")
    tokens.put(HUB, new_token(EVENT_HUBS, HOUR))
    assert tokens.allow("$management")
