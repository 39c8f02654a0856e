"""Remembers when each plan was read, and says which plans are due."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Mapping, Set
from datetime import UTC, datetime, timedelta

from shared.autoscaling.flows.common import log_action
from shared.autoscaling.flows.reading import Answer, Undated
from shared.autoscaling.operating.staleness import CAPACITY_SECONDS_MAX
from shared.autoscaling.sources import PLAN_READ_SECONDS
from shared.values.measurements import CAPACITY_METRIC, span

log = logging.getLogger(__name__)

NONE, TOLD_EVERY = timedelta(0), timedelta(minutes=1)
NEVER = datetime.min.replace(tzinfo=UTC)
FEW = 3
"""If more plans fail, one line tells of all."""
SPENT = "the limit of requests to Azure Resource Manager is used up"


class PlanReadings:
    """The object lives as long as the process. A plan that could not be read is due in the next
    run, but after those that were asked for earlier, so that no plan is starved.
    """

    def __init__(self) -> None:
        self._asked: dict[Hashable, datetime] = {}
        self._since: dict[Hashable, datetime] = {}
        """The time of the last reading, or of the first run that wanted one."""
        self._failing: dict[Hashable, str] = {}
        self._ran_at = self._told_at = NEVER
        self._ahead = NONE

    def due(self, plans: Iterable[Hashable], now: datetime) -> list[Hashable]:
        """The plans to read now, in the order in which they were last asked for.

        A plan is due in the run that is nearest to ``PLAN_READ_SECONDS`` after its last reading,
        and in each run if runs are further apart.
        """
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
            self._asked[plan], self._failing[plan] = now, answer
        elif answer:
            self._asked[plan] = self._since[plan] = now
            self._failing.pop(plan, None)
            if not isinstance(answer[-1], Undated):
                self._ahead = answer[-1].time - ended

    def server_time(self, now: datetime) -> datetime:
        """The time by the clock of Azure Resource Manager, as the last reading showed it."""
        return now + self._ahead

    @property
    def logged(self) -> Set[str]:
        """The metrics whose failures ``tell`` logs."""
        return {CAPACITY_METRIC} if len(self._failing) > FEW else frozenset()

    def tell(self, names: Mapping[Hashable, str], now: datetime) -> None:
        """Log in one line the plans that are not read, at most once a minute."""
        late = span(CAPACITY_SECONDS_MAX)
        unread = [
            plan
            for plan in names
            if (self.logged if plan in self._failing else now - self._since[plan] > late)
        ]
        if not unread or NONE <= now - self._told_at < TOLD_EVERY:
            return
        self._told_at = now
        first = min(unread, key=self._since.__getitem__)
        why = next((self._failing[plan] for plan in unread if plan in self._failing), SPENT)
        count = f"{len(unread)} plan{'s' * (len(unread) > 1)}"
        text = f"not read, {names[first]} since {self._since[first]:%H:%M} UTC: {why}"
        log_action(log, "plans_unread", count, text, logging.WARNING)
