"""Connections and values in the forms in which people have them: each is understood as by the
Functions host, or refused with the name of its setting."""

from __future__ import annotations

import pytest
from azure.identity.aio import (
    ChainedTokenCredential,
    ClientSecretCredential,
    DefaultAzureCredential,
    ManagedIdentityCredential,
)
from azure.storage.queue.aio import QueueServiceClient

from shared import settings
from shared.azure.credentials import Login, chain_of
from shared.settings import SETTINGS, SettingsError
from shared.settings.connections import (
    AZURITE_KEY,
    EventHubConnection,
    Identity,
    StorageConnection,
    event_hub_connection,
)
from shared.settings.variables import UNRESOLVED

HOST = "sb-shop.servicebus.windows.net"
USER_ASSIGNED = (
    "/subscriptions/1/resourcegroups/g/providers/Microsoft.ManagedIdentity/"
    "userAssignedIdentities/scaler"
)
KEY = "SharedAccessKeyName=n;SharedAccessKey=hunter2"
CUT_OFF = AZURITE_KEY.removesuffix("==")
REFERENCES = (
    "@Microsoft.KeyVault(SecretUri=https://vault.vault.azure.net/secrets/key/)",
    "@microsoft.keyvault(VaultName=vault;SecretName=a-name-of-more-than-32-characters)",
    "@Microsoft.AppConfiguration(Endpoint=https://c.azconfig.io; Key=a-key-of-the-store)",
)


def problems_of(environ: dict[str, str], kind: str, name: str = "One") -> tuple[str, ...]:
    try:
        getattr(settings.parse(environ)[0], kind)(name)
    except SettingsError as error:
        return error.problems
    return ()


@pytest.mark.parametrize(
    "environ",
    [
        {f"One__{name}": value}
        for name in ("fullyQualifiedNamespace", "fullyqualifiednamespace")
        for value in (HOST, f"https://{HOST}/", f"sb://{HOST}", f"{HOST}/", f"sb://{HOST}:5671/")
    ]
    + [
        {"ONE__FULLYQUALIFIEDNAMESPACE": HOST},
        {"One:fullyQualifiedNamespace": HOST},
        {"AZUREWEBJOBSONE__FULLYQUALIFIEDNAMESPACE": HOST, "One": f"Endpoint=sb://other;{KEY}"},
    ],
)
def test_a_namespace_is_read_in_each_form_that_the_host_accepts(environ: dict[str, str]) -> None:
    loaded = settings.load(environ)
    hub = event_hub_connection(environ, "One", "metrics")
    assert isinstance(hub, EventHubConnection)
    assert loaded.service_bus("One").namespace == hub.namespace == HOST


NAMESPACE = {"One__fullyQualifiedNamespace": HOST}


@pytest.mark.parametrize(
    ("given", "identity", "credential"),
    [
        ({}, Identity(), DefaultAzureCredential),
        ({"clientID": "c"}, Identity("c"), DefaultAzureCredential),
        (
            {"credential": "ManagedIdentity", "clientId": "c"},
            Identity("c", only_managed=True),
            ManagedIdentityCredential,
        ),
        (
            {"managedIdentityResourceId": USER_ASSIGNED},
            Identity(resource_id=USER_ASSIGNED),
            ChainedTokenCredential,
        ),
        (
            {"credential": "managedidentity", "managedidentityresourceid": USER_ASSIGNED},
            Identity(resource_id=USER_ASSIGNED, only_managed=True),
            ManagedIdentityCredential,
        ),
        (
            {"tenantId": "t", "clientId": "c", "clientSecret": "hunter2"},
            Identity("c", tenant_id="t", client_secret="hunter2"),
            ClientSecretCredential,
        ),
    ],
)
async def test_a_connection_logs_in_with_the_identity_that_its_settings_name(
    given: dict[str, str], identity: Identity, credential: type
) -> None:
    properties = {f"One__{name}": value for name, value in given.items()}
    bus = settings.load(NAMESPACE | properties).service_bus("One")
    storage = settings.load({"One__accountName": "shop", **properties}).storage("One")
    assert bus.identity == storage.identity == identity
    assert "hunter2" not in repr(bus)
    async with chain_of(identity) as login:
        assert type(login) is credential


