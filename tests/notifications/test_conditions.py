"""What is wrong now: the page, the status, its command and the notifier show the same list."""

from __future__ import annotations

import ast
import html
import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import pytest

from local.twins.autoscaling import MemoryStateStore
from local.twins.notifications import MemoryNotificationStore
from shared.autoscaling import Limits, Mode, Throughput
from shared.autoscaling.acting.actions import confirm_in_part
from shared.autoscaling.deciding import clocks
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.errors import StateUnreadable
from shared.autoscaling.flows import notify, status
from shared.autoscaling.operating import conditions as of_resource
from shared.autoscaling.plan_facts import PlanFacts
from shared.autoscaling.policy import Observation, Recommendation
from shared.autoscaling.ports import Snapshot
from shared.autoscaling.sources import HubMetric
from shared.autoscaling.state import (
    ActionStatus,
    BusyIntervals,
    Desired,
    Learned,
    Override,
    RateClaim,
    RulesInForce,
    ScalingState,
    Stall,
)
from shared.cli import tables
from shared.ingestion.breaker.announcement import open_breaker
from shared.ingestion.breaker.state import Breaker, BreakerMode
from shared.ingestion.model import DeadLetter, FailureKind, Stream
from shared.ingestion.operating.breaker_controller import Backlog
from shared.ingestion.operating.event_news import of_hub, of_letters
from shared.ingestion.store.events import StoredDeadLetter
from shared.notifications import flow
from shared.notifications.conditions import ConditionShown, LastingCondition, grouped
from shared.notifications.ports import Observed
from shared.notifications.selection import NotificationIntervals, due_conditions
from shared.sampling.trend_rows import UNREADABLE, Trend
from shared.trends.nightly.trend_news import trend_conditions
from shared.values.measurements import CAPACITY_METRIC, MetricValue, Window
from shared.values.news import News, NewsKind, Severity
from shared.web.board import Board, Panel, Shown
from shared.web.http import Request
from shared.web.page import dashboard
from tests.builders import (
    NOW,
    SOURCE,
    TIMING,
    ago,
    confirmed,
    desired,
    history,
    resource,
    sample,
    state,
)

MINUTES = 30
VALIDATE = "Run python -m shared validate --connect"
DEPLOY = "Deploy the version of the app that wrote"
HEALTHY = state([5, 5])


@dataclass(frozen=True)
class Case:
    """Something wrong, and what operators see of it."""

    severity: str
    what: str
    meaning: str = ""
    todo: str = ""
    kind: str | None = None
    state: ScalingState = HEALTHY
    newest: LogEntry | None = None
    unreadable: Sequence[str] = ()
    declared: Mapping[str, Any] = field(default_factory=dict)
    subject: str = "plan-1"


def decided(*recommended: Recommendation, **changes: Any) -> LogEntry:
    made = LogEntry(
        "plan-1", NOW, EntryKind.DECISION, "d-1", "because", 2, 2, candidates=recommended
    )
    return replace(made, **changes)


def having(name: str, *samples: MetricValue, **changes: Any) -> ScalingState:
    return replace(HEALTHY.with_history(name, Window(samples)), **changes)


def rules(activated_seconds_ago: float) -> ScalingState:
    in_force = RulesInForce("new", ago(activated_seconds_ago), other="old", other_at=NOW)
    return replace(HEALTHY, rules=in_force)


OLDEST = {"backlog": 90, "arrivals_per_minute": 10}
AT_MAXIMUM = having(CAPACITY_METRIC, sample(5, 3600), sample(5))
CLOCKS = [MetricValue(ago(age), ago(age + 300).timestamp()) for age in (60, 30, 0)]
REFUTED = Learned(
    work=BusyIntervals(recent=((56.0, 2.0),) * 9), claim=RateClaim(60, 9, ago(7200), ago(3600))
)
UNHELPFUL = Learned(work=BusyIntervals(NOW, ((100.0, 2.0),) * 6 + ((100.0, 4.0),) * 6, 12, 1))
STALLED = Learned(stalls=(Stall("backlog", ago(1800), ago(1860)),))
REFUSED = desired(status=ActionStatus.FAILED, last_error="the identity lacks the right")
HUNG = desired(requested_at=ago(720), last_error="no answer within 30 s")
STILL = desired(
    target=15,
    previous=3,
    reached=9,
    requested_at=ago(1200),
    progressed_at=ago(400),
    last_error="429: no more instances are available",
)
IN_PART = confirm_in_part(STILL, 9, ago(200), TIMING)
BLOCKED = decided(reason="running since noon", limited_by=("policy_unanswered",))
RAISED = decided(Recommendation(2, "the policy raised KeyError: 'x'; holding", "error"))
PAUSED = Override(Mode.PAUSED, "incident")


