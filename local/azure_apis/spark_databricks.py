"""Databricks Jobs: one-time runs, as in docs.databricks.com/api/azure/workspace/jobs/submit."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from local.azure_apis.loopback_server import HOST, LoopbackServer, Reply, Request

TOKEN_LENGTH_MAX = 64


@dataclass(slots=True)
class StandInRun:
    id: int
    request: dict[str, Any]
    life_cycle_state: str = "PENDING"
    result_state: str = ""
    state_message: str = ""
    error: str = ""
    logs: str = ""


class DatabricksStandIn(LoopbackServer):
    """Serves one-time runs. Tests change ``runs`` as a workspace would."""

    def __init__(self, *, port: int = 0) -> None:
        super().__init__(port=port)
        self.runs: dict[int, StandInRun] = {}

    @property
    def host(self) -> str:
        return f"http://{HOST}:{self.port}"

    def unauthorized(self, reason: str) -> Reply:
        return refused(401, "UNAUTHENTICATED", reason)

    def handle(self, request: Request) -> Reply:
        match request.method, request.path.partition("/jobs/runs/")[2]:
            case "POST", "submit":
                return self._submit(json.loads(request.body))
            case "GET", "get":
                return self._with(request.query["run_id"], self._shown)
            case "GET", "get-output":
                return self._with(request.query["run_id"], _output)
            case "POST", "cancel":
                return self._with(json.loads(request.body)["run_id"], self._cancelled)
        return refused(404, "ENDPOINT_NOT_FOUND", f"no API at {request.path}")

    def _submit(self, body: dict[str, Any]) -> Reply:
        token = body.get("idempotency_token", "")
        if len(token) > TOKEN_LENGTH_MAX:
            return refused(400, "INVALID_PARAMETER_VALUE", "idempotency_token: at most 64")
        same = [run for run in self.runs.values() if run.request["idempotency_token"] == token]
        run = same[0] if same else StandInRun(1000 + len(self.runs), body)
        self.runs[run.id] = run
        return Reply(200, json.dumps({"run_id": run.id}))

    def _with(self, run_id: object, answer: Any) -> Reply:
        run = self.runs.get(int(str(run_id)))
        if run is None:
            return refused(400, "INVALID_PARAMETER_VALUE", f"Run {run_id} does not exist.")
        return Reply(200, json.dumps(answer(run)))

    def _cancelled(self, run: StandInRun) -> dict[str, Any]:
        if run.life_cycle_state != "TERMINATED":
            run.life_cycle_state, run.result_state = "TERMINATED", "CANCELED"
        return {}

    def _shown(self, run: StandInRun) -> dict[str, Any]:
        state = {
            "life_cycle_state": run.life_cycle_state,
            "state_message": run.state_message,
            **({"result_state": run.result_state} if run.result_state else {}),
        }
        page = f"https://adb-1.azuredatabricks.net/?o=1#job/1/run/{run.id}"
        tasks = [{"task_key": "event_trends", "run_id": run.id, "state": state}]
        return {"run_id": run.id, "run_page_url": page, "state": state, "tasks": tasks}


def _output(run: StandInRun) -> dict[str, Any]:
    return {"error": run.error, "logs": run.logs}


def refused(status: int, code: str, message: str) -> Reply:
    return Reply(status, json.dumps({"error_code": code, "message": message}))
