"""What answers of Azure Resource Manager mean: refusals by their bodies, and plans."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from local.azure_apis import arm_errors
from local.azure_apis.loopback_server import Reply
from local.azure_apis.plans import EP1, F1, FC1, I1V2, P1V3, S1, Y1, Plan, Sku
from shared.autoscaling import Limits
from shared.autoscaling.plan_facts import PlanFacts, of_fields
from shared.autoscaling.plans.answers import autoscale_of, facts_of, refusal
from tests.autoscaling.services.test_azure_adapters import ID

ROLE = "Microsoft.Web/serverfarms/write"
LOCK_SCOPE = "/subscriptions/1/resourceGroups/group-1"
ENVIRONMENT = "/subscriptions/1/resourceGroups/g/providers/Microsoft.Web/hostingEnvironments/ase"
LOCKED = arm_errors.scope_locked(str(ID), LOCK_SCOPE)
DENIED = arm_errors.disallowed_by_policy("plan-1", "Only small plans")


def of_arm(code: str, status: int, message: str = "no") -> Reply:
    return arm_errors.front_door_error(status, code, message)


def of_app_service(status: int, message: str) -> Reply:
    return arm_errors.app_service_error(status, "Conflict", message)


def wrapped(inner: Reply, status: int) -> Reply:
    """The answer of a service that repeats another one's as text."""
    return arm_errors.front_door_error(status, "ResourceOperationFailure", inner.body)


def detailed(inner: Reply, status: int) -> Reply:
    error = {"code": "MultipleErrorsOccurred", "details": [json.loads(inner.body)["error"]]}
    return Reply(status, json.dumps({"error": error}))


def policies_in_text(name: str) -> Reply:
    listed = json.dumps([{"policyAssignment": {"name": name, "id": "/x"}}])
    return of_arm("RequestDisallowedByPolicy", 403, f"disallowed. Policy identifiers: '{listed}'.")


OLD_FORM = Reply(401, '[{"Message": "no"}, {"Code": "Unauthorized"}, {"ErrorEntity": {}}]')


