"""Runs one invocation: time limit, outcome, counts, and a log line for a failure."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from local.functions_host.functions import RETURN_VALUE, Function
from local.functions_host.logs import log_event
from local.functions_host.worker import Invocation, Outcome, Worker


@dataclass(frozen=True, slots=True)
class InvocationCounts:
    """The number of ended invocations, and how many of them failed."""

    invocations: int = 0
    failures: int = 0

    def after(self, *, succeeded: bool) -> "InvocationCounts":
        """These counts plus one invocation."""
        return InvocationCounts(self.invocations + 1, self.failures + (not succeeded))


INTERRUPT_SECONDS_MAX = 10.0
"""A cancelled function that does not end within this time is abandoned."""


@dataclass(eq=False, slots=True)
class _Call:
    """A call of a function that the worker is working on."""

    task: asyncio.Task[Outcome]
    worker_died: bool = False

    @property
    def answered(self) -> bool:
        return self.task.done() and not self.task.cancelled()


class Invoker:
    """Calls functions. Of the output bindings, only that of HTTP is supported."""

    def __init__(self, worker: Worker, timeout_seconds: float | None) -> None:
        self._worker = worker
        self._timeout_seconds = timeout_seconds
        self._counts: dict[str, InvocationCounts] = {}
        self._running: set[asyncio.Task[Outcome]] = set()
        self._calls: set[_Call] = set()
        self._interrupted = False

    @property
    def counts(self) -> Mapping[str, InvocationCounts]:
        """Ended invocations by function. A function that never ran is absent."""
        return MappingProxyType(self._counts)

    async def invoke(self, function: Function, invocation: Invocation) -> Outcome:
        """Call a function. Errors are returned in the outcome.

        Raises CancelledError if `interrupt` ends the invocation.
        """
        answer = await self._begin(function, invocation)
        before = self._counts.get(function.name, InvocationCounts())
        self._counts[function.name] = before.after(succeeded=answer.succeeded)
        if not answer.succeeded:
            _log_failure(function, invocation, answer)
        return answer

    async def interrupt(self) -> None:
        """Cancel every running and every later invocation, and wait for the running ones."""
        self._interrupted = True
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running, timeout=INTERRUPT_SECONDS_MAX)

    async def kill_worker(self) -> None:
        """End every call, as the death of the worker's process does. Each fails at once."""
        for call in self._calls:
            call.worker_died = True
        await self._end_calls()

    def _begin(self, function: Function, invocation: Invocation) -> asyncio.Task[Outcome]:
        """Run in a task of its own, so that `interrupt` can cancel it."""
        task = asyncio.create_task(self._answer(function, invocation))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        if self._interrupted:
            task.cancel()
        return task

    async def _answer(self, function: Function, invocation: Invocation) -> Outcome:
        answer = await self._call(function, invocation)
        if not answer.succeeded:
            return answer
        values = {**dict(answer.outputs), RETURN_VALUE: answer.returned}
        for name, binding in function.outputs.items():
            if binding.kind != "http" and values.get(name) is not None:
                kind = f"the local host does not support {binding.kind} outputs"
                return Outcome(False, error=f"output {name}: {kind}")
        return answer

    async def _call(self, function: Function, invocation: Invocation) -> Outcome:
        """Call the function. If it exceeds the functionTimeout, its worker is replaced.

        The real host notices the end of the other calls only at their own functionTimeout.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        call = _Call(asyncio.create_task(self._worker.call(function.id, invocation)))
        self._calls.add(call)
        try:
            await asyncio.wait([call.task], timeout=self._timeout_seconds)
            if call.answered:
                return call.task.result()
            if call.worker_died:
                return Outcome(False, error="the worker died")
            if not call.task.done():
                text = "the worker is replaced: a function timed out"
                log_event(logging.ERROR, "worker_replaced", text)
                await self._end_calls()
            elif self._timeout_seconds is not None:
                await asyncio.sleep(started + self._timeout_seconds - loop.time())
        finally:
            self._calls.discard(call)
            if call.task.cancel():
                await asyncio.wait([call.task], timeout=INTERRUPT_SECONDS_MAX)
        return Outcome(False, error=f"exceeded the functionTimeout of {self._timeout_seconds:g} s")

    async def _end_calls(self) -> None:
        """End every call, as the end of the worker's process does."""
        ending, self._calls = [call.task for call in self._calls], set()
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending, timeout=INTERRUPT_SECONDS_MAX)


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
