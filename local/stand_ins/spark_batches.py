"""Livy's batches, as Livy itself and as Synapse serve them.

Livy: livy.apache.org/docs/latest/rest-api.html; the refusal of a second batch of a name is that of
SessionManager.register. Synapse: learn.microsoft.com/rest/api/synapse/data-plane/spark-batch.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from local.stand_ins.loopback_server import HOST, Clock, LoopbackServer, Reply, Request, utc_now

LIVY = re.compile(r"/livy/batches(?:/(\d+))?")
SYNAPSE = re.compile(r"/livyApi/versions/[^/]+/sparkPools/\w+/batches(?:/(\d+))?")
PAGE_SIZE = 20
"""Of Livy where the request names none."""


@dataclass(slots=True)
class StandInBatch:
    id: int
    request: dict[str, Any]
    state: str = "starting"
    result: str = "Uncertain"
    app_info: dict[str, str] | None = None
    log: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class BatchStandIn(LoopbackServer):
    """``batches`` are changed by tests as a cluster would."""

    def __init__(
        self,
        *,
        synapse: bool = False,
        unique_names: bool = True,
        port: int = 0,
        clock: Clock = utc_now,
    ) -> None:
        super().__init__(port=port, clock=clock)
        self.synapse, self.unique_names = synapse, unique_names
        self.batches: dict[int, StandInBatch] = {}
        self._next_id = 0

    @property
    def livy_url(self) -> str:
        return f"http://{HOST}:{self.port}/livy"

    def unauthorized(self) -> Reply:
        return Reply(401, '{"msg": "credentials are missing"}')

    def handle(self, request: Request) -> Reply:
        found = (SYNAPSE if self.synapse else LIVY).fullmatch(request.path)
        if not found:
            return Reply(404, '{"msg": "no such path"}')
        if found[1] is None:
            return self._create(request) if request.method == "POST" else self._list(request)
        batch = self.batches.get(int(found[1]))
        if batch is None:
            return Reply(404, json.dumps({"msg": f"Session '{found[1]}' not found."}))
        if request.method == "DELETE":
            return self._delete(batch)
        return Reply(200, json.dumps(self._shown(batch)))

    def _create(self, request: Request) -> Reply:
        if "x-requested-by" not in request.headers and not self.synapse:
            return Reply(400, '"Missing Required Header for CSRF protection."')
        body = json.loads(request.body)
        if not body.get("file"):
            return Reply(400, '{"msg": "requirement failed: File is required."}')
        names = [batch.request.get("name") for batch in self.batches.values()]
        if self.unique_names and body.get("name") in names:
            return Reply(400, json.dumps({"msg": f"Duplicate session name: {body['name']}"}))
        batch = self.add(body)
        return Reply(200 if self.synapse else 201, json.dumps(self._shown(batch)))

    def add(self, request: dict[str, Any]) -> StandInBatch:
        batch = StandInBatch(self._next_id, request)
        self._next_id += 1
        self.batches[batch.id] = batch
        return batch

    def _list(self, request: Request) -> Reply:
        start, size = (int(request.query.get(k, d)) for k, d in (("from", 0), ("size", PAGE_SIZE)))
        shown = [self._shown(batch) for batch in self.batches.values()]
        page = {"from": start, "total": len(shown), "sessions": shown[start : start + size]}
        return Reply(200, json.dumps(page))

    def _delete(self, batch: StandInBatch) -> Reply:
        """Livy forgets a deleted batch, Synapse keeps it as killed."""
        if self.synapse:
            batch.state, batch.result = "killed", "Cancelled"
            return Reply(200)
        del self.batches[batch.id]
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
        if self.synapse:
            errors = [
                {"message": text, "errorCode": "E", "source": "User"} for text in batch.errors
            ]
            shown |= {"result": batch.result, "errorInfo": errors}
        return shown
