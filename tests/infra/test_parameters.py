"""The parameter files of azd and of the Azure CLI describe the same deployment."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from shared import settings
from shared.settings import SETTINGS
from tests.infra.bicep import BicepFile, Expression, text
from tests.infra.test_deployment import computed_settings

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"
MAIN, AZD = BicepFile(INFRA / "main.bicep"), BicepFile(INFRA / "azd.bicep")
SECURE = "secretSettings"
BY_IDENTITY = {
    *("AzureWebJobsStorage", "ServiceBusConnection", "EventHubConnection"),
    *("APPLICATIONINSIGHTS_CONNECTION_STRING", "AZURE_STORAGE_CONNECTION_STRING"),
}
"""The secrets that a deployment does not need, because it connects with an identity."""
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


def test_azd_sets_every_parameter_from_one_variable_each() -> None:
    (module,) = AZD.of_kind("module")
    assert set(module.value["params"]) == {p.name for p in MAIN.of_kind("param")}
    given = parameters("azd")
    assert set(given) == {p.name for p in AZD.of_kind("param")}
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
    chosen["principalId"] = "AZURE_PRINCIPAL_ID"  # azd sets it to whoever is logged in
    chosen["name"] = "AUTOSCALER_NAME"  # some shells set NAME to that of the machine
    for key, variable in named(parameters("azd")):
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key).upper()
        assert variable == chosen.get(key, words)
    (module,) = AZD.of_kind("module")
    converted = {
        "planIds": "split(planIds, ',')",
        "eventHub": "bool(eventHub)",
        "eventHubSharedAccess": "bool(eventHubSharedAccess)",
        "instanceMemoryMB": "int(instanceMemoryMB)",
        "maximumInstanceCount": "int(maximumInstanceCount)",
        "zoneRedundant": "bool(zoneRedundant)",
        "diagnosticLogs": "bool(diagnosticLogs)",
        **{name: f"empty({name}) ? [] : split({name}, ',')" for name in LISTS},
        "tags": "union(givenTags, { 'azd-env-name': environmentName })",
    }
    structured = {"alwaysReady", SECURE}  # tested below
    arrived = {k: v for k, v in module.value["params"].items() if k not in structured}
    assert arrived == {name: converted.get(name, name) for name in arrived}


LISTS = ["alertEmails", "actionGroupIds", "privateDnsZoneIds", "appServiceEnvironmentIds"]


def test_text_of_azd_becomes_tags_and_always_ready_groups() -> None:
    """The value of a tag may contain an equals sign."""
    tags = text(AZD.named("givenTags").node)
    assert "empty(tags) ? [] : split(tags, ',')" in tags
    assert "each => substring(each, indexOf(each, '=') + 1)" in tags
    (module,) = AZD.of_kind("module")
    groups = module.value["params"]["alwaysReady"]
    assert groups.startswith("map(empty(alwaysReady) ? [] : split(alwaysReady, ','), each => {")
    assert "name: split(each, '=')[0]" in groups
    assert "instanceCount: int(split(each, '=')[1])" in groups


def test_azd_sets_the_secret_settings_and_leaves_out_the_empty_ones() -> None:
    """A secret that is not set must not replace a setting of the same name."""
    secrets = {name for name, setting in SETTINGS.items() if setting.secret}
    assert set(parameters("azd")[SECURE]) == secrets - BY_IDENTITY
    (module,) = AZD.of_kind("module")
    passed = module.value["params"][SECURE]
    assert "filter(items(secretSettings), each => !empty(each.value))" in passed


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
        empty = value in ([], {})
        expected = "" if empty else value if isinstance(value, str) else json.dumps(value)
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
    "Subscription": "topicSubscription",
    "ArmEndpoint": "environment().resourceManager",
    "EventHubConsumerGroup": "autoscaler",
    "ServiceBusNamespaceIds": NAMESPACE_ID,
}
"""The settings that follow from parameters. Those of the plan are parts of ``PLAN_ID``."""

IDENTITY = "identity.outputs.principalId"
COMMON = {"name": UNIQUE, "location": "location", "tags": "tags"}
ENDPOINTS = {"location", "tags", "subnetId", "zoneIds", "targets"}
SKU, ACCESS = text(MAIN.variables["sku"]), text(MAIN.variables["access"])
PASSED_ON: dict[str, dict[str, str]] = {
    "identity": {"name": "last(split(usedIdentityId, '/'))"},
    "storage": {
        "appAccount": "'app${suffix}'",
        "telemetryAccount": "'tel${suffix}'",
        "sku": SKU,
        "publicNetworkAccess": ACCESS,
        "location": "location",
        "tags": "tags",
        "principalId": IDENTITY,
        "readerId": "principalId",
        "processes": "!empty(chosen.ProcessingPeriodHours)",
        "telemetryQueue": "chosen.TelemetryQueue",
        "keepsTelemetry": "processes || recomputes",
        "readsTelemetry": "!empty(chosen.TrendsSubmitter)",
    },
    "monitoring": {
        **COMMON,
        "principalId": IDENTITY,
        "telemetryAccountId": "storage.outputs.telemetryAccountId",
        "workspaceId": "workspaceId",
        "alertEmails": "alertEmails",
        "actionGroupIds": "actionGroupIds",
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
        "publicNetworkAccess": ACCESS,
        "topic": "topic",
        "subscription": "topicSubscription",
    },
    "serviceBus": {
        "namespaceName": "last(split(namespaceId, '/'))",
        "principalId": IDENTITY,
        "topic": "topic",
        "countsRole": "countsRole",
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
        "publicNetworkAccess": ACCESS,
    },
    "plans": {
        "plan": "split(planId, '/')[8]",
        "app": UNIQUE,
        "principalId": IDENTITY,
    },
    "environments": {
        "environmentName": "last(split(id, '/'))",
        "app": UNIQUE,
        "principalId": IDENTITY,
    },
    "diagnostics": {
        "appName": "functionApp.outputs.name",
        "appAccount": "storage.outputs.appAccountName",
        "workspaceId": "monitoring.outputs.workspaceId",
    },
    "functionApp": {
        **COMMON,
        "identityId": "empty(identityId) ? newIdentityId : identityId",
        "identityClientId": "identity.outputs.clientId",
        "pythonVersion": "pythonVersion",
        "instanceMemoryMB": "instanceMemoryMB",
        "maximumInstanceCount": "maximumInstanceCount",
        "alwaysReady": "alwaysReady",
        "siteUpdateStrategy": "siteUpdateStrategy",
        "zoneRedundant": "zoneRedundant",
        "subnetId": "subnetId",
        "publicNetworkAccess": ACCESS,
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
    arguments = MAIN.variables["own"].named_children[-1].named_children
    assert [text(arguments[n]) for n in (1, 2)] == [COUNTS_FROM, "settings"]
    assert MAIN.named("chosen").value == Expression("union(defaults, own)")


COUNTS_FROM = "countsRole == 'MonitoringReader' ? { ServiceBusCountsFrom: 'resource-manager' } : {}"
"""Whoever may not ask the namespace for counts asks Resource Manager."""


def test_each_module_receives_the_argument_of_its_parameter() -> None:
    bodies = {each.name: getattr(each.value, "body", each.value) for each in MAIN.of_kind("module")}
    assert bodies["functionApp"]["params"].pop("settings") == MAIN.named("chosen").value
    for name in ("endpoints", "siteEndpoint"):  # their targets are tested with the deployment
        assert bodies.pop(name)["params"].keys() == ENDPOINTS
    assert {name: body["params"] for name, body in bodies.items()} == PASSED_ON
    assert MAIN.named("makesNamespace").value == Expression("empty(serviceBusNamespaceId)")
    scopes = {name: body["scope"] for name, body in bodies.items() if "scope" in body}
    group = "resourceGroup(split({0}, '/')[2], split({0}, '/')[4])"
    given = {"serviceBus": "namespaceId", "plans": "planId", "environments": "id"}
    given["identity"] = "usedIdentityId"
    assert scopes == {name: group.format(each) for name, each in given.items()}
    for name, over in (("plans", "planIds"), ("environments", "appServiceEnvironmentIds")):
        assert MAIN.named(name).value.over == Expression(over)


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


def test_azd_explains_every_question_and_none_has_the_name_of_its_own() -> None:
    """azd itself asks for a subscription. It shows the description as the help of a question."""
    source = AZD.path.read_text()
    for each in AZD.of_kind("param"):
        assert re.search(rf"@description\('[^\n]+\n(?:[@\]) '][^\n]*\n)*param {each.name} ", source)
        assert each.name not in {"subscription", "environment", "resourceGroup"}
    (location,) = re.findall(r"@allowed\(\[([^\]]+)\]\)\n(.*)\nparam location string", source)
    assert "'westeurope'" in location[0]
    assert location[1] == "@metadata({ azd: { type: 'location' } })"


def test_after_a_deployment_the_command_line_has_the_settings_and_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = yaml.safe_load((ROOT / "azure.yaml").read_text())["hooks"]["postprovision"]["posix"]
    (tmp_path / ".azure/prod").mkdir(parents=True)
    (tmp_path / "infra").mkdir()
    script = tmp_path / shutil.copy(ROOT / hook["run"], tmp_path / "infra")
    values = {
        **{name: value for name, value in COMPUTED.items() if value.isalpha()},
        "AzureWebJobsStorage__accountName": "account",
    }
    outputs = {"AUTOSCALER_SETTINGS": json.dumps({"IsEncrypted": False, "Values": values})}
    outputs["AUTOSCALER_DASHBOARD_URL"] = "https://app.example/api/dashboard"
    assert outputs.keys() <= {each.name for each in AZD.of_kind("output")}
    done = subprocess.run(
        [hook["shell"], str(script)],
        env={**os.environ, "AZURE_ENV_NAME": "prod", **outputs},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "https://app.example/api/dashboard?code=KEY" in done.stdout
    (file,) = re.findall(r"--settings (\S+)", done.stdout)
    for name in values:
        monkeypatch.delenv(name, raising=False)
    with monkeypatch.context() as patch:
        patch.setattr(os, "environ", dict(os.environ))
        settings.add_file(tmp_path / file)
        connection = settings.load(os.environ).storage("AzureWebJobsStorage")
    assert connection.table_url == "https://account.table.core.windows.net"
