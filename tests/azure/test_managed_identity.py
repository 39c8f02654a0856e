"""Without connection strings, every client sends tokens of the app's managed identity."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import AzureError, ServiceRequestError

from shared import settings
from shared.autoscaling import ServiceBusQueue, StorageQueue
from shared.autoscaling.errors import AutoscalingError
from shared.autoscaling.plans.app_service import AppServiceControl
from shared.autoscaling.services.clients import ServiceBusReader, StorageQueueReader
from shared.autoscaling.store.tables import TableStateStore
from shared.azure import credentials
from shared.azure.transport import ServerTimeTransport
from shared.settings.connections import Identity, ServiceBusConnection, StorageConnection
from tests.builders import plan

CLIENT_ID = "client-1"
USED = Identity(CLIENT_ID)
STORAGE = StorageConnection(
    "Storage",
    queue_url="https://account.queue.core.windows.net",
    table_url="https://account.table.core.windows.net",
    identity=USED,
)
BUS = ServiceBusConnection("Bus", namespace="ns.servicebus.windows.net", identity=USED)


class Login:
    """A credential whose tokens consist of the identity and the scope."""

    def __init__(self, identity: Identity) -> None:
        self.client_id = identity.client_id

    async def get_token(self, *scopes: str, **_options: Any) -> AccessToken:
        return AccessToken(f"{self.client_id or 'own'}:{scopes[0]}", 2**33)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The host and the token of each request. All requests fail."""
    requests: list[tuple[str, str]] = []

    async def send(_self: ServerTimeTransport, request: Any, **_options: Any) -> Any:
        host = request.url.split("/")[2]
        requests.append((host, request.headers["Authorization"].removeprefix("Bearer ")))
        raise ServiceRequestError("not answered")

    monkeypatch.setattr(ServerTimeTransport, "send", send)
    monkeypatch.setattr(credentials, "Login", Login)
    monkeypatch.setattr(credentials, "_opened", {})
    monkeypatch.setattr("asyncio.sleep", _at_once)  # the waits between the client's retries
    return requests


async def _at_once(_seconds: float) -> None: ...


STORAGE_TOKEN = f"{CLIENT_ID}:https://storage.azure.com/.default"


@pytest.mark.parametrize(
    ("make", "call", "host", "token"),
    [
        (
            lambda: ServiceBusReader(BUS),
            lambda reader: reader.read(ServiceBusQueue("q")),
            "ns.servicebus.windows.net",
            f"{CLIENT_ID}:https://servicebus.azure.net//.default",
        ),
        (
            lambda: StorageQueueReader(STORAGE),
            lambda reader: reader.read(StorageQueue("q")),
            *("account.queue.core.windows.net", STORAGE_TOKEN),
        ),
        (
            lambda: TableStateStore(STORAGE),
            lambda store: store.load("plan-1"),
            *("account.table.core.windows.net", STORAGE_TOKEN),
        ),
        (
            lambda: AppServiceControl(settings.load({})),
            lambda control: control.read(plan()),
            *("management.azure.com", "own:https://management.azure.com/.default"),
        ),
    ],
)
async def test_each_request_carries_a_token_of_the_identity_for_its_service(
    make: Callable[[], Any],
    call: Callable[[Any], Awaitable[Any]],
    host: str,
    token: str,
    requests: list[tuple[str, str]],
) -> None:
    with pytest.raises((AzureError, AutoscalingError)):
        await call(make())
    assert set(requests) == {(host, token)}


async def test_clients_of_one_identity_share_its_credential() -> None:
    first = credentials.credential_for("https://a.example", USED)
    assert credentials.credential_for("https://b.example", USED) is first
    assert credentials.credential_for("https://b.example") is not first
    await credentials.close()
    assert credentials.credential_for("https://a.example", USED) is not first
    await credentials.close()


def test_stand_ins_on_this_machine_receive_no_real_token() -> None:
    local = credentials.credential_for("http://127.0.0.1:10002/devstoreaccount1")
    assert isinstance(local, credentials.LoopbackCredential)
