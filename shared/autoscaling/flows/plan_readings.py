"""Remembers when each plan was read, and says which plans are due."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from datetime import UTC, datetime, timedelta

from shared.autoscaling.flows.reading import Answer, Undated
from shared.autoscaling.operating.staleness import CAPACITY_SECONDS_MAX
from shared.autoscaling.sources import PLAN_READ_SECONDS
from shared.values.measurements import span

NONE = timedelta(0)
NEVER = datetime.min.replace(tzinfo=UTC)
SPENT = "the limit of requests to Azure Resource Manager is used up"


class PlanReadings:
    """The object lives as long as the process. A plan that could not be read is due in the next
    run, after those that were asked for earlier."""

    def __init__(self) -> None:
        self._asked: dict[Hashable, datetime] = {}
        self._since: dict[Hashable, datetime] = {}
        """The time of the last reading, or of the first run that wanted one."""
        self._failing = set[Hashable]()
        self._ran_at = NEVER
        self._ahead = NONE

    def due(self, plans: Iterable[Hashable], now: datetime) -> list[Hashable]:
        """The plans to read now, in the order in which they were last asked for: in the run that is
        nearest to ``PLAN_READ_SECONDS`` after the last reading, and in each run if runs are further
        apart."""
        limit = span(PLAN_READ_SECONDS) - (now - self._ran_at) / 2
        self._ran_at = now
        due = [
            plan
            for plan in plans
            if not NONE <= now - self._since.setdefault(plan, now) < limit
            or plan not in self._asked
            or plan in self._failing
        ]
        return sorted(due, key=lambda plan: self._asked.get(plan, NEVER))

    def note(self, plan: Hashable, answer: Answer, now: datetime, ended: datetime) -> None:
        """Remember an answer of a run. One without samples was postponed, and changes nothing."""
        if isinstance(answer, str):
            self._asked[plan] = now
            self._failing.add(plan)
        elif answer:
            self._asked[plan] = self._since[plan] = now
            self._failing.discard(plan)
            if not isinstance(answer[-1], Undated):
                self._ahead = answer[-1].time - ended

    def server_time(self, now: datetime) -> datetime:
        """The time by the clock of Azure Resource Manager, as the last reading showed it."""
        return now + self._ahead

    def unread(self, plan: Hashable, now: datetime) -> list[str]:
        """Why the plan has not been read for long although nothing failed; empty if it was."""
        since = self._since[plan]
        if plan in self._failing or now - since <= span(CAPACITY_SECONDS_MAX):
            return []
        return [f"the plan has not been read since {since:%H:%M} UTC: {SPENT}"]
