"""The settings of scaling, connections, secrets, and misspelled names."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from azure.eventhub.aio import EventHubProducerClient
from azure.servicebus.aio import ServiceBusClient
from azure.storage.queue.aio import QueueServiceClient

from shared import settings
from shared.azure.service_bus import administration_client
from shared.settings import SETTINGS, SettingsError
from shared.settings.amqp_transport import WEBSOCKETS, AmqpTransport
from shared.settings.connections import account_of
from shared.settings.misspellings import misspellings
from shared.settings.variables import Variables

SINGLE = {
    "ResourceToScale": "plan-1",
    "SubscriptionId": "00000000-0000-0000-0000-000000000001",
    "ResourceGroup": "group-1",
    "Topic": "orders",
    "Subscription": "billing",
    "ServiceBusConnection": "Endpoint=sb://unused;SharedAccessKeyName=n;SharedAccessKey=a",
}


def test_all_problems_are_reported_together_with_name_value_and_bound() -> None:
    with pytest.raises(SettingsError) as raised:
        settings.load(
            {
                "WindowSeconds": "ten",
                "MinimumCapacity": "0",
                "MaximumCapacity": "2.5",
                "DryRun": "perhaps",
                "MetricCollectorSchedule": "every minute",
                "ArmEndpoint": "http://example.com/path",
                "ScaleInCooldownSeconds": "nan",
            }
        )
    assert raised.value.problems == (
        "MetricCollectorSchedule = 'every minute': must be 6 cron fields, seconds first, such as "
        "'*/15 * * * * *', 5 without seconds, or hh:mm:ss: it has 2 fields",
        "WindowSeconds = 'ten': must be a number",
        "ScaleInCooldownSeconds = nan: must be 0 to 86400",
        "MinimumCapacity = 0: must be 1 to 100",
        "MaximumCapacity = '2.5': must be a whole number",
        "DryRun = 'perhaps': must be true or false",
        "ArmEndpoint = 'http://example.com/path': must look like https://management.azure.com",
    )


HUB = "Endpoint=sb://Shop.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=hunter2"
CONNECTIONS = ("AzureWebJobsStorage", "ServiceBusConnection")
CHARACTERS = ("\0", "\n", "\u2028", "\u202e", "\u2066", "\ud800")


@pytest.mark.parametrize("name", [name for name in SETTINGS if name not in CONNECTIONS])
def test_no_setting_accepts_a_text_that_is_not_one_line(name: str) -> None:
    for character in CHARACTERS:
        loaded, problems = settings.parse({**SINGLE, name: f"{'a' * 32}{character}b"})
        if not problems:
            with pytest.raises(SettingsError) as raised:
                loaded.single_resource()
            problems = list(raised.value.problems)
        assert name in " ".join(problems), ascii(character)
        assert not SETTINGS[name].secret or "a" * 32 not in " ".join(problems)


def test_the_problem_of_a_text_names_the_character_and_its_place() -> None:
    with pytest.raises(SettingsError) as raised:
        settings.load({**SINGLE, "Topic": "ord\u202eers"}).single_resource()
    assert raised.value.problems == (
        r"Topic = 'ord\u202eers': must be one line of text: character 4 is U+202E "
        "(RIGHT-TO-LEFT OVERRIDE)",
    )


@pytest.mark.parametrize("text", ["1_0", "\u0663", "\uff11\uff10", "1e", "0x10"])
def test_a_number_is_written_in_digits_0_to_9(text: str) -> None:
    for name in ("WindowSeconds", "MinimumSamples", "ProcessingPeriodHours", "DeadTimeMinutes"):
        with pytest.raises(SettingsError, match=rf"{name} = '{text}': must be a .*number"):
            settings.load({name: text})
    loaded, problems = settings.parse({"InstanceRatePerMinute": "1.5e2", "ScaleOutStep": "10"})
    assert (problems, loaded.instance_rate_per_minute, loaded.scale_out_step) == ([], 150, 10)


def test_every_missing_setting_of_the_single_resource_is_named() -> None:
    with pytest.raises(SettingsError) as raised:
        settings.load({"ResourceToScale": "plan-1", "ThresholdUp": "x"}).single_resource()
    assert raised.value.problems == (
        "SubscriptionId = '': must be set",
        "ResourceGroup = '': must be set",
        "Topic = '': must be set",
        "Subscription = '': must be set",
        "ThresholdUp = 'x': must be a number",
        "ServiceBusConnection = '': set a Service Bus connection string or, for managed identity, "
        "ServiceBusConnection__fullyQualifiedNamespace",
    )
    assert settings.load(SINGLE).single_resource().threshold_up == 100


def test_all_problems_of_the_single_resource_are_reported_together() -> None:
    wrong = {**SINGLE, "SubscriptionId": "abc", "ResourceToScale": "my plan!", "ThresholdUp": "5"}
    with pytest.raises(SettingsError) as raised:
        settings.load({**wrong, "Topic": ""}).single_resource()
    named = [problem.split(" = ")[0] for problem in raised.value.problems]
    assert named == ["SubscriptionId", "ResourceToScale", "Topic", "ThresholdDown"]


@pytest.mark.parametrize("prefix", ["", "AzureWebJobs"])
@pytest.mark.parametrize("suffix", ["", "__fullyQualifiedNamespace"])
def test_each_name_that_the_host_knows_for_a_connection_is_read(prefix: str, suffix: str) -> None:
    """The host looks for the prefix first. The names of hosts have no case."""
    host = "Shop.ServiceBus.windows.net"
    value = host if suffix else f"Endpoint=sb://{host};{KEY}"
    environ = {f"{prefix}{name}{suffix}": value for name in ("Bus", "EventHubConnection")}
    if prefix:
        other = f"Endpoint=sb://other;{KEY}"
        environ |= {"Bus": other, "EventHubConnection": other}
    loaded = settings.load(environ)
    assert loaded.service_bus("Bus").host.lower() == "shop.servicebus.windows.net"
    hub = loaded.ingestion.hub
    assert hub is not None
    assert hub.namespace == "shop.servicebus.windows.net"
    account = "https://mine.table.core.windows.net"
    named = {"accountName": "mine"} if suffix else {"": "AccountName=mine;AccountKey=YQ=="}
    storage = settings.load(
        {f"{prefix}Storage{'__' if key else ''}{key}": text for key, text in named.items()}
    ).storage("Storage")
    assert storage.table_url == (account if suffix else "")
    assert account_of(storage) == ("" if suffix else "mine")


def test_the_settings_that_are_read_are_those_that_are_declared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reference lacks any other, and no misspelling of it is found."""
    read = set[str]()

    class Recording(Variables):
        def get(self, name: str, default: Any = None) -> Any:
            read.add(name)
            return super().get(name, default)

    monkeypatch.setattr(settings, "Variables", Recording)
    loaded = settings.load({**SINGLE, "AzureWebJobsStorage": "UseDevelopmentStorage=true"})
    loaded.single_resource()
    loaded.storage("AzureWebJobsStorage")
    of_the_host = {f"AzureWebJobs{name}" for name in SETTINGS}  # which looks for this prefix first
    assert read - of_the_host == set(SETTINGS)


