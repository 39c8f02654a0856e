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
from shared.trends.datasets.periods import DUPLICATE_WINDOW_MAX, Period
from shared.trends.datasets.queues import QueueDescription, problems
from tests.infra.bicep import BicepFile, Declaration, Expression, text

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"
MAIN, STORAGE, BUS, PLAN_ROLE, MONITORING, APP, ARRIVALS, HUB, NAMESPACE, ENDPOINTS = (
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
        "modules/private_endpoints.bicep",
    )
)
FILES = [BicepFile(path) for path in sorted(INFRA.rglob("*.bicep"))]
EXAMPLE: dict[str, str] = json.loads((ROOT / "local.settings.json.example").read_text())["Values"]


def computed_settings() -> dict[str, Any]:
    """The settings that main.bicep adds to the defaults of the example."""
    (arguments,) = (n for n in MAIN.variables["own"].named_children if n.type == "arguments")
    computed: dict[str, Any] = MAIN.value(arguments.named_children[0])
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


def test_the_app_accepts_the_setting_of_whoever_reads_counts_as_monitoring_reader() -> None:
    (added,) = re.findall(r"\{ (\w+): '([\w-]+)' \}", text(MAIN.named("own").node))
    settings.load({**deployed_settings(), added[0]: added[1]})


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
    assert set(STORAGE.named("queueNames").value) == literal
    by_setting = ["telemetryQueue", "'${telemetryQueue}-poison'"]
    assert STORAGE.named("arrivalQueueNames").value == by_setting
    code = (ROOT / "shared").rglob("*.py")
    named = (re.findall(r'^TABLE_NAME = "(\w+)"', each.read_text(), re.M) for each in code)
    tables = {table for names in named for table in names} | {EVENTS, *TABLE_NAMES.values()}
    assert set(STORAGE.named("tableNames").value) == tables


