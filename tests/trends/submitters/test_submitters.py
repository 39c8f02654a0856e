"""The contract of JobSubmitter: in memory, local processes, Livy, Synapse and Databricks.

The last three use their real clients, against stand-ins that follow the services' documentation.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol, cast

import pytest

from local.azure_apis.loopback_server import Fault, LoopbackServer, Reply
from local.azure_apis.spark_batches import BatchStandIn, Flavour
from local.azure_apis.spark_databricks import DatabricksStandIn
from local.twins.nightly import MemorySubmitter
from shared.sampling.unreadable import PREFIX
from shared.trends.nightly.model import (
    Job,
    JobPhase,
    JobRefused,
    JobStatus,
    JobSubmitter,
    JobUnavailable,
)
from shared.trends.submitters.databricks import DatabricksSubmitter
from shared.trends.submitters.livy import FabricSubmitter, LivySubmitter, SynapseSubmitter
from shared.trends.submitters.local import LocalSubmitter
from shared.trends.submitters.rest import TRIES

ARGUMENTS = ("--input", "abfss://x", "--date", "2026-02-28")
FILE = "abfss://jobs@account.dfs.core.windows.net/event_trends.py"
REQUEST = {"file": FILE, "pyFiles": ["abfss://x/y.zip"], "conf": {"spark.executor.cores": "4"}}
TASK = {"existing_cluster_id": "c-1", "spark_python_task": {"python_file": FILE}}
TIMEOUT_SECONDS = 20.0
SHORT_TIMEOUT_SECONDS = 1.0
"""Time limit of a request to a service that does not answer."""

SECONDS_MAX = 60.0

LOST = Fault(reply=None, does_work=True, methods=frozenset({"POST"}))


async def basic() -> Mapping[str, str]:
    return {"Authorization": "Basic eDp5"}


class Place(Protocol):
    """A submitter, and control over the jobs that it submitted."""

    @property
    def submitter(self) -> JobSubmitter: ...

    async def start(self) -> None: ...

    async def end(self, *, well: bool, last_line: str = "") -> None:
        """End all running jobs. ``last_line`` is the last line of their logs."""
        ...

    def submitted(self) -> list[tuple[str, tuple[str, ...]]]:
        """The names and arguments of the jobs that were started."""
        ...


class InMemory:
    def __init__(self) -> None:
        self.submitter = MemorySubmitter()

    async def start(self) -> None:
        self._say(JobStatus(JobPhase.RUNNING, "memory://log"))

    async def end(self, *, well: bool, last_line: str = "") -> None:
        phase = JobPhase.SUCCEEDED if well else JobPhase.FAILED
        warning = last_line.removeprefix(PREFIX)
        self._say(JobStatus(phase, "memory://log", "" if well else "no memory", warning))

    def _say(self, status: JobStatus) -> None:
        self.submitter.statuses = dict.fromkeys(self.submitter.statuses, status)

    def submitted(self) -> list[tuple[str, tuple[str, ...]]]:
        return [(job.token, job.arguments) for job in self.submitter.jobs.values()]


SCRIPT = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
with (folder / "submitted").open("a") as file:
    file.write(chr(31).join(sys.argv[2:]) + chr(10))
while not (folder / "verdict").exists():
    time.sleep(0.02)
verdict = (folder / "verdict").read_text()
print(verdict)
sys.exit(verdict == "no memory")
"""


class Processes:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        command = (sys.executable, "-S", "-c", SCRIPT, str(folder))
        self.submitter = LocalSubmitter(folder / "runs", command)

    async def start(self) -> None:
        """Processes start by themselves."""

    async def end(self, *, well: bool, last_line: str = "") -> None:
        temporary = self.folder / "verdict.new"
        temporary.write_text(last_line if well else "no memory")
        temporary.rename(self.folder / "verdict")

    def submitted(self) -> list[tuple[str, tuple[str, ...]]]:
        names = [run.name for run in (self.folder / "runs").iterdir()]
        lines = (self.folder / "submitted").read_text().splitlines()
        return [(name, tuple(line.split("\x1f"))) for name, line in zip(names, lines, strict=True)]


