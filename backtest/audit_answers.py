"""What a month of a plan cost, what others would have cost, and how sure that is.

Everybody is judged in one arena with the rate and the start-up time that the month shows. What was
paid comes from the recorded instances and the recorded backlog; nothing of it is modeled. An
instance is paid for from its order on, so instances that start count, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from backtest.arena import ARENAS, Arena, Floats, Schedule
from backtest.audit_model import RESAMPLES, SEED, Findings
from backtest.audit_month import DAY_MINUTES, Month
from backtest.autoscale_setting import PLAN, Converted, convert
from backtest.clairvoyant import clairvoyant
from backtest.errors import BacktestError
from backtest.import_autoscale import call, resource_of, written
from backtest.lower_bound import lower_bound
from backtest.outcome import Course, course, course_with
from backtest.progress import Progress
from backtest.replay import COUNTS, TIMING, Replay, replay
from backtest.rules_file import Rules
from backtest.study import RULES, Study, no_verdict, unjudged
from shared.autoscaling import AppServicePlan, AzureMonitorMetric, Cooldown, Limits, Resource
from shared.autoscaling.acting.actions import ActionTiming
from shared.autoscaling.azure_monitor.source import LAG_SECONDS_MAX
from shared.autoscaling.sources import ServiceBusQueue, ServiceBusSubscription, Source

PAID, OLD, OWN, BEST = "paid", "built-in", "own", "best"
NAMES = {PAID: "paid", OLD: "built-in, replayed", RULES: "default policy", OWN: "your rules",
         BEST: "best found"}  # fmt: skip
DAYS_MIN = 5
"""Fewer whole days are not resampled."""
WHOLE_DAY_SHARE = 0.9
MODEL_ERROR_MAX = 0.1
"""If what is replayed differs by more from what was paid, the replay does not count."""
WORTH_SHARE, LATE_SHARE = 0.05, 0.001
"""A saving, and late minutes that are avoided, that are worth a change."""
RULES_TEXT = '''"""Rules of {name}, written by `python -m backtest audit`."""

from collections.abc import Sequence

from shared.autoscaling import (
    AppServicePlan,
    Goal,
    Limits,
    Mode,
    QueueAge,
    Resource,
    {source},
    Threshold,
    Throughput,
)
from shared.settings import Settings


def resources(settings: Settings) -> Sequence[Resource]:
    """The resources to scale."""
    return [
        Resource(
            name={name!r},
            target={target},
            metrics={{"backlog": {metric}}},
            policy=QueueAge("backlog", until_known=Threshold("backlog", {upper}, {lower})),
            limits={limits},
            goal=Goal(age_limit_minutes={age_limit}),
            throughput=Throughput({throughput}),  # {evidence}
            mode=Mode.DRY_RUN if settings.dry_run else Mode.ACTIVE,
        )
    ]
'''


class _Length(AzureMonitorMetric):
    """The length of the queue or topic, as minutes of Azure Monitor."""

    counts_backlog = True


@dataclass(frozen=True)
class Audit:
    found: Findings
    study: Study
    rules_text: str
    not_replayed: str = ""
    """Why the old setting was not replayed; empty if it was."""

    @property
    def courses(self) -> Mapping[str, Course]:
        return {**self.study.courses, BEST: self.study.clairvoyant}

    @cached_property
    def model_error(self) -> float | None:
        """Paid against replayed: by how much the replay needs more instance-hours than were paid.
        None without a replay."""
        if OLD not in self.courses:
            return None
        return float(self.courses[OLD].by_minute.sum() / self.courses[PAID].by_minute.sum() - 1)

    @cached_property
    def reference(self) -> str:
        """With what the default policy is compared: the replay of the setting if it is true to the
        month, because both then have the same errors."""
        error = self.model_error
        return OLD if error is not None and abs(error) <= MODEL_ERROR_MAX else PAID

    @cached_property
    def _day(self) -> Schedule:
        """The day of each minute."""
        starts = self.found.workload.starts
        return np.array([(start - starts[0]).days for start in starts])

    @cached_property
    def _weights(self) -> Floats | None:
        """How often each day counts in each resampled month; None if there are too few days."""
        minutes = np.bincount(self._day)
        whole = np.flatnonzero(minutes >= WHOLE_DAY_SHARE * DAY_MINUTES)
        if len(whole) < DAYS_MIN:
            return None
        counts = np.zeros((RESAMPLES, len(minutes)))
        random, each = np.random.default_rng(SEED), np.full(len(whole), 1 / len(whole))
        counts[:, whole] = random.multinomial(len(whole), each, RESAMPLES)
        weights: Floats = counts * (minutes.sum() / (counts @ minutes))[:, None]
        return weights

    def resampled_hours(self, name: str) -> Floats | None:
        """The instance-hours of each resampled month."""
        if self._weights is None:
            return None
        hours: Floats = self._weights @ np.bincount(self._day, self.courses[name].by_minute / 60)
        return hours

    @cached_property
    def saving(self) -> tuple[float, float, float]:
        """The share of instance-hours that the default policy saves, and its 90 % interval. Without
        enough days, the interval is everything."""
        before, after = (self.courses[n].by_minute.sum() for n in (self.reference, RULES))
        some, other = self.resampled_hours(self.reference), self.resampled_hours(RULES)
        low, high = -np.inf, np.inf
        if some is not None and other is not None:
            low, high = np.percentile(1 - other / some, (5, 95))
        return float(1 - after / before), float(low), float(high)

    def late(self, name: str) -> int:
        return int((self.courses[name].late_work > 0).sum())

    @property
    def verdict(self) -> str:
        share, low, _ = self.saving
        before, after = self.late(self.reference), self.late(RULES)
        minutes = LATE_SHARE * self.found.workload.minutes
        hours = f"{abs(share):.1%} {'fewer' if share >= 0 else 'more'} instance-hours"
        told = f"{before:,} late minutes become {after:,}, with {hours}"
        if self.model_error is not None and self.reference == PAID:
            return (
                f"No verdict: the replay of the setting misses what was paid by "
                f"{self.model_error:+.1%}, so the other figures cannot be relied on either."
            )
        if after - before > minutes or not (before - after > minutes or share >= WORTH_SHARE):
            return f"Built-in autoscale is good enough: {told}."
        doubts = {
            "the rate per instance is not sure": not self.found.rate.sure,
            "the model is unchecked": self.model_error is None,
            "the days are too few": self._weights is None,
        }
        if any(doubts.values()):
            why = " and ".join(doubt for doubt, applies in doubts.items() if applies)
            return f"A change may be worth it: {told}. But {why}."
        if before - after > minutes or low >= WORTH_SHARE:
            return f"A change is worth it: {told}."
        return f"Built-in autoscale may be good enough: {told}, and the saving is not sure."

    def worst_hours(self, count: int = 5) -> Iterator[tuple[int, int]]:
        """First minute and end of the hours with the most late minutes, then the oldest messages,
        as paid."""
        starts = self.found.workload.starts
        hour = np.array([start.replace(minute=0).timestamp() for start in starts])
        edges = np.flatnonzero(np.diff(hour, prepend=np.nan, append=np.nan))
        paid = self.courses[PAID]
        spans = [(int(a), int(b)) for a, b in pairwise(edges)]
        spans.sort(key=lambda s: (
            -int((paid.late_work[slice(*s)] > 0).sum()), -float(paid.age_minutes[slice(*s)].max())
        ))  # fmt: skip
        yield from spans[:count]


def audit(
    found: Findings,
    own: Rules | None,
    age_limit_minutes: int,
    subscription: str,
    progress: Progress,
) -> Audit:
    """Judge what was paid, the setting, the default policy and the user's rules in one arena."""
    month, arrivals = found.month, found.workload.arrivals
    converted, why = _converted(month)
    arena = _arena(found, converted, age_limit_minutes)
    text = _rules_text(found, arena, subscription)
    courses = {PAID: course_with(arena, arrivals, found.counted, found.backlog)}

    def play(name: str, resource: Resource, its: Arena, timing: ActionTiming = TIMING) -> Replay:
        with progress.task(NAMES[name], found.workload.minutes):
            done = replay(its, found.workload, resource, timing, progress.advance)
        courses[name] = replace(course(its, arrivals, done.capacity), capacity=done.ordered)
        return done

    if converted is not None:
        old = _as_azure_decides(converted, month.entity)
        if blind := unjudged(old, arena):
            why = f"it reads {', '.join(blind)} as well, of which the month has no data"
        else:
            play(OLD, old, replace(arena, sample_seconds=60))
    done = play(RULES, resource_of(text), arena)
    if own is not None:
        if blind := unjudged(own.resource, arena):
            raise BacktestError(f"--compare: {no_verdict(blind, arena)}")
        play(OWN, own.resource, arena, own.timing)
    with progress.task(NAMES[BEST], found.workload.minutes):
        schedule = clairvoyant(arena, arrivals)
        paid = with_starting(schedule, arena.dead_time_minutes)
        best = replace(course(arena, arrivals, schedule), capacity=paid)
        bound = lower_bound(arena, arrivals, progress.advance)
    study = Study(
        workload=found.workload,
        arena=arena,
        rules=Rules(resource_of(text), TIMING),
        replay=done,
        courses=courses,
        clairvoyant=best,
        J_lp=bound,
        notices=(
            *found.workload.notices,
            *(f"not converted: {each}" for each in (converted.left_out if converted else ())),
        ),
        mine="the default policy",
    )
    return Audit(found, study, text, why)


