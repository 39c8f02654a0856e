"""The deployment fits the app: settings, names, entities and access."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from shared import settings
from shared.ingestion.store.tables import EVENTS, TABLE_NAMES
from shared.sampling.diagnostic_export import KINDS
from shared.settings.connections import ServiceBusConnection, StorageConnection
from shared.trends.datasets.entities import QueueDescription, problems
from shared.trends.datasets.periods import DUPLICATE_WINDOW_MAX, Period
from tests.infra.bicep import BicepFile, Declaration, Expression

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"
MAIN, STORAGE, BUS, PLAN_ROLE, MONITORING, APP, ARRIVALS, HUB, NAMESPACE = (
    BicepFile(INFRA / name)
    for name in (
        "main.bicep",
        "modules/storage.bicep",
        "modules/service_bus.bicep",
        "modules/plan_role.bicep",
        "modules/monitoring.bicep",
        "modules/function_app.bicep",
        "modules/arrivals.bicep",
        "modules/event_hub.bicep",
        "modules/service_bus_namespace.bicep",
    )
)
FILES = [BicepFile(path) for path in sorted(INFRA.rglob("*.bicep"))]
EXAMPLE: dict[str, str] = json.loads((ROOT / "local.settings.json.example").read_text())["Values"]


def computed_settings() -> dict[str, Any]:
    """The settings that main.bicep adds to the defaults of the example."""
    (arguments,) = (n for n in MAIN.variables["chosen"].named_children if n.type == "arguments")
    computed: dict[str, Any] = MAIN.value(arguments.named_children[1])
    return computed


def deployed_settings() -> dict[str, str]:
    left_out = MAIN.named("connectionSettings").value
    assert set(left_out) <= set(EXAMPLE)
    kept = {name: value for name, value in EXAMPLE.items() if name not in left_out}
    fixed = {
        "ArmEndpoint": "https://management.azure.com/",
        "SubscriptionId": "0" * 8 + "-0000" * 3 + "-" + "0" * 12,
        "ServiceBusNamespaceIds": f"/subscriptions/{'0' * 8}{'-0000' * 3}-{'0' * 12}"
        "/resourceGroups/group/providers/Microsoft.ServiceBus/namespaces/bus",
    }
    computed = {name: fixed.get(name, "something") for name in computed_settings()}
    assert set(computed) <= set(kept), "the template sets a setting that the app does not have"
    connections = {**APP.named("connections").value, **APP.named("eventHub").value}
    connected = {
        k: f"https://{k.lower().replace('_', '-')}.example" if isinstance(v, Expression) else v
        for k, v in connections.items()
    }
    return {**kept, **computed, **connected}


def test_the_app_starts_with_the_deployed_settings() -> None:
    loaded_settings = settings.load(deployed_settings())
    assert loaded_settings.single_resource().name == "something"
    for name in MAIN.named("connectionSettings").value:
        if name == "AzureWebJobsStorage":
            storage = loaded_settings.storage(name)
            assert isinstance(storage, StorageConnection)
            assert storage.queue_url
            assert storage.identity.client_id
        elif name == "ServiceBusConnection":
            bus = loaded_settings.service_bus(name)
            assert isinstance(bus, ServiceBusConnection)
            assert bus.namespace
            assert bus.identity.client_id
        elif name == "EventHubConnection":
            hub = loaded_settings.ingestion.hub
            assert hub is not None
            assert hub.namespace
            assert hub.identity.client_id
        else:
            assert name == "FUNCTIONS_WORKER_RUNTIME", f"no check for the connection {name}"


def test_the_hub_has_one_consumer_group_for_the_trigger_and_one_for_reading_back() -> None:
    groups = HUB.resources("Microsoft.EventHub/namespaces/eventhubs/consumergroups")
    assert [group.value["name"] for group in groups] == [
        Expression("consumerGroup"),
        Expression("readBackConsumerGroup"),
    ]


def test_every_connection_uses_the_managed_identity_and_the_template_reads_no_keys() -> None:
    text = "\n".join(file.path.read_text() for file in FILES)
    assert not re.findall(r"listKeys|listSecrets|AccountKey|SharedAccessKey|primaryKey", text, re.I)
    secrets = re.findall(r"@secure\(\)\nparam (\w+)", text)
    assert set(secrets) == {"secretSettings"}, (
        "the only secure param is for secrets that the operator chooses"
    )
    for account in STORAGE.resources("Microsoft.Storage/storageAccounts"):
        assert account.value["properties"]["allowSharedKeyAccess"] is False
        assert account.value["properties"]["allowBlobPublicAccess"] is False
        assert account.value["properties"]["minimumTlsVersion"] == "TLS1_2"
    for file in FILES:
        for of in ("Microsoft.ServiceBus/namespaces", "Microsoft.EventHub/namespaces"):
            for namespace in file.resources(of):
                unless_shared_access = Expression("!sharedAccess")
                assert namespace.value["properties"]["disableLocalAuth"] in (
                    True,
                    unless_shared_access,
                )
                assert namespace.value["properties"]["minimumTlsVersion"] == "1.2"
    assert MAIN.named("eventHubSharedAccess").value is False
    (insights,) = MONITORING.resources("Microsoft.Insights/components")
    assert insights.value["properties"]["DisableLocalAuth"] is True


def test_the_site_requires_https_and_tls_1_2_and_refuses_publishing_passwords() -> None:
    (site,) = APP.resources("Microsoft.Web/sites")
    properties = site.value["properties"]
    assert properties["httpsOnly"] is True
    config = properties["siteConfig"]
    assert config["http20Enabled"] is True
    assert config["minTlsVersion"] == config["scmMinTlsVersion"] == "1.2"
    assert properties["functionAppConfig"]["runtime"]["name"] == "python"
    policies = APP.resources("Microsoft.Web/sites/basicPublishingCredentialsPolicies")
    assert {p.value["name"]: p.value["properties"]["allow"] for p in policies} == {
        "ftp": False,
        "scm": False,
    }


def test_the_template_creates_exactly_the_queues_and_tables_that_the_app_uses() -> None:
    source = (ROOT / "function_app.py").read_text()
    literal = set(re.findall(r'queue_name="([\w-]+)"', source))
    by_setting = {Expression("telemetryQueue"), Expression("'${telemetryQueue}-poison'")}
    assert set(STORAGE.named("queueNames").value) == literal | by_setting
    code = (ROOT / "shared").rglob("*.py")
    named = (re.findall(r'^TABLE_NAME = "(\w+)"', each.read_text(), re.M) for each in code)
    tables = {table for names in named for table in names} | {EVENTS, *TABLE_NAMES.values()}
    assert set(STORAGE.named("tableNames").value) == tables


@pytest.mark.parametrize("page", ["deployment.md", "security.md"])
def test_every_setting_named_on_a_page_exists(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    named = set(re.findall(r"`((?:[A-Z][a-z]+){2,})(?:__\w+)?`", text))
    assert named <= set(EXAMPLE)
    assert named


def queue_facts(declared: Declaration) -> QueueDescription:
    properties = declared.value["properties"]
    days = re.fullmatch(r"P(\d)D", properties.get("duplicateDetectionHistoryTimeWindow", ""))
    return QueueDescription(
        declared.value["name"],
        timedelta(days=int(days[1])) if days and properties["requiresDuplicateDetection"] else None,
        properties["requiresSession"],
        properties.get("forwardTo"),
    )


def test_the_queues_support_one_message_a_period_for_every_period_that_settings_accept() -> None:
    longest = Period(
        timedelta(days=1), lateness=DUPLICATE_WINDOW_MAX - timedelta(days=1, minutes=1)
    )
    processing, working = BUS.named("processing"), BUS.named("working")
    assert problems(queue_facts(processing), queue_facts(working), [Period(), longest]) == []
    for queue in (processing, working):
        assert queue.value["properties"]["deadLetteringOnMessageExpiration"] is True


def test_events_of_new_blobs_arrive_in_the_queue_that_the_app_reads() -> None:
    (subscription,) = ARRIVALS.resources("Microsoft.EventGrid/systemTopics/eventSubscriptions")
    properties = subscription.value["properties"]
    assert properties["eventDeliverySchema"] == "CloudEventSchemaV1_0"
    assert properties["filter"]["includedEventTypes"] == ["Microsoft.Storage.BlobCreated"]
    container = properties["filter"]["subjectBeginsWith"].rpartition("/")[2]
    exported = MONITORING.named("exported").value
    assert all(f"insights-logs-{table.lower()}".startswith(container) for table in exported)
    assert set(exported) == set(KINDS), "the nightly job reads these tables"
    destination = properties["deliveryWithResourceIdentity"]["destination"]
    assert destination["properties"]["queueName"] == Expression("telemetryQueue")


def test_the_host_limits_requests_to_the_largest_that_the_app_accepts() -> None:
    function_app = BicepFile(INFRA / "modules" / "function_app.bicep")
    limits = function_app.named("limits").value
    assert int(limits["FUNCTIONS_REQUEST_BODY_SIZE_LIMIT"]) == 4 * 64 * 1024
    assert "union(settings, limits, " in function_app.path.read_text()


def test_the_app_runs_on_a_linux_flex_consumption_plan() -> None:
    """No other plan supports deployment from a blob and the app's scale settings."""
    (plan,) = APP.resources("Microsoft.Web/serverfarms")
    assert plan.value["sku"] == {"tier": "FlexConsumption", "name": "FC1"}
    assert plan.value["kind"] == "functionapp"
    assert plan.value["properties"] == {"reserved": True}
    (site,) = APP.resources("Microsoft.Web/sites")
    assert site.value["kind"] == "functionapp,linux"
    assert site.value["properties"]["serverFarmId"] == Expression("plan.id")


