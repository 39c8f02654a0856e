"""Builds the parts that start the nightly job, manage its runs, and read its results."""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from shared.adapters.spark.recompute_log import LoggedRecompute
from shared.datasets.ports import Recompute
from shared.datasets.processing import DatasetWork
from shared.nightly import runs
from shared.nightly.flows.demand import demand_nightly, demand_period
from shared.nightly.flows.retention import delete_old_trends
from shared.nightly.flows.run_manager import RunManager
from shared.nightly.model import Job, Run, RunPolicy
from shared.nightly.ports import InputReader, JobSubmitter, RunStore
from shared.settings import SettingsError
from shared.settings.nightly import LOCAL_FOLDER, NightlySettings
from shared.wiring.parts import Parts

if TYPE_CHECKING:
    from shared.adapters.spark.batches import BatchClient
    from shared.adapters.tables.trends import TableTrends

FABRIC = "api.fabric.microsoft.com"


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

    async def delete_old_trends(self) -> None:
        await delete_old_trends(self.trends.delete_older)

    @cached_property
    def recompute(self) -> Recompute:
        """Processes a data set with the nightly job, or only logs the request if no job is set
        up."""
        logged = LoggedRecompute()
        if not self.settings.submitter:
            return logged
        return JobRecompute(self.settings.datasets, self.run_manager, self.inputs, logged)

    @cached_property
    def run_manager(self) -> RunManager:
        return RunManager(
            self.store,
            self.submitter,
            self._app.notifications.notifier,
            run_policy(self.settings),
            self._job,
            runs.new_token,
            self._app.meter,
        )

    def _job(self, run: Run) -> Job:
        settings = self.settings
        return runs.job(run, settings.inputs, settings.output, settings.arguments)

    @cached_property
    def store(self) -> RunStore:
        from shared.adapters.tables.runs import TableRunStore  # noqa: PLC0415  heavy to import

        return self._app.open(TableRunStore, self._app.storage)

    @cached_property
    def trends(self) -> TableTrends:
        """The trends that the job wrote."""
        from shared.adapters.tables.trends import TableTrends  # noqa: PLC0415  heavy to import

        return self._app.open(TableTrends, self._app.storage)

    @cached_property
    def inputs(self) -> InputReader:
        from shared.adapters.spark.inputs import StoredInputs  # noqa: PLC0415  heavy to import

        settings = self.settings
        return self._app.open(StoredInputs, settings.inputs, settings.input_connection_string)

    @cached_property
    def submitter(self) -> JobSubmitter:
        """Raises SettingsError if the client of the service is not installed."""
        return self._app.open(submitter_of, self.settings)


class JobRecompute:
    """Implements `Recompute`: requests a run of the nightly job for each date of a data set.

    ``fallback`` handles the data sets that have no job.
    """

    def __init__(
        self,
        datasets: Collection[str],
        run_manager: RunManager,
        inputs: InputReader,
        fallback: Recompute,
    ) -> None:
        self._datasets, self._run_manager = datasets, run_manager
        self._inputs, self._fallback = inputs, fallback

    async def run(self, work: DatasetWork) -> None:
        """Store the demand for a run. The run itself may start later."""
        if work.dataset not in self._datasets:
            await self._fallback.run(work)
            return
        store = self._run_manager.store
        await demand_period(work.dataset, work.start, work.end, store, self._inputs)
        await self._run_manager.run(work.dataset)


def run_policy(settings: NightlySettings) -> RunPolicy:
    return RunPolicy(
        attempts=settings.attempts,
        retry_delay=timedelta(minutes=settings.retry_minutes),
        timeout=timedelta(minutes=settings.timeout_minutes),
        parallel=settings.parallel,
    )


def submitter_of(settings: NightlySettings) -> JobSubmitter:
    """Raises SettingsError if the client of the service is not installed."""
    if settings.submitter == "local":
        from shared.adapters.spark.local import LocalSubmitter  # noqa: PLC0415  one of several

        return LocalSubmitter(Path(settings.endpoint or LOCAL_FOLDER))
    if settings.submitter == "databricks":
        return _databricks(settings)
    from shared.adapters.spark.batches import BatchSubmitter  # noqa: PLC0415  one of several

    client = _synapse(settings) if settings.submitter == "synapse" else _livy(settings)
    return BatchSubmitter(client)


def _databricks(settings: NightlySettings) -> JobSubmitter:
    try:
        from shared.adapters.spark.databricks import DatabricksSubmitter  # noqa: PLC0415  heavy
    except ImportError as error:
        raise _missing(error, "databricks") from error
    return DatabricksSubmitter(settings.endpoint, settings.request)


def _synapse(settings: NightlySettings) -> BatchClient:
    try:
        from shared.adapters.spark.synapse import SynapseClient  # noqa: PLC0415  heavy to import
    except ImportError as error:
        raise _missing(error, "synapse") from error
    return SynapseClient(*settings.pool, settings.request)


def _missing(error: ImportError, submitter: str) -> SettingsError:
    remedy = f"remove the # before `-r requirements/{submitter}.txt` in requirements.txt"
    return SettingsError(
        [f"TrendsSubmitter = {submitter!r}: {error.name} is not installed: {remedy}"]
    )


def _livy(settings: NightlySettings) -> BatchClient:
    from shared.adapters.spark.livy import FabricClient, LivyClient  # noqa: PLC0415  heavy

    fabric = urlsplit(settings.endpoint).hostname == FABRIC

    async def headers() -> Mapping[str, str]:
        if settings.user:
            pair = base64.b64encode(f"{settings.user}:{settings.password}".encode()).decode()
            return {"Authorization": f"Basic {pair}"}
        if not fabric:
            return {}
        from shared.adapters.azure.credentials import credential_for  # noqa: PLC0415  heavy to import

        token = await credential_for(settings.endpoint).get_token(f"https://{FABRIC}/.default")
        return {"Authorization": f"Bearer {token.token}"}

    kind = FabricClient if fabric else LivyClient
    return kind(settings.endpoint, settings.request, headers)