class Batches:
    def __init__(self, server: BatchStandIn, submitter: JobSubmitter) -> None:
        self.server, self.submitter = server, submitter

    async def start(self) -> None:
        for batch in self.server.batches.values():
            batch.state, batch.app_info = "running", {"driverLogUrl": "https://driver/log"}

    async def end(self, *, well: bool, last_line: str = "") -> None:
        for batch in self.server.batches.values():
            batch.state = "success" if well else "dead"
            batch.result = "Succeeded" if well else "Failed"
            batch.errors = [] if well else ["LIVY_JOB_STATE_DEAD"]
            batch.log = ["stderr: ", last_line, ""] if well else ["no memory"]

    def show(self, state: str, result: str) -> None:
        for batch in self.server.batches.values():
            batch.state, batch.result = state, result

    def submitted(self) -> list[tuple[str, tuple[str, ...]]]:
        requests = [batch.request for batch in self.server.batches.values()]
        assert all(request.items() >= REQUEST.items() for request in requests)
        return [(request["name"], tuple(request["args"])) for request in requests]


class Databricks:
    def __init__(self, server: DatabricksStandIn, submitter: JobSubmitter) -> None:
        self.server, self.submitter = server, submitter

    async def start(self) -> None:
        for run in self.server.runs.values():
            run.life_cycle_state = "RUNNING"

    async def end(self, *, well: bool, last_line: str = "") -> None:
        for run in self.server.runs.values():
            run.logs = f"2017-05-12 …\n{last_line}\n"
            run.life_cycle_state, run.result_state = "TERMINATED", "SUCCESS" if well else "FAILED"
            run.state_message, run.error = "Workload failed", "" if well else "no memory"

    def show(self, state: str, result: str) -> None:
        for run in self.server.runs.values():
            run.life_cycle_state, run.result_state = state, result

    def submitted(self) -> list[tuple[str, tuple[str, ...]]]:
        runs = []
        for run in self.server.runs.values():
            (task,) = run.request["tasks"]
            assert task["existing_cluster_id"] == "c-1"
            assert task["spark_python_task"]["python_file"] == FILE
            parameters = tuple(task["spark_python_task"]["parameters"])
            runs.append((run.request["idempotency_token"], parameters))
        return runs


async def remote(
    kind: str, stack: AsyncExitStack, timeout_seconds: float = TIMEOUT_SECONDS
) -> Batches | Databricks:
    if kind == "databricks":
        server = await stack.enter_async_context(DatabricksStandIn())
        submitter = DatabricksSubmitter(server.host, TASK, timeout_seconds)
        stack.push_async_callback(submitter.close)
        return Databricks(server, submitter)
    batches = await stack.enter_async_context(BatchStandIn(cast("Flavour", kind)))
    client: Any = (
        SynapseSubmitter(batches.base_url, "pool1", REQUEST, timeout_seconds)
        if kind == "synapse"
        else (FabricSubmitter if kind == "fabric" else LivySubmitter)(
            f"{batches.livy_url}/batches", REQUEST, basic, timeout_seconds
        )
    )
    stack.push_async_callback(client.close)
    return Batches(batches, client)


@pytest.fixture(
    params=["memory", "processes", "livy", "old livy", "synapse", "fabric", "databricks"]
)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    async with AsyncExitStack() as stack:
        if request.param == "memory":
            yield InMemory()
        elif request.param == "processes":
            processes = Processes(tmp_path)
            yield processes
            await processes.end(well=True)
        else:
            yield await remote(request.param, stack)


@pytest.fixture(params=["livy", "old livy", "synapse", "fabric", "databricks"])
async def far(request: pytest.FixtureRequest) -> AsyncIterator[Batches | Databricks]:
    async with AsyncExitStack() as stack:
        yield await remote(request.param, stack)