@pytest.mark.parametrize(
    ("reply", "final", "advice"),
    [
        (arm_errors.quota_exceeded(5, 6), True, "quota or limit"),
        (arm_errors.region_without_quota(), True, "quota or limit"),
        (of_app_service(403, "cannot be completed without additional quota."), True, "quota"),
        (of_app_service(429, "cannot be completed without additional quota."), True, "quota"),
        (of_arm("SubscriptionIsOverQuotaForSku", 409), True, "quota or limit"),
        (of_arm("QuotaExceeded", 429), True, "quota or limit"),
        (of_app_service(401, "The limit of this region."), True, "quota or limit"),
        (OLD_FORM, True, "quota or limit"),
        (arm_errors.workers_exceed_maximum(), True, "cannot have this many"),
        (arm_errors.bad_capacity(40, 30), True, "cannot have this many"),
        (arm_errors.too_few_for_zones(2, 1), True, "raise the minimum"),
        (arm_errors.too_few_for_zones(3, 2), True, "raise the minimum"),
        (LOCKED, True, f"remove the lock on {LOCK_SCOPE}"),
        (replace(LOCKED, status=403), True, "remove the lock"),
        (of_arm("scopelocked", 409), True, "remove the lock on unnamed"),
        (wrapped(LOCKED, 400), True, f"remove the lock on {LOCK_SCOPE}"),
        (detailed(LOCKED, 409), True, f"remove the lock on {LOCK_SCOPE}"),
        (DENIED, True, "Azure Policy forbids it (Only small plans)"),
        (wrapped(DENIED, 400), True, "Azure Policy forbids it (Only small plans)"),
        (policies_in_text("deny-large"), True, "Azure Policy forbids it (deny-large)"),
        (of_arm("RequestDisallowedByPolicy", 403, "policyAssignment " * 5_000), True,
         "Azure Policy forbids it (unnamed)"),
        (of_arm("RequestDisallowedByPolicy", 403), True, "Azure Policy forbids it (unnamed)"),
        (arm_errors.may_not_join(str(ID), ENVIRONMENT), True,
         f"hostingEnvironments/join/action on {ENVIRONMENT}"),
        (of_arm("DenyAssignmentAuthorizationFailed", 403), True, "deny assignment"),
        (arm_errors.disabled_subscription("1"), True, "is disabled"),
        (arm_errors.disabled_subscription("1", 403), True, "is disabled"),
        (of_arm("SubscriptionNotFound", 404), True, "check the subscription ID"),
        (of_arm("InvalidAuthenticationTokenTenant", 401), True, "belongs to the plan's tenant"),
        (of_arm("AuthenticationFailed", 401), True, "belongs to the plan's tenant"),
        (Reply(401), True, "belongs to the plan's tenant"),
        (of_arm("AuthorizationFailed", 403), True, ROLE),
        (Reply(403, '{"error": "access denied"}'), True, ROLE),
        (Reply(403, "[[[[" * 9_000), True, ROLE),
        (arm_errors.plan_not_found("plan-1", "group-1"), True, "resource group group-1 contains"),
        (of_arm("ResourceGroupNotFound", 404), True, "resource group group-1 contains"),
        (arm_errors.bad_request("no"), True, ""),
        (arm_errors.ANOTHER_OPERATION.reply, False, ""),
        (arm_errors.NO_INSTANCES.reply, False, ""),
        (arm_errors.throttled(17).reply, False, ""),
        (arm_errors.SERVER_ERROR.reply, False, ""),
        (replace(LOCKED, status=500), False, ""),
        (replace(LOCKED, status=503), False, ""),
        (of_app_service(409, "Something else"), False, ""),
        (of_app_service(429, "Create operation is throttled for subscription 1."), False, ""),
    ],
)  # fmt: skip
def test_the_body_of_a_refusal_says_whether_a_retry_may_help_and_what_to_do(
    reply: Reply, final: bool, advice: str
) -> None:
    found = refusal(reply.status, reply.body, "group-1")
    assert (found.final, found.wait_seconds) == (final, None)
    assert advice in found.advice
    assert bool(advice) is bool(found.advice)
    assert "write on the plan" not in found.advice or advice == ROLE, "a role does not help"


@pytest.mark.parametrize("status", [400, 409, 429, 403])
@pytest.mark.parametrize("limit", [20, 40])
def test_too_many_changes_within_an_hour_are_waited_out_whatever_the_status(
    status: int, limit: int
) -> None:
    found = refusal(status, arm_errors.too_many_scale_changes(limit, limit, status).body, "g")
    assert not found.final
    assert found.wait_seconds == 300
    assert "within an hour" in found.advice


def shown(
    sku: Sku, capacity: int = 3, reported: Mapping[str, Any] | None = None, **properties: Any
) -> Any:
    plan = Plan(ID, capacity=capacity, sku=sku, properties=properties).to_json()
    return {**plan, "properties": {**plan["properties"], **(reported or {})}}


UNSTATED = {"maximumNumberOfWorkers": None}


