"""What is deployed fits the app: settings, names, entities, roles, alerts."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import takewhile
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from croniter import croniter

from local.azure_apis.arm import ArmStandIn
from local.azure_apis.loopback_server import Reply, Request
from local.azure_apis.plans import P1V3, Plan
from shared import settings
from shared.adapters.arm.app_service import AppServiceControl
from shared.adapters.memory.autoscaling import MemoryStateStore
from shared.adapters.webhook.webhook import LogNotifier
from shared.autoscaling.declaring import Limits
from shared.autoscaling.flows import poison, scaling_logic
from shared.autoscaling.flows.poison import PoisonMessage
from shared.autoscaling.measurements import CAPACITY_METRIC, Metric, MetricValue
from shared.autoscaling.policy import Recommendation
from shared.datasets.entities import QueueDescription, problems
from shared.datasets.flows import poison as telemetry_poison
from shared.datasets.periods import DUPLICATE_WINDOW_MAX, Period
from shared.ingestion.breaker.announcement import opening_news
from shared.ingestion.breaker.breaker import Breaker, BreakerMode
from shared.ingestion.events import ingest
from shared.ingestion.events.process_batch import Report
from shared.ingestion.model import Gap
from shared.settings.connections import ServiceBusConnection, StorageConnection
from tests.builders import NOW, resource
from tests.contract.test_azure_adapters import ID, loaded
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
    """Those that main.bicep sets beside the defaults of the example."""
    (arguments,) = (n for n in MAIN.variables["chosen"].named_children if n.type == "arguments")
    found: dict[str, Any] = MAIN.value(arguments.named_children[1])
    return found


def deployed_settings() -> dict[str, str]:
    said_otherwise = MAIN.named("saidOtherwise").value
    assert set(said_otherwise) <= set(EXAMPLE)
    kept = {name: value for name, value in EXAMPLE.items() if name not in said_otherwise}
    made_up = {
        "ArmEndpoint": "https://management.azure.com/",
        "SubscriptionId": "0" * 8 + "-0000" * 3 + "-" + "0" * 12,
    }
    computed = {name: made_up.get(name, "something") for name in computed_settings()}
    assert set(computed) <= set(kept), "a setting that the app does not know"
    connections = {**APP.named("connections").value, **APP.named("eventHub").value}
    said = {
        k: f"https://{k}.example" if isinstance(v, Expression) else v
        for k, v in connections.items()
    }
    return {**kept, **computed, **said}


def test_the_app_starts_with_the_settings_that_it_is_given() -> None:
    loaded_settings = settings.load(deployed_settings())
    assert loaded_settings.single_resource().name == "something"
    for name in MAIN.named("saidOtherwise").value:
        if name == "AzureWebJobsStorage":
            storage = loaded_settings.storage(name)
            assert isinstance(storage, StorageConnection)
            assert storage.queue_url
            assert storage.client_id
        elif name == "ServiceBusConnection":
            bus = loaded_settings.service_bus(name)
            assert isinstance(bus, ServiceBusConnection)
            assert bus.namespace
            assert bus.client_id
        elif name == "EventHubConnection":
            hub = loaded_settings.ingestion.hub
            assert hub is not None
            assert hub.namespace
            assert hub.client_id
        else:
            assert name == "FUNCTIONS_WORKER_RUNTIME", "who says this connection?"


def test_the_hub_has_a_consumer_group_for_the_trigger_and_one_to_read_back() -> None:
    groups = HUB.resources("Microsoft.EventHub/namespaces/eventhubs/consumergroups")
    assert [group.value["name"] for group in groups] == [
        Expression("consumerGroup"),
        Expression("readBackConsumerGroup"),
    ]


def test_every_connection_is_by_managed_identity_and_no_key_is_asked_for() -> None:
    text = "\n".join(file.path.read_text() for file in FILES)
    assert not re.findall(r"listKeys|listSecrets|AccountKey|SharedAccessKey|primaryKey", text, re.I)
    secrets = re.findall(r"@secure\(\)\nparam (\w+)", text)
    assert set(secrets) == {"secretSettings"}, "only secrets that the user thinks up"
    for account in STORAGE.resources("Microsoft.Storage/storageAccounts"):
        assert account.value["properties"]["allowSharedKeyAccess"] is False
        assert account.value["properties"]["allowBlobPublicAccess"] is False
        assert account.value["properties"]["minimumTlsVersion"] == "TLS1_2"
    for file in FILES:
        for of in ("Microsoft.ServiceBus/namespaces", "Microsoft.EventHub/namespaces"):
            for namespace in file.resources(of):
                unless_asked_for = Expression("!sharedAccess")
                assert namespace.value["properties"]["disableLocalAuth"] in (True, unless_asked_for)
                assert namespace.value["properties"]["minimumTlsVersion"] == "1.2"
    assert MAIN.named("eventHubSharedAccess").value is False
    (insights,) = MONITORING.resources("Microsoft.Insights/components")
    assert insights.value["properties"]["DisableLocalAuth"] is True


def test_the_site_speaks_https_and_http2_with_tls_of_today_and_takes_no_password() -> None:
    (site,) = APP.resources("Microsoft.Web/sites")
    properties = site.value["properties"]
    assert properties["httpsOnly"] is True
    config = properties["siteConfig"]
    assert (config["http20Enabled"], config["ftpsState"]) == (True, "Disabled")
    assert config["minTlsVersion"] == config["scmMinTlsVersion"] == "1.2"
    assert properties["functionAppConfig"]["runtime"]["name"] == "python"
    policies = APP.resources("Microsoft.Web/sites/basicPublishingCredentialsPolicies")
    assert {p.value["name"]: p.value["properties"]["allow"] for p in policies} == {
        "ftp": False,
        "scm": False,
    }


def test_queues_and_tables_are_those_that_the_app_uses() -> None:
    source = (ROOT / "function_app.py").read_text()
    literal = set(re.findall(r'queue_name="([\w-]+)"', source))
    by_setting = {Expression("telemetryQueue"), Expression("'${telemetryQueue}-poison'")}
    assert set(STORAGE.named("queueNames").value) == literal | by_setting
    adapters = (ROOT / "shared" / "adapters").rglob("*.py")
    named = (re.findall(r'^TABLE_NAME = "(\w+)"', each.read_text(), re.M) for each in adapters)
    tables = {table for found in named for table in found}
    assert set(STORAGE.named("tableNames").value) == tables


@pytest.mark.parametrize("page", ["deployment.md", "security.md"])
def test_settings_that_the_pages_name_are_settings(page: str) -> None:
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


def test_the_queues_keep_the_promise_of_one_message_for_every_period_that_settings_accept() -> None:
    longest = Period(
        timedelta(days=1), lateness=DUPLICATE_WINDOW_MAX - timedelta(days=1, minutes=1)
    )
    processing, working = BUS.named("processing"), BUS.named("working")
    assert problems(queue_facts(processing), queue_facts(working), [Period(), longest]) == []
    for queue in (processing, working):
        assert queue.value["properties"]["deadLetteringOnMessageExpiration"] is True


class Watched(ArmStandIn):
    """Notes what a client asks for, as actions of Azure's roles."""

    def __init__(self) -> None:
        super().__init__([Plan(ID, capacity=2, sku=P1V3)], operation_seconds=0.1)
        self.actions = set[str]()

    def handle(self, request: Request) -> Reply:
        verb = {"GET": "read", "PUT": "write"}[request.method]
        kind = "/operationresults" if "operationresults" in request.path.lower() else ""
        self.actions.add(f"Microsoft.Web/serverfarms{kind}/{verb}")
        return super().handle(request)