async def phase(place: Place, handle: str, expected: JobPhase) -> JobStatus:
    deadline = time.monotonic() + SECONDS_MAX
    while (status := await place.submitter.status(handle)).phase is not expected:
        assert time.monotonic() < deadline, status
        await asyncio.sleep(0.02)
    return status


async def test_a_job_runs_with_its_arguments_and_reports_data_that_it_could_not_read(
    place: Place,
) -> None:
    submission = await place.submitter.submit(Job("run-1", ARGUMENTS))
    await place.start()
    running = await phase(place, submission.handle, JobPhase.RUNNING)
    assert "://" in running.log_url
    await place.end(well=True, last_line=f"{PREFIX}2 dates of files")
    done = await phase(place, submission.handle, JobPhase.SUCCEEDED)
    assert (done.error, done.warning) == ("", "2 dates of files")
    assert place.submitted() == [("run-1", ARGUMENTS)]


async def test_a_failed_run_has_its_error_and_the_url_of_its_log(place: Place) -> None:
    submission = await place.submitter.submit(Job("run-1", ARGUMENTS))
    await place.end(well=False)
    failed = await phase(place, submission.handle, JobPhase.FAILED)
    assert "no memory" in failed.error
    assert "://" in failed.log_url


async def test_the_same_token_never_starts_a_second_run(place: Place) -> None:
    first = await place.submitter.submit(Job("run-1", ARGUMENTS))
    assert await place.submitter.submit(Job("run-1", ARGUMENTS)) == first
    await place.start()
    await place.end(well=True)
    done = await phase(place, first.handle, JobPhase.SUCCEEDED)
    assert done.warning == ""
    again = await place.submitter.submit(Job("run-1", ARGUMENTS))
    assert again.handle == first.handle
    assert place.submitted() == [("run-1", ARGUMENTS)]
    other = await place.submitter.submit(Job("run-2", ARGUMENTS))
    assert other.handle != first.handle


async def test_a_cancelled_run_ends_and_may_be_cancelled_again(place: Place) -> None:
    submission = await place.submitter.submit(Job("run-1", ARGUMENTS))
    await place.submitter.cancel(submission.handle)
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        status = await place.submitter.status(submission.handle)
        if status.phase in (JobPhase.FAILED, JobPhase.GONE):
            break
        assert time.monotonic() < deadline, status
    await place.submitter.cancel(submission.handle)


async def test_an_unknown_run_is_gone(place: Place) -> None:
    assert (await place.submitter.status("424242")).phase is JobPhase.GONE


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_service_is_asked_a_few_times_and_again_later(
    far: Batches | Databricks, status: int
) -> None:
    far.server.fail_next(Fault(Reply(status, "busy", headers={"Retry-After": "0"})), times=50)
    with pytest.raises(JobUnavailable, match=f"{status} busy"):
        await far.submitter.submit(Job("run-1", ARGUMENTS))
    far.server.requests.clear()
    with pytest.raises(JobUnavailable, match=f"{status} busy"):
        await far.submitter.status("1")
    assert len(far.server.requests) == TRIES
    far.server.stop_failing()
    await far.submitter.submit(Job("run-1", ARGUMENTS))
    assert len(far.submitted()) == 1


@pytest.mark.parametrize("kind", ["livy", "old livy", "synapse", "fabric", "databricks"])
async def test_a_lost_reply_does_not_start_a_second_run(kind: str) -> None:
    async with AsyncExitStack() as stack:
        far = await remote(kind, stack, SHORT_TIMEOUT_SECONDS)
        far.server.fail_next(LOST)
        with pytest.raises(JobUnavailable):
            await far.submitter.submit(Job("run-1", ARGUMENTS))
        far.server.stop_failing()
        submission = await far.submitter.submit(Job("run-1", ARGUMENTS))
        assert far.submitted() == [("run-1", ARGUMENTS)]
        assert (await far.submitter.status(submission.handle)).phase is JobPhase.PENDING


