"""Builds what starts the nightly job, each when first used."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from shared.nightly import runs
from shared.nightly.flows.run_manager import RunManager
from shared.nightly.model import Run, RunPolicy
from shared.settings import SettingsError
from shared.settings.nightly import LOCAL_FOLDER, NightlySettings
from shared.wiring import autoscaling as wiring

if TYPE_CHECKING:
    from shared.adapters.spark.batches import BatchClient
    from shared.datasets.ports import Recompute
    from shared.nightly.model import Job
    from shared.nightly.ports import InputReader, JobSubmitter, RunStore

STORAGE = "AzureWebJobsStorage"
FABRIC = "api.fabric.microsoft.com"


def settings() -> NightlySettings:
    return wiring.settings().nightly


def recompute() -> Recompute:
    """What processes a data set; without a job the log says what is due."""
    return _recompute() if settings().submitter else wiring.recompute()


@cache
def _recompute() -> Recompute:
    from shared.adapters.spark.recompute import AskingRecompute  # noqa: PLC0415

    return AskingRecompute(settings().datasets, run_manager(), inputs(), wiring.recompute())


@cache
def run_manager() -> RunManager:
    """Makes it so."""
    return RunManager(
        store(), submitter(), wiring.notifier(), policy(settings()), _job, runs.new_token
    )


@cache
def store() -> RunStore:
    from shared.adapters.tables.runs import TableRunStore  # noqa: PLC0415  heavy to import

    return TableRunStore(wiring.settings().storage(STORAGE))


@cache
def inputs() -> InputReader:
    from shared.adapters.spark.inputs import StoredInputs  # noqa: PLC0415  heavy to import

    return StoredInputs(settings().input, settings().input_connection_string)


@cache
def submitter() -> JobSubmitter:
    """Raises SettingsError where what it needs is not installed."""
    found = settings()
    if found.submitter == "local":
        from shared.adapters.spark.local import LocalSubmitter  # noqa: PLC0415

        return LocalSubmitter(Path(found.endpoint or LOCAL_FOLDER))
    if found.submitter == "databricks":
        return _databricks(found)
    from shared.adapters.spark.batches import BatchSubmitter  # noqa: PLC0415

    return BatchSubmitter(_synapse(found) if found.submitter == "synapse" else _livy(found))


def policy(found: NightlySettings) -> RunPolicy:
    return RunPolicy(
        attempts=found.attempts,
        retry_delay=timedelta(minutes=found.retry_minutes),
        timeout=timedelta(minutes=found.timeout_minutes),
        parallel=found.parallel,
    )


def _job(run: Run) -> Job:
    found = settings()
    return runs.job(run, found.input, found.output, found.arguments)


def _databricks(found: NightlySettings) -> JobSubmitter:
    try:
        from shared.adapters.spark.databricks import DatabricksSubmitter  # noqa: PLC0415  heavy
    except ImportError as error:
        raise _missing(error, "databricks") from error
    return DatabricksSubmitter(found.endpoint, found.request)


def _synapse(found: NightlySettings) -> BatchClient:
    try:
        from shared.adapters.spark.synapse import SynapseClient  # noqa: PLC0415  heavy to import
    except ImportError as error:
        raise _missing(error, "synapse") from error
    return SynapseClient(*found.pool, found.request)


def _missing(error: ImportError, submitter: str) -> SettingsError:
    lines = f"add the line `-r requirements-{submitter}.txt` to requirements.txt and deploy again"
    return SettingsError(
        [f"TrendsSubmitter = {submitter!r}: {error.name} is not installed: {lines}"]
    )


def _livy(found: NightlySettings) -> BatchClient:
    from shared.adapters.spark.livy import FabricClient, LivyClient  # noqa: PLC0415  heavy

    fabric = urlsplit(found.endpoint).hostname == FABRIC

    async def headers() -> Mapping[str, str]:
        if found.user:
            pair = base64.b64encode(f"{found.user}:{found.password}".encode()).decode()
            return {"Authorization": f"Basic {pair}"}
        if not fabric:
            return {}
        from shared.adapters.azure.credentials import credential_for  # noqa: PLC0415  heavy to import

        token = await credential_for(found.endpoint).get_token(f"https://{FABRIC}/.default")
        return {"Authorization": f"Bearer {token.token}"}

    kind = FabricClient if fabric else LivyClient
    return kind(found.endpoint, found.request, headers)


async def close() -> None:
    """Close what was opened; registered with ``wiring``, which closes the rest."""
    for adapter in (store, inputs, submitter):
        if adapter.cache_info().currsize:
            await adapter().close()
    for cached in (_recompute, run_manager, store, inputs, submitter):
        cached.cache_clear()


wiring.before_closing.append(close)