@pytest.mark.parametrize("page", ["deployment.md", "security.md"])
def test_every_setting_named_on_a_page_exists(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    named = set(re.findall(r"`((?:[A-Z][a-z]+){2,})(?:__\w+)?`", text))
    of_parameters = re.findall(r"^@allowed\((.+)\)$", MAIN.path.read_text(), re.MULTILINE)
    assert named <= set(EXAMPLE) | set(re.findall(r"'(\w+)'", " ".join(of_parameters)))
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
    assert plan.value["properties"] == {"reserved": True, "zoneRedundant": "zoneRedundant"}
    (site,) = APP.resources("Microsoft.Web/sites")
    assert site.value["kind"] == "functionapp,linux"
    assert site.value["properties"]["serverFarmId"] == Expression("plan.id")


def test_namespaces_have_the_standard_tier_unless_private_endpoints_need_more() -> None:
    """Basic has no topics, sessions or duplicate detection, and only one consumer group a hub."""
    premium = "publicNetworkAccess == 'Enabled' ? 'Standard' : 'Premium'"
    for file, of, tier in (
        (NAMESPACE, "Microsoft.ServiceBus", premium),
        (HUB, "Microsoft.EventHub", "Standard"),
    ):
        (namespace,) = file.resources(f"{of}/namespaces")
        sku = namespace.value["sku"]
        assert (sku["name"], sku["tier"]) == (tier, tier)


def condition(declared: Declaration) -> str:
    """The condition of a declaration, also of one in a loop; empty if it has none."""
    body = declared.node.named_children[-1]
    body = body.named_children[-1] if body.type == "for_statement" else body
    return text(body.named_children[0]) if body.type == "if_statement" else ""


def test_who_only_scales_has_no_telemetry_account_export_event_grid_or_arrival_queue() -> None:
    conditions = {each.name: condition(each) for each in STORAGE.of_kind("resource")}
    assert {name: needs for name, needs in conditions.items() if needs} == {
        "telemetry": "(keepsTelemetry)",
        "mayReadTables": "(!empty(readerId))",
        "mayReadTelemetry": "(readsTelemetry)",
        "undelivered": "(processes)",
        "arrivals": "(processes)",
    }
    assert condition(MONITORING.named("export")) == "(!empty(telemetryAccountId))"
    assert condition(MAIN.named("arrivals")) == "(processes)"
    assert MAIN.named("processes").value == "!empty(chosen.ProcessingPeriodHours)"
    assert MAIN.named("recomputes").value == "!empty(chosen.TrendsSubmitter)"


def test_what_exists_already_is_not_created() -> None:
    workspace, identity = MONITORING.named("workspace"), MAIN.named("newIdentity")
    assert condition(workspace) == "(empty(workspaceId))"
    assert condition(identity) == "(empty(identityId))"
    assert MAIN.named("usedIdentityId").value == "empty(identityId) ? newIdentityId : identityId"
    used = "empty(workspaceId) ? workspace.id : workspaceId"
    assert MONITORING.named("usedWorkspaceId").value == used


def test_a_private_deployment_has_an_endpoint_for_each_service_that_the_app_uses() -> None:
    assert MAIN.named("isPrivate").value == "publicNetworkAccess == 'Disabled'"
    storage = MAIN.named("storageTargets").value
    assert (storage.over, storage.body["group"]) == (["blob", "queue", "table"], "group")
    assert "${group}.${environment().suffixes.storage}" in storage.body["zone"]
    others = {
        name: (target["group"], target["zone"])
        for name in ("telemetryTargets", "busTargets", "hubTargets")
        for target in MAIN.named(name).value
    }
    bus = ("namespace", "privatelink.servicebus.windows.net")
    blobs = ("blob", Expression("'privatelink.blob.${environment().suffixes.storage}'"))
    assert others == {"telemetryTargets": blobs, "busTargets": bus, "hubTargets": bus}
    endpoints, site = MAIN.named("endpoints"), MAIN.named("siteEndpoint")
    assert condition(endpoints) == "(!empty(privateEndpointSubnetId))"
    assert condition(site) == "(isPrivate)"
    assert [each["group"] for each in site.value["params"]["targets"]] == ["sites"]
    assert "endpoints" in MAIN.named("functionApp").value["dependsOn"]


def test_dns_zones_that_are_not_given_are_created_once_and_linked_to_the_network() -> None:
    assert ENDPOINTS.named("missingZones").value == Expression(
        "filter(union(map(targets, each => each.zone), []), zone => !contains(zoneIds, zone))"
    )
    for name in ("newZones", "links"):
        assert ENDPOINTS.named(name).value.over == ENDPOINTS.named("missingZones").value
    body = ENDPOINTS.named("names").value.body
    (config,) = body["properties"]["privateDnsZoneConfigs"]
    given_or_new = (
        "zoneIds[?each.zone] ?? resourceId('Microsoft.Network/privateDnsZones', each.zone)"
    )
    assert config["properties"]["privateDnsZoneId"] == given_or_new
    assert body["dependsOn"] == ["links"]


def test_a_deployment_that_could_not_work_is_refused_with_the_parameter_to_set() -> None:
    refused = {
        "access": "isPrivate && (empty(subnetId) || empty(privateEndpointSubnetId))",
        "sku": "zoneRedundant && endsWith(storageSku, '_LRS')",
    }
    for name, needed in (("access", "privateEndpointSubnetId"), ("sku", "storageSku")):
        refusal = re.search(r"= (.+)\n +\? fail\('(.+)'\)\n", text(MAIN.named(name).node))
        assert refusal is not None
        assert refusal[1] == refused[name]
        assert needed in refusal[2]


def test_the_network_is_as_the_parameters_say_and_deleted_blobs_can_be_restored() -> None:
    """Event Grid and diagnostic settings deliver as trusted services."""
    accounts = STORAGE.resources("Microsoft.Storage/storageAccounts")
    (site,) = APP.resources("Microsoft.Web/sites")
    namespaces = [
        *NAMESPACE.resources("Microsoft.ServiceBus/namespaces"),
        *HUB.resources("Microsoft.EventHub/namespaces"),
    ]
    for resource in (*accounts, site, *namespaces):
        access = resource.value["properties"]["publicNetworkAccess"]
        assert access == Expression("publicNetworkAccess"), resource.of
    assert MAIN.named("publicNetworkAccess").value == "Enabled"
    subnet = site.value["properties"]["virtualNetworkSubnetId"]
    assert subnet == "empty(subnetId) ? null : subnetId"
    open_or_not = "publicNetworkAccess == 'Enabled' ? 'Allow' : 'Deny'"
    for account in accounts:
        acls = account.value["properties"]["networkAcls"]
        assert acls == {"defaultAction": open_or_not, "bypass": "AzureServices"}
    (rules,) = HUB.resources("Microsoft.EventHub/namespaces/networkRuleSets")
    assert rules.value["properties"]["trustedServiceAccessEnabled"] is True
    services = STORAGE.resources("Microsoft.Storage/storageAccounts/blobServices")
    assert len(services) == len(accounts)
    for blobs in services:
        for policy in ("deleteRetentionPolicy", "containerDeleteRetentionPolicy"):
            assert blobs.value["properties"][policy] == {"enabled": True, "days": 7}
