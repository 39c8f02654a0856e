"""Says what answers of Azure Resource Manager mean: refusals by their bodies, and plans. Pure.

One status has many meanings: 401 may be a quota, 403 a policy, and 409 a lock. Resource Manager
answers ``{"error": {"code", "message"}}``, App Service ``{"Code", "Message", "Details"}``, and both
may wrap one into the other. So codes are searched anywhere in the body.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from shared.autoscaling.declaring import PLAN_CAPACITY_MAX
from shared.autoscaling.plan_facts import PlanFacts
from shared.values.measurements import CAPACITY_SANE_MAX
from shared.values.text import one_line

BODY_LENGTH_MAX, UNAUTHORIZED = 50_000, 401
SCALE_CHANGES_WAIT_SECONDS = 300

LOGIN = "the token was not accepted: check that the app's identity belongs to the plan's tenant"
ROLE = (
    "grant the app's identity Microsoft.Web/serverfarms/write on the plan; a new role takes effect "
    "within about ten minutes"
)
NAME = "check that resource group {group} contains a plan of exactly this name"
SUBSCRIPTION = "check the subscription ID, and that the app's identity belongs to its tenant"
DISABLED = "the subscription is disabled: its owner must enable it again. A role does not help"
QUOTA = (
    "a quota or limit of the subscription in this region, not the identity: request more of it, or "
    "lower the maximum"
)
POLICY = "Azure Policy forbids it ({}): ask its owner for an exemption. A role does not help"
DENIED = "a deny assignment forbids it: ask its owner. A role does not help"
LOCK = "a lock forbids changes: remove the lock on {}. A role does not help"
JOIN = "grant the app's identity {} on {}, too"
TOO_MANY = "the plan cannot have this many instances: lower the maximum, or choose a larger tier"
ZONES = "a zone-redundant plan needs more instances: raise the minimum"
CHANGES = "Azure limits the changes of a plan within an hour: the app tries again later"

QUOTED = r"\\*['\"]([^'\"\\]+)\\*['\"]"
CODE = re.compile(rf'"code\\*"\s*:\s*{QUOTED}', re.I)
BY_CODE = {
    "scopelocked": LOCK,
    "requestdisallowedbypolicy": POLICY,
    "linkedauthorizationfailed": JOIN,
    "denyassignmentauthorizationfailed": DENIED,
    "readonlydisabledsubscription": DISABLED,
    "subscriptionnotfound": SUBSCRIPTION,
    "invalidsubscriptionid": SUBSCRIPTION,
    "quotaexceeded": QUOTA,
    "subscriptionisoverquotaforsku": QUOTA,
    "internalsubscriptionisoverquotaforsku": QUOTA,
}
"""What codes mean, whatever the status. A retry is useless after each of them."""
NAMED = {
    LOCK: [rf"are locked: {QUOTED}"],
    POLICY: [
        rf'policyAssignmentDisplayName\\*"\s*:\s*{QUOTED}',
        rf'policyAssignment(?:Name)?\\*"\s*:\s*(?:\{{\s*\\*"name\\*"\s*:\s*)?{QUOTED}',
    ],
    JOIN: [rf"not have permission to perform action {QUOTED} on the linked scope\(s\) {QUOTED}"],
}
"""Where the body names what an advice is about. The first pattern that is found counts."""
BY_WORDS = {
    r"without additional quota|has quota of \d+": QUOTA,
    r"web workers exceeds the maximum|must be between \d+ and \d+": TOO_MANY,
    "not allowed for zone redundancy": ZONES,
}
"""The same for texts of App Service, whose codes are only names of statuses."""
BY_STATUS = {400: "", 401: LOGIN, 403: ROLE, 404: NAME}
"""Statuses after which a retry is useless, whatever the body. 409 usually means that another
operation is running, or that no instance is available at the moment."""


@dataclass(frozen=True, slots=True)
class RefusalMeaning:
    """What a refusal means, and what to do. If it is not ``final``, the app tries again. If
    ``wait_seconds`` is set, nothing was changed, and the next attempt is worthwhile after it."""

    advice: str = ""
    final: bool = True
    wait_seconds: float | None = None
    available: int | None = None
    """The number of further instances that can be had, if there are fewer than requested."""


def refusal(status: int | None, body: str, group: str) -> RefusalMeaning:
    """The meaning of an answer with this status and body."""
    if status is None or not 400 <= status < 500:  # the outcome is unknown, whatever the body says
        return RefusalMeaning(final=False)
    text = _plain(body)
    if re.search("maximum amount of scale changes", text, re.I):
        return RefusalMeaning(CHANGES, final=False, wait_seconds=SCALE_CHANGES_WAIT_SECONDS)
    if advice := _by_body(status, text):
        return RefusalMeaning(advice)
    if status in BY_STATUS:
        return RefusalMeaning(BY_STATUS[status].format(group=group))
    return RefusalMeaning(final=False, available=_available(text))


def _by_body(status: int, text: str) -> str:
    for words, advice in BY_WORDS.items():
        if re.search(words, text, re.I):
            return advice
    for code in CODE.findall(text):
        if advice := BY_CODE.get(code.lower(), ""):
            searches = (re.search(each, text, re.I) for each in NAMED.get(advice, ()))
            names = next((each.groups() for each in searches if each), ("unnamed", "unnamed"))
            return one_line(advice.format(*names))
    return QUOTA if status == UNAUTHORIZED and '"ErrorEntity"' in text else ""


def _plain(body: str) -> str:
    """The body without escaped characters, if it is JSON."""
    try:
        return json.dumps(json.loads(body[:BODY_LENGTH_MAX]), ensure_ascii=False)
    except (ValueError, RecursionError):
        return body[:BODY_LENGTH_MAX]


SCARCE = re.compile(r"not enough |no available instances", re.I)
NUMBER = r"(?<![-.0-9])([0-9]{1,5})(?!\.?[0-9])"
FREE = (
    re.compile(rf"\badd (?:an? |up to )?(?:extra |additional |more )?{NUMBER}", re.I),
    re.compile(rf"{NUMBER} (?:[a-z]+ ){{0,4}}available\b", re.I),
)
"""How App Service says how many instances are free, the number of further ones first:
https://techcommunity.microsoft.com/blog/appsonazureblog/4469680
"""


def _available(text: str) -> int | None:
    found = [match for form in FREE if (match := form.search(text))] if SCARCE.search(text) else []
    return int(found[0][1]) if found else None


ZONES_MIN = 2
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
It counts only if the plan does not state its own maximum."""
SINGLE = ("free", "shared")
SCALED_BY_AZURE = ("dynamic", "flexconsumption", "elasticpremium", "workflowstandard")