@pytest.mark.parametrize(
    ("variables", "credential"),
    [({}, DefaultAzureCredential), ({"IDENTITY_ENDPOINT": "http://x"}, ManagedIdentityCredential)],
)
async def test_a_developer_may_log_in_with_the_settings_of_a_deployed_app(
    variables: dict[str, str], credential: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    async with Login(Identity("c", only_managed=True)) as login:
        assert type(login._chain) is credential


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({"fullyQualifiedNamespace": f"https://{HOST}/orders"}, "One__fullyQualifiedNamespace"),
        ({"fullyQualifiedNamespace": f"Endpoint=sb://{HOST};{KEY}"}, "One__fullyQualifiedName"),
        ({"fullyQualifiedNamespace": f"'{HOST}'"}, "One__fullyqualifiednamespace: remove the quo"),
        ({"credential": "workloadidentity"}, "One__credential = 'workloadidentity': must be mana"),
        ({"clientId": "c", "managedIdentityResourceId": USER_ASSIGNED}, "only one of them"),
        ({"clientId": USER_ASSIGNED}, "see One__managedIdentityResourceId"),
        ({"managedIdentityResourceId": "scaler"}, "One__managedIdentityResourceId = 'scaler'"),
        ({"tenantId": "t", "clientSecret": "hunter2"}, "One__clientId and One__clientSecret: must"),
        ({"clientId": "c", "clientSecret": "hunter2"}, "One__tenantId, One__clientId and One__cli"),
        ({"clientCertificate": "thumb"}, "One__clientcertificate: must be one of fullyQualifiedN"),
        ({"clientId": REFERENCES[0]}, f"One__clientid: {UNRESOLVED}"),
        ({"": f"Endpoint=sb://{HOST}/;SharedAccessKeyName=Root"}, "One: has no SharedAccessKey."),
        ({"": f"Endpoint=sb://{HOST}/orders;{KEY}"}, "One: must be a Service Bus connection str"),
        ({"": f"Endpoint=sb://{HOST}/"}, "no SharedAccessKeyName and no SharedAccessKey. Copy"),
        ({"": f'"Endpoint=sb://{HOST}/;{KEY}"'}, "One: remove the quotation marks"),
    ],
)
def test_a_namespace_that_the_host_does_not_accept_is_refused_by_name(
    environ: dict[str, str], problem: str
) -> None:
    given = {f"One__{name}" if name else "One": value for name, value in environ.items()}
    base = {} if "" in environ else NAMESPACE
    (told,) = problems_of(base | given, "service_bus")
    assert problem in told
    assert "hunter2" not in told


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({"__accountName": "https://shop.blob.core.windows.net"}, "One__accountName: must be only"),
        ({"__queueServiceUri": "shop.queue.core.windows.net"}, "One__queueServiceUri: must be an"),
        ({"__queueServiceUri": "https://shop.blob.core.windows.net"}, "One__queueServiceUri: must"),
        ({"__queueServiceUrl": "https://shop.queue.core.windows.net"}, "One__queueserviceurl: mus"),
        ({"": "DefaultEndpointsProtocol=https;AccountName=shop"}, "One: has no AccountKey."),
        ({"": f"AccountName=shop;AccountKey={CUT_OFF}"}, "One: its AccountKey is incomplete. Copy"),
        ({"": "AccountName=shop;AccountKey=c2Vj…cmV0"}, "One: its AccountKey is incomplete. Copy"),
        ({"": "UseDevelopmentStorage=false"}, "One: must be a storage connection string"),
        (
            {"": "UseDevelopmentStorage=true;DevelopmentStorageProxyUri=azurite"},
            "such as http://az",
        ),
        ({"": "'UseDevelopmentStorage=true'"}, "One: remove the quotation marks"),
    ],
)
def test_a_storage_account_that_the_host_does_not_accept_is_refused_by_name(
    environ: dict[str, str], problem: str
) -> None:
    (told,) = problems_of({f"One{name}": value for name, value in environ.items()}, "storage")
    assert problem in told
    assert CUT_OFF not in told


async def test_the_emulator_may_run_on_another_host_as_under_docker_compose() -> None:
    text = "UseDevelopmentStorage=true;DevelopmentStorageProxyUri=http://azurite"
    found = settings.load({"One": text}).storage("One")
    assert isinstance(found, StorageConnection)
    async with QueueServiceClient.from_connection_string(found.connection_string) as client:
        assert client.url.startswith("http://azurite:10001/devstoreaccount1")
    assert "TableEndpoint=http://azurite:10002/devstoreaccount1" in found.connection_string


