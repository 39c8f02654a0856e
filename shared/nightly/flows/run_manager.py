"""Make it so: start what is asked for, look at what runs, tell what failed.

It goes by what stands in the store, not by events: whatever was lost on the way, the next time
mends it, and many may do it at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date

from shared.nightly import runs
from shared.nightly.errors import JobRefused, JobUnavailable, RunTaken
from shared.nightly.model import DateRuns, Job, Ledger, Run, RunPolicy, RunState
from shared.nightly.notices import run_notice
from shared.nightly.ports import JobSubmitter, RunStore
from shared.nightly.runs import RunAction
from shared.notifications.ports import Notifier

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunManager:
    """Starts, checks, retries and ends runs. ``new_token`` gives a name that was never used."""

    store: RunStore
    submitter: JobSubmitter
    notifier: Notifier
    policy: RunPolicy
    job: Callable[[Run], Job]
    new_token: Callable[[date, int], str]

    async def run_all(self, datasets: Iterable[str]) -> None:
        """Each data set on its own. Raises what kept the last one from being read."""
        failure: Exception | None = None
        for dataset in datasets:
            try:
                await self.run(dataset)
            except Exception as error:
                extra = {"action": "trends_unread", "dataset": dataset}
                log.exception("[trends_unread] %s: its runs cannot be read", dataset, extra=extra)
                failure = error
        if failure is not None:
            raise failure

    async def run(self, dataset: str) -> list[Run]:
        """Answers the runs that changed. A date that fails does not keep the others."""
        ledger = await self.store.read(dataset)
        open_runs, changed = ledger.open_runs, []
        for day in sorted(ledger.days.values(), key=lambda day: day.date, reverse=True):
            try:
                run = await self._advance(day, ledger, open_runs)
            except RunTaken as error:
                log.info("[trends_left] %s", error, extra=_extra("trends_left", dataset, day.date))
                continue
            except Exception:
                extra = _extra("trends_settling_failed", dataset, day.date)
                log.exception(
                    "[trends_settling_failed] %s %s: tried again", dataset, day.date, extra=extra
                )
                continue
            if run is not None:
                changed.append(run)
                open_runs += _open(run) - _open(day.latest)
        return changed

    async def _advance(self, day: DateRuns, ledger: Ledger, open_runs: int) -> Run | None:
        if day.latest and day.latest.untold:
            day = replace(day, latest=await self._notified(day.latest))
        now, latest = ledger.now, day.latest
        step = runs.next_step(day, open_runs, now, self.policy)
        if step.action is RunAction.START:
            assert day.demand is not None
            number = latest.number + 1 if latest else 1
            token = self.new_token(day.date, number)
            run = runs.started(
                ledger.dataset, day.demand, latest, step.attempt, token, now, self.policy
            )
            return await self._submit(await self.store.insert(run), ledger)
        if latest and step.action is RunAction.SUBMIT_AGAIN:
            again = runs.submitted_again(latest, now, self.policy)
            return await self._submit(await self.store.replace(again), ledger)
        if latest and step.action is RunAction.CHECK:
            return await self._check(latest, ledger)
        return None

    async def _submit(self, run: Run, ledger: Ledger) -> Run:
        """Hand over a run that stands in the store. Whoever dies in here is followed by another,
        once the lease is over, with the same token."""
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
            unseen = runs.unseen(run, str(error), ledger.now, self.policy)
            return None if unseen == run else await self._write(unseen)
        others = [day.latest for day in ledger.days.values() if day.latest]
        warned_before = {other.warning for other in others if other.token != run.token}
        seen = runs.observed(run, status, ledger.now, self.policy, warned_before)
        changed = None if seen == run else await self._write(seen)
        if seen.state is RunState.STOPPING:
            with suppress(JobUnavailable):  # the next look finds it running still
                await self.submitter.cancel(run.handle)
        return changed

    async def _write(self, run: Run) -> Run:
        run = await self.store.replace(run)
        problem = run.error or run.warning
        level = logging.WARNING if problem else logging.INFO
        extra = _extra(f"trends_{run.state}", run.dataset, run.date)
        extra |= {"run": run.token, "handle": run.handle, "log_url": run.log_url}
        text = f"[trends_{run.state}] {run.dataset} {run.date}: run {run.number} {problem}"
        log.log(level, "%s", text.rstrip(), extra=extra)
        return await self._notified(run) if run.untold else run

    async def _notified(self, run: Run) -> Run:
        """Tell, then write down that it was told: twice is better than never.

        It is tried for as long as the run is its date's latest; who cannot be told holds up no run.
        """
        try:
            await self.notifier.tell(run_notice(run, self.policy))
        except Exception:
            extra = _extra("trends_untold", run.dataset, run.date)
            log.exception("[trends_untold] run %s: told again later", run.token, extra=extra)
            return run
        return await self.store.replace(replace(run, untold=False))


def _open(run: Run | None) -> bool:
    return run is not None and not run.state.ended


def _extra(action: str, dataset: str, day: date) -> dict[str, str]:
    return {"action": action, "dataset": dataset, "date": str(day)}
