"""`RunManager`, which starts demanded runs and checks open runs.

Each call compares the stored state with that of the Spark service, so it also does what an earlier
call missed. Several instances may run it concurrently.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, timedelta

from shared.trends.nightly import runs
from shared.trends.nightly.model import (
    DateRuns,
    Job,
    JobRefused,
    JobSubmitter,
    JobUnavailable,
    Ledger,
    Run,
    RunPolicy,
    RunState,
    RunStore,
    RunTaken,
)
from shared.values.metering import Measurement, Meter, no_meter

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunManager:
    store: RunStore
    submitter: JobSubmitter
    policy: RunPolicy
    job: Callable[[Run], Job]
    new_token: Callable[[date, int], str]
    meter: Meter = no_meter

    async def run_all(self, datasets: Iterable[str]) -> None:
        """Run each data set, even if another one fails. Raises the last error."""
        failure: Exception | None = None
        for dataset in datasets:
            try:
                await self.advance_runs(dataset)
            except Exception as error:
                extra = {"action": "trends_unread", "dataset": dataset}
                log.exception("[trends_unread] %s: its runs cannot be read", dataset, extra=extra)
                failure = error
        if failure is not None:
            raise failure

    async def advance_runs(self, dataset: str) -> None:
        """Take the next step for each date, even if another fails."""
        ledger = await self.store.read(dataset)
        self.meter(of_dates(dataset, ledger))
        open_runs = ledger.open_runs
        for day in sorted(ledger.days.values(), key=lambda day: day.date, reverse=True):
            try:
                run = await self._advance(day, ledger, open_runs)
            except RunTaken as error:
                log.info("[trends_left] %s", error, extra=_extra("trends_left", dataset, day.date))
                continue
            except Exception:
                extra = _extra("trends_settling_failed", dataset, day.date)
                text = "[trends_settling_failed] %s %s: will be retried"
                log.exception(text, dataset, day.date, extra=extra)
                continue
            if run is not None:
                open_runs += _open(run) - _open(day.latest)

    async def _advance(self, day: DateRuns, ledger: Ledger, open_runs: int) -> Run | None:
        run = runs.next_run(ledger.dataset, day, open_runs, self.new_token, ledger.now, self.policy)
        if run is not None:
            return await self._submit(await self.store.write(run), ledger)
        latest = day.latest
        if latest and _open(latest) and latest.state is not RunState.SUBMITTING:
            return await self._check(latest, ledger)
        return None

    async def _submit(self, run: Run, ledger: Ledger) -> Run:
        """Submit a stored run. If this instance dies, another submits it after its lease."""
        now = ledger.now
        try:
            answer = await self.submitter.submit(self.job(run))
        except JobRefused as error:
            return await self._write(runs.failed(run, str(error), now, self.policy))
        except JobUnavailable as error:
            return await self._write(runs.unanswered(run, str(error), now, self.policy))
        return await self._write(runs.accepted(run, answer.handle, answer.log_url, now))

    async def _check(self, run: Run, ledger: Ledger) -> Run | None:
        try:
            status = await self.submitter.status(run.handle)
        except JobUnavailable as error:
            extra = _extra("trends_unseen", run.dataset, run.date)
            log.warning("[trends_unseen] run %s: %s", run.token, error, extra=extra)
            unchecked = runs.unseen(run, str(error), ledger.now, self.policy)
            return None if unchecked == run else await self._write(unchecked)
        checked = runs.observed(run, status, ledger.now, self.policy)
        changed = None if checked == run else await self._write(checked)
        if checked.state is RunState.STOPPING:
            with suppress(JobUnavailable):  # the next check will cancel it again
                await self.submitter.cancel(run.handle)
        return changed

    async def _write(self, run: Run) -> Run:
        run = await self.store.write(run)
        problem = run.error or run.warning
        level = logging.WARNING if problem else logging.INFO
        extra = _extra(f"trends_{run.state}", run.dataset, run.date)
        extra |= {"run": run.token, "handle": run.handle, "log_url": run.log_url}
        text = f"[trends_{run.state}] {run.dataset} {run.date}: run {run.number} {problem}"
        log.log(level, "%s", text.rstrip(), extra=extra)
        return run


def _open(run: Run | None) -> bool:
    return run is not None and not run.state.ended


def _extra(action: str, dataset: str, day: date) -> dict[str, str]:
    return {"action": action, "dataset": dataset, "date": str(day)}


DAYS_COUNTED = timedelta(days=7)
REQUESTED = "requested"
"""The state of a date that has been requested but has no run yet."""


def of_dates(dataset: str, ledger: Ledger) -> Iterator[Measurement]:
    """The number of dates of the last seven days, by the state of the latest run."""
    since = ledger.now.date() - DAYS_COUNTED
    days = [day for day in ledger.days.values() if day.date >= since]
    states = Counter(str(day.latest.state) if day.latest else REQUESTED for day in days)
    for state in (REQUESTED, *map(str, RunState)):
        yield "autoscaler.trends.dates", states[state], {"dataset": dataset, "state": state}
