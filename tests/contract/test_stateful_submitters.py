"""Random jobs, submitted in memory and to services of Spark batches, give the same answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import count
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, multiple, rule

from local.azure_apis.loopback_server import Fault as HttpFault
from local.azure_apis.loopback_server import Reply
from local.azure_apis.spark_batches import BatchStandIn, Flavour
from local.twins.nightly import MemorySubmitter
from shared.trends.nightly.errors import JobRefused, JobUnavailable
from shared.trends.nightly.model import Job, JobPhase, JobStatus, Submission
from shared.trends.submitters.batches import BatchSubmitter
from shared.trends.submitters.livy import FabricClient, LivyClient, SynapseClient
from tests.contract.faulty_network import Network
from tests.contract.stateful import HOSTILE, Both, SideBySide, run_machine

REQUEST = {"file": "abfss://jobs@account.dfs.core.windows.net/event_trends.py"}
POST = frozenset({"POST"})
NO_ANSWER = Reply(503, "")
FAULTS: Mapping[str, HttpFault] = {
    "lost": HttpFault(NO_ANSWER, does_work=True, methods=POST),
    "not done": HttpFault(NO_ANSWER, methods=POST),
    "list unavailable": HttpFault(NO_ANSWER, methods=frozenset({"GET"})),
}
TOKENS = st.sampled_from(("t1", "t2", "t3", *HOSTILE[:2]))
ENDED = (JobPhase.FAILED, JobPhase.GONE)
UNKNOWN = Both("nobody", "4711")
FINAL = {"success": JobPhase.SUCCEEDED, "dead": JobPhase.FAILED}
STATES = {"starting": JobPhase.PENDING, "running": JobPhase.RUNNING, **FINAL}


async def headers() -> Mapping[str, str]:
    return {"Authorization": "Basic eDp5"}


def client_of(flavour: Flavour, service: BatchStandIn) -> LivyClient:
    if flavour == "synapse":
        return SynapseClient(service.base_url, "pool", REQUEST)
    kind = FabricClient if flavour == "fabric" else LivyClient
    return kind(service.livy_url, REQUEST, headers)


def shown(status: JobStatus) -> Any:
    """The phase without the texts, which differ between services.

    Livy deletes a batch that was cancelled, and the other services keep it as failed. Both phases
    count as the same.
    """
    return "gone or failed" if status.phase in ENDED else status.phase


class SubmittersMachine(SideBySide):
    errors = (JobRefused, JobUnavailable)
    submissions = Bundle("submissions")

    def __init__(
        self, runner: asyncio.Runner, network: Network, service: BatchStandIn, real: BatchSubmitter
    ) -> None:
        super().__init__(runner, network)
        self.memory, self.service, self.real = MemorySubmitter(), service, real
        service.batches.clear()
        self.prefix, self.cancelled = f"{next(EXAMPLES)}-", set[str]()

    @rule(target=submissions, token=TOKENS, fault=st.sampled_from((None, None, None, *FAULTS)))
    def submit(self, token: str, fault: str | None) -> Any:
        job = Job(f"{self.prefix}{token}", ("--date", "2026-02-28"))
        if job.token in self.cancelled:  # Livy has deleted it
            return multiple()
        submitted_before = job.token in self.memory.jobs
        if fault is None:
            submissions = self.both(
                lambda: self.memory.submit(job),
                lambda: self.real.submit(job),
                shown=lambda _submission: None,
            )
            assert submissions is not None
            return Both(submissions.memory.handle, submissions.real.handle)
        self.service.fail_next(FAULTS[fault])
        answer = self.run(lambda: self._answer(lambda: self.real.submit(job)))
        self.service.stop_failing()
        if submitted_before and fault != "list unavailable":
            assert isinstance(answer.value, Submission), "the run was found by its token"
        else:
            assert answer.error is JobUnavailable, answer
        if fault == "lost":
            self.run(lambda: self.memory.submit(job))
        return multiple()

    @rule(handle=submissions | st.just(UNKNOWN))
    def status(self, handle: Both[Any]) -> None:
        self.both(
            lambda: self.memory.status(handle.memory),
            lambda: self.real.status(handle.real),
            shown=shown,
        )

    @rule(handle=submissions | st.just(UNKNOWN))
    def cancel(self, handle: Both[Any]) -> None:
        self.cancelled.add(handle.memory)
        self.both(lambda: self.memory.cancel(handle.memory), lambda: self.real.cancel(handle.real))
        self.status(handle)

    @rule(handle=submissions, state=st.sampled_from(tuple(STATES)))
    def the_service_goes_on(self, handle: Both[Any], state: str) -> None:
        """Move a job that has not ended to another state."""
        now = self.memory.statuses[handle.memory].phase
        batch = self.service.batches.get(handle.real)
        if batch is not None and now in (JobPhase.PENDING, JobPhase.RUNNING):
            batch.state = state
            self.memory.statuses[handle.memory] = JobStatus(STATES[state])

    def teardown(self) -> None:
        """Assert that no token was started twice."""
        names = [batch.request["name"] for batch in self.service.batches.values()]
        own = [name for name in names if name.startswith(self.prefix)]
        assert len(own) == len(set(own)), own


EXAMPLES = count()


@pytest.mark.parametrize("flavour", ["livy", "synapse", "fabric"])
def test_jobs_are_submitted_like_those_in_memory(flavour: Flavour) -> None:
    network = Network()
    service = BatchStandIn(flavour)
    with asyncio.Runner() as runner:
        runner.run(service.__aenter__())
        real = BatchSubmitter(client_of(flavour, service))
        try:
            run_machine(lambda: SubmittersMachine(runner, network, service, real), examples=20)
        finally:
            runner.run(real.close())
            runner.run(service.__aexit__())
