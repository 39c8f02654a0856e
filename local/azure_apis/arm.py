"""Azure Resource Manager (ARM): App Service Plans, their autoscale settings, metrics, and entities
of Service Bus.

A PUT answers 200 with the plan if the change is complete at once, else 202, and starts a
long-running operation. The client polls it in one of ARM's two forms, or reads the plan.
`Location` answers 202 while the operation runs and then 200 with the plan. `Azure-AsyncOperation`
always answers 200 with a status. Until the operation is done, GET of the plan returns the old
capacity and the `provisioningState` InProgress, and any other PUT on the plan is refused.
https://learn.microsoft.com/azure/azure-resource-manager/management/async-operations

A plan with `asyncScalingEnabled` fills in `pieces`. Its operation is canceled only by a PUT with
another `targetWorkerCount`. A PUT that repeats the `targetWorkerCount` of an earlier operation
starts that operation again, whatever its `sku.capacity` says.
https://learn.microsoft.com/azure/app-service/app-service-plan-manage

Each request takes a token of its subscription, for reads or for writes, and is refused with 429 if
there is none. Polls of an operation are reads.
"""

import json
import random
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from math import ceil
from typing import Any

from local.azure_apis import arm_errors
from local.azure_apis.limits import SUBSCRIPTION_READS, SUBSCRIPTION_WRITES, Bucket
from local.azure_apis.loopback_server import LoopbackServer, Reply, Request
from local.azure_apis.metrics import MetricsStandIn
from local.azure_apis.pages import page
from local.azure_apis.plans import Pieces, Plan, PlanId
from local.azure_apis.service_bus_resources import ServiceBusResources
from local.clock import Clock, utc_now

FINISHED_KEPT_MAX = 1_000
PUTS_KEPT_MAX = 10_000

