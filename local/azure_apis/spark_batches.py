"""Livy batches, as served by Livy itself, Synapse and Fabric.

Livy: livy.apache.org/docs/latest/rest-api.html; SessionManager.register refuses a second batch
with the same name.
Synapse: learn.microsoft.com/rest/api/synapse/data-plane/spark-batch.
Fabric: microsoft/fabric-samples, docs-samples/data-engineering/Livy-API-swagger/swagger.json.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal

from local.azure_apis.loopback_server import HOST, LoopbackServer, Reply, Request
from local.clock import Clock, utc_now

Flavour = Literal["livy", "old livy", "synapse", "fabric"]
"""An old Livy accepts a second batch with the same name."""

FABRIC_PATH = "/v1/workspaces/w/lakehouses/l/livyapi/versions/2023-12-01"
LIVY = re.compile(r"/livy/batches(?:/([0-9]+))?")
PATHS: Mapping[Flavour, re.Pattern[str]] = {
    "livy": LIVY,
    "old livy": LIVY,
    "synapse": re.compile(r"/livyApi/versions/[^/]+/sparkPools/\w+/batches(?:/([0-9]+))?"),
    "fabric": re.compile(FABRIC_PATH + r"/batches(?:/([0-9a-f-]+))?"),
}
CREATED: Mapping[Flavour, int] = {"livy": 201, "old livy": 201, "synapse": 200, "fabric": 202}
ENDED = ("success", "dead", "error", "killed")
PAGE_SIZE = 20
"""Livy's page size if the request names none."""


@dataclass(slots=True)
class StandInBatch:
    id: int | str
    request: dict[str, Any]
    state: str = "starting"
    result: str = "Uncertain"
    app_info: dict[str, str] | None = None
    log: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    before_livy: dict[str, str] | None = None
    """Fabric's state of a batch that was not yet passed to Livy."""


class BatchStandIn(LoopbackServer):
    """Serves batches. Tests change ``batches`` as a cluster would."""

    def __init__(self, flavour: Flavour = "livy", *, port: int = 0, clock: Clock = utc_now) -> None:
        super().__init__(port=port, clock=clock)
        self.flavour: Flavour = flavour
        self.batches: dict[str, StandInBatch] = {}
        self._ids = count()
        """Ids for Livy and Synapse. The id of a deleted batch is not reused."""

    @property
    def livy_url(self) -> str:
        path = FABRIC_PATH if self.flavour == "fabric" else "/livy"
        return f"http://{HOST}:{self.port}{path}"

    def unauthorized(self, reason: str) -> Reply:
        return Reply(401, json.dumps({"msg": reason}))

    def handle(self, request: Request) -> Reply:
        match = PATHS[self.flavour].fullmatch(request.path)
        if not match:
            return Reply(404, '{"msg": "no such path"}')
        if match[1] is None:
            return self._create(request) if request.method == "POST" else self._list(request)
        batch = self.batches.get(match[1])
        if batch is None:
            return Reply(404, json.dumps({"msg": f"Session '{match[1]}' not found."}))
        if request.method == "DELETE":
            return self._delete(batch)
        return Reply(200, json.dumps(self._shown(batch)))

    def _create(self, request: Request) -> Reply:
        if "x-requested-by" not in request.headers and "livy" in self.flavour:
            return Reply(400, '"Missing Required Header for CSRF protection."')
        body = json.loads(request.body)
        if not body.get("file"):
            return Reply(400, '{"msg": "requirement failed: File is required."}')
        names = [batch.request.get("name") for batch in self.batches.values()]
        if self.flavour == "livy" and body.get("name") in names:
            return Reply(400, json.dumps({"msg": f"Duplicate session name: {body['name']}"}))
        batch = self.add(body)
        return Reply(CREATED[self.flavour], json.dumps(self._shown(batch)))

    def add(self, request: dict[str, Any]) -> StandInBatch:
        name = str(uuid.uuid4()) if self.flavour == "fabric" else next(self._ids)
        return self.batches.setdefault(str(name), StandInBatch(name, request))

    def _list(self, request: Request) -> Reply:
        """Fabric returns no total by default, and may return nothing else if asked for it."""
        first, number = ("$skip", "$top") if self.flavour == "fabric" else ("from", "size")
        start, size = (int(request.query.get(k, d)) for k, d in ((first, 0), (number, PAGE_SIZE)))
        shown = [self._shown(batch) for batch in self.batches.values()]
        page = shown[start : start + size]
        if self.flavour == "fabric":
            items = [{"id": b["id"], "name": b["name"], "livyState": b["state"]} for b in page]
            return Reply(200, json.dumps({"items": items, "pageSize": len(items)}))
        return Reply(200, json.dumps({"from": start, "total": len(shown), "sessions": page}))

    def _delete(self, batch: StandInBatch) -> Reply:
        """Livy forgets a deleted batch. The others keep it as killed, unless it had ended."""
        if "livy" not in self.flavour and batch.state in ENDED:
            return Reply(200)
        if "livy" not in self.flavour:
            batch.state, batch.result = "killed", "Cancelled"
            return Reply(200)
        del self.batches[str(batch.id)]
        return Reply(200, '{"msg": "deleted"}')

    def _shown(self, batch: StandInBatch) -> dict[str, Any]:
        shown = {
            "id": batch.id,
            "name": batch.request.get("name"),
            "state": batch.state,
            "appId": f"application_{batch.id}",
            "appInfo": batch.app_info,
            "log": batch.log,
        }
        if "livy" not in self.flavour:
            errors = [
                {"message": text, "errorCode": "E", "source": "User"} for text in batch.errors
            ]
            shown |= {"result": batch.result, "errorInfo": errors}
            shown |= {"fabricBatchStateInfo": batch.before_livy}
        return shown