@pytest.mark.parametrize(
    ("environ", "problems"),
    [
        ({"MinimumCapacity": "3", "MaximumCapacity": "3"}, 0),
        ({"MinimumCapacity": "4", "MaximumCapacity": "3"}, 1),
        ({"OwnershipExpireSeconds": "15.1"}, 0),
        ({"OwnershipExpireSeconds": "15"}, 1),
        ({"ThresholdUp": "11"}, 0),
        ({"ThresholdUp": "10"}, 1),
    ],
)
def test_limits_may_meet_and_what_must_differ_may_not(
    environ: dict[str, str], problems: int
) -> None:
    loaded, found = settings.parse({**SINGLE, **environ})
    try:
        loaded.single_resource()
    except SettingsError as error:
        found += error.problems
    assert len(found) == problems


KEY = "SharedAccessKeyName=n;SharedAccessKey=a//b="
BUS = "Endpoint=sb://ns.example/"


@pytest.mark.parametrize(
    "text",
    [
        f"{KEY};{BUS}",
        "SHAREDACCESSKEYNAME=n;sharedaccesskey=a//b=;endpoint=SB://ns.example/;EntityPath=hub",
        f" {BUS} ; SharedAccessKeyName = n ;\r\n SharedAccessKey = a//b= ; ",
        f"{BUS};{KEY};;",
    ],
)
async def test_the_parts_of_a_connection_string_have_any_order_case_and_space(text: str) -> None:
    environ = {"One": text, "EventHubConnection": text, "EventHubName": "hub"}
    loaded = settings.load(environ)
    bus, hub = loaded.service_bus("One"), loaded.ingestion.hub
    assert hub is not None
    assert (bus.host, hub.namespace) == ("ns.example", "ns.example")
    for client in (
        administration_client(bus),
        ServiceBusClient.from_connection_string(bus.connection_string),
        EventHubProducerClient.from_connection_string(hub.connection_string, eventhub_name="hub"),
    ):
        await client.close()