_PLAN = re.compile(
    r"/subscriptions/([^/]+)/resourceGroups/([^/]+)/providers/Microsoft\.Web/serverfarms/([^/]+)",
    re.IGNORECASE,
)
_PLANS = re.compile(
    r"(/subscriptions/[^/]+)(/resourceGroups/[^/]+)?/providers/Microsoft\.Web/serverfarms",
    re.IGNORECASE,
)
_SUBSCRIPTION = re.compile(r"/subscriptions/([^/]+)(?:/.*)?", re.IGNORECASE)
_PERMISSIONS = re.compile(
    r"(/subscriptions/[^/]+/resourceGroups/[^/]+/providers/Microsoft\.Web/"
    r"(serverfarms|hostingEnvironments)/[^/]+)/providers/Microsoft\.Authorization/permissions",
    re.IGNORECASE,
)
_AUTOSCALE_SETTINGS = re.compile(
    r"/subscriptions/[^/]+/resourceGroups/[^/]+/providers/Microsoft\.Insights/autoscalesettings",
    re.IGNORECASE,
)
HOUR = timedelta(hours=1)
_OPERATION = re.compile(
    r"/subscriptions/[^/]+/providers/Microsoft\.Web/locations/[^/]+"
    r"/(operationresults|operations)/([^/]+)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class PutRecord:
    """One PUT of a plan that reached the server.

    `capacity` is the requested capacity; None if the body had none. `accepted` states whether the
    PUT took effect. `status` is the status that was sent; None if no reply was sent.
    """

    time: datetime
    plan: PlanId
    capacity: int | None
    accepted: bool
    status: int | None


@dataclass(frozen=True, slots=True)
class _Operation:
    id: str
    plan: Plan
    created: datetime
    done_at: datetime | None
    """None if it stands still and never ends."""
    start: int
    pieces: Pieces | None = None
    """None if the capacity changes at the end, and not in pieces."""

    def reached(self, now: datetime) -> int:
        """The capacity that the plan has at ``now``."""
        pieces, ordered = self.pieces, self.plan.capacity
        if pieces is None:
            return ordered if self.done_at is not None and self.done_at <= now else self.start
        seconds = (now - self.created).total_seconds()
        passed = int(seconds / pieces.seconds) if pieces.seconds else pieces.count(ordered)
        delta = abs(ordered - self.start)
        moved = min(pieces.size * min(passed, pieces.count(delta)), delta)
        return self.start + (moved if ordered > self.start else -moved)


class OperationForm(StrEnum):
    """The header of a 202 that names the address to poll."""

    LOCATION = "Location"
    ASYNC_OPERATION = "Azure-AsyncOperation"

    @property
    def path(self) -> str:
        return "operationresults" if self is OperationForm.LOCATION else "operations"

    @staticmethod
    def of(path: str) -> "OperationForm":
        return next(form for form in OperationForm if form.path == path.lower())


class RoleScope(IntEnum):
    """Where the caller has its role, which decides which lists of plans it may read."""

    PLAN = 0
    RESOURCE_GROUP = 1
    SUBSCRIPTION = 2


class ArmStandIn(LoopbackServer):
    """ARM on 127.0.0.1 for `WebSiteManagementClient`.

    `operation_seconds` is the duration of a change of a plan. `retry_after_seconds` is sent in
    answers to polls; the SDK treats 0 as absent and waits for its own `polling_interval` (30 s).
    `conflict_probability` is the share of PUTs that are refused as if another operation were
    running. `on_capacity_ordered` is called for every accepted capacity when it is accepted.
    """

    def __init__(
        self,
        plans: Iterable[Plan],
        *,
        port: int = 0,
        clock: Clock = utc_now,
        operation_seconds: float = 0.0,
        retry_after_seconds: int = 1,
        conflict_probability: float = 0.0,
        seed: int = 0,
        on_capacity_ordered: Callable[[PlanId, int], None] | None = None,
    ) -> None:
        super().__init__(port=port, clock=clock)
        self.operation_seconds = operation_seconds
        self.retry_after_seconds = retry_after_seconds
        self.conflict_probability = conflict_probability
        self._random = random.Random(seed)  # noqa: S311 - reproducible faults, not secrets
        self._on_capacity_ordered = on_capacity_ordered or (lambda _plan, _capacity: None)
        self._plans = {plan.id.key: plan for plan in plans}
        self.pieces = Pieces()
        """How plans with asynchronous scaling fill."""
        self.free: int | None = None
        """The free instances of the region, which other plans take at once. None: always enough."""
        self._running: dict[str, _Operation] = {}
        self._finished: OrderedDict[str, PlanId] = OrderedDict()
        self._puts: deque[PutRecord] = deque(maxlen=PUTS_KEPT_MAX)
        self._operation_count = 0
        self.operation_form = OperationForm.LOCATION
        self.may_read_operations = True
        """Operations belong to the subscription. A caller whose role is on the plan may not."""
        self.metrics = MetricsStandIn()
        self.service_bus = ServiceBusResources()
        self.permissions: list[dict[str, list[str]]] | None = [{"actions": ["*"], "notActions": []}]
        """What the caller may do. None: the caller may not even list its permissions."""
        self.may_join_environments = True
        self.autoscale_settings: list[dict[str, Any]] | None = []
        """The autoscale settings of each resource group. None: the caller may not list them."""
        self.quota = 1_000
        """The most instances that the subscription may have in a region."""
        self.scale_changes_max = 1_000
        """The most changes of the capacity of one plan within an hour."""
        self.lock_scope = ""
        """The scope of a read-only lock, which refuses all changes; empty if there is none."""
        self.policy = ""
        """The name of a policy that refuses all changes; empty if there is none."""
        self._scale_changes: dict[str, deque[datetime]] = {}
        self.role_scope = RoleScope.SUBSCRIPTION
        self.left_out_of_lists: set[PlanId] = set()
        """Plans that lists leave out."""
        self.limits = {"reads": SUBSCRIPTION_READS, "writes": SUBSCRIPTION_WRITES}
        """The limits of each subscription."""
        self._buckets: dict[tuple[str, str], Bucket] = {}

    @property
    def puts(self) -> tuple[PutRecord, ...]:
        """Every PUT of a plan, oldest first: accepted, refused or without a reply."""
        return tuple(self._puts)

    def plan(self, plan: PlanId) -> Plan:
        """The plan as GET would return it now. KeyError if it does not exist."""
        self._settle(self.clock())
        return self._plans[plan.key]

    def set_capacity_by_hand(self, plan: PlanId, capacity: int) -> None:
        """Change a plan at once, like an operator would. A running operation is cut short."""
        self._settle(self.clock())
        if cut := self._running.pop(plan.key, None):
            self._finished[cut.id] = plan
        self._plans[plan.key] = replace(self._plans[plan.key], capacity=capacity)
        self._on_capacity_ordered(plan, capacity)

    def unauthorized(self, reason: str) -> Reply:
        return arm_errors.unauthorized(reason)

    def handle(self, request: Request) -> Reply:
        match = _SUBSCRIPTION.fullmatch(request.path)
        if match is None:
            return self._handled(request)
        kind = "reads" if request.method == "GET" else "writes"
        key = (match[1].lower(), kind)
        bucket = self._buckets.setdefault(key, Bucket(self.limits[kind], request.time))
        seconds = bucket.seconds_until_taken(request.time)
        reply = (
            arm_errors.subscription_throttled(request.method, request.path, ceil(seconds))
            if seconds
            else self._handled(request)
        )
        remaining = {f"x-ms-ratelimit-remaining-subscription-{kind}": str(int(bucket.tokens))}
        return replace(reply, headers={**reply.headers, **remaining})

    def _handled(self, request: Request) -> Reply:
        self._settle(request.time)
        if reply := self.metrics.reply(request) or self.service_bus.reply(request):
            return reply
        if match := _PLAN.fullmatch(request.path):
            return self._on_plan(request, PlanId(*match.groups()))
        if request.method != "GET":
            return _method_not_allowed(request.method)
        if match := _PLANS.fullmatch(request.path):
            return self._list(request, RoleScope(1 if match[2] else 2))
        if match := _PERMISSIONS.fullmatch(request.path):
            return self._permissions(joins="hostingenvironments" in match[1].lower())
        if _AUTOSCALE_SETTINGS.fullmatch(request.path):
            return self._autoscale(request)
        if match := _OPERATION.fullmatch(request.path):
            return self._poll(request, OperationForm.of(match[1]), match[2])
        return arm_errors.front_door_error(
            404, "InvalidResourceType", f"No such path: {request.path}"
        )

    def observe(self, request: Request, done: Reply | None, sent: Reply | None) -> None:
        match = _PLAN.fullmatch(request.path)
        if request.method != "PUT" or match is None:
            return
        record = PutRecord(
            time=request.time,
            plan=PlanId(*match.groups()),
            capacity=_capacity_asked(request.body),
            accepted=done is not None and done.is_success,
            status=None if sent is None else sent.status,
        )
        self._puts.append(record)

    def _permissions(self, *, joins: bool) -> Reply:
        excluded = {"actions": ["*/read"], "notActions": []}
        return _listed(
            "permissions",
            [excluded] if joins and not self.may_join_environments else self.permissions,
        )

    def _autoscale(self, request: Request) -> Reply:
        """A page of the autoscale settings."""
        if self.autoscale_settings is None:
            return _listed("autoscale settings", None)
        url = f"{self.base_url}{request.path}"
        some, next_url = page(self.autoscale_settings, request.query, url)
        return Reply(200, json.dumps({"value": some, "nextLink": next_url}))

    def _on_plan(self, request: Request, plan: PlanId) -> Reply:
        if request.method == "GET":
            return self._get(plan)
        if request.method == "PUT":
            return self._put(request, plan)
        return _method_not_allowed(request.method)

    def _list(self, request: Request, scope: RoleScope) -> Reply:
        if self.role_scope < scope:
            return arm_errors.may_not_list("plans")
        inside = request.path.lower().removesuffix("/providers/microsoft.web/serverfarms") + "/"
        left_out = {plan.key for plan in self.left_out_of_lists}
        found = [key for key in self._plans if key.startswith(inside) and key not in left_out]
        try:
            some, next_url = page(found, request.query, f"{self.base_url}{request.path}")
        except ValueError as error:
            return arm_errors.bad_request(f"The query is not valid: {error}")
        value = [self._shown(self._plans[key].id) for key in some]
        return Reply(200, json.dumps({"value": value, "nextLink": next_url}))

    def _get(self, plan: PlanId) -> Reply:
        if plan.key not in self._plans:
            return arm_errors.plan_not_found(plan.name, plan.resource_group)
        return Reply(200, json.dumps(self._shown(plan)))

    def _shown(self, plan: PlanId) -> dict[str, Any]:
        operation = self._running.get(plan.key)
        if operation is None:
            return self._plans[plan.key].to_json()
        shown = self._plans[plan.key].to_json(operation.plan.capacity)
        if operation.pieces is not None and operation.pieces.shows_ordered:
            shown["sku"]["capacity"] = operation.plan.capacity
        return shown

    def _put(self, request: Request, plan: PlanId) -> Reply:
        """Refuse, or start an operation. As in Azure, PUT creates a plan that does not exist."""
        try:
            body = json.loads(request.body)
            requested = self._plans.get(plan.key, Plan(plan)).put(body)
            if requested.scales_asynchronously and requested.target:
                requested = replace(requested, capacity=requested.target)
        except (ValueError, AttributeError, TypeError):
            return arm_errors.bad_request("The request content was invalid.")
        refusal = (
            self._refusal(request, requested)
            or self._limit(request, requested)
            or self._scarcity(requested)
        )
        if refusal is not None:
            return refusal
        running = self._running.get(plan.key)
        if running is None or requested.target not in (0, running.plan.capacity):
            running = self._start(request, requested)
        self._on_capacity_ordered(requested.id, running.plan.capacity)
        self._settle(request.time)
        if requested.id.key not in self._running:
            return self._get(requested.id)
        return self._accepted(request, running)

    def _refusal(self, request: Request, requested: Plan) -> Reply | None:
        running = self._running.get(requested.id.key)
        if running is not None and running.pieces is None:
            return arm_errors.another_operation(running.id, running.created)
        if self._random.random() < self.conflict_probability:
            return arm_errors.another_operation("someone-else", request.time)
        if self.lock_scope:
            return arm_errors.scope_locked(str(requested.id), self.lock_scope)
        if self.policy:
            return arm_errors.disallowed_by_policy(requested.id.name, self.policy)
        if requested.environment and not self.may_join_environments:
            return arm_errors.may_not_join(str(requested.id), requested.environment)
        # The exact type is checked because bool is a subclass of int.
        if type(requested.capacity) is not int or requested.capacity < 1:
            return arm_errors.bad_capacity(requested.capacity, requested.capacity_max)
        return None

    def _scarcity(self, requested: Plan) -> Reply | None:
        """The refusal if too few instances are free; otherwise it takes those that are needed."""
        more = requested.capacity - self._plans.get(requested.id.key, requested).capacity
        if self.free is None or requested.scales_asynchronously:
            return None
        if more > self.free:
            return arm_errors.not_enough_instances(self.free)
        self.free -= more
        return None

    def _limit(self, request: Request, requested: Plan) -> Reply | None:
        """The refusal of a capacity that the plan, the region or the last hour does not allow."""
        if requested.capacity > requested.capacity_max:
            return arm_errors.workers_exceed_maximum()
        if requested.capacity < requested.capacity_min:
            return arm_errors.too_few_for_zones(requested.capacity_min, requested.capacity)
        if requested.capacity > self.quota:
            return arm_errors.quota_exceeded(self.quota, requested.capacity, requested.sku.tier)
        changes = self._scale_changes.setdefault(requested.id.key, deque())
        while changes and changes[0] <= request.time - HOUR:
            changes.popleft()
        if len(changes) >= self.scale_changes_max:
            return arm_errors.too_many_scale_changes(len(changes), self.scale_changes_max)
        present = self._plans.get(requested.id.key)
        if present is None or present.capacity != requested.capacity:
            changes.append(request.time)
        return None

    def _start(self, request: Request, requested: Plan) -> _Operation:
        self._operation_count += 1
        start = self._plans.setdefault(requested.id.key, replace(requested, capacity=0)).capacity
        pieces = self.pieces if requested.scales_asynchronously else None
        seconds, ends = self.operation_seconds, True
        if pieces is not None:
            change = abs(requested.capacity - start)
            seconds = pieces.count(change) * pieces.seconds
            ends = pieces.ends_short or pieces.count(change) * pieces.size >= change
        done_at = request.time + timedelta(seconds=seconds) if ends else None
        name = f"{self._operation_count:08d}"
        operation = _Operation(name, requested, request.time, done_at, start, pieces)
        self._running[requested.id.key] = operation
        return operation

    def _settle(self, now: datetime) -> None:
        """Apply every operation that is due by now."""
        for key, operation in list(self._running.items()):
            reached = operation.reached(now)
            if operation.done_at is None or operation.done_at > now:
                if reached != self._plans[key].capacity:
                    self._plans[key] = replace(self._plans[key], capacity=reached)
                continue
            del self._running[key]
            pieces, properties = operation.pieces, dict(operation.plan.properties)
            keeps = pieces is not None and pieces.keeps_target
            properties["targetWorkerCount"] = operation.plan.capacity if keeps else 0
            self._plans[key] = replace(operation.plan, capacity=reached, properties=properties)
            self._finished[operation.id] = operation.plan.id
        while len(self._finished) > FINISHED_KEPT_MAX:
            self._finished.popitem(last=False)

    def _poll(self, request: Request, form: OperationForm, operation_id: str) -> Reply:
        if not self.may_read_operations:
            return arm_errors.operation_forbidden(request.path, form.path)
        running = {operation.id: operation for operation in self._running.values()}
        finished = operation_id in self._finished
        if form is OperationForm.ASYNC_OPERATION and (finished or operation_id in running):
            return _status(request.path, operation_id, "Succeeded" if finished else "InProgress")
        if finished:
            return self._get(self._finished[operation_id])
        if operation_id in running:
            return self._accepted(request, running[operation_id])
        return arm_errors.front_door_error(404, "NotFound", f"No operation {operation_id}")

    def _accepted(self, request: Request, operation: _Operation) -> Reply:
        location = operation.plan.location.replace(" ", "").lower()
        api_version = request.query.get("api-version", "2025-05-01")
        url = (
            f"{self.base_url}/subscriptions/{operation.plan.id.subscription}/providers"
            f"/Microsoft.Web/locations/{location}/{self.operation_form.path}/{operation.id}"
            f"?api-version={api_version}"
        )
        headers = {self.operation_form: url, "Retry-After": str(self.retry_after_seconds)}
        return Reply(202, json.dumps(self._shown(operation.plan.id)), headers=headers)


def _capacity_asked(body: bytes) -> int | None:
    try:
        capacity = json.loads(body)["sku"]["capacity"]
    except (ValueError, KeyError, TypeError):
        return None
    return capacity if isinstance(capacity, int) else None


def _status(path: str, operation_id: str, status: str) -> Reply:
    return Reply(200, json.dumps({"id": path, "name": operation_id, "status": status}))


def _listed(what: str, values: list[Any] | None) -> Reply:
    if values is None:
        return arm_errors.may_not_list(what)
    return Reply(200, json.dumps({"value": values}))


def _method_not_allowed(method: str) -> Reply:
    return arm_errors.front_door_error(405, "MethodNotAllowed", f"{method} is not supported here")
