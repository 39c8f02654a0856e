"""What other rules would have done in a time that the app recorded, beside what was done."""

from __future__ import annotations

import asyncio
import json
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from backtest.arena import as_schedule
from backtest.outcome import course
from backtest.what_if import parsed
from local.azurite import Azurite
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.store.tables import TableStateStore
from shared.settings.connections import StorageConnection
from shared.values.measurements import MetricValue
from tests.backtest.arenas import START, CommandLine, arena, bursty

RULES = """
from shared.autoscaling import AppServicePlan, Limits, QueueAge, Resource, StorageQueue, Threshold

def resources(settings):
    plan = AppServicePlan("00000000-0000-0000-0000-000000000001", "group", "{name}")
    jobs = {{"jobs": StorageQueue("jobs")}}
    policy = QueueAge("jobs", until_known=Threshold("jobs", 100, 10))
    return [Resource("{name}", plan, jobs, policy, limits=Limits(1, {maximum}))]
"""
MINUTES, ALWAYS = 180, 6


async def record(connection_string: str, name: str) -> None:
    """Three hours in which six instances ran, whatever waited."""
    store = TableStateStore(StorageConnection("Storage", connection_string))
    played = course(arena(), bursty(1, MINUTES), as_schedule([ALWAYS] * MINUTES))
    for minute, backlog in enumerate([0.0, *played.backlog]):
        time = START + timedelta(minutes=minute)
        line = LogEntry(
            name, time, EntryKind.DECISION, f"jobs-{minute}", "hold", ALWAYS, ALWAYS,
            metric="jobs", value=backlog, samples={"jobs": (MetricValue(time, backlog),)},
        )  # fmt: skip
        await store.record(line)
    await store.close()


@pytest.fixture
def name(azurite: Azurite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"plan-{uuid.uuid4().hex[:8]}"
    asyncio.run(record(azurite.connection_string, name))
    monkeypatch.setenv("AzureWebJobsStorage", azurite.connection_string)
    monkeypatch.chdir(tmp_path)
    for file, maximum in (("scaling_rules.py", 6), ("other.py", 4)):
        (tmp_path / file).write_text(RULES.format(name=name, maximum=maximum))
    tuples = RULES.replace("policy = QueueAge", "policy = lambda seen: (2, 'x') or QueueAge")
    (tmp_path / "tuple.py").write_text(tuples.format(name=name, maximum=6))
    return name


def test_other_limits_and_rules_are_told_beside_what_was(
    backtest: CommandLine, name: str, tmp_path: Path
) -> None:
    picture = tmp_path / "picture.png"
    since, until = START.isoformat(), (START + timedelta(hours=2)).isoformat()
    words = ("what-if", name, "--since", since, "--until", until, "--instance-rate", "10")
    more = ("--price", "0.5", "--plot", str(picture), "--json")
    code, out, err = backtest.run(*words, "--maximum", "4", "--age-limit", "10", *more)
    assert (code, err) == (0, "")
    told = json.loads(out)
    was, now, then = told["schedules"].values()
    assert list(told["schedules"]) == ["as it was", "rules as they are, replayed", "what if"]
    assert told["minutes"] == 119
    assert was["instance_hours"] == ALWAYS * 119 / 60
    assert was["money"] == 0.5 * was["instance_hours"]
    assert then["instance_hours"] < now["instance_hours"] < was["instance_hours"]
    assert told["change"] == ["limits=Limits(maximum=4),", "goal=Goal(age_limit_minutes=10.0),"]
    assert picture.stat().st_size > 10_000
    code, out, _ = backtest.run("what-if", *words[2:], "--rules", "other.py")
    assert code == 0
    assert "what if" in out
    assert "maximum=4" in out
    assert "counts as" not in out


def test_a_part_of_a_minute_counts_as_a_whole_one_and_is_told(
    backtest: CommandLine, name: str, tmp_path: Path
) -> None:
    rules = (tmp_path / "scaling_rules.py").read_text()
    given = "goal=Goal(1.25), throughput=Throughput(10, 1.5), limits=Limits(1, 6)"
    rules = rules.replace("Limits, ", "Goal, Limits, Throughput, ")
    (tmp_path / "scaling_rules.py").write_text(rules.replace("limits=Limits(1, 6)", given))
    times = ("--since", START.isoformat(), "--until", (START + timedelta(hours=1)).isoformat())
    code, out, err = backtest.run("what-if", name, *times, "--age-limit", "2.5", "--json")
    assert (code, err) == (0, "")
    told = {each for each in json.loads(out)["notices"] if "whole minutes" in each}
    names = ("age limit of 1.25 min counts as 2", "age limit of 2.5 min counts as 3",
             "start-up time of 1.5 min counts as 2")  # fmt: skip
    assert told == {f"the {each}, because a replay has whole minutes" for each in names}


def test_without_settings_the_file_that_may_have_them_is_named(
    backtest: CommandLine, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AzureWebJobsStorage")
    code, _, err = backtest.run("what-if", name, "--since", "2026-03-01")
    assert code == 2
    assert "AzureWebJobsStorage = ''" in err
    assert "name a file with --settings FILE" in " ".join(err.split())


def test_a_time_of_day_is_the_last_such_time() -> None:
    ago = timedelta(minutes=3)
    for moment in (datetime.now(UTC) - ago, datetime.now(UTC) + ago):
        options = parsed(["--since", f"{moment:%H:%M}"])
        last = moment if moment < datetime.now(UTC) else moment - timedelta(days=1)
        assert abs(options.since - last) < ago


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--since", "noon"), "'noon': must be a time such as 14:03 or 2026-03-01T12:00:00Z"),
        (("--since", "2026-03-02", "--until", "2026-03-01"), "must be later than --since"),
        (("--since", "2027-01-01"), "found 0 recorded backlogs"),
        (("--since", "2026-03-01", "--rules", "tuple.py"), "returned (2, 'x') instead of a"),
        (("--since", "2026-03-01", "--rules", "none.py"), "none.py: the file does not exist"),
    ],
)
def test_what_cannot_be_used_is_told(
    backtest: CommandLine, name: str, words: tuple[str, ...], said: str
) -> None:
    code, _, err = backtest.run("what-if", name, "--instance-rate", "10", *words)
    assert code == 2
    assert said in " ".join(err.split())
