"""Error replies of Azure Resource Manager, with the bodies that the real service sends.

There are two forms. ARM itself answers `{"error": {"code", "message"}}`. The App Service behind it
answers `{"Code", "Message", "Details": [... "ErrorEntity"]}`, which the SDK does not parse: the
exception's `error` is None, and the code must be taken from the body. Example:
Azure/azure-sdk-for-java issue 1827.
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
