"""Runs what asks the policies, which are the rule author's code, in daemon threads with a time
limit. A policy that blocked the event loop would stop all resources, the ingestion and the page."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from threading import Event
from typing import Any, TypeVar

from shared.autoscaling.deciding.counterfactual import explained
from shared.autoscaling.deciding.decide import RUNNING_SINCE, Decision, decide
from shared.autoscaling.flows.common import log_action
from shared.autoscaling.policy import (
    Composite,
    Observation,
    PolicyFunction,
    Recommendation,
    Resource,
    failure,
)
from shared.autoscaling.state import ScalingState
from shared.autoscaling.transition import Transition, advance
from shared.values.calls import DaemonCall
from shared.values.measurements import Metric
from shared.values.samples import format_time

log = logging.getLogger(__name__)

T = TypeVar("T")
GivenUp = Callable[[], bool]
"""True if nobody waits for the answer any more."""

POLICY_SECONDS_MAX = 10.0
"""The limit of a decision, below the 15 s between samples."""

SLOW_SECONDS = 1.0
"""A decision that takes longer is logged. It usually takes less than a millisecond."""


class NoAnswer(Exception):
    def __init__(self, since: datetime, limit_seconds: float) -> None:
        super().__init__(
            f"the policy has been running since {since:%Y-%m-%d %H:%M:%S} UTC and has not "
            f"answered within {limit_seconds:g} s"
        )
        self.since = since


@dataclass(frozen=True, slots=True)
class _Holding(Composite):
    """Holds the capacity in place of a policy that does not answer."""

    policy: PolicyFunction
    reason: str
    since: datetime

    def __call__(self, seen: Observation, /) -> Recommendation:
        return failure(seen, self.reason, **{RUNNING_SINCE: format_time(self.since)})


class PolicyThreads:
    """At most one thread for each resource. While it runs, further decisions wait, or hold the
    capacity after its limit."""

    def __init__(
        self, limit_seconds: float = POLICY_SECONDS_MAX, slow_seconds: float = SLOW_SECONDS
    ) -> None:
        self.limit_seconds = limit_seconds
        self.slow_seconds = slow_seconds
        self._running: dict[str, tuple[DaemonCall[Any], datetime]] = {}

    async def advance(
        self,
        resource: Resource,
        state: ScalingState,
        metrics: Sequence[Metric],
        now: datetime,
        *,
        decides: bool,
    ) -> Transition:
        """``transition.advance``. All samples are merged, even if the policy does not answer."""
        return await self._decided(
            resource, now, lambda asked: advance(asked, state, metrics, now, decides=decides)
        )

    async def decide(self, resource: Resource, state: ScalingState, now: datetime) -> Decision:
        return await self._decided(resource, now, lambda asked: decide(asked, state, now))

    async def explain(
        self, resource: Resource, state: ScalingState, decision: Decision
    ) -> Decision:
        """The decision with its counterfactual; without one if that takes too long."""
        if not decision.candidates or decision.candidates[0].failed:
            return decision

        def explanation(given_up: GivenUp) -> Decision:
            return explained(resource, state, decision, given_up)

        try:
            return await self._answer(resource.name, decision.time, explanation)
        except NoAnswer as error:
            self._warn(resource, "policy_unanswered", f"no counterfactual, because {error}")
            return decision

    async def _decided(
        self, resource: Resource, now: datetime, decided: Callable[[Resource], T]
    ) -> T:
        def work(_: GivenUp) -> tuple[T, float]:
            started = time.monotonic()
            return decided(resource), time.monotonic() - started

        try:
            answer, seconds = await self._answer(resource.name, now, work)
        except NoAnswer as error:
            self._warn(resource, "policy_unanswered", str(error))
            holding = _Holding(resource.policy, str(error), error.since)
            return decided(replace(resource, policy=holding))
        if seconds >= self.slow_seconds:
            text = f"the policy took {seconds:.1f} s; the limit is {self.limit_seconds:g} s"
            self._warn(resource, "slow_policy", text)
        return answer

    async def _answer(self, name: str, now: datetime, work: Callable[[GivenUp], T]) -> T:
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # without an event loop, there is nothing that a policy could stop
            return work(lambda: False)
        while earlier := self._running.get(name):
            await self._ended(name, earlier)
        given_up = Event()
        call = DaemonCall(lambda: work(given_up.is_set))
        self._running[name] = running = (call, now)
        try:
            await self._ended(name, running)
        finally:
            given_up.set()
        return call.finished.result()

    async def _ended(self, name: str, running: tuple[DaemonCall[Any], datetime]) -> None:
        """Wait until the call has ended. Raises NoAnswer after the limit."""
        call, since = running
        if not await call.ends_within(self.limit_seconds):
            raise NoAnswer(since, self.limit_seconds)
        if self._running.get(name) is running:
            del self._running[name]

    def _warn(self, resource: Resource, action: str, text: str) -> None:
        log_action(log, action, resource.name, text, logging.WARNING)


POLICY_THREADS = PolicyThreads()