def facts_of(plan: Mapping[str, Any]) -> PlanFacts:
    """What a plan states. A property that is missing, or cannot be right, counts as not stated."""
    sku, properties = object_of(plan.get("sku")), object_of(plan.get("properties"))
    tier, capacity = one_line(sku.get("tier") or sku.get("name") or ""), sku.get("capacity")
    least = capacity if type(capacity) is int and capacity > 0 else 1
    stated = properties.get("maximumNumberOfWorkers")
    if type(stated) is not int or stated < least:
        stated = MAXIMUM_BY_TIER.get(tier.lower(), 0)
    environment = object_of(properties.get("hostingEnvironmentProfile")).get("id") or ""
    unscalable = ""
    if tier.lower() in SINGLE:
        unscalable = f"a plan of tier {tier} cannot be scaled"
    elif tier.lower() in SCALED_BY_AZURE:
        unscalable = f"Azure itself scales this plan (tier {tier})"
    elif properties.get("elasticScaleEnabled") is True:
        unscalable = "Azure itself scales this plan (automatic scaling is on)"
    return PlanFacts(
        tier=tier,
        minimum=min(ZONES_MIN, least) if properties.get("zoneRedundant") is True else 1,
        maximum=min(stated, CAPACITY_SANE_MAX) if stated >= least else PLAN_CAPACITY_MAX,
        unscalable=unscalable,
        per_app=properties.get("perSiteScaling") is True,
        environment=one_line(environment),
    )


def autoscale_of(pages: Iterable[object], plan_id: str) -> str:
    """Which of the listed autoscale settings of a resource group scale the plan; else empty."""
    lists, names = [object_of(page).get("value") for page in pages], []
    for each in map(object_of, chain(*[some for some in lists if isinstance(some, list)])):
        properties = object_of(each.get("properties"))
        target = str(properties.get("targetResourceUri") or "").rstrip("/")
        if properties.get("enabled") is not False and target.lower() == plan_id.lower():
            names.append(str(each.get("name") or "without a name"))
    told = "Azure Monitor scales this plan too, by its autoscale setting"
    return one_line(f"{told} {', '.join(sorted(names))}") if names else ""


def object_of(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