def stay(seen: Observation) -> Recommendation:
    return Recommendation(seen.capacity, "stay")


def of_plan(**facts: Any) -> ScalingState:
    return replace(HEALTHY, plan=PlanFacts(**facts))


AUTOSCALE = "Azure Monitor scales this plan too, by its autoscale setting cpu"
BUSY = confirmed(60, changes=tuple(int(ago(n * 200).timestamp()) for n in range(16, 0, -1)))
AT_THREE = {"backlog": history([5]), CAPACITY_METRIC: history([3.0] * 61)}
# fmt: off
CASES = [
    Case("error", "the policy does not answer, so the capacity is held", "running since noon",
         "Find what the policy waits for", "policy.unanswered", newest=BLOCKED),
    Case("error", "the policy raised KeyError: 'x'; holding", "", "Fix scaling_rules.py.",
         newest=RAISED),
    Case("error", "scaling to 3 instances was refused", "the identity lacks the right", VALIDATE,
         state=state([5], 2, REFUSED)),
    Case("warning", "scaling to 3 instances was requested 12 min ago and is not confirmed",
         "no answer within 30 s", VALIDATE, state=state([5, 5], 2, HUNG)),
    Case("warning", "scaling to 15 instances reached 9 and has stood still for 7 min",
         "429: no more instances are available", VALIDATE, "scaling.incomplete",
         state([5, 5], 9, STILL)),
    Case("warning", "scaling to 15 instances ended at 9", "429: no more instances are available",
         VALIDATE, "scaling.incomplete", state([5, 5], 9, IN_PART),
         decided(Recommendation(15, "busy"), current=9, desired=9),
         declared={"limits": Limits(1, 20)}),
    Case("warning", "no sample of capacity for 4 min", "The plan cannot be read", VALIDATE,
         "source.stale", having(CAPACITY_METRIC, sample(2, 240)), subject="plan-1/capacity"),
    Case("warning", "no sample of backlog for 60 min", "The resource is not scaled in", VALIDATE,
         "source.stale", having("backlog", sample(1, 3600)), subject="plan-1/backlog"),
    Case("warning", "no sample of backlog yet", "The resource is not scaled in", VALIDATE, None,
         state(), subject="plan-1/backlog"),
    Case("warning", "no sample of capacity for 2 min", "Other sources have samples.", VALIDATE,
         "source.stale", having(CAPACITY_METRIC, sample(2, 135)), subject="plan-1/capacity"),
    Case("warning", "the clock of the storage account is 300 s ahead of that of the plan",
         "Samples are dated by the clock", "", "source.stale", having(clocks.NOTES, *CLOCKS),
         subject="plan-1/clock"),
    Case("error", "the oldest item has waited longer than the age limit, at the maximum of 5 inst",
         "", "Raise the maximum", state=state([5], 5), newest=decided(evidence=OLDEST)),
    Case("error", "the oldest item has waited longer than the age limit, at the maximum of 5 inst",
         "", "Choose a larger tier", state=state([5], 5, plan=PlanFacts(maximum=5)),
         newest=decided(evidence=OLDEST)),
    Case("warning", "the oldest item has waited longer than the age limit",
         newest=decided(evidence=OLDEST)),
    Case("warning", "at its maximum of 5 for 60 min", "The policy recommends 9: more",
         "Raise the maximum", "at.maximum", AT_MAXIMUM,
         decided(Recommendation(9, "more"), current=5, desired=5)),
    Case("warning", "backlog has not fallen for 30 min",
         "The oldest item arrived at 2026-03-01 11:29 UTC or later. Either more work arrives",
         "Check that the instances process items.", "backlog.not.falling",
         replace(HEALTHY.with_history("backlog", history([9, 9])), learned=STALLED),
         subject="plan-1/backlog"),
    Case("warning", "the setting says 60 a minute; in the last 2 h instances finished 28 ± 0 each",
         "Decisions use what is seen until the setting is changed.",
         "Correct rate_per_instance_minute, or set trust_rate=True", "rate.refuted",
         replace(HEALTHY, learned=REFUTED), declared={"throughput": Throughput(60)},
         subject="plan-1/rate"),
    Case("warning", "2 more instances finished nothing more", "The limit lies behind the instances",
         "Find what they wait for", "scaling.unhelpful", replace(HEALTHY, learned=UNHELPFUL),
         subject="plan-1/instances"),
    Case("warning", "subscription orders/billing is Disabled, so nothing can be received from it",
         "The rules hold the capacity.", "Make it active once", "entity.disabled",
         having("backlog", replace(sample(5), status="Disabled")), subject="plan-1/entity"),
    Case("warning", "topic orders is Disabled, so nothing can be received from it",
         "The rules do not scale in.", "Make it active once", "entity.disabled",
         having("backlog", replace(sample(5), status="topic Disabled")).with_history(
             "other", Window((sample(1),))),
         declared={"metrics": {"backlog": SOURCE, "other": HubMetric()}, "policy": stay},
         subject="plan-1/entity"),
    Case("warning", "decisions ignore 2 row(s) that cannot be read", "row a; row b", DEPLOY,
         "state.unreadable", unreadable=("row a", "row b")),
    Case("warning", "copies of the app run with different rules", "version new of the rules",
         "If no deployment is under way, stop", "rules.differ", rules(900)),
    Case("warning", "copies of the app run with different rules", "version new of the rules",
         "If no deployment is under way, stop", None, rules(300)),
    Case("info", "paused (incident)", "An operator's override is in force.",
         state=replace(HEALTHY, override=PAUSED)),
    Case("info", "dry run: decisions are logged, but the capacity does not change", "",
         "Set DryRun to false", declared={"mode": Mode.DRY_RUN}),
    Case("info", "paused: nothing is decided", "mode paused, set", declared={"mode": Mode.PAUSED}),
    Case("error", "Azure itself scales this plan, so the app holds", "",
         "Choose a plan", "plan.unfit", of_plan(unscalable="Azure itself scales this plan"),
         subject="plan-1/plan"),
    Case("warning", "Azure Monitor scales this plan too, by its autoscale setting cpu",
         "Each undoes", "Disable or delete", "plan.unfit", of_plan(autoscale=AUTOSCALE),
         subject="plan-1/autoscale"),
    Case("info", "Azure allows this plan at most 3 instances in tier Basic, fewer than the "
         "declared maximum of 5", state=of_plan(tier="Basic", maximum=3), subject="plan-1/plan"),
    Case("info", "Azure allows this plan no fewer than 2 instances because it is zone-redundant, "
         "more than the declared minimum of 1", state=of_plan(minimum=2), subject="plan-1/plan"),
    Case("info", "per-app scaling is on", state=of_plan(per_app=True), subject="plan-1/plan"),
    Case("warning", "16 changes within the last hour, of which Azure allows 20: no scale-in until",
         "", "Lengthen the cooldowns.", state=state([5, 5], 2, BUSY)),
    Case("error", "the state cannot be read, so nothing is decided", "row x", DEPLOY,
         "state.unreadable", unreadable=("!row x",)),
]
# fmt: on