def with_starting(schedule: Schedule, start_up_minutes: int) -> Schedule:
    """The instances that work or start, if each is ordered just in time."""
    paid = schedule.copy()
    for ahead in range(1, start_up_minutes + 1):
        paid[:-ahead] = np.maximum(paid[:-ahead], schedule[ahead:])
    return paid


def _converted(month: Month) -> tuple[Converted | None, str]:
    """The autoscale setting, or why there is none to replay."""
    if month.setting is None:
        return None, "the month has none"
    try:
        converted = convert(month.setting)
    except BacktestError as error:
        return None, str(error)
    off = [note for note in converted.notes if note.startswith("the setting is disabled")]
    return (None, "it is disabled") if off else (converted, "")


def _arena(found: Findings, converted: Converted | None, age_limit_minutes: int) -> Arena:
    """With the limits of the setting, or else from one to the most instances that were paid."""
    profiles = (converted.default, *converted.profiles) if converted else ()
    low = min((each.limits.minimum for each in profiles), default=1)
    high = max((each.limits.maximum for each in profiles), default=int(found.counted.max()))
    return Arena(
        instance_rate=found.rate.value,
        dead_time_minutes=round(found.start_up.value),
        age_limit_minutes=age_limit_minutes,
        min_instances=low,
        max_instances=high,
        cpu_percent=found.cpu,
        in_hand_minutes=found.in_hand_minutes,
        start_instances=int(np.clip(found.counted[0], low, high)),
        service_learned=not found.rate.sure,
        **ARENAS["production"],
    )


