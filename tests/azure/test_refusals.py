"""A service that refuses the app's identity or key becomes one line that says what to do."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import certifi
import pytest
from aiohttp import ClientSession, web
from azure.core.credentials import AccessToken
from azure.core.exceptions import AzureError, ClientAuthenticationError

from local.amqp_broker import AmqpStandIn
from local.clock import utc_now
from shared import settings
from shared.autoscaling import ServiceBusQueue, StorageQueue
from shared.autoscaling.azure_monitor.client import AzurePlatformMetrics
from shared.autoscaling.azure_monitor.source import AzureMonitorMetric
from shared.autoscaling.plans.app_service import AppServiceControl
from shared.autoscaling.plans.permissions import ArmPermissions
from shared.autoscaling.services.clients import ServiceBusReader, StorageQueueReader
from shared.autoscaling.store.tables import TableStateStore
from shared.azure import credentials
from shared.azure.credentials import NoLogin
from shared.azure.queues import StorageQueueSender
from shared.azure.refusals import TEXT_LENGTH_MAX, Access, AccessRefused
from shared.cli.main import main
from shared.ingestion.errors import StoreUnavailable
from shared.ingestion.hub.client import send_event
from shared.ingestion.hub.receiver import EventHubReceiver
from shared.ingestion.model import Stream
from shared.ingestion.store.events import EventStore
from shared.ingestion.store.tables import TableRows
from shared.messaging.link import ServiceBusLink
from shared.settings.connections import (
    EventHubConnection,
    ServiceBusConnection,
    StorageConnection,
)
from shared.settings.connections import Identity as AppIdentity
from shared.trends.datasets.queues import QueueCheck
from shared.trends.submitters.databricks import DatabricksSubmitter
from shared.trends.submitters.inputs import StoredInputs
from shared.trends.submitters.livy import SynapseSubmitter
from tests.builders import NOW, plan
from tests.deployed.services import AMQP_PORT, Certificate, behind_tls, new_host, new_token
from tests.local.amqp_rig import LEAVES_SOCKETS_OPEN

CLIENT_ID = "11111111-1111-1111-1111-111111111111"
USED = AppIdentity(CLIENT_ID)
TOKEN = new_token("https://storage.azure.com", timedelta(hours=1))
STORAGE = StorageConnection(
    "AzureWebJobsStorage",
    queue_url="https://account.queue.core.windows.net",
    table_url="https://account.table.core.windows.net",
    identity=USED,
)
BUS = ServiceBusConnection("ServiceBusConnection", "", "bus.servicebus.windows.net", USED)
STREAM = Stream("bus", "metrics", "$Default", "0")
ARM = "https://management.azure.com"
SITE = "/subscriptions/1/resourceGroups/g/providers/Microsoft.Web/sites/my-app"
CPU = AzureMonitorMetric(SITE, "CpuTime", "total")
NO_TOKEN = (
    "DefaultAzureCredential failed to retrieve a token from the included credentials.\n"
    "Attempted credentials:\n\tEnvironmentCredential: authentication unavailable.\n"
)
WAITED_SECONDS_MAX = 5
TRACE = "\nRequestId:93f6a0c5-4002-0041-3a63-5c5f3b000000\nTime:2026-01-01T12:00:00.0000000Z"
MESSAGE = "This request is not authorized to perform this operation using this permission."


class Identity:
    """A credential that has a token, or none. ``waited_seconds`` is how long clients would have
    waited between their attempts.
    """

    has_token = True
    waited_seconds = 0.0

    async def get_token(self, *_scopes: str, **_options: Any) -> AccessToken:
        if not self.has_token:
            raise ClientAuthenticationError(NO_TOKEN)
        return AccessToken(TOKEN, 2**33)

    async def wait(self, seconds: float) -> None:
        self.waited_seconds += seconds

    async def close(self) -> None: ...


async def refuse(request: web.Request) -> web.Response:
    """Answer in the form of each service, and repeat the request, as the worst services do."""
    code = "AuthorizationPermissionMismatch"
    kind = request.match_info["host"].split(".")[1]
    if kind == "table":
        value = {"lang": "en-US", "value": f"{MESSAGE}{TRACE}\n{dict(request.headers)}"}
        body: dict[str, Any] = {"odata.error": {"code": code, "message": value}}
        return web.json_response(body, status=403)
    if kind in ("queue", "blob"):
        xml = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{MESSAGE}</Message></Error>"
        return web.Response(
            status=403, text=xml, content_type="application/xml", headers={"x-ms-error-code": code}
        )
    if kind == "servicebus":
        detail = f"<Error><Code>401</Code><Detail>Manage claim required{TRACE}</Detail></Error>"
        return web.Response(status=401, text=detail, content_type="application/xml")
    repeated = f"{MESSAGE}\n{dict(request.headers)}"
    body = {"error": {"code": "AuthorizationFailed", "message": repeated}}
    return web.json_response(body, status=403)


@pytest.fixture
async def identity(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Identity]:
    """Every request reaches a server that refuses it; the clients believe that it is Azure."""
    app = web.Application()
    app.router.add_route("*", "/{host}/{path:.*}", refuse)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    place = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    send = ClientSession._request

    async def redirected(self: ClientSession, method: str, url: Any, **options: Any) -> Any:
        return await send(self, method, str(url).replace("https://", place, 1), **options)

    monkeypatch.setattr(ClientSession, "_request", redirected)
    used = _use(monkeypatch)
    monkeypatch.setattr("asyncio.sleep", used.wait)
    yield used
    await runner.cleanup()


def _use(monkeypatch: pytest.MonkeyPatch) -> Identity:
    used = Identity()
    monkeypatch.setattr(credentials, "Login", lambda _: used)
    monkeypatch.setattr(credentials, "_opened", {})
    return used


STORAGE_ACCOUNT = "storage account account.{}.core.windows.net (AzureWebJobsStorage)"
TABLES, QUEUES = (f"Storage {kind} Data Contributor" for kind in ("Table", "Queue"))
BUS_HOST = "of Service Bus namespace bus.servicebus.windows.net"
BLOBS = "account.blob.core.windows.net/telemetry"
CALLS: dict[str, tuple[Callable[[], Any], Callable[[Any], Awaitable[Any]], str, str]] = {
    "table": (
        lambda: TableStateStore(STORAGE),
        lambda store: store.load("plan-1"),
        *(f"table Scaling of {STORAGE_ACCOUNT.format('table')}", TABLES),
    ),
    "events": (
        lambda: EventStore(TableRows(STORAGE)),
        lambda store: store.load(STREAM),
        *(f"table Ingestion of {STORAGE_ACCOUNT.format('table')}", TABLES),
    ),
    "queue": (
        lambda: StorageQueueSender(STORAGE, "metrics"),
        lambda sender: sender.send_texts(["{}"]),
        *(f"queue metrics of {STORAGE_ACCOUNT.format('queue')}", QUEUES),
    ),
    "queue length": (
        lambda: StorageQueueReader(STORAGE),
        lambda reader: reader.read(StorageQueue("jobs")),
        *(f"queue jobs of {STORAGE_ACCOUNT.format('queue')}", QUEUES),
    ),
    "count": (
        lambda: ServiceBusReader(BUS),
        lambda reader: reader.read(ServiceBusQueue("jobs")),
        *(f"queue jobs {BUS_HOST}", "Azure Service Bus Data Owner"),
    ),
    "queue settings": (
        lambda: QueueCheck(BUS, "processing", "working", []),
        lambda reader: reader.facts("processing"),
        *(f"queue processing {BUS_HOST}", "Azure Service Bus Data Owner"),
    ),
    "blobs": (
        lambda: StoredInputs([f"https://{BLOBS}"]),
        lambda inputs: inputs.newest("d", [NOW.date()]),
        *(BLOBS, "Storage Blob Data Reader"),
    ),
    "plan": (
        lambda: AppServiceControl(settings.load({})),
        lambda control: control.read(plan()),
        *("plan plan-1", "Microsoft.Web/serverfarms/"),
    ),
    "permissions": (
        lambda: ArmPermissions(ARM),
        lambda permissions: permissions.lacking(plan()),
        *("plan plan-1", "Microsoft.Authorization/permissions/read"),
    ),
    "metrics": (
        lambda: AzurePlatformMetrics(ARM, 10, utc_now),
        lambda metrics: metrics.read([CPU]),
        *(SITE.lower(), "Monitoring Reader"),
    ),
    "synapse": (
        lambda: SynapseSubmitter("https://w.dev.azuresynapse.net", "pool", {}),
        lambda client: client.status("1"),
        *("Synapse pool pool", "Synapse Compute Operator"),
    ),
    "databricks": (
        lambda: DatabricksSubmitter("https://adb-1.azuredatabricks.net", {}),
        lambda submitter: submitter.status("1"),
        *("Databricks workspace https://adb-1", "the role of a user"),
    ),
}
"""By name: an adapter, a call of it, what it accesses, and the role for that."""


async def refused(name: str) -> Exception:
    make, call, *_ = CALLS[name]
    adapter = make()
    try:
        answer = await call(adapter)
    except Exception as error:
        return error
    finally:
        await adapter.close()
    found: Exception = answer[CPU]
    return found


def checked(error: Exception, *parts: str) -> str:
    text = str(error)
    for part in parts:
        assert part in text
    assert "\n" not in text
    assert len(text) <= TEXT_LENGTH_MAX + 100, "the caller may say what it was doing"
    assert TOKEN not in text
    assert "RequestId" not in text
    return text


@pytest.mark.parametrize("name", CALLS)
async def test_a_missing_role_or_token_is_one_line_with_the_place_and_what_to_do(
    name: str, identity: Identity
) -> None:
    _, _, place, role = CALLS[name]
    checked(await refused(name), place, role)
    identity.has_token, identity.waited_seconds = False, 0
    told = ("no token was obtained", "AZURE_CLIENT_ID", "`az login`")
    assert "Attempted credentials" not in checked(await refused(name), place, *told)
    assert identity.waited_seconds < WAITED_SECONDS_MAX


def test_an_error_of_the_login_is_explained_once() -> None:
    """The error of the login has advice of its own, for places that add none."""
    error = NoLogin("Attempted credentials:\n\tAzureCliCredential: Azure CLI not found on path")
    text = ACCESS.refusal(error)
    assert text is not None
    assert "no token was obtained (AzureCliCredential: Azure CLI not found on path)" in text
    assert text.count("`az login`") == 1


async def test_a_refusal_keeps_its_status_and_hides_the_error_of_the_client(
    identity: Identity,
) -> None:
    assert identity.has_token
    error = await refused("table")
    assert isinstance(error, AccessRefused)
    assert (error.status_code, error.__suppress_context__) == (403, True)
    text = checked(error, "403 AuthorizationPermissionMismatch", f"client ID {CLIENT_ID}")
    assert text.endswith("A new role takes effect within about ten minutes")


async def test_a_refusal_holds_the_events_and_queues_are_checked_later_without_a_token(
    identity: Identity,
) -> None:
    """A queue that the identity may not manage counts as checked, but here that is unknown."""
    assert isinstance(await refused("events"), StoreUnavailable)
    assert getattr(await refused("queue settings"), "status_code", None) == 401
    identity.has_token = False
    error = await refused("queue settings")
    assert isinstance(error, AccessRefused)
    assert error.status_code is None


def answer(status: int, code: str) -> AzureError:
    error = AccessDenied("several\nlines")
    error.status_code, error.error_code = status, code
    return error


class AccessDenied(ClientAuthenticationError):
    error_code = ""


ACCESS = Access("table T", "Reader", "Storage")


@pytest.mark.parametrize(
    ("access", "code", "advice"),
    [
        (ACCESS, "AuthorizationFailure", "Check the network rules of the resource, too."),
        (
            Access("table T", "Reader", "Storage", has_key=True),
            "KeyBasedAuthenticationNotPermitted",
            "Check the connection string in Storage: its key is wrong or was renewed, or the",
        ),
        (ACCESS, "AccountIsDisabled", "The account is disabled: its owner must enable it again"),
    ],
)
def test_the_advice_fits_the_refusal(access: Access, code: str, advice: str) -> None:
    text = access.refusal(answer(403, code))
    assert text is not None
    assert text.startswith(f"table T: access was refused (403 {code}). ")
    assert advice in text
    assert "has the role" not in text or "network rules" in text


@pytest.mark.parametrize("error", [answer(404, "NotFound"), answer(500, ""), OSError("no")])
def test_other_errors_are_no_refusals(error: Exception) -> None:
    assert ACCESS.refusal(error) is None


def test_a_long_name_does_not_make_the_line_long() -> None:
    text = Access("t" * 5000, "Reader").refusal(answer(403, "x"))
    assert text is not None
    assert len(text) == TEXT_LENGTH_MAX


@pytest.fixture
def deployed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder without settings, and an environment as in Azure."""
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "AzureWebJobsStorage__accountName": "account",
        "AzureWebJobsStorage__clientId": CLIENT_ID,
        "ServiceBusConnection__fullyQualifiedNamespace": "bus.servicebus.windows.net",
        "SubscriptionId": plan().subscription_id,
        "ResourceGroup": "group",
        "ResourceToScale": "workers",
        "Topic": "orders",
        "Subscription": "billing",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("deployed")