class Kept(MemoryStateStore):
    """A store with the state and the log of a case."""

    def __init__(self, case: Case) -> None:
        super().__init__(lambda: NOW)
        self.case = case

    async def load(self, resource_name: str) -> Snapshot:
        rows = tuple(self.case.unreadable)
        if rows and rows[0].startswith("!"):
            raise StateUnreadable(rows[0][1:], NOW)
        return Snapshot(resource_name, self.case.state, NOW, {}, rows, self.case.newest)


class Inbox:
    def __init__(self) -> None:
        self.received: list[News] = []

    async def tell(self, news: News) -> None:
        self.received.append(news)


async def notified(observed: Observed) -> list[News]:
    async def source(_since: datetime, _now: datetime) -> Observed:
        return observed

    inbox, records = Inbox(), MemoryNotificationStore(lambda: NOW)
    await flow.send_due_notifications(
        {"world": source}, records, {"": inbox}, NotificationIntervals()
    )
    return inbox.received


async def test_a_part_that_suffices_and_progress_are_not_reported() -> None:
    moving = replace(STILL, progressed_at=ago(200))
    for last, wanted in ((IN_PART, 9), (moving, 15)):
        newest = decided(Recommendation(wanted, "busy"), current=9, desired=9)
        case = Case("", "", state=state([5, 5], 9, last), newest=newest)
        (seen,) = await status.read_all([resource(limits=Limits(1, 20))], Kept(case), MINUTES)
        assert seen["conditions"] == []