def paid_against_replayed(found: Findings) -> float:
    """By how much the replay of the autoscale setting needs more instance-hours than were paid."""
    converted = convert(found.month.setting)
    old = _as_azure_decides(converted, found.month.entity)
    arena = replace(_arena(found, converted, 5), sample_seconds=60)
    return float(replay(arena, found.workload, old).ordered.sum() / found.counted.sum() - 1)


def _as_azure_decides(converted: Converted, entity: str) -> Resource:
    """The setting as Azure decides: the length of the queue or topic is read each minute and late,
    the cooldown begins with the order and not with the next sample, and late metrics are used."""
    resource, entity = resource_of(written(converted)), entity.lower()

    def read(source: Source) -> Source:
        name = ""
        if isinstance(source, ServiceBusQueue | ServiceBusSubscription):
            name = source.place[1] if source.count == "active" else ""
        elif isinstance(source, AzureMonitorMetric) and source.metric.lower() == "activemessages":
            found = re.fullmatch("EntityName eq '(.*)'", source.filter)
            name = found[1].replace("''", "'") if found else ""
        return _Length(COUNTS.resource_id, "ActiveMessages") if name.lower() == entity else source

    metrics = {name: read(source) for name, source in resource.metrics.items()}
    wait, guards = resource.cooldown, resource.guards
    out, back = (max(s - 60, 0) for s in (wait.scale_out_seconds, wait.scale_in_seconds))
    missing = replace(guards.missing, after_seconds=LAG_SECONDS_MAX)
    return replace(
        resource,
        metrics=metrics,
        cooldown=Cooldown(out, back, scale_out_pierces=False),
        guards=replace(guards, missing=missing, scale_changes_per_hour=10_000),
    )


def _rules_text(found: Findings, arena: Arena, subscription: str) -> str:
    """The rules file with the default policy: what is written is what was judged."""
    month, rate = found.month, found.rate
    plan = _plan(month)
    queue = ServiceBusQueue(month.entity)
    metric = ServiceBusSubscription(month.entity, subscription) if subscription else queue
    told = f"rate_per_instance_minute={rate.value:.4g}, start_up_minutes={arena.dead_time_minutes}"
    upper = max(rate.value * arena.age_limit_minutes, 1e-3)
    return RULES_TEXT.format(
        name=plan.name,
        source=type(metric).__name__,
        target=call(plan),
        metric=call(metric),
        upper=f"{upper:.4g}",
        lower=f"{upper / 10:.4g}",
        limits=call(Limits(arena.min_instances, arena.max_instances)),
        age_limit=arena.age_limit_minutes,
        throughput=told if rate.sure else "",
        evidence=rate.evidence if rate.sure else "learned, because the month does not show it",
    )


def _plan(month: Month) -> AppServicePlan:
    found = PLAN.fullmatch(month.plan)
    if found is None:
        raise BacktestError(f"plan = {month.plan!r} is not the resource ID of an App Service plan")
    return AppServicePlan(*found.groups())
