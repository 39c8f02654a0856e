"""The news about nightly runs and event trends, and what is wrong with the newest trends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, time

from shared.notifications.conditions import LastingCondition
from shared.sampling.trend_rows import UNREADABLE, Trend
from shared.sampling.verdict import LOST, VerdictKind
from shared.trends.nightly.model import Ledger, Run, RunPolicy, RunState
from shared.values.news import News, NewsKind, Severity


def run_notices(ledger: Ledger, policy: RunPolicy, since: datetime) -> Iterator[News]:
    """News of each run that changed since then, and failed, is overdue, cannot be submitted, or
    succeeded with a warning. One that recurs every night is news the first time."""
    latest = [day.latest for day in ledger.days.values() if day.latest]
    warned = {""}
    for run in sorted(latest, key=lambda each: each.changed_at):
        may_answer = (
            run.state is RunState.SUBMITTING and run.submits < policy.submits_until_notified
        )
        has_news = (run.error and not may_answer) or run.warning not in warned
        if run.changed_at >= since and has_news:
            yield run_notice(run, policy)
        warned.add(run.warning)


def run_notice(run: Run, policy: RunPolicy) -> News:
    """The news of a run, with the same time and id as long as it stays in its state."""
    given_up = run.state in (RunState.FAILED, RunState.LOST) and run.attempt >= policy.attempts
    return replace(
        night_notice(run.dataset, run.date, _text(run, policy), _since(run)),
        news_id=f"{run.token}/{run.state}",
        severity=Severity.ERROR if given_up else Severity.WARNING,
        link=run.log_url,
        link_text="Log",
        data={"date": str(run.date), "run": run.number, "state": str(run.state)},
    )


def _since(run: Run) -> datetime:
    return run.created_at if run.state is RunState.SUBMITTING else run.changed_at


def night_notice(dataset: str, day: date, text: str, now: datetime) -> News:
    """News of input data that are missing or cannot be listed."""
    return News(
        news_id=f"{dataset}/{day}",
        kind=NewsKind.TRENDS_FAILED,
        subject=f"{dataset}/{day}",
        time=now,
        headline=f"Event trends of {dataset}, {day}",
        text=text,
        severity=Severity.WARNING,
        source="/nightly_trends",
        data={"date": str(day)},
    )


def trend_notices(trends: Iterable[Trend]) -> Iterator[News]:
    """News of each series and day on which events, or values of a measurement, were lost."""
    for trend in trends:
        if trend.verdict in LOST:
            midnight = datetime.combine(date.fromisoformat(trend.date), time(), UTC)
            of_sum = "/sum" if trend.verdict == VerdictKind.MEASUREMENT_LOST else ""
            news_id = f"{trend.kind}/{trend.name}/{trend.date}{of_sum}"
            yield _lost(trend).news(midnight, news_id)


def trend_conditions(trends: Iterable[Trend]) -> Iterator[LastingCondition]:
    """What is wrong with the newest day of each series."""
    newest = {each.series: each for each in sorted(trends, key=lambda each: each.date)}
    for trend in newest.values():
        if trend.verdict in LOST:
            yield _lost(trend)
        elif trend.verdict == UNREADABLE:
            what = f"{trend.name}: the trend of {trend.date} cannot be read"
            todo = "Deploy the version of the app that wrote it, which can read it."
            yield LastingCondition(trend.name, Severity.WARNING, what, trend.reason, todo)


def _lost(trend: Trend) -> LastingCondition:
    of_sum = trend.verdict == VerdictKind.MEASUREMENT_LOST
    what = f"values of {trend.measurement}" if of_sum else "events"
    sent = f"sending {trend.measurement}" if of_sum else "emitting events"
    return LastingCondition(
        trend.name,
        Severity.ERROR,
        what=f"{trend.name}: {what} of {trend.date} are missing",
        meaning=trend.reason,
        todo=f"Check that the sender is still {sent}.",
        kind=NewsKind.TREND_ALARM,
        source="/api/trends",
        data={"date": trend.date, "sampling_rate": trend.sampling_rate, "figure": trend.figure},
    )


def _text(run: Run, policy: RunPolicy) -> str:
    if run.state is RunState.SUCCEEDED:
        return f"succeeded, but could not read again: {run.warning}"
    if run.state is RunState.SUBMITTING:
        return f"no reply to {run.submits} submissions; the app keeps trying: {run.error}"
    if run.state is RunState.STOPPING:
        return f"{run.error}; no other run starts until it has ended"
    if not run.state.ended:
        return f"overdue, and the Spark service does not answer: {run.error}"
    again = run.attempt < policy.attempts and run.retry_at
    then = f"next attempt at {run.retry_at:%Y-%m-%d %H:%M} UTC" if again else "given up"
    return f"attempt {run.attempt} of {policy.attempts} {run.state}, {then}: {run.error}"