@pytest.mark.parametrize(
    "text",
    [
        "AccountKey=YQ==;EndpointSuffix=x.example;AccountName=acc",
        "accountname=acc;ACCOUNTKEY=YQ==;endpointsuffix=x.example",
        " AccountName = acc ;\n AccountKey = YQ== ; EndpointSuffix = x.example ; ",
    ],
)
async def test_so_have_those_of_a_storage_account(text: str) -> None:
    account = settings.load({"One": text}).storage("One")
    assert account_of(account) == "acc"
    async with QueueServiceClient.from_connection_string(account.connection_string) as client:
        assert client.url.startswith("https://acc.queue.x.example")
    short = settings.load({"One": " UseDevelopmentStorage = true ; "}).storage("One")
    assert account_of(short) == "devstoreaccount1"


def test_the_storage_of_the_host_needs_the_address_of_its_blobs_too() -> None:
    """The host keeps the leases of timers there."""
    services = {f"__{each}ServiceUri": f"https://{each}" for each in ("queue", "table")}
    other = settings.load({f"OfficeStorage{name}": url for name, url in services.items()})
    assert other.storage("OfficeStorage").queue_url == "https://queue"
    host = {f"AzureWebJobsStorage{name}": url for name, url in services.items()}
    with pytest.raises(SettingsError, match="AzureWebJobsStorage__blobServiceUri and"):
        settings.load(host).storage("AzureWebJobsStorage")
    host["AzureWebJobsStorage__blobServiceUri"] = "https://blob"
    complete = settings.load(host).storage("AzureWebJobsStorage")
    assert (complete.queue_url, complete.table_url) == ("https://queue", "https://table")


PROXY = "http://jane:hunter2@proxy.example:8080"


@pytest.mark.parametrize(
    ("environ", "transport"),
    [
        ({"HTTPS_PROXY": PROXY}, AmqpTransport()),
        ({"AmqpTransport": "amqptcp", "https_proxy": "proxy"}, AmqpTransport()),
        ({"AmqpTransport": "AMQPWebSockets"}, AmqpTransport(True)),
        ({"AmqpTransport": WEBSOCKETS, "HTTPS_PROXY": PROXY}, AmqpTransport(True, PROXY)),
        (
            {"AmqpTransport": WEBSOCKETS, "HTTPS_PROXY": "http://a:1", "https_proxy": PROXY},
            AmqpTransport(True, PROXY),
        ),
        (
            {"AmqpTransport": WEBSOCKETS, "https_proxy": PROXY, "NO_PROXY": "a, .example"},
            AmqpTransport(True),
        ),
        (
            {"AmqpTransport": WEBSOCKETS, "https_proxy": "http://[::1]:80/", "NO_PROXY": "other"},
            AmqpTransport(True, "http://[::1]:80/"),
        ),
        (
            {"AmqpTransport": WEBSOCKETS, "SSL_CERT_FILE": "ca.pem"},
            AmqpTransport(True, "", "ca.pem"),
        ),
        ({"AmqpTransport": "AmqpOverWebsocket"}, None),
        *[
            ({"AmqpTransport": WEBSOCKETS, "HTTPS_PROXY": each}, None)
            for each in (
                "hunter2.example:8080",
                "http://hunter2.example",
                "http://jane:hunter2@:8080",
                "http://jane:hunter/2@proxy.example:8080",
                "http://proxy.example:hunter2",
                "http://proxy.example:8080/hunter2",
                "socks5://hunter2:1080",
            )
        ],
    ],
)
@pytest.mark.parametrize("address", ["", "__fullyQualifiedNamespace"])
def test_a_connection_over_websockets_uses_the_proxy_of_the_environment(
    environ: dict[str, str], transport: AmqpTransport | None, address: str
) -> None:
    value = "ns.example" if address else f"{BUS};{KEY}"
    environ |= {f"{name}{address}": value for name in ("One", "EventHubConnection")}
    loaded, problems = settings.parse(environ)
    if transport is None:
        with pytest.raises(SettingsError) as raised:
            loaded.service_bus("One")
        assert raised.value.problems == tuple(problems)
        wrong = "HTTPS_PROXY: must" if "HTTPS_PROXY" in environ else "AmqpTransport = 'AmqpOver"
        assert problems[0].startswith(wrong)
        assert "hunter2" not in problems[0]
        return
    hub = loaded.ingestion.hub
    assert hub is not None
    assert loaded.service_bus("One").transport == hub.transport == transport
    assert "hunter2" not in repr(hub)
    stand_in = settings.load(environ | {"One": f"Endpoint=sb://localhost:5672;{KEY}"})
    assert stand_in.service_bus("One").transport == AmqpTransport()


