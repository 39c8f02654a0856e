"""The values that the fixtures of a version hold: one of each kind of row, message and file.

All fields that a version can write have a value that differs from their default.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import date, timedelta

from shared.autoscaling import Mode
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.flows.poison import UNATTRIBUTED
from shared.autoscaling.plan_facts import PlanFacts
from shared.autoscaling.policy import Recommendation
from shared.autoscaling.state import (
    ActionStatus,
    BacklogTrend,
    BusyIntervals,
    Desired,
    Learned,
    Override,
    RateClaim,
    RulesInForce,
    ScaleAction,
    ScalingState,
    Stall,
)
from shared.ingestion.breaker.failure_window import Tally
from shared.ingestion.breaker.state import Breaker, BreakerMode, Probe
from shared.ingestion.model import (
    Checkpoint,
    Commit,
    DeadLetter,
    Effect,
    FailureKind,
    Gap,
    Mark,
    OutboxMessage,
    Ownership,
    Stream,
    message_id,
)
from shared.notifications.selection import Notification, NotificationRecord
from shared.sampling.estimates import NAMES, Sums
from shared.sampling.kept_ids import HASH, Weights, WeightsSeen
from shared.sampling.operations import KEPT, OF, DayOperations
from shared.sampling.profile import UsualWeek
from shared.sampling.series import BlobDate, DaySums, HourSums, Series, Shape
from shared.sampling.trend_rows import Trend
from shared.trends.datasets.processing import DatasetWork
from shared.trends.nightly.model import Demand, Run, RunState
from shared.values.measurements import (
    CAPACITY_METRIC,
    Metric,
    MetricValue,
    WeekProfile,
    Window,
)
from shared.values.news import News
from spark_jobs.publish.publishing import Entry, Manifest
from tests.builders import NOW, ago

RESOURCE = "workers"
LONG_TEXT = "x" * 17_000
"""Longer than one property of a table."""

# --- scaling ----------------------------------------------------------------------------------

SAMPLES = (
    *(MetricValue(ago(60 - 15 * n), 10.5 * n) for n in range(3)),
    MetricValue(ago(15), 31.5, "topic Disabled"),
)
STATE = ScalingState(
    histories={"orders": Window(SAMPLES), CAPACITY_METRIC: Window(SAMPLES[:1])},
    desired=Desired(
        target=4,
        epoch=7,
        reason="the backlog is late",
        requested_at=NOW,
        previous=2,
        superseded=(3,),
        status=ActionStatus.FAILED,
        sent_at=NOW + timedelta(seconds=1),
        changed_at=ago(600),
        changed_out=True,
        changed_by_hand=True,
        retry_at=NOW + timedelta(seconds=15),
        attempts=2,
        last_error="409: another operation is in progress",
        changes=(1_772_366_400, 1_772_366_460),
        reached=3,
        progressed_at=NOW + timedelta(seconds=90),
        given_up=4,
    ),
    plan=PlanFacts(
        "PremiumV3", 2, 30, "scaled by Azure", True, "/subscriptions/1/ase", "cpu", "403"
    ),
    recommendations=Window(SAMPLES[:2]),
    learned=Learned(
        epoch=6,
        dead_times=3,
        dead_time_minutes=2.5,
        work=BusyIntervals(ago(60), ((20.0, 1.0), (30.0, 2.0)), 2, 1.5),
        trend=BacklogTrend(ago(60), 30.0, 1.0, 0.5, 2.0, 0.25, 9.0, 180.0, 18.0, 12.0, against=1.5),
        stalls=(Stall("backlog", ago(900), ago(1000)),),
        claim=RateClaim(60.0, 6.5, ago(7200), ago(3600), shown=True),
    ),
    rules=RulesInForce("3f1b0c", ago(900), ("2e0a9d",), ago(5), "local-77ab01", ago(1)),
)
OVERRIDE = Override(
    mode=Mode.DRY_RUN,
    reason="sale",
    expires_at=NOW + timedelta(hours=2),
    freeze_scale_in=True,
    floor=3,
    exact=None,
)
USUAL_WEEK = UsualWeek(
    (None, *(float(hour) for hour in range(167))),
    "Europe/Berlin",
    (0, *[4] * 167),
)
PROFILE = WeekProfile(USUAL_WEEK.items_per_minute, USUAL_WEEK.time_zone, USUAL_WEEK.weeks)
DECISION = LogEntry(
    resource_name=RESOURCE,
    time=NOW,
    kind=EntryKind.DECISION,
    entry_id="decision-1",
    reason="the backlog is late",
    current=2,
    desired=4,
    epoch=7,
    applies=True,
    limited_by=("limits",),
    candidates=(Recommendation(5, "late", "QueueAge", {"backlog": 31.5}),),
    evidence={"backlog": 31.5, "rule": "QueueAge", "sure": True},
    counterfactual="at 12 orders it would be 3",
    metric="orders",
    value=31.5,
    samples={"capacity": SAMPLES[:1], "orders": SAMPLES},
)
HOLD = replace(
    DECISION,
    time=NOW + timedelta(seconds=1),
    entry_id="decision-2",
    desired=2,
    applies=False,
    repeated=3,
    repeated_since=NOW,
    set_back=1,
    hours=(3.5, 1.5, 70.25, 30.5),
)
OVERRIDDEN = LogEntry(
    RESOURCE, NOW, EntryKind.OVERRIDE, "override-1", "at least 3", evidence={"by": "anna"}
)
POISON = LogEntry(
    UNATTRIBUTED, NOW, EntryKind.POISON, "poison-1", "metric: not JSON", body=LONG_TEXT
)
METRICS = [Metric(RESOURCE, "orders", sample) for sample in SAMPLES]
ACTION = ScaleAction(RESOURCE, 4, 7, "the backlog is late", NOW)

# --- ingestion --------------------------------------------------------------------------------

STREAM = Stream("shop.servicebus.windows.net", "metrics", "$Default", "3")
CHECKPOINT = Checkpoint(0, 2**40, "@1099511627776", NOW, 5, "vm-1", "tx-1", 3)
LETTERS = (
    DeadLetter(11, "@11", ago(60), NOW, FailureKind.EXHAUSTED, "e" * 17_000, 5, "key", b"\xff" * 9),
    DeadLetter(12, "@12", ago(50), NOW, FailureKind.TOO_LARGE, "too large"),
)
COMMIT = Commit(
    None,
    CHECKPOINT,
    (Effect(10, LONG_TEXT, (OutboxMessage(message_id(STREAM, 10), '{"schema_version": 1}'),)),),
    LETTERS,
    (Gap(20, 25, NOW, "the hub deleted them"),),
)
MARK = Mark(ago(3600), 9)
CLAIM_OF_PARTITION = Ownership("3", "vm-1", 5, None, "balance")
BREAKER = Breaker(
    mode=BreakerMode.HALF_OPEN,
    epoch=3,
    changed_at=NOW,
    reason="101 failures in 30 s",
    breaks=2,
    retry_at=NOW + timedelta(seconds=30),
    probe=Probe("vm-1", "3", NOW + timedelta(seconds=60), 4),
    closed_by="a link",
    announced_epoch=2,
    announce_at=NOW + timedelta(seconds=60),
)
BREAKER_NAME = "metric_ingest"
DEPLOYMENT = "5f1c9e0d2b7a4c38"
TALLY = Tally(NOW, "vm-1", 2**40, 3, 1, "TimeoutError")
READING = Metric(RESOURCE, "orders", MetricValue(NOW, 42.0))
APPROVAL_KEY = b"k" * 32

# --- data sets and nightly trends -------------------------------------------------------------

DAY = date(2026, 3, 1)
DATASET = "insights-logs-appevents"
WORK = DatasetWork(DATASET, "2026-03-01", ago(86_400), NOW, late=2)
DEMAND = Demand(DAY, NOW, "late data")
RUN = Run(
    dataset=DATASET,
    date=DAY,
    number=1,
    attempt=2,
    token="run-1",
    data_until=NOW,
    state=RunState.FAILED,
    created_at=ago(600),
    changed_at=NOW,
    submits=2,
    lease_until=NOW + timedelta(minutes=5),
    submitted_at=ago(500),
    handle="batch-4",
    log_url="https://spark.example.org/4",
    error="the executor was lost",
    warning="2026-02-27",
    retry_at=NOW + timedelta(minutes=10),
)
TREND = Trend(
    date=DAY.isoformat(),
    event="checkout",
    kind="AppEvents",
    measurement="Amount",
    dimensions={"country": "CH"},
    records=100,
    raw_sum=150.5,
    sampling_rate=30.0,
    adjusted_count=330.0,
    adjusted_count_se=3.0,
    adjusted_count_low=324.0,
    adjusted_count_high=336.0,
    adjusted_sum=500.5,
    adjusted_sum_se=5.0,
    adjusted_sum_low=490.0,
    adjusted_sum_high=510.0,
    n_eff=98.5,
    weight_max=4.0,
    duplicates_removed=1,
    quarantined=2,
    late_share=0.125,
    complete=False,
    warnings=("weights vary",),
    verdict="normal",
    reason="as on other days",
    figure="count and sum",
    count_verdict="normal",
    sum_verdict="sampling",
    evidence={"median": 320.0},
)
LOSS = replace(TREND, verdict="events lost")
SERIES = Series("AppEvents", "checkout", ("CH",))
DAY_SUMS = DaySums(Sums(*range(1, 1 + len(NAMES))), [HourSums(492_264, 100, 330.0, 1)])
TOTALS = {(DAY.isoformat(), SERIES): DAY_SUMS}
EVENT = ("AppEvents", "checkout", "CH")
SEEN = WeightsSeen(Weights.WRONG, 500, 1.0, HASH, 4.9, 4.88, 4.94, unsampled=True)
OPERATIONS = {
    DAY.isoformat(): DayOperations(Counter({(OF, EVENT): 9, (KEPT,): 12}), {"java:3.6.2": SEEN})
}
SHAPE = Shape("Amount", ("country",), "Europe/Berlin")
READ = BlobDate(4096, {DAY.isoformat(): 101}, 1, {"09": 2}, 2, 3)
MANIFEST = Manifest(
    1,
    SHAPE,
    {DAY.isoformat(): Entry("run-1", "arrow-1", READ)},
    "run-1",
)

# --- notifications ----------------------------------------------------------------------------

NOTIFICATION = Notification(
    ("breaker.opened", BREAKER_NAME),
    News("news-1", "breaker.opened", BREAKER_NAME, NOW, "The breaker opened"),
    NotificationRecord(("a1", "b2"), ago(30), NOW, ago(60), "error"),
)
