"""The settings of scaling, connections, secrets, and misspelled names."""

from __future__ import annotations

from contextlib import suppress

import pytest

from shared import settings
from shared.settings import SETTINGS, SettingsError
from shared.settings.misspellings import misspellings

SINGLE = {
    "ResourceToScale": "plan-1",
    "SubscriptionId": "00000000-0000-0000-0000-000000000001",
    "ResourceGroup": "group-1",
    "Topic": "orders",
    "Subscription": "billing",
    "ServiceBusConnection": "Endpoint=sb://unused",
}


def test_every_setting_outside_the_single_resource_has_a_default() -> None:
    loaded = settings.load({})
    assert loaded.metric_collector_schedule == "*/15 * * * * *"
    assert (loaded.window_seconds, loaded.minimum_samples) == (600, 5)
    assert (loaded.scale_out_cooldown_seconds, loaded.scale_in_cooldown_seconds) == (600, 600)


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
        "'*/15 * * * * *', or hh:mm:ss",
        "WindowSeconds = 'ten': must be a number",
        "ScaleInCooldownSeconds = nan: must be 0 to 86400",
        "MinimumCapacity = 0: must be 1 to 100",
        "MaximumCapacity = '2.5': must be a whole number",
        "DryRun = 'perhaps': must be true or false",
        "ArmEndpoint = 'http://example.com/path': must look like https://management.azure.com",
    )


def test_a_cron_expression_of_five_fields_is_refused() -> None:
    with pytest.raises(SettingsError, match="6 cron fields"):
        settings.load({"ReconcilerSchedule": "* * * * *"})


@pytest.mark.parametrize("schedule", ["0 */5 * * * *", "00:00:30", "0 0 9-17 * * MON-FRI"])
def test_schedules_of_the_host_are_accepted(schedule: str) -> None:
    assert settings.load({"ReconcilerSchedule": schedule}).reconciler_schedule == schedule


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
    assert named == ["ResourceToScale", "SubscriptionId", "Topic", "ThresholdDown"]


def test_connections_are_read_from_the_same_names_as_by_the_host() -> None:
    loaded = settings.load(
        {
            "ServiceBusConnection__fullyQualifiedNamespace": "ns.servicebus.windows.net",
            "ServiceBusConnection__clientId": "client-1",
            "AzureWebJobsStorage__accountName": "account",
            "AzureWebJobsPrefixed": "Endpoint=sb://x",
            "Prefixed": "Endpoint=sb://y",
        }
    )
    bus = loaded.service_bus("ServiceBusConnection")
    assert (bus.namespace, bus.client_id) == ("ns.servicebus.windows.net", "client-1")
    table_url = loaded.storage("AzureWebJobsStorage").table_url
    assert table_url == "https://account.table.core.windows.net"
    assert loaded.service_bus("Prefixed").connection_string == "Endpoint=sb://x"


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


@pytest.mark.parametrize("kind", ["storage", "service_bus"])
@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({}, "One = ''"),
        ({"One": "hello"}, "One: must be a"),
        ({"AzureWebJobsOne": "AccountName=x"}, "AzureWebJobsOne: must be a"),
        ({"One__queueServiceUri": "https://q"}, "One = ''"),
    ],
)
def test_an_invalid_connection_is_reported_by_name(
    kind: str, environ: dict[str, str], problem: str
) -> None:
    with pytest.raises(SettingsError, match=problem):
        getattr(settings.load(environ), kind)("One")


def test_a_connection_of_the_wrong_kind_is_refused() -> None:
    loaded = settings.load({"Bus": "Endpoint=sb://x", "Storage": "UseDevelopmentStorage=true"})
    assert "devstoreaccount1" in loaded.storage("Storage").connection_string
    with pytest.raises(SettingsError, match="must be a storage connection string"):
        loaded.storage("Bus")
    with pytest.raises(SettingsError, match="must be a Service Bus connection string"):
        loaded.service_bus("Storage")


def test_connection_strings_appear_in_neither_a_repr_nor_an_error() -> None:
    secret = "Endpoint=sb://x;SharedAccessKey=hunter2"
    loaded = settings.load({"ServiceBusConnection": secret, "Other": "SharedAccessKey=hunter2"})
    assert "hunter2" not in repr(loaded)
    assert "hunter2" not in repr(loaded.service_bus("ServiceBusConnection"))
    with pytest.raises(SettingsError) as raised:
        loaded.storage("Other")
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("name", [each.name for each in SETTINGS.values() if each.secret])
def test_no_secret_setting_appears_in_a_problem_or_a_repr(name: str) -> None:
    loaded, problems = settings.parse({name: "hunter2, hunter2"})
    assert "hunter2" not in repr(loaded)
    assert "hunter2" not in repr(problems)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e300", "-1"])
@pytest.mark.parametrize("name", [each.name for each in SETTINGS.values() if each.bounds])
def test_a_number_out_of_bounds_is_reported_and_does_not_stop_parsing(
    name: str, value: str
) -> None:
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
        (
            {"OutageErrors": "my.Gone, gone"},
            "OutageErrors = 'gone': must be a module and a class with dots between them, such as "
            "my_handler.GatewayGone",
        ),
        ({"IngestionHandler": "one"}, "IngestionHandler = 'one': must be a name such as my_events"),
        ({"Notifications": "scaled, x"}, "Notifications = 'x': must be one of scaled, scaling.ref"),
        ({"ProcessingPeriodHours": "24,x"}, "ProcessingPeriodHours = 'x': must be a number"),
        ({"ProcessingPeriodHours": "24, 500"}, "ProcessingPeriodHours = 500: must be 0.0166667 to"),
        ({"EffectsKeptDays": "2.5"}, "EffectsKeptDays = '2.5': must be a whole number"),
    ],
)
def test_a_problem_names_the_wrong_part_of_the_value_and_its_bound(
    environ: dict[str, str], problem: str
) -> None:
    (reported,) = settings.parse(environ)[1]
    assert reported.startswith(problem)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("QueueAgeLmit", "AgeLimitMinutes"),
        ("dryRun", "DryRun"),
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