@pytest.mark.parametrize(
    ("plan", "minimum", "maximum", "unscalable"),
    [
        (shown(S1), 1, 10, ""),
        (shown(S1, reported={"maximumNumberOfWorkers": 7}), 1, 7, ""),
        (shown(P1V3, reported=UNSTATED), 1, 30, ""),
        (shown(replace(S1, tier="BASIC"), reported=UNSTATED), 1, 3, ""),
        (shown(replace(S1, tier="PremiumV9"), reported=UNSTATED), 1, 100, ""),
        (shown(P1V3, reported={"maximumNumberOfWorkers": 0}), 1, 30, ""),
        (shown(P1V3, 12, reported={"maximumNumberOfWorkers": 10}), 1, 30, ""),
        (shown(S1, 12, reported={"maximumNumberOfWorkers": 10}), 1, 100, ""),
        (shown(P1V3, reported={"maximumNumberOfWorkers": "many"}), 1, 30, ""),
        (shown(P1V3, reported={"maximumNumberOfWorkers": True}), 1, 30, ""),
        (shown(I1V2, reported={"maximumNumberOfWorkers": 10**9}), 1, 1000, ""),
        (shown(P1V3, zoneRedundant=True), 2, 30, ""),
        (shown(P1V3, 1, zoneRedundant=True), 1, 30, ""),
        (shown(P1V3, reported={"zoneRedundant": "true"}), 1, 30, ""),
        (shown(EP1), 1, 100, "Azure itself scales this plan"),
        (shown(P1V3, elasticScaleEnabled=True), 1, 30, "Azure itself scales this plan"),
        (shown(Y1, 0), 1, 1, "Azure itself scales this plan"),
        (shown(FC1, 0), 1, 1, "Azure itself scales this plan"),
        (shown(F1, 1), 1, 1, "a plan of tier Free cannot be scaled"),
        ({"sku": None, "properties": []}, 1, 100, ""),
        ({}, 1, 100, ""),
    ],
)  # fmt: skip
def test_a_plan_says_which_capacities_it_can_have(
    plan: Mapping[str, Any], minimum: int, maximum: int, unscalable: str
) -> None:
    facts = facts_of(plan)
    assert (facts.minimum, facts.maximum) == (minimum, maximum)
    assert unscalable in facts.unscalable
    assert bool(unscalable) is bool(facts.unscalable)


def test_a_plan_names_its_environment_and_its_per_app_scaling() -> None:
    inside = shown(I1V2, hostingEnvironmentProfile={"id": ENVIRONMENT}, perSiteScaling=True)
    assert facts_of(inside).environment == ENVIRONMENT
    assert facts_of(inside).per_app
    assert facts_of(shown(S1)) == PlanFacts("Standard", maximum=10)


def setting(name: str, target: str, **changes: Any) -> dict[str, Any]:
    return {"name": name, "properties": {"targetResourceUri": target, "enabled": True, **changes}}


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        ({"value": [setting("a", str(ID).upper()), setting("b", f"{ID}/")]}, "a, b"),
        ({"value": [setting("a", str(ID), enabled=False)]}, ""),
        ({"value": [setting("a", f"{ID}-2"), None, {"properties": 1}]}, ""),
        ({"value": None}, ""),
        ([], ""),
        (None, ""),
    ],
)
def test_only_enabled_autoscale_settings_of_the_plan_itself_are_found(
    listed: object, names: str
) -> None:
    told = f"Azure Monitor scales this plan too, by its autoscale setting {names}"
    assert autoscale_of([{}, listed], str(ID)) == (told if names else "")


@pytest.mark.parametrize(
    ("facts", "declared", "limits"),
    [
        (PlanFacts(), Limits(1, 100), Limits(1, 100)),
        (PlanFacts(maximum=10), Limits(1, 40), Limits(1, 10)),
        (PlanFacts(maximum=3), Limits(5, 40), Limits(3, 3)),
        (PlanFacts(minimum=2), Limits(1, 5), Limits(2, 5)),
        (PlanFacts(minimum=2), Limits(1, 1), Limits(2, 2)),
    ],
)
def test_the_declared_limits_are_narrowed_to_what_the_plan_can_have(
    facts: PlanFacts, declared: Limits, limits: Limits
) -> None:
    assert facts.limits(declared) == limits
    assert facts.narrowed(declared).keys() == {
        *([limits.maximum] if declared.maximum > facts.maximum else []),
        *([limits.minimum] if declared.minimum < facts.minimum else []),
    }


@pytest.mark.parametrize(
    "given",
    [{"maximum": "10"}, {"minimum": True}, {"tier": 1}, {"minimum": 3, "maximum": 2},
     {"minimum": 0}, {"maximum": 10**9}],
)  # fmt: skip
def test_facts_that_cannot_be_right_are_refused(given: Mapping[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be|no range"):
        of_fields(given)
    assert of_fields({"maximum": 10, "of a later version": 1}) == PlanFacts(maximum=10)