@pytest.mark.parametrize("command", [["status"], ["decisions"], ["dead-letters", "list"]])
def test_a_command_without_a_token_prints_one_line(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _use(monkeypatch).has_token = False
    assert main(command) == 1
    printed = capsys.readouterr().err.strip()
    assert "\n" not in printed
    assert "of storage account account.table.core.windows.net (AzureWebJobsStorage)" in printed
    assert "no token was obtained" in printed


class OverAmqp:
    """A namespace that accepts tokens only, over TLS at `host`."""

    def __init__(self, host: str) -> None:
        self.bus = ServiceBusConnection("ServiceBusConnection", "", host, USED)
        self.hub = EventHubConnection("EventHubConnection", "telemetry", host, "", USED)

    async def send_message(self) -> None:
        link = ServiceBusLink(self.bus, "jobs", utc_now)
        try:
            await link.open()
        finally:
            await link.close()

    async def receive_events(self) -> None:
        async def deliver(_events: object) -> None: ...

        await EventHubReceiver(self.hub, "$Default").receive("0", None, 1, deliver)

    async def send_an_event(self) -> None:
        await send_event(self.hub, b"{}")


@pytest.fixture
async def over_amqp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[OverAmqp, Identity]]:
    certificate = Certificate(tmp_path, new_host())
    monkeypatch.setattr(certifi, "where", lambda: str(certificate.file))
    async with AsyncExitStack() as stack:
        stand_in = await stack.enter_async_context(AmqpStandIn(token_clock=utc_now))
        stand_in.namespace.declare_queue("jobs")
        stand_in.broker.declare_hub("telemetry")
        await stack.enter_async_context(behind_tls(stand_in.port, certificate, AMQP_PORT))
        yield OverAmqp(certificate.host), _use(monkeypatch)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux answers on 127.x.y.z")