def test_an_identity_without_the_address_of_its_hub_is_not_taken_for_no_hub() -> None:
    (problem,) = settings.parse({"EventHubConnection__clientId": "c"})[1]
    assert problem.startswith("EventHubConnection__fullyQualifiedNamespace = ''")


@pytest.mark.parametrize("name", SETTINGS)
def test_an_unresolved_reference_is_named_for_every_setting(name: str) -> None:
    for reference in REFERENCES:
        loaded, problems = settings.parse({name: reference})
        problems += problems_of({name: reference}, "storage", name)
        try:
            loaded.single_resource()
        except SettingsError as error:
            problems += error.problems
        assert [each for each in problems if each.startswith(name) and UNRESOLVED in each]
        assert "vault.azure.net" not in repr(loaded.ingestion.breaker)


@pytest.mark.parametrize("text", [f"{'k' * 32},{REFERENCES[0]}", f"{REFERENCES[0]} "])
def test_the_text_of_a_reference_never_signs_approval_links(text: str) -> None:
    loaded, problems = settings.parse({"BreakerApprovalKey": text})
    assert loaded.ingestion.breaker.approval_keys == ()
    assert problems == [f"BreakerApprovalKey: {UNRESOLVED}"]


def test_names_are_compared_without_case_and_two_spellings_must_agree() -> None:
    assert settings.load({"dryrun": "true", "WINDOWSECONDS": "60"}).dry_run
    assert settings.load({"DryRun": "true", "DRYRUN": "true"}).dry_run
    assert settings.parse({"DryRun": "true", "DRYRUN": "false", "PATH": "a", "path": "b"})[1] == [
        "DRYRUN and DryRun: they are the same setting. Remove one of them"
    ]


def test_names_in_percent_signs_are_replaced_as_by_the_host() -> None:
    environ = {"EventHubName": "%HUB%", "hub": "orders", "TelemetryQueue": "%ENV%-t", "ENV": "x"}
    bus = {"EventHubConnection": f"Endpoint=sb://{HOST};{KEY};EntityPath=orders"}
    loaded = settings.load({**environ, **bus, "ReconcilerSchedule": "%TICK%", "TICK": "00:01:00"})
    assert loaded.ingestion.hub is not None
    assert (loaded.ingestion.hub.hub, loaded.ingestion.hub_name) == ("orders", "orders")
    assert (loaded.telemetry_queue, loaded.reconciler_schedule) == ("x-t", "00:01:00")
    assert settings.parse({**bus, "EventHubName": "%HUB%", "WorkingQueue": "50%"})[1] == [
        "WorkingQueue = '50%': it must have no %, except around the names of other settings",
        "EventHubName = '%HUB%': setting HUB is missing",
    ]


PLAN_ID = "/subscriptions/1/resourceGroups/g/providers/Microsoft.Web/serverfarms/plan"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ResourceToScale", PLAN_ID),
        ("ResourceGroup", "/Subscriptions/1/resourcegroups/g"),
        ("SubscriptionId", "/subscriptions/00000000-0000-0000-0000-000000000001"),
        ("Topic", "orders/Subscriptions/billing"),
        ("Subscription", "orders/subscriptions/billing"),
        ("EventHubName", f"sb://{HOST}/metrics"),
        ("WorkingQueue", f"https://{HOST}/working"),
        ("TelemetryQueue", "https://shop.queue.core.windows.net/telemetry"),
    ],
)
def test_an_id_or_address_where_a_name_belongs_is_told_as_that(name: str, value: str) -> None:
    loaded, problems = settings.parse({name: value})
    with pytest.raises(SettingsError) as raised:
        loaded.single_resource()
    told = [each for each in (*problems, *raised.value.problems) if each.startswith(name + " ")]
    assert len(told) == 1
    assert "must be only the name" in told[0]


def test_the_ids_of_namespaces_are_compared_without_case() -> None:
    given = "/subscriptions/{}/resourcegroups/RG/providers/MICROSOFT.SERVICEBUS/Namespaces/sb"
    uuid = "00000000-0000-0000-0000-000000000001"
    loaded = settings.load({"ServiceBusNamespaceIds": given.format(uuid)})
    assert loaded.service_bus_namespace_ids == (given.format(uuid),)