async def test_the_role_allows_what_the_app_does_to_a_plan_and_no_more() -> None:
    async with Watched() as arm:
        control = AppServiceControl(loaded(ArmEndpoint=arm.base_url, ArmPollingSeconds="0.05"))
        try:
            await control.change(resource().target, 3)
        finally:
            await control.close()
    (permissions,) = PLAN_ROLE.named("role").value["properties"]["permissions"]
    assert set(permissions["actions"]) == arm.actions
    assert not permissions["dataActions"]
    assert PLAN_ROLE.named("assignment").value["scope"] == Expression("target")


def assignments() -> Iterator[tuple[str, str, str]]:
    """File, role and scope of every role assignment."""
    for file in FILES:
        for each in file.resources("Microsoft.Authorization/roleAssignments"):
            value = getattr(each.value, "body", each.value)
            yield file.path.stem, value["properties"]["roleDefinitionId"], value["scope"]


def test_every_role_is_given_on_one_resource_and_none_on_a_group_or_subscription() -> None:
    scopes = {(file, str(scope)) for file, _, scope in assignments()}
    assert scopes == {
        ("storage", "app"),
        ("storage", "telemetry"),
        ("monitoring", "insights"),
        ("plan_role", "target"),
        ("service_bus", "bus::watched"),
        ("service_bus", "processing"),
        ("service_bus", "working"),
        ("arrivals", "app::queues::arrivals"),
        ("arrivals", "app::blobs::undelivered"),
        ("event_hub", "hubs::metrics"),
    }


