"""The roles of the templates are those that the app needs, on single resources."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from local.azure_apis.arm import ArmStandIn, OperationForm
from local.azure_apis.loopback_server import Reply, Request
from local.azure_apis.plans import P1V3, Plan
from shared.autoscaling.plans.app_service import AppServiceControl
from tests.autoscaling.services.test_azure_adapters import ID, loaded
from tests.builders import resource, set_capacity
from tests.infra.bicep import BicepFile, Expression
from tests.infra.test_deployment import BUS, MAIN, condition

INFRA = Path(__file__).parents[2] / "infra"
PLAN_ROLE = BicepFile(INFRA / "modules" / "plan_role.bicep")
ENVIRONMENT_ROLE = BicepFile(INFRA / "modules" / "environment_role.bicep")
FILES = [BicepFile(path) for path in sorted(INFRA.rglob("*.bicep"))]


class Watched(ArmStandIn):
    """Records the requests of a client as actions of Azure's roles."""

    def __init__(self, form: OperationForm) -> None:
        super().__init__([Plan(ID, capacity=2, sku=P1V3)], operation_seconds=0.1)
        self.operation_form = form
        self.may_read_operations = False
        self.actions = set[str]()

    def handle(self, request: Request) -> Reply:
        verb = {"GET": "read", "PUT": "write"}[request.method]
        kind = "locations/operations" if "/operation" in request.path.lower() else "serverfarms"
        self.actions.add(f"Microsoft.Web/{kind}/{verb}")
        return super().handle(request)


@pytest.mark.parametrize("form", OperationForm)
async def test_the_role_allows_exactly_what_the_app_does_to_a_plan(form: OperationForm) -> None:
    """The role is on the plan, so the stand-in refuses to show operations, as Azure does."""
    async with Watched(form) as arm:
        control = AppServiceControl(loaded(ArmEndpoint=arm.base_url))
        try:
            await set_capacity(control, resource().target, 3)
            await control.read(resource().target)  # which follows the change
        finally:
            await control.close()
    (permissions,) = PLAN_ROLE.named("role").value["properties"]["permissions"]
    assert set(permissions["actions"]) == arm.actions
    assert not permissions["dataActions"]
    assert PLAN_ROLE.named("assignment").value["scope"] == Expression("target")


def test_a_plan_in_an_environment_needs_the_right_to_join_it_and_nothing_else() -> None:
    """ARM: "does not have permission to perform action 'Microsoft.Web/hostingEnvironments/join/
    action' on the linked scope(s)"."""
    (permissions,) = ENVIRONMENT_ROLE.named("role").value["properties"]["permissions"]
    assert permissions["actions"] == ["Microsoft.Web/hostingEnvironments/join/action"]
    assert not permissions["dataActions"]
    assert ENVIRONMENT_ROLE.named("assignment").value["scope"] == Expression("target")


def test_whoever_reads_counts_as_monitoring_reader_is_no_data_owner_of_the_topic() -> None:
    assert condition(BUS.named("mayCount")) == "(countsRole == 'DataOwner')"
    assert condition(BUS.named("mayReadMetrics")) == "", "it reads the counts then"
    assert MAIN.named("countsRole").value == "DataOwner"


BUILT_IN_ROLES = {
    "090c5cfd-751d-490a-894a-3ce6f1109419": "Azure Service Bus Data Owner",
    "69a216fc-b8fb-44d8-bc22-1f3c2cd27a39": "Azure Service Bus Data Sender",
    "4f6d3b9b-027b-4f4c-9142-0e5a2a2247e0": "Azure Service Bus Data Receiver",
    "a638d3c7-ab3a-418d-83e6-5f17a39d4fde": "Azure Event Hubs Data Receiver",
    "3913510d-42f4-4e42-8a64-420c390055eb": "Monitoring Metrics Publisher",
    "43d0d8ad-25c7-4714-9337-8ba259a9fe05": "Monitoring Reader",
    "b7e6dc6d-f1e8-4753-8033-0f276bb0955b": "Storage Blob Data Owner",
    "ba92f5b4-2d11-453d-a403-e96b0029c9fe": "Storage Blob Data Contributor",
    "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1": "Storage Blob Data Reader",
    "974c5e8b-45b9-4653-ba55-5f855dd0fb88": "Storage Queue Data Contributor",
    "c6a89b2d-59bc-44d0-9896-0f6e12d7b80a": "Storage Queue Data Message Sender",
    "0a9a7e1f-b9d0-4cc4-a60d-0319b160aaa3": "Storage Table Data Contributor",
    "76199698-9eea-4c19-bc75-cec21354c6b6": "Storage Table Data Reader",
}
"""https://learn.microsoft.com/azure/role-based-access-control/built-in-roles"""


EVENT_GRID = "events.identity.principalId"


def role_ids(file: BicepFile, definition: str) -> list[str]:
    """The role ids that the last argument of subscriptionResourceId() refers to."""
    match = re.search(r"roleDefinitions',\s*(?:roles\['(.+)'\]|([\w.]+))\s*\)$", definition)
    assert match, definition
    by_name, variable = match.groups()
    if variable == "role.value":
        roles = file.named("roles").value
        assert {name: BUILT_IN_ROLES[role] for name, role in roles.items()} == {n: n for n in roles}
        return list(roles.values())
    if by_name:
        role = file.named("roles").value[by_name]
        assert BUILT_IN_ROLES[role] == by_name
        return [role]
    return [file.named(variable).value]


def test_each_scope_has_the_built_in_role_that_the_app_needs() -> None:
    """On single resources. A template with a wrong id deploys, but the app lacks permissions."""
    given = {
        (str(each.value["scope"]), BUILT_IN_ROLES[role_id]): str(
            each.value["properties"]["principalId"]
        )
        for file in FILES
        for each in (
            replace(each, value=getattr(each.value, "body", each.value))
            for each in file.resources("Microsoft.Authorization/roleAssignments")
        )
        if each.name != "assignment"  # of the custom role, tested above
        for role_id in role_ids(file, each.value["properties"]["roleDefinitionId"])
    }
    others = {role: who for role, who in given.items() if who != "principalId"}
    assert others == {
        ("app", "Storage Table Data Reader"): "readerId",
        ("app::queues::arrivals", "Storage Queue Data Message Sender"): EVENT_GRID,
        ("app::blobs::undelivered", "Storage Blob Data Contributor"): EVENT_GRID,
    }
    assert given.keys() == {
        ("app", "Storage Blob Data Owner"),
        ("app", "Storage Queue Data Contributor"),
        ("app", "Storage Table Data Contributor"),
        ("app", "Storage Table Data Reader"),
        ("telemetry", "Storage Blob Data Reader"),
        ("insights", "Monitoring Metrics Publisher"),
        ("target", "Monitoring Reader"),
        ("bus", "Monitoring Reader"),
        ("bus::watched", "Azure Service Bus Data Owner"),
        ("processing", "Azure Service Bus Data Sender"),
        ("working", "Azure Service Bus Data Receiver"),
        ("app::queues::arrivals", "Storage Queue Data Message Sender"),
        ("app::blobs::undelivered", "Storage Blob Data Contributor"),
        ("hubs::metrics", "Azure Event Hubs Data Receiver"),
    }
