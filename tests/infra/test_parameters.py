"""The parameter files of azd and of the Azure CLI describe the same deployment."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.infra.bicep import BicepFile, Expression, text
from tests.infra.test_deployment import computed_settings

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"
MAIN, AZD = BicepFile(INFRA / "main.bicep"), BicepFile(INFRA / "azd.bicep")
SECURE = "secretSettings"
CHOSEN_BY_AZD = {"environmentName", "location"}

VARIABLE = re.compile(r"\$\{([A-Z_]+)(?:=(.*))?\}")


def parameters(name: str) -> dict[str, Any]:
    document = json.loads((INFRA / f"{name}.parameters.json").read_text())
    return {key: given["value"] for key, given in document["parameters"].items()}


def variables(value: Any) -> Iterator[tuple[str, str | None]]:
    """Name and default of each environment variable; None if there is no default."""
    if isinstance(value, dict):
        for each in value.values():
            yield from variables(each)
    else:
        match = VARIABLE.fullmatch(value)
        assert match, f"{value} is not taken from an environment variable"
        yield match[1], match[2]


def test_azd_sets_every_parameter_but_the_prefix_of_names_from_one_variable_each() -> None:
    (module,) = AZD.of_kind("module")
    assert set(module.value["params"]) == {p.name for p in MAIN.of_kind("param")} - {"name"}
    given = parameters("azd")
    assert set(given) == {p.name for p in AZD.of_kind("param")} - {SECURE}
    names = [name for name, _ in variables(given)]
    assert len(names) == len(set(names))


def test_each_variable_arrives_in_the_parameter_of_its_name() -> None:
    def named(value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        for key, each in value.items():
            if isinstance(each, dict):
                yield from named(each)
            else:
                ((variable, _),) = variables(each)
                yield key, variable

    chosen = {"environmentName": "AZURE_ENV_NAME", "location": "AZURE_LOCATION"}
    for key, variable in named(parameters("azd")):
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key).upper()
        assert variable == chosen.get(key, words)
    (module,) = AZD.of_kind("module")
    converted = {
        "planIds": "split(planIds, ',')",
        "eventHub": "bool(eventHub)",
        "eventHubSharedAccess": "bool(eventHubSharedAccess)",
        "alertEmails": "empty(alertEmails) ? [] : split(alertEmails, ',')",
        "instanceMemoryMB": "int(instanceMemoryMB)",
        "tags": {"azd-env-name": "environmentName"},
    }
    assert module.value["params"] == {
        name: converted.get(name, name) for name in module.value["params"]
    }


def test_azd_asks_only_for_parameters_without_a_default() -> None:
    required = {each.name for each in AZD.of_kind("param") if not each.has_value}
    given = parameters("azd")
    asked = {key for key in given if any(default is None for _, default in variables(given[key]))}
    assert asked == required


def test_the_defaults_of_azd_equal_those_of_the_template() -> None:
    """azd passes text, so true, 2048 and an empty list are compared as text."""
    given = parameters("azd")
    declared = {each.name: each for each in MAIN.of_kind("param")}
    for each in AZD.of_kind("param"):
        if each.name in CHOSEN_BY_AZD | {SECURE, "settings"} or not each.has_value:
            continue
        ((_, default),) = variables(given[each.name])
        assert default == each.value
        value = declared[each.name].value
        expected = "" if value == [] else value if isinstance(value, str) else json.dumps(value)
        assert default == expected, each.name


def test_both_parameter_files_set_the_same_settings() -> None:
    by_azd = {
        name: default
        for name, value in parameters("azd")["settings"].items()
        for _, default in variables(value)
    }
    assert by_azd == parameters("main")["settings"]
    assert by_azd["DryRun"] == "true"


def test_the_deployment_guide_names_every_environment_variable_of_azd() -> None:
    page = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\b[A-Z]+(?:_[A-Z]+)*\b", page))
    chosen = {"AZURE_ENV_NAME", "AZURE_LOCATION"}  # azd asks for these itself
    assert {name for name, _ in variables(parameters("azd"))} - chosen <= named


# --- from a parameter to a setting or a resource ------------------------------------------------

PLAN_ID = "/subscriptions/SUB/resourceGroups/GROUP/providers/Microsoft.Web/serverfarms/PLAN"

UNIQUE = "'${name}-${suffix}'"
NAMESPACE_ID = "makesNamespace ? newNamespaceId : serviceBusNamespaceId"

COMPUTED = {
    "SubscriptionId": "SUB",
    "ResourceGroup": "GROUP",
    "ResourceToScale": "PLAN",
    "Topic": "topic",
    "Subscription": "subscription",
    "ArmEndpoint": "environment().resourceManager",
    "EventHubConsumerGroup": "autoscaler",
    "ServiceBusNamespaceIds": NAMESPACE_ID,
}
"""The settings that follow from parameters. Those of the plan are parts of ``PLAN_ID``."""

IDENTITY = "identity.properties.principalId"
COMMON = {"name": UNIQUE, "location": "location", "tags": "tags"}
PASSED_ON: dict[str, dict[str, str]] = {
    "storage": {
        "appAccount": "'app${suffix}'",
        "telemetryAccount": "'tel${suffix}'",
        "sku": "storageSku",
        "location": "location",
        "tags": "tags",
        "principalId": IDENTITY,
        "telemetryQueue": "chosen.TelemetryQueue",
        "readsTelemetry": "!empty(chosen.TrendsSubmitter)",
    },
    "monitoring": {
        **COMMON,
        "principalId": IDENTITY,
        "telemetryAccountId": "storage.outputs.telemetryAccountId",
        "alertEmails": "alertEmails",
    },
    "arrivals": {
        **COMMON,
        "telemetryAccount": "storage.outputs.telemetryAccountName",
        "appAccount": "storage.outputs.appAccountName",
        "telemetryQueue": "chosen.TelemetryQueue",
        "undeliveredContainer": "storage.outputs.undeliveredContainer",
    },
    "newServiceBus": {
        **COMMON,
        "name": "last(split(newNamespaceId, '/'))",
        "topic": "topic",
        "subscription": "subscription",
    },
    "serviceBus": {
        "namespaceName": "last(split(namespaceId, '/'))",
        "principalId": IDENTITY,
        "topic": "topic",
        "processes": "!empty(chosen.ProcessingPeriodHours)",
        "processingQueue": "chosen.ProcessingQueue",
        "workingQueue": "chosen.WorkingQueue",
        "app": UNIQUE,
        "tags": "tags",
        "actionGroupIds": "monitoring.outputs.actionGroupIds",
    },
    "hub": {
        **COMMON,
        "name": "'${unique}-hub'",
        "principalId": IDENTITY,
        "hubName": "chosen.EventHubName",
        "consumerGroup": "chosen.EventHubConsumerGroup",
        "readBackConsumerGroup": "chosen.EventHubReadBackConsumerGroup",
        "sharedAccess": "eventHubSharedAccess",
    },
    "plans": {
        "plan": "split(planId, '/')[8]",
        "app": UNIQUE,
        "principalId": IDENTITY,
    },
    "functionApp": {
        **COMMON,
        "identityId": "identity.id",
        "identityClientId": "identity.properties.clientId",
        "pythonVersion": "pythonVersion",
        "instanceMemoryMB": "instanceMemoryMB",
        "appAccount": "storage.outputs.appAccountName",
        "packageContainer": "storage.outputs.packageContainer",
        "serviceBusHost": "serviceBus.outputs.host",
        "eventHubHost": "eventHub ? hub!.outputs.host : ''",
        "insightsName": "monitoring.outputs.insightsName",
        "secretSettings": "secretSettings",
    },
}
"""The arguments of each module of main.bicep. ``chosen`` has the settings of the app."""

CONNECTIONS = {
    "AZURE_CLIENT_ID": "identityClientId",
    "AzureWebJobsStorage__credential": "managedidentity",
    "AzureWebJobsStorage__clientId": "identityClientId",
    "AzureWebJobsStorage__blobServiceUri": "storage.properties.primaryEndpoints.blob",
    "AzureWebJobsStorage__queueServiceUri": "storage.properties.primaryEndpoints.queue",
    "AzureWebJobsStorage__tableServiceUri": "storage.properties.primaryEndpoints.table",
    "ServiceBusConnection__credential": "managedidentity",
    "ServiceBusConnection__clientId": "identityClientId",
    "ServiceBusConnection__fullyQualifiedNamespace": "serviceBusHost",
    "APPLICATIONINSIGHTS_CONNECTION_STRING": "insights.properties.ConnectionString",
    "APPLICATIONINSIGHTS_AUTHENTICATION_STRING": (
        "'ClientId=${identityClientId};Authorization=AAD'"
    ),
}
HUB_CONNECTION = {
    "EventHubConnection__credential": "managedidentity",
    "EventHubConnection__clientId": "identityClientId",
    "EventHubConnection__fullyQualifiedNamespace": "eventHubHost",
}


def test_each_parameter_that_becomes_a_setting_arrives_in_it() -> None:
    plan = PLAN_ID.split("/")
    assert MAIN.named("plan").value == Expression("split(planIds[0], '/')")
    part = re.compile(r"plan\[(\d)\]")
    arrived = {
        name: plan[int(found[1])] if (found := part.fullmatch(value)) else value
        for name, value in computed_settings().items()
    }
    assert arrived == COMPUTED
    arguments = MAIN.variables["chosen"].named_children[-1].named_children
    assert (len(arguments), text(arguments[0]), text(arguments[2])) == (3, "defaults", "settings")


def test_each_module_receives_the_argument_of_its_parameter() -> None:
    bodies = {each.name: getattr(each.value, "body", each.value) for each in MAIN.of_kind("module")}
    assert bodies["functionApp"]["params"].pop("settings") == MAIN.named("chosen").value
    assert {name: body["params"] for name, body in bodies.items()} == PASSED_ON
    assert MAIN.named("makesNamespace").value == Expression("empty(serviceBusNamespaceId)")
    scopes = {name: body["scope"] for name, body in bodies.items() if "scope" in body}
    group = "resourceGroup(split({0}, '/')[2], split({0}, '/')[4])"
    assert scopes == {"serviceBus": group.format("namespaceId"), "plans": group.format("planId")}
    (loop,) = (each.value for each in MAIN.of_kind("module") if each.name == "plans")
    assert loop.over == Expression("planIds")


def test_the_function_app_has_the_settings_and_one_connection_for_each_service() -> None:
    app = BicepFile(INFRA / "modules/function_app.bicep")
    assert app.named("connections").value == CONNECTIONS
    assert app.named("eventHub").value == HUB_CONNECTION
    (settings,) = app.resources("Microsoft.Web/sites/config")
    assert settings.value["name"] == "appsettings"
    source = app.path.read_text()
    assert (
        "properties: union(settings, limits, connections, empty(eventHubHost) ? {} : eventHub, "
        "secretSettings)"
    ) in source


def test_the_entities_have_the_names_that_the_app_uses() -> None:
    named = {
        (file, of): [each.value["name"] for each in BicepFile(INFRA / file).resources(of)]
        for file, of in ENTITIES
    }
    assert named == ENTITIES


ENTITIES = {
    ("modules/service_bus.bicep", "Microsoft.ServiceBus/namespaces/queues"): [
        "workingQueue",
        "processingQueue",
    ],
    ("modules/service_bus_namespace.bicep", "Microsoft.ServiceBus/namespaces/topics"): [
        Expression("topic")
    ],
    (
        "modules/service_bus_namespace.bicep",
        "Microsoft.ServiceBus/namespaces/topics/subscriptions",
    ): [Expression("subscription")],
    ("modules/event_hub.bicep", "Microsoft.EventHub/namespaces/eventhubs"): [Expression("hubName")],
}
