"""Says what answers of Azure Resource Manager mean: refusals by their bodies, and plans. Pure.

One status has many meanings: 401 may be a quota, 403 a policy, and 409 a lock. Resource Manager
answers ``{"error": {"code", "message"}}``, App Service ``{"Code", "Message", "Details"}``, and both
may wrap one into the other. So codes are searched anywhere in the body.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.autoscaling.declaring import PLAN_CAPACITY_MAX
from shared.autoscaling.plan_facts import TEXT_LENGTH_MAX, PlanFacts
from shared.values.measurements import CAPACITY_SANE_MAX
from shared.values.text import one_line

BODY_LENGTH_MAX = 50_000
SCALE_CHANGES_WAIT_SECONDS = 300
"""The wait after Azure has refused a change because there were too many within an hour."""
CODE = re.compile(r'\\*"code\\*"\s*:\s*\\*"(\w+)', re.IGNORECASE)
QUOTED = r"\\*['\"]([^'\"\\]+)"
POLICIES = (
    re.compile(rf'"policyAssignmentDisplayName\\*"\s*:\s*{QUOTED}', re.IGNORECASE),
    re.compile(
        rf'"policyAssignment(?:Name)?\\*"\s*:\s*(?:\{{\s*\\*"name\\*"\s*:\s*)?{QUOTED}', re.I
    ),
)
LINKED = re.compile(
    rf"not have permission to perform action {QUOTED}\\*['\"] on the linked scope\(s\) {QUOTED}",
    re.IGNORECASE,
)
LOCKED = re.compile(rf"are locked: {QUOTED}", re.IGNORECASE)

TOKEN = "the token was not accepted: check that the app's identity belongs to the plan's tenant"
ROLE = (
    "grant the app's identity Microsoft.Web/serverfarms/write on the plan; a new role takes effect "
    "within about ten minutes"
)
NAME = "check that resource group {group} contains a plan of exactly this name"
SUBSCRIPTION = "check the subscription ID, and that the app's identity belongs to its tenant"
DISABLED = "the subscription is disabled: its owner must enable it again. A role does not help"
QUOTA = (
    "a quota or limit of the subscription in this region, not the identity: request a higher quota, "
    "or lower the maximum"
)
POLICY = (
    "Azure Policy forbids the change{name}: ask its owner for an exemption. A role does not help"
)
LOCK = "a lock forbids changes: remove the lock{name}. A role does not help"
DENIED = "a deny assignment forbids the change: ask its owner. A role does not help"
JOIN = "grant the app's identity {action} on {scope}, too"
TOO_MANY = "the plan cannot have this many instances: lower the maximum, or choose a larger tier"
ZONES = "a zone-redundant plan needs more instances: raise the minimum"
CHANGES = "Azure limits the changes of a plan within an hour: the app tries again later"
PROXY = "the answer is a web page, not that of Azure: a proxy may have answered"

BY_CODE: Mapping[str, str] = {
    "scopelocked": LOCK,
    "requestdisallowedbypolicy": POLICY,
    "linkedauthorizationfailed": JOIN,
    "denyassignmentauthorizationfailed": DENIED,
    "readonlydisabledsubscription": DISABLED,
    "subscriptionnotfound": SUBSCRIPTION,
    "invalidsubscriptionid": SUBSCRIPTION,
    "invalidauthenticationtokentenant": TOKEN,
    "quotaexceeded": QUOTA,
    "subscriptionisoverquotaforsku": QUOTA,
    "internalsubscriptionisoverquotaforsku": QUOTA,
}
"""What codes mean, whatever the status. A retry is useless after each of them."""
BY_WORDS = (
    (re.compile(r"without additional quota|has quota of \d+", re.IGNORECASE), QUOTA),
    (re.compile(r"web workers exceeds the maximum", re.IGNORECASE), TOO_MANY),
    (re.compile(r"not allowed for zone redundancy", re.IGNORECASE), ZONES),
)
"""The same for texts of App Service, whose codes are only names of statuses."""
SCALE_CHANGES = re.compile(r"maximum amount of scale changes", re.IGNORECASE)
BY_STATUS = {400: "", 401: TOKEN, 403: ROLE, 404: NAME}
"""Statuses after which a retry is useless, whatever the body. 409 is not one of them, because it
usually means that another operation is running, or that no instance is available at the moment.
"""


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a refusal means, and what to do. If it is not ``final``, the app tries again."""

    advice: str
    final: bool = True
    wait_seconds: float | None = None
    """The wait before the next attempt. If it is set, nothing was changed."""


