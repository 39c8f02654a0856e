"""Processing a data set by asking for its dates: the nightly job then runs for each."""

from __future__ import annotations

from collections.abc import Collection

from shared.datasets.ports import Recompute
from shared.datasets.processing import DatasetWork
from shared.nightly.flows.demand import demand_period
from shared.nightly.flows.run_manager import RunManager
from shared.nightly.ports import InputReader
from shared.values.redaction import redacting


@redacting
class AskingRecompute:
    """See Recompute. Data sets without a job go to ``otherwise``."""

    def __init__(
        self,
        datasets: Collection[str],
        run_manager: RunManager,
        inputs: InputReader,
        otherwise: Recompute,
    ) -> None:
        self._datasets, self._run_manager = datasets, run_manager
        self._inputs, self._otherwise = inputs, otherwise

    async def run(self, work: DatasetWork) -> None:
        """What is asked for is done once it is written down; its run may start later."""
        if work.dataset not in self._datasets:
            await self._otherwise.run(work)
            return
        store = self._run_manager.store
        await demand_period(work.dataset, work.start, work.end, store, self._inputs)
        await self._run_manager.run(work.dataset)