@pytest.mark.parametrize(
    ("last", "on_the_page", "in_status"),
    [
        (STILL, "→ 15 requested, 9 at 11:53", "15 (pending, 9 reached)"),
        (IN_PART, "of 15 requested", "9 (confirmed, of 15)"),
    ],
)
async def test_page_and_status_show_how_far_an_action_has_come(
    last: Desired, on_the_page: str, in_status: str, capsys: pytest.CaptureFixture[str]
) -> None:
    declared, store = resource(), Kept(Case("", "", state=state([5, 5], 9, last)))
    (seen,) = await status.read_all([declared], store, MINUTES)
    tables.status([seen])
    assert in_status in " ".join(capsys.readouterr().out.split())
    assert on_the_page in await page(Board({"plan-1": declared}, store, MINUTES))


async def page(board: Board) -> str:
    return html.unescape((await dashboard(Request(query={"live": "true"}), board)).body)


def everywhere(shown: ConditionShown, *places: str) -> bool:
    texts = (shown["what"], shown["meaning"], shown["todo"])
    return all(text in place for text in texts for place in places)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.what}-{case.kind}")
async def test_each_condition_of_a_resource_is_the_same_on_page_status_command_and_in_the_news(
    case: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    declared, store = resource(**case.declared), Kept(case)
    (seen,) = await status.read_all([declared], store, MINUTES)
    (shown,) = seen["conditions"]
    tables.status([seen])
    board = Board({"plan-1": declared}, store, MINUTES)
    body = await page(board)
    assert shown["what"].startswith(f"plan-1: {case.what}")
    assert shown["meaning"].startswith(case.meaning)
    assert shown["todo"].startswith(case.todo)
    assert (shown["severity"], shown["kind"]) == (case.severity, case.kind)
    assert shown["subject"] == case.subject
    assert everywhere(shown, capsys.readouterr().out, body)
    style = {"error": "bad", "warning": "warn", "info": "info"}[case.severity]
    assert f'<li class="{style}"><a href="#name-1">{shown["what"]}' in body
    news = await notified(await notify.collect_news([declared], store, NOW, NOW, MINUTES))
    assert [(each.kind, each.subject, str(each.severity), each.headline) for each in news] == (
        [(case.kind, case.subject, case.severity, shown["what"])] if case.kind else []
    )
    assert all(everywhere(shown, f"{each.headline} {each.text}") for each in news)


async def test_a_resource_at_the_maximum_of_its_plan_is_at_its_maximum() -> None:
    known = replace(state([5], 3), histories=AT_THREE, plan=PlanFacts(maximum=3))
    entry = decided(Recommendation(9, "more"), current=3, desired=3)
    store = Kept(Case("", "", state=known, newest=entry))
    seen = await status.read_one(resource(limits=Limits(1, 40)), store, MINUTES)
    assert [each["kind"] for each in seen["conditions"]] == ["at.maximum", None]
    assert "at its maximum of 3 for 60 min" in seen["conditions"][0]["what"]


async def test_the_table_has_every_condition_that_the_code_can_tell_of_a_resource(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tree = ast.parse(inspect.getsource(of_resource))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    told = {call.lineno for call in calls if ast.unparse(call.func) == "LastingCondition"}
    seen = set[int]()

    def recorded(*args: Any, **fields: Any) -> LastingCondition:
        seen.add(sys._getframe(1).f_lineno)
        return LastingCondition(*args, **fields)

    monkeypatch.setattr(of_resource, "LastingCondition", recorded)
    for case in CASES:
        await status.read_all([resource(**case.declared)], Kept(case), MINUTES)
    assert seen == told


OPEN = Breaker(BreakerMode.HALF_OPEN, 3, NOW, "12 failures in 30 s", retry_at=NOW)
LETTER = DeadLetter(1, "1", NOW, NOW, FailureKind.POISON, "no JSON")
STREAM = Stream("ns", "hub", "g", "0")
LETTERS = [
    StoredDeadLetter(STREAM, replace(LETTER, failed_at=ago(age), error=error), 1)
    for age, error in ((9, "old"), (1, "w" * 300), (5, "older"))
]
LOST = Trend("2026-02-28", "checkout", "AppEvents", verdict="events lost", reason="half of them")
HELD = [Backlog(str(n), None, f"recreated {n}", is_held=n > 0) for n in range(3)]
OTHERS: list[tuple[str, str, list[LastingCondition], str, str, str, str | None]] = [
    ("breakers", "#breakers", open_breaker("metric_ingest", OPEN),
     "Circuit breaker metric_ingest is half open: 12 failures in 30 s", "Events wait in the hub",
     "Close it when the cause is fixed.", "breaker.opened"),
    ("hub", "#breakers", [*of_hub("hub", "g", HELD).conditions],
     "hub: 2 of 3 partitions cannot be processed", "partition 1: recreated 1; partition 2",
     "See “A hub that was recreated”", "hub.held"),
    ("dead-letters", "#dead-letters", of_letters(LETTERS, 50), "dead letters: 3",
     f"The newest: {'w' * 227}…", "Fix the cause, then run python -m shared dead-letters", None),
    ("trends", "#trends", list(trend_conditions([LOST, replace(LOST, date="2026-01-01")])),
     "checkout: events of 2026-02-28 are missing", "half of them",
     "Check that the sender is still emitting events.", "trend.alarm"),
    ("trends", "#trends", list(trend_conditions([replace(LOST, verdict=UNREADABLE)])),
     "checkout: the trend of 2026-02-28 cannot be read", "half of them", DEPLOY, None),
]  # fmt: skip


@pytest.mark.parametrize(("panel", "href", "found", "what", "meaning", "todo", "kind"), OTHERS)
async def test_each_other_condition_is_the_same_on_the_page_and_in_the_news(
    panel: str,
    href: str,
    found: list[LastingCondition],
    what: str,
    meaning: str,
    todo: str,
    kind: str | None,
) -> None:
    (condition,) = found

    async def shown() -> Shown:
        return Shown([], found)

    store = MemoryStateStore(lambda: NOW)
    body = await page(Board({}, store, MINUTES, {panel: shown}))
    assert f'<a href="{href}">{what}' in body
    assert f"<small>{meaning}" in body
    assert f"{todo}" in body
    assert condition.kind == kind
    if kind:
        news = condition.news(NOW)
        assert (news.kind, news.headline, news.severity) == (kind, what, condition.severity)
        assert news.text == f"{condition.meaning.removesuffix('.')}. {condition.todo}"


async def test_the_page_lists_the_most_severe_conditions_first() -> None:
    def panel(*conditions: LastingCondition) -> Panel:
        async def shown() -> Shown:
            return Shown([], conditions)

        return shown

    async def broken() -> Shown:
        raise OSError("gone")

    late = Case("warning", "", newest=decided(evidence=OLDEST))
    panels = {
        "breakers": panel(*open_breaker("b", OPEN)),
        "dead-letters": broken,
        "trends": panel(*trend_conditions([LOST])),
    }
    declared = {"plan-1": resource(mode=Mode.DRY_RUN)}
    store = Kept(late)
    body = await page(Board(declared, store, MINUTES, panels))
    order = ["Circuit breaker b", "checkout: events", "plan-1: the oldest", "dead letters: cannot",
             "plan-1: dry run"]  # fmt: skip
    places = [body.index(f">{each}") for each in order]
    assert places == sorted(places)


def conditions_of(whats: Sequence[str], **fields: Any) -> list[LastingCondition]:
    return [
        LastingCondition(
            name := f"plan-{n}", Severity.WARNING, f"{name}: {what}", resource=name, **fields
        )
        for n, what in enumerate(whats)
    ]


@pytest.mark.parametrize(
    ("whats", "told"),
    [
        (["no sample for 3 min"] * 3, ["plan-0: no sample for 3 min", "plan-1: no sample for 3 min",
                                       "plan-2: no sample for 3 min"]),
        ([f"no sample for {n} min" for n in (9, 10, 3, 4, 5)],
         ["5 resources: no sample for 3 to 10 min: plan-0, plan-1, plan-2 and 2 more"]),
        (["no sample for 3 min"] * 4,
         ["4 resources: no sample for 3 min: plan-0, plan-1, plan-2 and 1 more"]),
        ([*["16 of 20 until 11:05"] * 3, "9.5 of 20 until 12:10", "failed"],
         ["4 resources: 9.5 to 16 of 20 until 11:05 to 12:10: plan-0, plan-1, plan-2 and 1 more",
          "plan-4: failed"]),
        ([f"id {n}b2c3d4e-0000-0000-0000-{n}00000000000" for n in range(4)],
         [f"4 resources: id 0b2c3d4e-0000-0000-0000-{0:012}: plan-0, plan-1, plan-2 and 1 more"]),
    ],
)  # fmt: skip
def test_conditions_that_differ_only_in_resource_and_numbers_are_one(
    whats: Sequence[str], told: Sequence[str]
) -> None:
    found = conditions_of(whats, meaning="m", todo="t")
    seen = grouped(found)
    assert [each.what for each in seen] == told
    assert {(each.meaning, each.todo) for each in seen} == {("m", "t")}


def test_conditions_of_another_kind_severity_or_metric_or_of_no_resource_stay_their_own() -> None:
    same = conditions_of(["no sample"] * 4)
    others: list[dict[str, Any]] = [
        {"kind": NewsKind.SOURCE_STALE}, {"severity": Severity.ERROR}, {"subject": "plan-0/backlog"}
    ]  # fmt: skip
    for changes in others:
        assert len(grouped([*same[1:], replace(same[0], **changes)])) == 4
    assert len(grouped([replace(each, resource="") for each in same])) == 4


def test_metrics_whose_names_differ_only_in_a_number_are_two_notifications() -> None:
    found = [
        LastingCondition(
            f"plan-{n}/{name}", Severity.WARNING, f"plan-{n}: no sample of {name} for {n} min",
            kind=NewsKind.SOURCE_STALE, resource=f"plan-{n}",
        )
        for n in range(5) for name in ("queue-1", "queue-2")
    ]  # fmt: skip
    due = due_conditions(
        [each.news(NOW) for each in grouped(found)], {}, NOW, NotificationIntervals()
    )
    assert [each.news.headline for each in due] == [
        f"5 resources: no sample of {name} for 0 to 4 min: plan-0, plan-1, plan-2 and 2 more"
        for name in ("queue-1", "queue-2")
    ]


async def test_page_and_status_command_tell_one_cause_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stale = Case("", "", state=having(CAPACITY_METRIC, sample(2, 240)))
    declared, store = {f"p-{n}": resource(f"p-{n}") for n in range(30)}, Kept(stale)
    what = "30 resources: no sample of capacity for 4 min: p-0, p-1, p-2 and 27 more"
    tables.status(await status.read_all(declared.values(), store, MINUTES))
    assert capsys.readouterr().out.count("no sample of capacity") == 1
    body = await page(Board(declared, store, MINUTES))
    assert f'<li class="warn"><a href="#all">{what}' in body


async def test_nothing_needs_attention_when_nothing_is_wrong() -> None:
    newest = decided(
        Recommendation(2, "holding"), evidence={"backlog": 4, "arrivals_per_minute": 1}
    )
    young = state([5, 5], 2, desired(requested_at=ago(200)))
    store = Kept(Case("", "", newest=newest, state=young))
    assert "Nothing needs attention" in await page(Board({"plan-1": resource()}, store, MINUTES))
    assert open_breaker("b", Breaker()) == of_letters([], 50) == []
    assert list(trend_conditions([LOST, replace(LOST, date="2026-03-01", verdict="normal")])) == []


async def test_a_refused_action_is_no_problem_once_the_rules_want_the_present_capacity() -> None:
    for capacity, wrong in ((2, 0), (3, 1)):
        case = Case(
            "", "", state=state([5], 2, REFUSED), newest=decided(Recommendation(capacity, "x"))
        )
        (seen,) = await status.read_all([resource()], Kept(case), MINUTES)
        assert len(seen["conditions"]) == wrong