@pytest.mark.parametrize("name", [each.name for each in SETTINGS.values() if each.bounds])
def test_a_number_out_of_bounds_is_reported_and_does_not_stop_parsing(name: str) -> None:
    for value in ("nan", "inf", "-inf", "1e300", "-1"):
        loaded, problems = settings.parse({name: value})
        with suppress(SettingsError):
            loaded.single_resource()
        assert name.startswith("Threshold") or [each for each in problems if each.startswith(name)]


def test_a_value_that_cannot_be_parsed_is_replaced_by_its_default_in_comparisons() -> None:
    loaded, problems = settings.parse({"MinimumCapacity": "50", "MaximumCapacity": "many"})
    assert loaded.maximum_capacity == 10
    assert problems == [
        "MaximumCapacity = 'many': must be a whole number",
        "MaximumCapacity = 10: must be at least MinimumCapacity = 50",
    ]


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        (
            {"OwnershipExpireSeconds": "15"},
            "OwnershipExpireSeconds = 15: must be more than OwnershipRenewSeconds + "
            "BalancingSeconds = 15, so that an owner can renew in time",
        ),
        ({"IngestionHandler": "one"}, "IngestionHandler = 'one': must be a name such as my_events"),
        ({"Notifications": "scaled, x"}, "Notifications = 'x': must be one of scaled, scaling.ref"),
        (
            {"TelemetryQueue": "Telemetry_Events"},
            "TelemetryQueue = 'Telemetry_Events': must be 3 to",
        ),
        ({"ProcessingPeriodHours": "24,x"}, "ProcessingPeriodHours = 'x': must be a number"),
        ({"ProcessingPeriodHours": "24, 500"}, "ProcessingPeriodHours = 500: must be 0.0166667 to"),
        ({"EffectsKeptDays": "2.5"}, "EffectsKeptDays = '2.5': must be a whole number"),
        ({"ServiceBusNamespaceIds": "my-bus"}, "ServiceBusNamespaceIds = 'my-bus': must look like"),
        ({"EventHubConnection": "hunter2"}, "EventHubConnection: must be an Event Hubs connection"),
        (
            {"EventHubConnection": f"{HUB};EntityPath=b"},
            "EventHubConnection: its EntityPath is 'b', but EventHubName is 'metrics'",
        ),
        (
            {"EventHubConnection": HUB, "EventHubReadBackConsumerGroup": "$default"},
            "EventHubReadBackConsumerGroup = '$default': must differ by more than case from",
        ),
        ({"BreakerFailureRatio": "2"}, "BreakerFailureRatio = 2: must be 0 to 1"),
        ({"WebhookUrl": "http://hunter2"}, "WebhookUrl: must begin with https://"),
        ({"WebhookUrl": "https://a b"}, "WebhookUrl: must begin with https://"),
        ({"WebhookStyle": "fax"}, "WebhookStyle = 'fax': must be one of cloudevents"),
        (
            {"WebhookUrl": "https://a", "WebhookStyle": "pagerduty"},
            "WebhookStyle = 'pagerduty': needs a key, so use Webhooks instead",
        ),
        ({"Webhooks": "hunter2"}, "Webhooks: must be a JSON list of objects, such as"),
        ({"Webhooks": "[" * 100_000}, "Webhooks: must be a JSON list of objects, such as"),
        ({"Webhooks": '[{"url": "https://a"}, {"url": "hunter2"}]'}, "Webhooks: address 2: url"),
        (
            {"Webhooks": '[{"hunter2": 1, "url": "https://a"}]'},
            "Webhooks: address 1: has 1 unknown names",
        ),
        ({"Webhooks": '[{"style": "json"}]'}, "Webhooks: address 1: url must be set"),
        (
            {"Webhooks": '[{"style": "pagerduty"}]'},
            "Webhooks: address 1: key must be set for pagerduty",
        ),
        (
            {"Webhooks": '[{"url": "https://a", "headers": {"A": "hunter2\\n"}}]'},
            "Webhooks: address 1: headers must be an object of names and texts",
        ),
        (
            {"Webhooks": '[{"url": "https://a", "kinds": ["fire"]}]'},
            "Webhooks: address 1: kinds must be a list of kinds: scaled, scaling.refused",
        ),
        ({"DeploymentName": "a b"}, "DeploymentName = 'a b': must be letters, digits and .-_"),
        ({"BreakerApprovalKey": "hunter2"}, "BreakerApprovalKey: must have 32 or more random"),
        ({"IngestionDatabaseUrl": "hunter2"}, "IngestionDatabaseUrl: must be a URL such as"),
        ({"IngestionDatabaseUrl": "postgres://hunter2@h/d"}, "IngestionDatabaseUrl: must be a URL"),
        ({"IngestionDatabaseUrl": "mysql+pymysql://hunter2@h/d"}, "IngestionDatabaseUrl: must be"),
    ],
)
def test_a_problem_names_the_wrong_part_of_the_value_and_its_bound_but_no_secret(
    environ: dict[str, str], problem: str
) -> None:
    (reported,) = settings.parse(environ)[1]
    assert reported.startswith(problem)
    assert "hunter2" not in reported