def test_events_of_new_blobs_come_to_the_queue_that_the_app_listens_to() -> None:
    (subscription,) = ARRIVALS.resources("Microsoft.EventGrid/systemTopics/eventSubscriptions")
    properties = subscription.value["properties"]
    assert properties["eventDeliverySchema"] == "CloudEventSchemaV1_0"
    assert properties["filter"]["includedEventTypes"] == ["Microsoft.Storage.BlobCreated"]
    container = properties["filter"]["subjectBeginsWith"].rpartition("/")[2]
    exported = MONITORING.named("exported").value
    assert all(f"insights-logs-{table.lower()}".startswith(container) for table in exported)
    destination = properties["deliveryWithResourceIdentity"]["destination"]
    assert destination["properties"]["queueName"] == Expression("telemetryQueue")


def alert_texts(name: str) -> list[str]:
    (query,) = (
        alert["query"] for alert in MONITORING.named("alerts").value if alert["name"] == name
    )
    return re.findall(r'"([^"]+)"', query)


def test_each_alert_of_a_log_line_is_explained() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    table = page.partition("## Alerts")[2].partition("\n## ")[0]
    for alert in MONITORING.named("alerts").value:
        assert f"| {alert['name']} |" in table


async def test_alerts_look_for_what_the_app_really_says(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    store = MemoryStateStore(lambda: NOW)
    small = {"plan-1": resource(limits=Limits(1, 2), policy=lambda _: Recommendation(9, "busy"))}
    for name, value in ((CAPACITY_METRIC, 2.0), ("backlog", 900.0)):
        sample = Metric("plan-1", name, MetricValue(NOW, value))
        await scaling_logic.run(sample, small, store)
    start, part = alert_texts("at-maximum")
    assert caplog.messages[-1].startswith(start)
    assert part in caplog.messages[-1]
    await poison.run_metric(PoisonMessage("metrics", "m1", "{", NOW), {}, store)
    assert caplog.messages[-1].startswith(alert_texts("poison")[0])
    telemetry_poison.run("{", "m2")
    assert caplog.messages[-1].startswith(alert_texts("poison")[0])
    ingest.log_report(Mock(), Report(gaps=[Gap(1, 2, NOW, "retention")]))
    assert caplog.messages[-1].startswith(alert_texts("events-gone")[0])
    opened = Breaker(BreakerMode.OPEN, 1, NOW, "6 failures")
    await LogNotifier().tell(opening_news("metric_ingest", opened, ""))
    assert caplog.messages[-1].startswith(alert_texts("breaker-opened")[0])


# --- the alert on silence: an app with wrong settings runs no function, so it writes nothing ------

RUNS_MIN = 10
"""So often the timer is due in the alert's window: one run that is late is no silence."""


def silence() -> dict[str, Any]:
    (alert,) = (each for each in MONITORING.named("alerts").value if each["name"] == "nothing-runs")
    return dict(alert)


def test_an_app_that_runs_nothing_is_an_alert() -> None:
    """A query for rows finds none where nothing runs, so this one makes a row of their absence."""
    table, *steps = (step.strip() for step in silence()["query"].split("|"))
    assert table == "requests"
    assert steps == [
        'where name == "metric_collector"',
        "summarize runs = count()",  # without `by`: a row with 0 where there is none
        "where runs == 0",
    ]
    assert silence()["above"] == 0


def test_the_alert_on_silence_watches_a_timer_that_is_always_there() -> None:
    (name,) = re.findall(r'name == "(\w+)"', silence()["query"])
    source = (ROOT / "function_app.py").read_text()
    declared = re.search(
        rf"@functions\.timer_trigger\((.+)\)\n(?:@.+\n)*async def {name}\(", source
    )
    assert declared is not None, "a timer of the app itself, not of a part that settings leave out"
    assert "settings.metric_collector_schedule" in declared[1]
    due = croniter(EXAMPLE["MetricCollectorSchedule"], NOW, second_at_beginning=True)
    until = NOW + timedelta(minutes=silence()["minutes"])
    runs = sum(1 for _ in takewhile(lambda at: at <= until, due.all_next(datetime)))
    assert runs >= RUNS_MIN


def test_the_alert_on_silence_asks_where_its_table_exists_before_the_first_run() -> None:
    """In the workspace a table comes into being with its first row; in the component all stand."""
    assert silence()["scope"] == "component"
    (rules,) = MONITORING.resources("Microsoft.Insights/scheduledQueryRules")
    properties = rules.value.body["properties"]
    component = "alert.scope == 'component' ? insights.id : workspace.id"
    assert properties["scopes"] == [Expression(component)]
    assert properties["skipQueryValidation"] is True
    (criterion,) = properties["criteria"]["allOf"]
    assert (criterion["timeAggregation"], criterion["operator"]) == ("Count", "GreaterThan")


def test_the_host_takes_no_larger_requests_than_the_app_has_a_use_for() -> None:
    function_app = BicepFile(INFRA / "modules" / "function_app.bicep")
    limits = function_app.named("limits").value
    assert int(limits["FUNCTIONS_REQUEST_BODY_SIZE_LIMIT"]) == 4 * 64 * 1024
    assert "union(settings, limits, " in function_app.path.read_text()


BUILT_IN_ROLES = {
    "090c5cfd-751d-490a-894a-3ce6f1109419": "Azure Service Bus Data Owner",
    "69a216fc-b8fb-44d8-bc22-1f3c2cd27a39": "Azure Service Bus Data Sender",
    "4f6d3b9b-027b-4f4c-9142-0e5a2a2247e0": "Azure Service Bus Data Receiver",
    "a638d3c7-ab3a-418d-83e6-5f17a39d4fde": "Azure Event Hubs Data Receiver",
    "3913510d-42f4-4e42-8a64-420c390055eb": "Monitoring Metrics Publisher",
    "b7e6dc6d-f1e8-4753-8033-0f276bb0955b": "Storage Blob Data Owner",
    "ba92f5b4-2d11-453d-a403-e96b0029c9fe": "Storage Blob Data Contributor",
    "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1": "Storage Blob Data Reader",
    "974c5e8b-45b9-4653-ba55-5f855dd0fb88": "Storage Queue Data Contributor",
    "c6a89b2d-59bc-44d0-9896-0f6e12d7b80a": "Storage Queue Data Message Sender",
    "0a9a7e1f-b9d0-4cc4-a60d-0319b160aaa3": "Storage Table Data Contributor",
}
"""https://learn.microsoft.com/azure/role-based-access-control/built-in-roles"""


def role_ids(file: BicepFile, definition: str) -> list[str]:
    """The ids that the last argument of subscriptionResourceId() stands for."""
    found = re.search(r"roleDefinitions',\s*(?:roles\['(.+)'\]|([\w.]+))\s*\)$", definition)
    assert found, definition
    by_name, variable = found.groups()
    if variable == "role.value":
        return list(file.named("roles").value.values())
    return [file.named("roles").value[by_name] if by_name else file.named(variable).value]


def test_each_role_is_the_built_in_one_that_its_scope_calls_for() -> None:
    """A wrong id is a valid template: it deploys, and the app is refused what it needs."""
    given = {
        (str(each.value["scope"]), BUILT_IN_ROLES[role_id])
        for file in FILES
        for each in (
            replace(each, value=getattr(each.value, "body", each.value))
            for each in file.resources("Microsoft.Authorization/roleAssignments")
        )
        if each.value["scope"] != "target"  # a role of its own, see above
        for role_id in role_ids(file, each.value["properties"]["roleDefinitionId"])
    }
    assert given == {
        ("app", "Storage Blob Data Owner"),
        ("app", "Storage Queue Data Contributor"),
        ("app", "Storage Table Data Contributor"),
        ("telemetry", "Storage Blob Data Reader"),
        ("insights", "Monitoring Metrics Publisher"),
        ("bus::watched", "Azure Service Bus Data Owner"),
        ("processing", "Azure Service Bus Data Sender"),
        ("working", "Azure Service Bus Data Receiver"),
        ("app::queues::arrivals", "Storage Queue Data Message Sender"),
        ("app::blobs::undelivered", "Storage Blob Data Contributor"),
        ("hubs::metrics", "Azure Event Hubs Data Receiver"),
    }


@pytest.mark.parametrize("file", [STORAGE, ARRIVALS], ids=["storage", "arrivals"])
def test_roles_that_are_listed_by_name_have_the_ids_of_these_names(file: BicepFile) -> None:
    roles = file.named("roles").value
    assert {name: BUILT_IN_ROLES[role_id] for name, role_id in roles.items()} == {
        name: name for name in roles
    }


def test_the_app_runs_on_flex_consumption_on_linux() -> None:
    """The app's deployment from a blob and its scale settings exist on no other plan."""
    (plan,) = APP.resources("Microsoft.Web/serverfarms")
    assert plan.value["sku"] == {"tier": "FlexConsumption", "name": "FC1"}
    assert plan.value["kind"] == "functionapp"
    assert plan.value["properties"] == {"reserved": True}
    (site,) = APP.resources("Microsoft.Web/sites")
    assert site.value["kind"] == "functionapp,linux"
    assert site.value["properties"]["serverFarmId"] == Expression("plan.id")


def test_namespaces_have_the_tier_that_sessions_duplicate_detection_and_groups_need() -> None:
    """Basic has no topics, sessions or duplicate detection, and one consumer group a hub."""
    for file, of in ((NAMESPACE, "Microsoft.ServiceBus"), (HUB, "Microsoft.EventHub")):
        (namespace,) = file.resources(f"{of}/namespaces")
        sku = namespace.value["sku"]
        assert (sku["name"], sku["tier"]) == ("Standard", "Standard")
