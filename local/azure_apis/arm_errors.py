"""Error replies of Azure Resource Manager, with the bodies that the real service sends.

There are two forms. ARM itself answers `{"error": {"code", "message"}}`. The App Service behind it
answers `{"Code", "Message", "Details": [... "ErrorEntity"]}`, which the SDK does not parse: the
exception's `error` is None, and the code must be taken from the body. Example:
Azure/azure-sdk-for-java issue 1827. Refusals of the second form name quotas and limits, with any
status, even 401.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from local.azure_apis.loopback_server import Fault, Reply

PUT = frozenset({"PUT"})
ANOTHER_OPERATION_CODE = "59205"


def front_door_error(
    status: int, code: str, message: str, headers: Mapping[str, str] | None = None
) -> Reply:
    body = {"error": {"code": code, "message": message}}
    return Reply(status, json.dumps(body), headers=headers or {})


def app_service_error(
    status: int,
    code: str,
    template: str,
    parameters: tuple[str, ...] = (),
    extended_code: str | None = None,
) -> Reply:
    message = template.format(*parameters)
    entity: dict[str, Any] = {
        "MessageTemplate": template,
        "Parameters": list(parameters),
        "Code": code,
        "Message": message,
    }
    if extended_code is not None:
        entity = {"ExtendedCode": extended_code} | entity
    body = {
        "Code": code,
        "Message": message,
        "Target": None,
        "Details": [{"Message": message}, {"Code": code}, {"ErrorEntity": entity}],
        "Innererror": None,
    }
    return Reply(status, json.dumps(body))


def another_operation(operation_id: str, created: datetime) -> Reply:
    """409: App Service runs only one change of a plan at a time."""
    details = (
        f"Id: {operation_id}, OperationName: Update, "
        f"CreatedTime: {created:%m/%d/%Y %I:%M:%S %p}, RequestId: {operation_id}, EntityType: 9"
    )
    return app_service_error(
        409,
        "Conflict",
        "Cannot modify this web hosting plan because another operation is in progress. "
        "Details: {0}",
        (details,),
        ANOTHER_OPERATION_CODE,
    )


def not_enough_instances(free: int) -> Reply:
    """429: App Service has fewer free instances than were asked for, and says how many.
    https://techcommunity.microsoft.com/blog/appsonazureblog/4469680
    """
    return app_service_error(
        429,
        "TooManyRequests",
        "Not enough available reserved instance servers to satisfy this request. Currently {0} "
        "instances are available. If you are changing instance size you can reserve up to {0} "
        "instances at this moment. If you are increasing instance count then you can add extra {0} "
        "instances at this moment. Please get available machines and retry later.",
        (str(free),),
    )


def bad_capacity(capacity: object, capacity_max: int) -> Reply:
    return app_service_error(
        400,
        "BadRequest",
        "The number of workers {0} is not valid. It must be between 1 and {1}.",
        (str(capacity), str(capacity_max)),
    )


def workers_exceed_maximum() -> Reply:
    """409, although nothing is in progress: the tier cannot have that many instances."""
    return app_service_error(
        409,
        "Conflict",
        "Number of Web workers exceeds the maximum allowed for the hosting plan.",
        extended_code="03002",
    )


def too_few_for_zones(fewest: int, capacity: int) -> Reply:
    return app_service_error(
        400,
        "BadRequest",
        "App Service Plans with fewer than {0} workers are not allowed for zone redundancy. "
        "Requested number of workers: {1}.",
        (str(fewest), str(capacity)),
    )


def quota_exceeded(limit: int, required: int, tier: str = "PremiumV3") -> Reply:
    """401, although the token is valid: the quota of the subscription in this region is used up."""
    return app_service_error(
        401,
        "Unauthorized",
        "Operation cannot be completed without additional quota. \r\nAdditional details - "
        "Location:  \r\nCurrent Limit ({0} VMs): {1} \r\nCurrent Usage: {1}\r\nAmount required for "
        "this deployment ({0} VMs): {2} \r\n(Minimum) New Limit that you should request to enable "
        "this deployment: {2}. ",
        (tier, str(limit), str(required)),
    )


def region_without_quota() -> Reply:
    return app_service_error(
        401,
        "Unauthorized",
        "This region has quota of 0 instances for your subscription. Try selecting different "
        "region or SKU.",
    )


def too_many_scale_changes(count: int, limit: int, status: int = 409) -> Reply:
    """Its status is not documented."""
    return app_service_error(
        status,
        "Conflict",
        "You have exceeded the maximum amount of scale changes within the past hour({0} changes "
        "and limit is {1}). Please retry later.",
        (str(count), str(limit)),
    )


def scope_locked(scope: str, lock_scope: str) -> Reply:
    """409, although nothing is in progress: a read-only lock."""
    return front_door_error(
        409,
        "ScopeLocked",
        f"The scope '{scope}' cannot perform write operation because following scope(s) are "
        f"locked: '{lock_scope}'. Please remove the lock and try again.",
    )


def disallowed_by_policy(name: str, policy: str) -> Reply:
    """403, although the role is sufficient: a policy of the organization."""
    info = {"policyAssignmentDisplayName": policy, "policyAssignmentName": "a1b2c3"}
    error = {
        "code": "RequestDisallowedByPolicy",
        "target": name,
        "message": f"Resource '{name}' was disallowed by policy. See error details for policy "
        "resource IDs.",
        "additionalInfo": [{"type": "PolicyViolation", "info": info}],
    }
    return Reply(403, json.dumps({"error": error}))


def may_not_join(plan: str, environment: str) -> Reply:
    return front_door_error(
        403,
        "LinkedAuthorizationFailed",
        "The client has permission to perform action 'Microsoft.Web/serverfarms/write' on scope "
        f"'{plan}'; however, it does not have permission to perform action "
        f"'Microsoft.Web/hostingEnvironments/join/action' on the linked scope(s) '{environment}' "
        "or the linked scope(s) are invalid.",
    )


def disabled_subscription(subscription: str, status: int = 409) -> Reply:
    return front_door_error(
        status,
        "ReadOnlyDisabledSubscription",
        f"The subscription '{subscription}' is disabled and therefore marked as read only. You "
        "cannot perform any write actions on this subscription until it is re-enabled.",
    )


def proxy_refusal(status: int) -> Reply:
    """The answer of a proxy between the app and Azure."""
    return Reply(status, "<html><body>Access denied by proxy</body></html>", "text/html")


def plan_not_found(name: str, resource_group: str) -> Reply:
    return front_door_error(
        404,
        "ResourceNotFound",
        f"The Resource 'Microsoft.Web/serverfarms/{name}' under resource group "
        f"'{resource_group}' was not found.",
    )


def operation_forbidden(path: str, kind: str) -> Reply:
    """403: a role on a plan can start an operation of the subscription, but not read it."""
    scope = path.rpartition("/")[0]
    return front_door_error(
        403,
        "AuthorizationFailed",
        "The client does not have authorization to perform action "
        f"'Microsoft.Web/locations/{kind}/read' over scope '{scope}'.",
    )


def bad_request(message: str) -> Reply:
    return front_door_error(400, "InvalidRequestContent", message)


def subscription_throttled(method: str, path: str, retry_after_seconds: int) -> Reply:
    """429: the caller sent more requests to the subscription than Resource Manager accepts."""
    parts = path.strip("/").split("/")
    kinds = "/".join(
        part for n, part in enumerate(parts) if n % 2 == 0 or parts[n - 1] == "providers"
    )
    return front_door_error(
        429,
        "SubscriptionRequestsThrottled",
        f"Number of requests for subscription '{parts[1]}' and operation "
        f"'{method}/{kinds.upper()}' exceeded the backend storage limit. Please try again after "
        f"'{retry_after_seconds}' seconds.",
        {"Retry-After": str(retry_after_seconds)},
    )


def may_not_list(what: str) -> Reply:
    return front_door_error(403, "AuthorizationFailed", f"no permission to list {what}")


def unauthorized(reason: str) -> Reply:
    return front_door_error(
        401,
        "AuthenticationFailed",
        f"Authentication failed. {reason}",
        {"WWW-Authenticate": 'Bearer error="invalid_token", error_description="no valid token"'},
    )


FORBIDDEN = Fault(
    front_door_error(
        403,
        "AuthorizationFailed",
        "The client does not have authorization to perform action on this scope.",
    )
)
NOT_FOUND = Fault(front_door_error(404, "ResourceNotFound", "The Resource was not found."))
SERVER_ERROR = Fault(front_door_error(500, "InternalServerError", "There was an unexpected error."))
ANOTHER_OPERATION = Fault(
    another_operation("00000000-0000-0000-0000-000000000000", datetime(2026, 1, 1)),  # noqa: DTZ001
    methods=PUT,
)
NO_INSTANCES = Fault(
    app_service_error(
        409,
        "Conflict",
        "No available instances to satisfy this request. App Service is attempting to increase "
        "capacity. Please retry your request later.",
    ),
    methods=PUT,
)


def throttled(retry_after_seconds: int) -> Fault:
    """429: the subscription sent too many requests."""
    return Fault(
        front_door_error(
            429,
            "SubscriptionRequestsThrottled",
            f"Number of requests exceeded the limit. Try again after {retry_after_seconds} s.",
            {
                "Retry-After": str(retry_after_seconds),
                "x-ms-ratelimit-remaining-subscription-writes": "0",
            },
        )
    )
