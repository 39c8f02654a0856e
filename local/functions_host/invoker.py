"""One invocation from call to outputs: time limit, outcome, counts and the line that is logged."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from local.functions_host.functions import Function
from local.functions_host.logs import log_event
from local.functions_host.outputs import OutputFailed, Outputs
from local.functions_host.worker import Invocation, Outcome, Worker


@dataclass(frozen=True, slots=True)
class InvocationCounts:
    """Invocations that ended, and how many of them failed."""

    invocations: int = 0
    failures: int = 0

    def after(self, *, succeeded: bool) -> "InvocationCounts":
        """These counts and one invocation more."""
        return InvocationCounts(self.invocations + 1, self.failures + (not succeeded))


INTERRUPT_SECONDS_MAX = 10.0
"""A function that does not end although it is cancelled is left behind after this time."""


class Invoker:
    """Calls functions and writes their outputs."""

    def __init__(self, worker: Worker, outputs: Outputs, timeout_seconds: float | None) -> None:
        self._worker = worker
        self._outputs = outputs
        self._timeout_seconds = timeout_seconds
        self._counts: dict[str, InvocationCounts] = {}
        self._running: set[asyncio.Task[Outcome]] = set()
        self._interrupted = False

    @property
    def counts(self) -> Mapping[str, InvocationCounts]:
        """Ended invocations by function; a function that never ran is absent."""
        return MappingProxyType(self._counts)

    async def invoke(self, function: Function, invocation: Invocation) -> Outcome:
        """Call a function and write its outputs. Errors come back in the result.

        Raises CancelledError where `interrupt` ends the invocation.
        """
        answer = await self._begin(function, invocation)
        before = self._counts.get(function.name, InvocationCounts())
        self._counts[function.name] = before.after(succeeded=answer.succeeded)
        if not answer.succeeded:
            _log_failure(function, invocation, answer)
        return answer

    async def interrupt(self) -> None:
        """Cancel every invocation, also each that would begin later, and wait for their ends."""
        self._interrupted = True
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running, timeout=INTERRUPT_SECONDS_MAX)

    def _begin(self, function: Function, invocation: Invocation) -> asyncio.Task[Outcome]:
        """In a task of its own, so that `interrupt` reaches it whoever waits for it."""
        task = asyncio.create_task(self._answer(function, invocation))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        if self._interrupted:
            task.cancel()
        return task

    async def _answer(self, function: Function, invocation: Invocation) -> Outcome:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                answer = await self._worker.call(function.id, invocation)
                if answer.succeeded:
                    await self._outputs.write(function, answer)
                return answer
        except TimeoutError:
            return Outcome(False, error=f"exceeded functionTimeout, {self._timeout_seconds:g} s")
        except OutputFailed as error:
            return Outcome(False, error=str(error))


def _log_failure(function: Function, invocation: Invocation, answer: Outcome) -> None:
    log_event(
        logging.ERROR,
        "invocation_failed",
        f"{function.name} failed: {answer.error}",
        function=function.name,
        invocation_id=invocation.id,
        error=answer.error,
        traceback=answer.traceback or None,
    )