@pytest.mark.parametrize("status", [400, 401, 403])
async def test_a_refusal_contains_the_message_of_the_service(
    far: Batches | Databricks, status: int
) -> None:
    body = '{"error_code": "PERMISSION_DENIED", "message": "not yours", "msg": "not yours"}'
    far.server.fail_next(Fault(Reply(status, body), methods=frozenset({"POST"})))
    with pytest.raises(JobRefused, match="not yours"):
        await far.submitter.submit(Job("run-1", ARGUMENTS))


async def test_an_unreachable_service_is_asked_again_later(far: Batches | Databricks) -> None:
    server: LoopbackServer = far.server
    await server.__aexit__()
    with pytest.raises(JobUnavailable):
        await far.submitter.status("1")
    await server.__aenter__()


@pytest.mark.parametrize("kind", ["old livy", "synapse", "fabric"])
async def test_an_earlier_batch_is_found_on_a_later_page(kind: str) -> None:
    async with AsyncExitStack() as stack:
        far = await remote(kind, stack)
        assert isinstance(far, Batches)
        for n in range(205):
            far.server.add({"name": f"other-{n}"})
        first = await far.submitter.submit(Job("run-1", ARGUMENTS))
        assert await far.submitter.submit(Job("run-1", ARGUMENTS)) == first


async def test_a_fabric_batch_that_ends_before_livy_knows_of_it_has_failed() -> None:
    async with AsyncExitStack() as stack:
        far = await remote("fabric", stack)
        assert isinstance(far, Batches)
        submission = await far.submitter.submit(Job("run-1", ARGUMENTS))
        (batch,) = far.server.batches.values()
        batch.state = "not_submitted"
        assert (await far.submitter.status(submission.handle)).phase is JobPhase.PENDING
        batch.before_livy = {"state": "error", "errorMessage": "no capacity left"}
        status = await far.submitter.status(submission.handle)
    assert status.phase is JobPhase.FAILED
    assert "no capacity left" in status.error


async def test_a_killed_process_has_failed_even_for_a_host_that_starts_later(
    tmp_path: Path,
) -> None:
    processes = Processes(tmp_path)
    await processes.submitter.submit(Job("run-1", ARGUMENTS))
    later = LocalSubmitter(tmp_path / "runs")
    assert (await later.status("run-1")).phase is JobPhase.RUNNING
    os.killpg(int((tmp_path / "runs/run-1/started").read_text()), signal.SIGKILL)
    await phase(processes, "run-1", JobPhase.FAILED)
    assert "ended without an exit code" in (await later.status("run-1")).error


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (("sh", "-c", "kill -9 $$"), r"\Athe job ended \(signal 9\)(\nKilled)?\Z"),
        (("no-such-command",), "no-such-command"),
    ],
)
async def test_an_error_names_the_signal_or_command_that_ended_the_job(
    tmp_path: Path, command: tuple[str, ...], error: str
) -> None:
    processes = Processes(tmp_path)
    processes.submitter = LocalSubmitter(tmp_path, command)
    await processes.submitter.submit(Job("run-1", ()))
    assert re.search(error, (await phase(processes, "run-1", JobPhase.FAILED)).error.strip())


PHASES: dict[str, dict[JobPhase, tuple[tuple[str, str], ...]]] = {
    "synapse": {
        JobPhase.PENDING: (("not_started", "uncertain"), ("starting", "")),
        JobPhase.RUNNING: (("running", "uncertain"), ("busy", ""), ("state of 2031", "")),
        JobPhase.SUCCEEDED: (("success", "succeeded"),),
        JobPhase.FAILED: (
            *(("dead", "failed"), ("killed", "cancelled")),
            *(("idle", "failed"), ("idle", "cancelled")),
        ),
    },
    "databricks": {
        JobPhase.PENDING: (("", ""), ("queued", ""), ("blocked", "")),
        JobPhase.RUNNING: (
            *(("waiting_for_retry", ""), ("terminating", "success"), ("state of 2031", "")),
        ),
        JobPhase.SUCCEEDED: (("terminated", "success"),),
        JobPhase.FAILED: (
            *(("skipped", ""), ("terminated", "timedout"), ("internal_error", "")),
            ("terminated", "result of 2031"),
        ),
    },
}
"""The phases of the states and results of a run."""


