"""Builds the parts that start the nightly job, manage its runs, and read its results."""

from __future__ import annotations

import logging
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from shared.settings.nightly import LOCAL_FOLDER, NightlySettings
from shared.trends.datasets.processing import DatasetWork
from shared.trends.nightly import runs
from shared.trends.nightly.flows.demand import demand_nightly, demand_period
from shared.trends.nightly.flows.run_manager import RunManager
from shared.trends.nightly.model import InputReader, JobSubmitter, RunPolicy, RunStore
from shared.wiring.parts import Parts

if TYPE_CHECKING:
    from shared.trends.store.trends import TableTrends

FABRIC = "api.fabric.microsoft.com"

log = logging.getLogger(__name__)


class NightlyParts(Parts):
    @property
    def settings(self) -> NightlySettings:
        return self._app.settings.nightly

    async def demand_runs(self) -> None:
        """Request runs for yesterday and for dates with late data."""
        datasets, late_days = self.settings.datasets, self.settings.late_days
        notifier = self._app.notifications.notifier
        await demand_nightly(datasets, late_days, self.store, self.inputs, notifier)

    async def advance_runs(self) -> None:
        await self.run_manager.run_all(self.settings.datasets)

    async def recompute(self, work: DatasetWork) -> None:
        """Request runs of the job, which may start later. A data set without a job is logged."""
        if not self.settings.submitter or work.dataset not in self.settings.datasets:
            extra = {"action": "recompute", "dataset": work.dataset, "period": work.label}
            text = "[recompute] %s is due: no job is configured to process it"
            log.info(text, work.message_id, extra=extra)
            return
        await demand_period(work.dataset, work.start, work.end, self.store, self.inputs)
        await self.run_manager.advance_runs(work.dataset)

    @property
    def policy(self) -> RunPolicy:
        return self.settings.part(RunPolicy)

    @cached_property
    def run_manager(self) -> RunManager:
        settings = self.settings
        return RunManager(
            self.store,
            self.submitter,
            self.policy,
            lambda run: runs.job(run, settings.inputs, settings.output, settings.job_arguments),
            runs.new_token,
            self._app.meter,
        )

    @cached_property
    def store(self) -> RunStore:
        from shared.trends.store.runs import TableRunStore  # noqa: PLC0415  heavy to import

        return self._app.open(TableRunStore, self._app.storage)

    @cached_property
    def trends(self) -> TableTrends:
        from shared.trends.store.trends import TableTrends  # noqa: PLC0415  heavy to import

        return self._app.open(TableTrends, self._app.storage)

    @cached_property
    def inputs(self) -> InputReader:
        from shared.trends.submitters.inputs import StoredInputs  # noqa: PLC0415  heavy to import

        settings = self.settings
        return self._app.open(StoredInputs, settings.inputs, settings.input_connection_string)

    @cached_property
    def submitter(self) -> JobSubmitter:
        return self._app.open(submitter_of, self.settings)


def submitter_of(settings: NightlySettings) -> JobSubmitter:
    if settings.submitter == "local":
        from shared.trends.submitters.local import LocalSubmitter  # noqa: PLC0415  one of several

        return LocalSubmitter(Path(settings.endpoint or LOCAL_FOLDER))
    if settings.submitter == "databricks":
        from shared.trends.submitters.databricks import DatabricksSubmitter  # noqa: PLC0415  heavy

        return DatabricksSubmitter(settings.endpoint, settings.request)
    from shared.trends.submitters.livy import FabricSubmitter, LivySubmitter, SynapseSubmitter  # noqa: PLC0415  heavy
    from shared.trends.submitters.rest import basic_headers, token_headers  # noqa: PLC0415  heavy

    if settings.submitter == "synapse":
        return SynapseSubmitter(*settings.pool, settings.request)
    url, fabric = settings.endpoint, urlsplit(settings.endpoint).hostname == FABRIC
    if settings.user or not fabric:
        headers = basic_headers(settings.user, settings.password)
    else:
        headers = token_headers(url, f"https://{FABRIC}/.default")
    return (FabricSubmitter if fabric else LivySubmitter)(url, settings.request, headers)
