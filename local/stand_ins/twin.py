"""The workload behind the stand-ins: its backlog as message counts, its capacity as a plan's."""

import math
from dataclasses import dataclass

from local.stand_ins.entities import EntityCounts
from local.stand_ins.plans import PlanId
from local.workload import TwinClock, Workload


@dataclass(frozen=True, slots=True)
class TwinLink:
    """Ties one entity and one plan to a workload, and moves it on whenever it is asked."""

    workload: Workload
    clock: TwinClock
    entity_path: str
    plan: PlanId

    def counts(self, entity_path: str) -> EntityCounts | None:
        """Whatever is left of an item counts as a message."""
        if entity_path.lower() != self.entity_path.lower():
            return None
        self.advance()
        return EntityCounts(active=math.ceil(self.workload.backlog - 1e-6))

    def on_capacity_ordered(self, plan: PlanId, capacity: int) -> None:
        if plan.key == self.plan.key:
            self.advance()
            self.workload.order_capacity(capacity)

    def advance(self) -> None:
        self.workload.advance_to(self.clock.trace_minute())