@pytest.mark.parametrize("change", [str.lower, str.upper, str.title])
@pytest.mark.parametrize("kind", PHASES)
async def test_the_state_of_a_run_is_known_in_each_spelling(
    kind: str, change: Callable[[str], str]
) -> None:
    async with AsyncExitStack() as stack:
        far = await remote(kind, stack)
        handle = (await far.submitter.submit(Job("run-1", ARGUMENTS))).handle
        for expected, states in PHASES[kind].items():
            for state, result in states:
                far.show(change(state), change(result))
                assert (await far.submitter.status(handle)).phase is expected, (state, result)


WAIT = {"Retry-After": "0"}


@pytest.mark.parametrize(
    ("status", "headers", "method", "sent"),
    [
        *[(429, WAIT, "POST", 2), (429, WAIT, "GET", 2), (503, WAIT, "GET", 2)],
        (503, WAIT, "POST", 1),  # a gateway may have passed the request on
        *[(429, {"Retry-After": "3600"}, "GET", 1), (429, {}, "GET", 1), (500, WAIT, "GET", 1)],
    ],
)
async def test_a_request_is_repeated_only_if_the_service_asks_for_it_and_time_is_left(
    far: Batches | Databricks, status: int, headers: Mapping[str, str], method: str, sent: int
) -> None:
    handle = (await far.submitter.submit(Job("run-1", ARGUMENTS))).handle
    far.server.requests.clear()
    busy = Reply(status, "busy", headers=headers)
    far.server.fail_next(Fault(busy, methods=frozenset({method})))
    call = far.submitter.status(handle) if method == "GET" else _submitted_anew(far)
    if sent == 1:
        with pytest.raises(JobUnavailable, match=f"{status} busy"):
            await call
    else:
        await call
    requests = [each for each in far.server.requests if each.method == method]
    assert len([each for each in requests if each.path == requests[0].path]) == sent


async def _submitted_anew(far: Batches | Databricks) -> None:
    await far.submitter.submit(Job("run-2", ARGUMENTS))


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (Reply(200, "<html>proxy</html>", "text/html"), "not JSON: '<html>proxy</html>'"),
        (Reply(200, "[1]"), "has no '(run_)?id'"),
        (Reply(200, '{"name": "x"}'), "has no '(run_)?id'"),
        (Reply(200, ""), "has no '(run_)?id'"),
    ],
)
async def test_an_answer_that_is_not_one_of_the_service_is_told(
    far: Batches | Databricks, reply: Reply, told: str
) -> None:
    far.server.fail_next(Fault(reply, methods=frozenset({"POST"})))
    with pytest.raises(JobUnavailable, match=told):
        await far.submitter.submit(Job("run-1", ARGUMENTS))
    far.server.fail_next(Fault(reply))
    with pytest.raises(JobUnavailable, match=told):
        await far.submitter.status("1")


async def test_an_answer_without_end_is_not_read_to_its_end(
    far: Batches | Databricks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.trends.submitters.rest.ANSWER_BYTES_MAX", 1000)
    far.server.fail_next(Fault(Reply(200, " " * 1001)))
    with pytest.raises(JobUnavailable, match="over 1000 bytes"):
        await far.submitter.status("1")


async def test_a_run_of_another_service_is_gone_for_databricks() -> None:
    async with AsyncExitStack() as stack:
        far = await remote("databricks", stack)
        assert (await far.submitter.status("event-trends-1")).phase is JobPhase.GONE
        await far.submitter.cancel("event-trends-1")