@pytest.mark.filterwarnings(*[each.args[0] for each in LEAVES_SOCKETS_OPEN])
@pytest.mark.parametrize(
    ("call", "place", "role"),
    [
        (OverAmqp.send_message, "queue jobs of Service Bus", "Azure Service Bus Data Sender"),
        (OverAmqp.receive_events, "event hub telemetry of", "Azure Event Hubs Data Receiver"),
        (OverAmqp.send_an_event, "event hub telemetry of", "Azure Event Hubs Data Sender"),
        (OverAmqp.send_message, "queue jobs of Service Bus", ""),
        (OverAmqp.receive_events, "event hub telemetry of", ""),
    ],
)
async def test_a_refusal_over_amqp_is_one_line(
    call: Callable[[OverAmqp], Awaitable[None]],
    place: str,
    role: str,
    over_amqp: tuple[OverAmqp, Identity],
) -> None:
    """The token is for storage, so neither service accepts it. Without a role, there is none."""
    services, identity = over_amqp
    identity.has_token = bool(role)
    with pytest.raises(Exception) as caught:  # noqa: PT011  each adapter has its own errors
        await call(services)
    if role:
        checked(caught.value, place, "access was refused (401 InvalidToken: the token is for", role)
    else:
        checked(caught.value, place, "no token was obtained", "__clientId or AZURE_CLIENT_ID")
