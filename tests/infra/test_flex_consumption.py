"""The template sets nothing that the plan Flex Consumption refuses or ignores.

The compiler does not know what a plan refuses. ARM answers with the extended error code 51021: "The
following site configuration property (Site.SiteConfig.FtpsState) for Flex Consumption sites is
invalid. Please remove or rename it before retrying." Older regions ignore these properties.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.infra.bicep import BicepFile, Expression

ROOT = Path(__file__).parents[2]
MAIN = BicepFile(ROOT / "infra/main.bicep")
APP = BicepFile(ROOT / "infra/modules/function_app.bicep")
EXAMPLE: dict[str, str] = json.loads((ROOT / "local.settings.json.example").read_text())["Values"]

LIMITS = (
    "https://learn.microsoft.com/azure/azure-functions/flex-consumption-plan#considerations"
    " and azure/azure-functions/functions-app-settings#flex-consumption-plan-deprecations"
)
REFUSED_PROPERTIES = """
    alwaysOn containerSize endToEndEncryptionEnabled ftpsState functionAppScaleLimit
    functionsRuntimeScaleMonitoringEnabled isReserved isXenon javaVersion linuxFxVersion
    netFrameworkVersion powerShellVersion preWarmedInstanceCount use32BitWorkerProcess
    windowsFxVersion"""
"""Of a site or its `siteConfig`: from LIMITS, from answers of ARM
(https://learn.microsoft.com/answers/questions/2277522), and from
https://github.com/Azure/azure-functions-host/issues/10643 and
https://github.com/Azure/terraform-azurerm-avm-res-web-site/issues/283."""

REFUSED_SETTINGS = """
    ENABLE_ORYX_BUILD FUNCTIONS_EXTENSION_VERSION FUNCTIONS_MAX_HTTP_CONCURRENCY
    FUNCTIONS_WORKER_DYNAMIC_CONCURRENCY_ENABLED FUNCTIONS_WORKER_PROCESS_COUNT
    FUNCTIONS_WORKER_RUNTIME FUNCTIONS_WORKER_RUNTIME_VERSION SCM_DO_BUILD_DURING_DEPLOYMENT TZ
    WEBSITE_CONTENTAZUREFILECONNECTIONSTRING WEBSITE_CONTENTSHARE WEBSITE_LOAD_CERTIFICATES
    WEBSITE_MAX_DYNAMIC_APPLICATION_SCALE_OUT WEBSITE_NODE_DEFAULT_VERSION
    WEBSITE_RUN_FROM_PACKAGE WEBSITE_TIME_ZONE"""


def site() -> dict[str, Any]:
    (declared,) = APP.resources("Microsoft.Web/sites")
    properties: dict[str, Any] = declared.value["properties"]
    return properties


def test_the_app_has_no_property_or_setting_that_flex_consumption_refuses() -> None:
    names = {name.lower() for name in (*site(), *site()["siteConfig"])}
    assert names & set(REFUSED_PROPERTIES.lower().split()) == set()
    kept = set(EXAMPLE) - set(MAIN.named("connectionSettings").value)
    added = (APP.named(each).value for each in ("connections", "limits", "eventHub"))
    assert kept.union(*added) & set(REFUSED_SETTINGS.split()) == set()


def test_the_site_declares_what_flex_consumption_requires() -> None:
    """ARM: "FunctionAppConfig is required on create for FlexConsumption sites"."""
    config = site()["functionAppConfig"]
    assert set(config) == {"deployment", "runtime", "scaleAndConcurrency", "siteUpdateStrategy"}
    assert config["deployment"]["storage"]["type"] == "blobContainer"
    assert config["deployment"]["storage"]["authentication"]["type"] == "UserAssignedIdentity"
    assert decorator("pythonVersion", "allowed") == "['3.11']", "see docs/deployment.md"


def decorator(parameter: str, name: str) -> str:
    """The argument of a decorator of a parameter of the template."""
    source = MAIN.path.read_text()
    found = re.search(rf"^@{name}\((.*)\)\n(?:@.+\n)*param {parameter} ", source, re.MULTILINE)
    assert found is not None, f"{parameter} has no @{name}"
    return found[1]


def test_the_scale_is_within_the_limits_of_the_plan_which_has_one_app() -> None:
    config = site()["functionAppConfig"]
    scale = config["scaleAndConcurrency"]
    chosen = ("maximumInstanceCount", "instanceMemoryMB", "alwaysReady")
    assert scale == {name: Expression(name) for name in chosen}
    assert config["siteUpdateStrategy"] == {"type": Expression("siteUpdateStrategy")}
    assert MAIN.named("maximumInstanceCount").value == 40, "some regions refused less"
    limits = [decorator("maximumInstanceCount", each) for each in ("minValue", "maxValue")]
    assert limits == ["1", "1000"], LIMITS
    assert MAIN.named("instanceMemoryMB").value in (512, 2048, 4096)
    assert MAIN.named("alwaysReady").value == [], "see the arithmetic in docs/deployment.md"
    assert decorator("siteUpdateStrategy", "allowed") == "['Recreate', 'RollingUpdate']"
    assert len(APP.resources("Microsoft.Web/serverfarms")) == 1, LIMITS
    assert len(APP.resources("Microsoft.Web/sites")) == 1


def test_child_resources_of_the_site_are_created_one_after_the_other() -> None:
    """ARM refuses a change of a site while another change of it is running."""
    children = [
        each
        for each in APP.of_kind("resource")
        if each.of.startswith("Microsoft.Web/sites/") and not each.exists_already
    ]
    after = {
        each.name: [str(name) for name in each.value.get("dependsOn", [])] for each in children
    }
    first, *others = children
    assert after[first.name] == []
    assert [after[each.name] for each in others] == [[each.name] for each in children[:-1]]


def test_publishing_policies_have_the_location_that_arm_requires() -> None:
    """https://github.com/Azure/bicep/issues/7396: "The parameter location has an invalid value"."""
    policies = APP.resources("Microsoft.Web/sites/basicPublishingCredentialsPolicies")
    assert [policy.value["location"] for policy in policies] == [Expression("location")] * 2
