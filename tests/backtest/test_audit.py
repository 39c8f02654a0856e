"""The audit: what it finds of plans whose capacity is known, what it answers, and how it reads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backtest.arena import Arena
from backtest.audit import parsed, read
from backtest.audit_answers import OLD, PAID, Audit, paid_against_replayed, with_starting
from backtest.audit_azure import Reader, new_month
from backtest.audit_instances import from_file, from_log
from backtest.audit_model import Estimate, Findings, findings
from backtest.audit_month import DAY_MINUTES, Month, load_month, save_month
from backtest.errors import BacktestError
from backtest.outcome import Course
from backtest.replay import Replay
from backtest.rules_file import load_rules
from backtest.study import RULES, Study
from bench.made_up_months import BUS, PLAN, QUEUE, WORLDS, World, made_up
from local.azure_apis.arm import ArmStandIn
from local.azure_apis.loopback_server import Fault, Reply
from local.azurite import Azurite
from shared.autoscaling import Mode, QueueAge
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.store.tables import TableStateStore
from shared.settings.connections import StorageConnection
from tests.backtest.arenas import SHIPPED_RULES, CommandLine, workload
from tests.builders import NOW

CALM = World("calm", 40, 4, 200, "CpuPercentage", 45, 25, 2, minimum=8, maximum=30, seed=5)


def changed(month: Month, **columns: Any) -> Month:
    return month.model_copy(update={"columns": {**month.columns, **columns}})


# --- what is found ----------------------------------------------------------------------------


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_the_model_finds_the_known_capacity_and_replays_what_was_paid(world: World) -> None:
    found = findings(made_up(world, 6))
    assert found.rate.sure
    assert found.rate.value == pytest.approx(world.rate, rel=0.1)
    assert found.rate.low <= found.rate.value <= found.rate.high
    assert found.start_up.sure
    assert found.start_up.value == pytest.approx(world.start_up_minutes, abs=1)
    assert abs(paid_against_replayed(found)) <= 0.05


def test_a_plan_that_never_shows_a_full_load_gets_a_rate_that_is_not_sure() -> None:
    month = made_up(CALM, 3)
    by_cpu = findings(month)
    assert not by_cpu.rate.sure
    assert by_cpu.rate.value == pytest.approx(CALM.rate, rel=0.2)
    assert "At 100 % CPU" in by_cpu.rate.evidence
    assert not by_cpu.start_up.sure
    at_least = findings(changed(month, cpu=[None] * month.minutes))
    assert not at_least.rate.sure
    assert at_least.rate.value < CALM.rate, "the safe side is a low rate"
    assert "at least" in at_least.rate.evidence


def test_a_minute_without_data_is_never_a_minute_without_messages() -> None:
    month = made_up(WORLDS[0], 2)
    columns = {name: list(values) for name, values in month.columns.items()}
    for column in columns.values():
        for minute in (*range(100, 103), *range(500, 540)):
            column[minute] = None
    found = findings(month.model_copy(update={"columns": columns}))
    assert found.workload.minutes == month.minutes - 40
    assert found.workload.without_data == 43
    before, after = (month.columns["incoming"][at] for at in (99, 103))
    assert before is not None
    assert after is not None
    filled = found.workload.arrivals[100:103]
    assert filled.min() >= min(before, after), "short gaps are like what is beside them"
    assert any("3 in gaps" in n and "40 in longer ones" in n for n in found.workload.notices)


@pytest.mark.parametrize(("zeros", "kept"), [(False, 2 * DAY_MINUTES), (True, 2 * DAY_MINUTES - 9)])
def test_an_absent_count_is_zero_only_if_zeros_are_left_out(zeros: bool, kept: int) -> None:
    month = made_up(WORLDS[0], 2)
    incoming: list[float | None] = [value or 1.0 for value in month.columns["incoming"]]
    incoming[700:709] = [None] * 9
    if zeros:
        incoming[50] = 0.0
    found = findings(changed(month, incoming=incoming))
    assert found.workload.minutes == kept
    assert (found.workload.arrivals[700:709] == 0).all() != zeros
    assert any("read as 0" in notice for notice in found.workload.notices) != zeros


def test_a_topic_counts_each_message_once_for_each_subscription_and_says_so() -> None:
    queue = made_up(WORLDS[0], 2)
    halves = [None if value is None else value / 2 for value in queue.columns["incoming"]]
    topic = changed(queue, incoming=halves).model_copy(update={"kind": "topic"})
    found = findings(topic)
    assert found.workload.arrivals.sum() == pytest.approx(np.nansum(queue.column("incoming")), 0.01)
    assert "2.00 deliveries a message" in found.workload.notices[0]


def test_messages_in_hand_are_no_backlog_but_the_setting_counts_them() -> None:
    world = replace(WORLDS[0], in_hand_minutes=1.5, out_above=250, in_below=60)
    found = findings(made_up(world, 4))
    assert found.in_hand_minutes == pytest.approx(1.5, rel=0.1)
    assert found.rate.sure
    assert found.rate.value == pytest.approx(world.rate, rel=0.1)
    assert np.median(found.backlog) < world.rate
    assert abs(paid_against_replayed(found)) <= 0.05


def test_messages_that_always_wait_do_not_count_as_backlog() -> None:
    month = made_up(WORLDS[0], 2)
    more = [None if value is None else value + 5000 for value in month.columns["active"]]
    found = findings(changed(month, active=more))
    assert found.backlog.min() == 0
    assert found.workload.notices[0].startswith("5,000 messages waited at all times")


@pytest.mark.parametrize(
    ("column", "says"),
    [("active", "no minute has ActiveMessages"), ("instances", "0 minutes have both"),
     ("completed", "no message came, or none was completed")],
)  # fmt: skip
def test_a_month_without_what_an_audit_needs_says_what_is_missing(column: str, says: str) -> None:
    month = made_up(WORLDS[0], 2)
    empty = [0.0 if column == "completed" else None] * month.minutes
    with pytest.raises(BacktestError, match=says):
        findings(changed(month, **{column: empty}))


# --- what is answered -------------------------------------------------------------------------


def audited(paid: tuple[int, int], old: tuple[int, int], new: tuple[int, int], days: int) -> Audit:
    """Of steady instances and daily late minutes: paid, the setting, the default policy."""
    minutes = days * DAY_MINUTES

    def course(instances: int, late: int) -> Course:
        late_work = np.where(np.arange(minutes) % DAY_MINUTES < late, 1.0, 0.0)
        capacity = np.full(minutes, instances)
        return Course(capacity, late_work, late_work, late_work)

    load, sure = workload(np.ones(minutes)), Estimate(1, 1, 1, "", sure=True)
    zeros, month = np.zeros(minutes), made_up(WORLDS[0], 1)
    found = Findings(month, load, zeros, zeros, 0, sure, sure, None, 1, 0)
    courses = {PAID: course(*paid), OLD: course(*old), RULES: course(*new)}
    rules: Any = None
    nothing = Replay(courses[RULES].capacity, ())
    study = Study(load, Arena(1.0), rules, nothing, courses, courses[RULES], 0.0)
    return Audit(found, study, "")


@pytest.mark.parametrize(
    ("paid", "old", "new", "days", "verdict"),
    [
        ((10, 0), (10, 0), (10, 0), 7, "Built-in autoscale is good enough"),
        ((100, 0), (100, 0), (98, 0), 7, "Built-in autoscale is good enough"),
        ((100, 0), (100, 0), (80, 0), 7, "0, with 20.0% fewer"),
        ((100, 0), (100, 0), (80, 0), 3, "instance-hours. But the days are too few"),
        ((100, 0), (100, 0), (80, 9), 7, "Built-in autoscale is good enough: 0 late minutes"),
        ((10, 60), (10, 60), (11, 0), 7, "A change is worth it: 420 late minutes become 0"),
        ((10, 0), (20, 0), (10, 0), 7, "No verdict: the replay of the setting misses"),
    ],
    ids=["alike", "saves little", "saves", "too few days", "saves and is late", "is not late",
         "a model that is not true to the month does not count"],
)  # fmt: skip
def test_the_verdict_says_plainly_if_built_in_autoscale_is_good_enough(
    paid: tuple[int, int], old: tuple[int, int], new: tuple[int, int], days: int, verdict: str
) -> None:
    assert verdict in audited(paid, old, new, days).verdict


def test_an_instance_is_paid_for_while_it_starts() -> None:
    schedule = np.array([1, 1, 1, 3, 3, 1])
    assert with_starting(schedule, 2).tolist() == [1, 3, 3, 3, 3, 1]
    assert with_starting(schedule, 0).tolist() == schedule.tolist()


def test_the_worst_hours_are_those_with_the_most_late_minutes() -> None:
    audit = audited((1, 70), (1, 70), (1, 0), 1)
    assert list(audit.worst_hours(2)) == [(0, 60), (60, 120)]


# --- the command ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("audit") / "month.json"
    save_month(made_up(WORLDS[0], 1), path)
    return path


def test_the_command_prints_one_screen_and_writes_what_it_judged(
    backtest: CommandLine, export: Path
) -> None:
    page, rules, copy = (backtest.directory / name for name in ("a.html", "r.py", "c.json"))
    files = ("--html", page, "--rules", rules, "--export", copy, "--compare", SHIPPED_RULES)
    code, out, err = backtest.run("audit", "--from", export, "--price", "0.5", *files)
    assert (code, err) == (0, "")
    for part in ("paid", "built-in, replayed", "default policy", "your rules", "best found",
                 "proven bound", "money", "five worst hours",
                 "fewer than 5 whole days"):  # fmt: skip
        assert part in out, part
    assert len(out.splitlines()) <= 40, "one screen"
    text = page.read_text()
    assert "data:image/png;base64," in text
    assert "proven bound" in text
    resource = load_rules(rules).resource
    assert isinstance(resource.policy, QueueAge)
    assert resource.mode in (Mode.DRY_RUN, Mode.ACTIVE)
    assert resource.throughput.rate_per_instance_minute == pytest.approx(WORLDS[0].rate, rel=0.1)
    assert load_month(copy) == load_month(export)
    again, _, why = backtest.run("audit", "--from", export, "--rules", rules)
    assert again == 2, "rules that exist are kept"
    assert "already exists" in why


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "give one of --plan, --from and --example"),
        (("--from", "a", "--example"), "give one of"),
        (("--plan", PLAN), "--plan needs either --queue or --topic"),
        (("--from", "a", "--queue", "b/q"), "these need --plan"),
        (("--plan", "workers", "--queue", "b/q"), "must be the resource ID of an App Service plan"),
        (("--plan", PLAN, "--queue", "orders"), "must be NAMESPACE/QUEUE"),
        (("--from", "missing.json"), "No such file"),
        (("--plan", PLAN, "--queue", "b/q", "--days", "91"), "at most 90"),
        (("--example", "--instances", "a", "--history", "b"), "either --instances or --history"),
    ],
)
def test_a_wrong_command_line_says_what_to_give(
    backtest: CommandLine, arguments: tuple[str, ...], says: str
) -> None:
    code, _, err = backtest.run("audit", *arguments)
    assert code == 2
    assert says in " ".join(err.split())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("[1]", "not an export"),
        ("{", "not JSON"),
        ({"format": "other"}, "format"),
        ({"days": 0}, "days"),
        ({"columns": {"active": [1]}}, "are missing"),
        ({"columns": {"incoming": [1]}}, "they must be alike"),
        ({"columns": {"incoming": [-1]}}, "columns.incoming.0"),
    ],
)
def test_an_export_that_was_changed_is_refused_with_the_place(
    backtest: CommandLine, export: Path, change: Any, says: str
) -> None:
    given = json.loads(export.read_text())
    if isinstance(change, dict) and "active" not in change.get("columns", {"active": 0}):
        change = {"columns": {**given["columns"], **change["columns"]}}
    text = change if isinstance(change, str) else json.dumps({**given, **change})
    code, _, err = backtest.run("audit", "--from", backtest.file("month.json", text))
    assert code == 2
    assert says in err


# --- instances that Azure does not have ---------------------------------------------------------


def test_instances_from_a_file_replace_those_of_azure_and_the_report_says_so(
    backtest: CommandLine, export: Path
) -> None:
    month, name = load_month(export), "instances.csv"
    original = month.columns["instances"]

    def table(minutes: Iterable[int]) -> Path:
        times = [(month.start + timedelta(minutes=m), original[m]) for m in minutes]
        rows = [f"{time:%Y-%m-%d %H:%M}Z,{count:g}" for time, count in times]
        return backtest.file(name, "\n".join(["time,instances", *rows]))

    whole = range(0, month.minutes, 10)
    known = from_file(month, table(set(whole) - set(range(600, 660)))).columns["instances"]
    assert known[590:670] == [original[590]] * 10 + [None] * 60 + [original[660]] * 10
    code, out, err = backtest.run("audit", "--from", export, "--instances", table(whole))
    assert (code, err) == (0, "")
    assert f"from {name}" in out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("time,cpu\n2026-03-02 00:00Z,5\n", "no column of instances"),
        ("time,cpu,instances\n2026-03-02 00:00Z,62,5,4\n", "line 2: 4 fields, the header has 3"),
        ("time,instances\n2026-03-02 00:00Z,0\n", "must be 1 to 1000"),
        ("time,instances\n2026-03-02 00:00Z,two\n", "line 2"),
        ("time,instances\n2020-01-01 00:00Z,2\n", "no instances from wrong.csv in the 1 days"),
    ],
)
def test_instances_of_a_file_that_cannot_be_used_say_why(
    backtest: CommandLine, export: Path, text: str, says: str
) -> None:
    wrong = backtest.file("wrong.csv", text)
    code, _, err = backtest.run("audit", "--from", export, "--instances", wrong)
    assert (code, says in " ".join(err.split())) == (2, True), err


async def test_the_decision_log_has_the_instances_while_the_app_was_running(
    export: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    month, minute = load_month(export), timedelta(minutes=1)
    with Azurite() as azurite:
        monkeypatch.setenv("AzureWebJobsStorage", azurite.connection_string)
        store = TableStateStore(StorageConnection("Storage", azurite.connection_string))
        for at, count in ((10, 3), (12, 5), (40, 2)):
            fields: Any = {"current": count, "desired": count}
            time = month.start + minute * at
            await store.record(
                LogEntry("workers", time, EntryKind.DECISION, f"d{at}", "why", **fields)
            )
        await store.close()
        found = await asyncio.to_thread(from_log, month, "workers")
        with pytest.raises(BacktestError, match="no instances from the app's decision log of"):
            await asyncio.to_thread(from_log, month, "another")
    known = found.columns["instances"]
    assert known[9:14] == [None, 3, 3, 5, None], "nothing is known after the last decision"
    assert known[39:42] == [None, 2, None]
    assert found.instances_from == "from the app's decision log of workers"


# --- Azure ------------------------------------------------------------------------------------

ENTITY = (BUS, "queue", QUEUE)
METRICS = {"active": "ActiveMessages", "incoming": "IncomingMessages",
           "completed": "CompleteMessage", "abandoned": "AbandonMessage"}  # fmt: skip
INSTANCES = 12


FROM_AZURE = ("--plan", f"{PLAN}/", "--queue", f"shop/{QUEUE}", "--days", "2")


@pytest.fixture
async def azure(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ArmStandIn]:
    """Two days of a queue, of 12 instances, and of a setting on the second page of settings."""
    month, arm = made_up(WORLDS[0], 2), ArmStandIn([], clock=lambda: NOW)
    start = NOW - timedelta(minutes=10, days=2)
    setting: Any = month.setting
    arm.metrics.add(BUS, *METRICS.values())
    arm.metrics.add(PLAN, "CpuPercentage").dimension = "Instance"
    arm.metrics.add(setting["id"], "ObservedCapacity")
    for minute in range(month.minutes):
        time = start + timedelta(minutes=minute)
        for name, metric in METRICS.items():
            arm.metrics.record(BUS, metric, time, month.columns[name][minute] or 0, QUEUE)
            arm.metrics.record(BUS, metric, time, 1e6, "another queue")
        arm.metrics.record(setting["id"], "ObservedCapacity", time, 7)
        for instance in range(INSTANCES):
            arm.metrics.record(PLAN, "CpuPercentage", time, 40 + instance, f"dw{instance}")
    other = {"properties": {"targetResourceUri": PLAN + "-2"}}
    arm.autoscale_settings = [other] * 100 + [setting]
    arm.metrics.resources[BUS.lower()].unpublished.add(start + timedelta(minutes=77))
    async with arm:
        monkeypatch.setenv("ArmEndpoint", arm.base_url)
        yield arm


async def test_the_month_is_read_as_azure_has_it(
    azure: ArmStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    waits = list[float]()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    azure.fail_next(Fault(Reply(429, "{}", headers={"Retry-After": "17"})))
    month = await read(parsed(FROM_AZURE), sleep)
    assert waits == [17], "as long as Azure says"
    assert "the next attempt is in 17 s" in " ".join(capsys.readouterr().err.split())
    assert month.setting is not None, "the setting is on the second page"
    original = made_up(WORLDS[0], 2)
    for name in METRICS:
        expected = [value or 0 for value in original.columns[name]]
        found = month.columns[name]
        assert found.pop(77) is None, "a minute that was not published is not zero"
        assert found == [*expected[:77], *expected[78:]], name
    assert set(month.columns["instances"]) == {7}
    assert month.columns["cpu"][0] == pytest.approx(40 + (INSTANCES - 1) / 2)
    assert {request.method for request in azure.requests} == {"GET"}, "nothing is changed"


async def test_without_a_setting_all_instances_in_the_cpu_are_counted(azure: ArmStandIn) -> None:
    azure.autoscale_settings = []
    month = await read(parsed(FROM_AZURE))
    assert set(month.columns["instances"]) == {INSTANCES}, "Azure answers ten series by default"
    assert "not verified" in month.instances_from


async def test_a_reading_that_was_interrupted_continues_where_it_stopped(
    azure: ArmStandIn, tmp_path: Path
) -> None:
    path, reader = tmp_path / "month.json", Reader(azure.base_url, print)
    month = await new_month(reader, PLAN, ENTITY, 2, None)
    month = month.extended(await reader.day(month))
    await reader.close()
    save_month(month, path)
    before = len(azure.requests)
    whole = await read(parsed((*FROM_AZURE, "--export", str(path))))
    assert whole.is_whole
    assert whole == load_month(path)
    assert whole.columns["active"][:DAY_MINUTES] == month.columns["active"]
    assert len(azure.requests) - before == 3, "one request for each resource, for one day"
    with pytest.raises(BacktestError, match="Name another file for 3 days of queue orders"):
        await read(parsed((*FROM_AZURE, "--days", "3", "--export", str(path))))


def test_an_unfinished_export_is_not_audited(backtest: CommandLine, export: Path) -> None:
    text = export.read_text().replace('"days": 1', '"days": 2')
    code, _, err = backtest.run("audit", "--from", backtest.file("part.json", text))
    assert code == 2
    assert "only 1 of 2 days were read" in err


@pytest.mark.parametrize(
    ("fault", "says"),
    [(403, "Monitoring Reader"), (404, "Check the resource ID"), (503, "continues where")],
)
async def test_a_refusal_says_what_to_do(azure: ArmStandIn, fault: int, says: str) -> None:
    async def sleep(_: float) -> None: ...

    azure.fail_next(Fault(Reply(fault, '{"error": {"code": "Code", "message": "no"}}')), 20)
    with pytest.raises(BacktestError, match=says):
        await read(parsed(FROM_AZURE), sleep)


def test_the_example_is_what_the_generator_writes() -> None:
    example = Path(__file__).parents[2] / "local" / "data" / "audit_example.json"
    assert load_month(example) == made_up(replace(WORLDS[0], name="a shop"), 7)