def test_namespaces_have_the_standard_tier() -> None:
    """Basic has no topics, sessions or duplicate detection, and only one consumer group a hub."""
    for file, of in ((NAMESPACE, "Microsoft.ServiceBus"), (HUB, "Microsoft.EventHub")):
        (namespace,) = file.resources(f"{of}/namespaces")
        sku = namespace.value["sku"]
        assert (sku["name"], sku["tier"]) == ("Standard", "Standard")


def test_public_access_is_stated_and_deleted_blobs_can_be_restored() -> None:
    """docs/deployment.md says what to change for private endpoints."""
    accounts = STORAGE.resources("Microsoft.Storage/storageAccounts")
    (site,) = APP.resources("Microsoft.Web/sites")
    namespaces = [
        *NAMESPACE.resources("Microsoft.ServiceBus/namespaces"),
        *HUB.resources("Microsoft.EventHub/namespaces"),
    ]
    for resource in (*accounts, site, *namespaces):
        assert resource.value["properties"]["publicNetworkAccess"] == "Enabled", resource.of
    for account in accounts:
        acls = account.value["properties"]["networkAcls"]
        assert acls == {"defaultAction": "Allow", "bypass": "AzureServices"}
    services = STORAGE.resources("Microsoft.Storage/storageAccounts/blobServices")
    assert len(services) == len(accounts)
    for blobs in services:
        for policy in ("deleteRetentionPolicy", "containerDeleteRetentionPolicy"):
            assert blobs.value["properties"][policy] == {"enabled": True, "days": 7}