def refusal(status: int, body: str, group: str) -> Refusal | None:
    """The meaning of an answer; None if it says no more than that the app must try again."""
    text = _plain(body)
    if text.startswith("<") and status in BY_STATUS:
        return Refusal(PROXY, final=False)
    if SCALE_CHANGES.search(text):
        return Refusal(CHANGES, final=False, wait_seconds=SCALE_CHANGES_WAIT_SECONDS)
    for words, advice in BY_WORDS:
        if words.search(text):
            return Refusal(advice)
    for code in CODE.findall(text):
        if advice := BY_CODE.get(code.lower(), ""):
            return Refusal(_named(advice, text))
    if status == 401 and '"ErrorEntity"' in text:
        return Refusal(QUOTA)
    if status not in BY_STATUS:
        return None
    return Refusal(BY_STATUS[status].format(group=group))


def _plain(body: str) -> str:
    """The body without escaped characters, if it is JSON."""
    start = body.lstrip("\ufeff \t\r\n")[:BODY_LENGTH_MAX]
    try:
        return json.dumps(json.loads(start), ensure_ascii=False)
    except (ValueError, RecursionError):
        return start


def _named(advice: str, text: str) -> str:
    """The advice with what the body names: the policy, the lock, or the action and its scope."""
    if advice is JOIN:
        linked = LINKED.search(text)
        action, scope = linked.groups() if linked else ("the action", "the scope that it names")
        return one_line(JOIN.format(action=action, scope=scope))
    patterns = POLICIES if advice is POLICY else (LOCKED,)
    found = (pattern.search(text) for pattern in patterns)
    name = next((each[1] for each in found if each), "")
    where = "" if not name else f" on {name}" if advice is LOCK else f" ({name})"
    return one_line(advice.format(name=where))


ZONE_REDUNDANT_CAPACITY_MIN = 2
"""https://learn.microsoft.com/azure/reliability/reliability-app-service; it was 3 before 2025."""
MAXIMUM_BY_TIER: Mapping[str, int] = {
    "basic": 3,
    "standard": 10,
    "premium": 20,
    "premiumv2": 30,
    "premiumv3": 30,
    "premiumv4": 30,
    "isolated": 100,
    "isolatedv2": 100,
}
"""https://learn.microsoft.com/azure/azure-resource-manager/management/azure-subscription-service-limits
It counts only if the plan does not state its own maximum.
"""
UNSCALABLE: Mapping[str, str] = {
    "free": "cannot be scaled: choose a larger tier",
    "shared": "cannot be scaled: choose a larger tier",
    "dynamic": "is scaled by Azure itself",
    "flexconsumption": "is scaled by Azure itself",
    "elasticpremium": "is scaled by Azure itself",
    "workflowstandard": "is scaled by Azure itself",
}


def facts_of(plan: Mapping[str, Any]) -> PlanFacts:
    """What a plan states. A property that is missing, or cannot be right, counts as not stated."""
    sku, properties = _object(plan, "sku"), _object(plan, "properties")
    tier, capacity = one_line(sku.get("tier") or sku.get("name") or ""), sku.get("capacity")
    least = capacity if type(capacity) is int and capacity > 0 else 1
    stated = properties.get("maximumNumberOfWorkers")
    if type(stated) is not int or stated < least:
        stated = MAXIMUM_BY_TIER.get(tier.lower(), 0)
    zones = properties.get("zoneRedundant") is True
    environment = _object(properties, "hostingEnvironmentProfile").get("id") or ""
    unscalable = UNSCALABLE.get(tier.lower(), "")
    text = f"a plan of tier {tier} {unscalable}" if unscalable else ""
    if properties.get("elasticScaleEnabled") is True and not text:
        text = "automatic scaling is on, so Azure scales the plan itself: turn it off, or pause"
    return PlanFacts(
        tier=tier,
        minimum=min(ZONE_REDUNDANT_CAPACITY_MIN, least) if zones else 1,
        maximum=min(stated, CAPACITY_SANE_MAX) if stated >= least else PLAN_CAPACITY_MAX,
        unscalable=text,
        per_app=properties.get("perSiteScaling") is True,
        environment=one_line(environment, TEXT_LENGTH_MAX),
    )


def autoscale_of(settings: object, plan_id: str) -> str:
    """The names of the enabled autoscale settings for the plan, from the list of a group."""
    listed = settings.get("value") if isinstance(settings, Mapping) else None
    names = []
    for each in listed if isinstance(listed, list) else ():
        properties = _object(each, "properties") if isinstance(each, Mapping) else {}
        target = str(properties.get("targetResourceUri") or "").rstrip("/")
        if properties.get("enabled") is not False and target.lower() == plan_id.lower():
            names.append(str(each.get("name") or "without a name"))
    return one_line(", ".join(sorted(names)), TEXT_LENGTH_MAX)


def _object(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = of.get(name)
    return value if isinstance(value, Mapping) else {}
