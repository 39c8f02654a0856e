"""The stand-in for Service Bus and Event Hubs checks tokens of Microsoft Entra ID if told to."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import certifi
import pytest
from azure.core.credentials import AccessToken
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusAuthorizationError

from local.amqp_broker import AmqpStandIn, VirtualClock
from local.amqp_broker.authorization import EntraTokens
from local.amqp_broker.broker import Broker
from local.amqp_broker.model.errors import Unauthorized
from local.amqp_broker.requests import ManagementRequest
from local.tokens import EVENT_HUBS, SERVICE_BUS, STORAGE
from tests.deployed.services import AMQP_PORT, Certificate, behind_tls, new_host, new_token
from tests.local.amqp_rig import LEAVES_SOCKETS_OPEN

HOUR = timedelta(hours=1)
SECONDS_MAX = 20
QUEUE, HUB = "jobs", "telemetry"

pytestmark = LEAVES_SOCKETS_OPEN
on_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux answers on 127.x.y.z without configuration"
)


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


def test_shared_access_keys_are_refused(tokens: Tokens) -> None:
    assert tokens.put(QUEUE, "SharedAccessSignature sr=…", "servicebus.windows.net:sastoken") == 401


def test_a_token_allows_the_entity_in_its_name_and_what_lies_below(tokens: Tokens) -> None:
    tokens.put("Jobs", new_token(SERVICE_BUS, HOUR))
    assert tokens.allow("jobs/$management")
    assert not tokens.allow("jobs2")
    assert not tokens.allow(HUB)


def test_hub_information_needs_a_token_for_some_entity(tokens: Tokens) -> None:
    assert not tokens.allow("$management")
    tokens.put(HUB, new_token(EVENT_HUBS, HOUR))
    assert tokens.allow("$management")


def test_a_token_allows_nothing_more_when_it_has_expired(tokens: Tokens) -> None:
    tokens.put(QUEUE, new_token(SERVICE_BUS, HOUR))
    tokens.clock.advance(timedelta(minutes=59))
    assert tokens.allow(QUEUE)
    tokens.clock.advance(timedelta(minutes=2))
    assert not tokens.allow(QUEUE)


class Credential:
    """Issues tokens for whatever audience it is asked."""

    async def get_token(self, *scopes: str, **_options: Any) -> AccessToken:
        return AccessToken(new_token(scopes[0].removesuffix("/.default"), HOUR), 2**33)

    async def close(self) -> None: ...

    async def __aenter__(self) -> Credential:
        return self

    async def __aexit__(self, *details: object) -> None: ...


@dataclass
class Secured:
    """A namespace that accepts tokens only, over TLS at `host`."""

    host: str
    stand_in: AmqpStandIn
    clock: VirtualClock


@pytest.fixture
async def secured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Secured]:
    certificate, clock = Certificate(tmp_path, new_host()), VirtualClock()
    monkeypatch.setattr(certifi, "where", lambda: str(certificate.file))
    async with AsyncExitStack() as stack:
        stand_in = await stack.enter_async_context(AmqpStandIn(token_clock=clock))
        stand_in.namespace.declare_queue(QUEUE)
        await stack.enter_async_context(behind_tls(stand_in.port, certificate, AMQP_PORT))
        yield Secured(certificate.host, stand_in, clock)


@on_linux
async def test_a_link_is_closed_when_its_token_expires(secured: Secured) -> None:
    async with ServiceBusClient(secured.host, Credential(), retry_total=0) as client:
        async with client.get_queue_sender(QUEUE) as sender:
            await sender.send_messages(ServiceBusMessage("before"))
        async with client.get_queue_receiver(QUEUE) as receiver:
            assert len(await receiver.receive_messages(1, max_wait_time=SECONDS_MAX)) == 1
            secured.clock.advance(2 * HOUR)
            with pytest.raises(ServiceBusAuthorizationError, match="no valid token for 'jobs'"):
                await receiver.receive_messages(1, max_wait_time=SECONDS_MAX)


@on_linux
async def test_a_shared_access_key_opens_no_link(secured: Secured) -> None:
    string = f"Endpoint=sb://{secured.host};SharedAccessKeyName=n;SharedAccessKey=a2V5"
    async with ServiceBusClient.from_connection_string(string, retry_total=0) as client:
        with pytest.raises(ServiceBusAuthenticationError):
            async with client.get_queue_sender(QUEUE) as sender:
                await sender.send_messages(ServiceBusMessage("refused"))
