"""What is to come of a queue, step by step, under one or the other order of instances.

All work is in instance-steps: items divided by what one busy instance finishes in a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from shared.autoscaling.policies.arrivals import Arrivals
from shared.quick import quick

ORDER_AHEAD_STEPS = 2
"""Order more where work would be late within the dead time and this ..."""
PLAN_AHEAD_STEPS = 4
"""... and so many that none is late within the dead time and this."""
RETURN_TRIP = 2.0
"""An instance that is ordered must be let go again: two changes."""


@quick
@dataclass(frozen=True, slots=True)
class Projection:
    """Late work and idle instances in instance-steps, and the worst age in steps."""

    late: float
    idle: float
    worst_age: float


@quick
@dataclass(frozen=True, slots=True)
class Outlook:
    """A queue as it is now, the instances there are, and those ordered.

    ``dead`` is the dead time of a new order and ``arrival`` the steps until the one under way has
    come, both at least 1. ``share`` is the part of the age limit to make use of.
    """

    backlog: float
    arrivals: Arrivals
    capacity: int
    ordered: int
    dead: int
    arrival: int
    share: float
    overdue: bool = False
    """The order under way should have come already: nobody knows when it will."""

    def standing(self, steps: int) -> list[int]:
        """The instances of the coming steps if nothing else is ordered."""
        if self.ordered == self.capacity:
            return [self.capacity] * steps
        waiting = self.arrival - 1
        return ([self.capacity] * waiting + [self.ordered] * steps)[:steps]

    def project(self, planned: Sequence[int]) -> Projection:
        """With the arrivals as they are now: late_h = max(0, q_h - share·(last L arrivals))."""
        rate, recent, backlog = self.arrivals.rate, self.arrivals.recent, self.backlog
        share, leaving, window = self.share, len(recent), sum(recent)
        late = idle = worst = 0.0
        for serving in planned:
            backlog += rate - serving
            leaving -= 1
            window += rate - (recent[leaving] if leaving >= 0 else rate)
            if backlog <= 0.0:
                idle -= backlog
                backlog = 0.0
            elif backlog > share * window:
                late += backlog - share * window
                age = len(recent) * backlog / window if window > 0.0 else len(recent) + 1.0
                worst = age if age > worst else worst
        return Projection(late, idle, worst)

    def late_ahead(self) -> Projection:
        """What becomes late before a new order could help, and a little after."""
        return self.project(self.standing(self.dead + ORDER_AHEAD_STEPS))

    def cheapest(self, maximum: int, switch_cost: float, late_penalty: float) -> int:
        """The capacity at which one more instance costs more than the lateness it avoids."""
        wanted, best = self.ordered, inf
        kept = self.standing(self.dead - 1)
        for target in range(self.ordered, maximum + 1):
            ahead = self.project(kept + [target] * (PLAN_AHEAD_STEPS + 1))
            change = RETURN_TRIP * switch_cost * (target - self.ordered)
            cost = change + ahead.idle + late_penalty * ahead.late
            if cost >= best:
                break
            best, wanted = cost, target
        return wanted

    def worth_replacing(self, wanted: int) -> bool:
        """Is a new order now better than one when the one under way has come?"""
        if self.arrival <= 1:
            return False
        steps = self.dead + PLAN_AHEAD_STEPS + self.arrival
        replaced = [self.capacity] * (self.dead - 1) + [wanted] * (steps - self.dead + 1)
        waited = self.standing(self.dead + self.arrival - 1)
        waited += [wanted] * (steps - len(waited))
        return self.project(replaced).late < self.project(waited).late