def test_the_hub_is_the_one_that_the_connection_string_names_if_it_names_one() -> None:
    assert settings.load({}).ingestion.hub is None
    found = settings.load({"EventHubConnection": f"{HUB};EntityPath=Metrics"}).ingestion.hub
    assert found is not None
    assert (found.namespace, found.hub) == ("shop.servicebus.windows.net", "metrics")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("QueueAgeLmit", "AgeLimitMinutes"),
        ("MaxCapacity", "MaximumCapacity"),
        ("ServiceBusConection__fullyQualifiedNamespace", "ServiceBusConnection"),
    ],
)
def test_a_misspelled_setting_is_found_together_with_the_probable_one(
    name: str, meant: str
) -> None:
    assert misspellings([name, "PATH", *SINGLE]) == {name.partition("__")[0]: meant}


def test_settings_of_azure_and_variables_of_the_machine_are_not_misspellings() -> None:
    of_azure = """FUNCTIONS_WORKER_RUNTIME FUNCTIONS_EXTENSION_VERSION WEBSITE_HOSTNAME
    WEBSITE_CONTENTAZUREFILECONNECTIONSTRING APPSETTING_DryRun AzureWebJobsSecretStorageType
    AzureWebJobs.metric_ingest.Disabled AzureFunctionsJobHost__logging__logLevel__default
    AZURE_CLIENT_ID AzureWebJobsStorage__accountName WEBSITE_RUN_FROM_PACKAGE IDENTITY_ENDPOINT
    MSI_SECRET CONTAINER_NAME ScmType RegionName HostName APPLICATIONINSIGHTS_CONNECTION_STRING
    SCM_DO_BUILD_DURING_DEPLOYMENT PYTHON_ENABLE_WORKER_EXTENSIONS DOTNET_CLI_TELEMETRY_OPTOUT"""
    of_machines = "PATH HOME USER SHELL LANG ProgramFiles CommonProgramFiles SystemDrive TEMP"
    assert misspellings([*of_azure.split(), *of_machines.split(), "CosmosDbConnection"]) == {}


def test_capitalized_variants_of_given_names_as_on_windows_are_not_misspellings() -> None:
    assert misspellings(["DryRun", "DRYRUN", "WebhookUrl", "WEBHOOKURL"]) == {}
