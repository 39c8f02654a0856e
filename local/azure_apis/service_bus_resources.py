"""Queues, topics and subscriptions of Service Bus namespaces as Azure Resource Manager shows them.

Only GET of one entity and of a list is supported. A slash in a name is written as a tilde.
https://learn.microsoft.com/rest/api/servicebus/controlplane-stable/subscriptions/get
https://learn.microsoft.com/rest/api/servicebus/controlplane-stable/queues/list-by-namespace
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from local.azure_apis import arm_errors
from local.azure_apis.entities import Entity, EntityCounts, Kind
from local.azure_apis.loopback_server import Reply, Request
from local.azure_apis.service_bus_admin import ServiceBusAdminStandIn

_NAMESPACE = (
    r"(/subscriptions/[^/]+/resourceGroups/[^/]+/providers/Microsoft\.ServiceBus/namespaces/[^/]+)"
)
_ENTITY = re.compile(
    rf"{_NAMESPACE}/(?:queues|topics)/([^/]+(?:/subscriptions/[^/]+)?)", re.IGNORECASE
)
_LIST = re.compile(rf"{_NAMESPACE}/(?:(queues|topics)|topics/([^/]+)/subscriptions)", re.IGNORECASE)


class ServiceBusResources:
    """The entities of namespaces, by the resource ID of the namespace."""

    def __init__(self) -> None:
        self._namespaces: dict[str, ServiceBusAdminStandIn] = {}
        self.readable = True
        """Whether the caller has a role with `Microsoft.ServiceBus/namespaces/*/read`."""
        self.throttled_seconds: int | None = None

    def add(self, namespace_id: str, namespace: ServiceBusAdminStandIn) -> None:
        self._namespaces[namespace_id.lower()] = namespace

    def reply(self, request: Request) -> Reply | None:
        """The answer to a request for an entity or a list; None if the request is another one."""
        listed = _LIST.fullmatch(request.path)
        match = listed or _ENTITY.fullmatch(request.path)
        if match is None or request.method != "GET":
            return None
        if not self.readable:
            return arm_errors.front_door_error(
                403, "AuthorizationFailed", "no Microsoft.ServiceBus/namespaces/topics/read"
            )
        if self.throttled_seconds is not None:
            headers = {"Retry-After": str(self.throttled_seconds)}
            return arm_errors.front_door_error(429, "SubscriptionRequestsThrottled", "", headers)
        namespace = self._namespaces.get(match[1].lower())
        if namespace is None:
            return arm_errors.front_door_error(404, "ResourceNotFound", "No such namespace.")
        if listed is not None:
            return _list(request, namespace, listed[2], (listed[3] or "").replace("~", "/"))
        entity = namespace.described(match[2].replace("~", "/"))
        if entity is None:
            return arm_errors.front_door_error(
                404, "NotFound", f"The requested resource {match[2]} does not exist."
            )
        return Reply(200, json.dumps(_shown(request.path, entity)))


def _list(
    request: Request, namespace: ServiceBusAdminStandIn, name: str | None, topic: str
) -> Reply:
    kind = Kind.SUBSCRIPTION if name is None else Kind[name.upper().removesuffix("S")]
    url = f"https://{request.headers['host']}{request.path}"
    try:
        some, next_url = namespace.listed(kind, topic, request.query, url)
    except KeyError:
        return arm_errors.front_door_error(404, "NotFound", f"There is no topic {topic}.")
    except ValueError as error:
        return arm_errors.front_door_error(400, "BadRequest", f"The query is not valid: {error}")
    value = [_shown(f"{request.path}/{each.title.replace('/', '~')}", each) for each in some]
    return Reply(200, json.dumps({"value": value} | ({"nextLink": next_url} if next_url else {})))


def _shown(resource_id: str, entity: Entity) -> Mapping[str, Any]:
    properties: dict[str, Any] = {
        "status": entity.properties.get("Status", "Active"),
        "countDetails": _count_details(entity.counts),
    }
    if entity.kind is Kind.TOPIC:
        properties["subscriptionCount"] = entity.subscription_count
    else:
        properties["messageCount"] = entity.counts.total
    return {"id": resource_id, "name": entity.title, "properties": properties}


def _count_details(counts: EntityCounts) -> Mapping[str, int]:
    return {
        "activeMessageCount": counts.active,
        "deadLetterMessageCount": counts.dead_letter,
        "scheduledMessageCount": counts.scheduled,
        "transferMessageCount": counts.transfer,
        "transferDeadLetterMessageCount": counts.transfer_dead_letter,
    }
