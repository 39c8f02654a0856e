"""A person's word over the rules: what is refused, what is written, what is decided then."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from shared.adapters.memory.autoscaling import MemoryCapacityControl, MemoryReader, MemoryStateStore
from shared.autoscaling import Mode, StorageQueue
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.declaring import CapacityTarget
from shared.autoscaling.errors import OverrideRefused
from shared.autoscaling.flows import check_connections as connected
from shared.autoscaling.flows import override as control
from shared.autoscaling.flows import preview, scaling_logic, status
from shared.autoscaling.measurements import CAPACITY_METRIC, Metric, MetricValue
from shared.autoscaling.operating.overrides import Change, described, duration
from shared.autoscaling.operating.permissions import NEEDED, Grant, grants, lacking
from shared.autoscaling.ports import Snapshot
from shared.autoscaling.state import Override
from tests.builders import NOW, SOURCE, resource

WORKERS = resource()


def change(override: Override | None, lasts: timedelta | None = None, by: str = "anna") -> Change:
    return Change(override, by, "c-1", lasts)


class Clock:
    now = NOW

    def __call__(self) -> datetime:
        return self.now


def store(clock: Clock | None = None) -> MemoryStateStore:
    return MemoryStateStore(clock or Clock())


@pytest.mark.parametrize(
    ("text", "lasts"),
    [
        ("90m", timedelta(minutes=90)),
        ("2h", timedelta(hours=2)),
        ("1d12h", timedelta(hours=36)),
        ("45s", timedelta(seconds=45)),
    ],
)
def test_durations_are_read(text: str, lasts: timedelta) -> None:
    assert duration(text) == lasts


@pytest.mark.parametrize(
    "text", ["", "2", "h", "-2h", "0m", "2h30", "1.5h", "367d", "9" * 400 + "d"]
)
def test_what_is_no_duration_says_what_is(text: str) -> None:
    with pytest.raises(OverrideRefused, match="90m, 2h or 1d12h"):
        duration(text)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (change(Override(reason="why")), "nothing is asked for"),
        (change(Override(reason="", floor=2)), "reason"),
        (change(Override(reason="why", floor=2), by=" "), "by"),
        (change(Override(reason="why", floor=6)), "floor = 6: must be 1 to 5, the limits"),
        (change(Override(reason="why", exact=0)), "exact = 0: must be 1 to 5"),
        (change(Override(reason="why", floor=2, exact=2)), "give one of them"),
        (change(Override(reason="x" * 501, floor=2)), "reason: 1 to 500"),
        (change(Override(reason="a\n[gap] forged", floor=2)), "in one line"),
        (change(Override(reason="\x1b[2J", floor=2)), "in one line"),
    ],
)
async def test_what_cannot_be_is_refused_and_nothing_is_written(wanted: Change, said: str) -> None:
    kept = store()
    with pytest.raises(OverrideRefused, match=said):
        await control.run(WORKERS, wanted, kept)
    assert (await kept.load("plan-1")).state.override is None
    assert await kept.log("plan-1") == []


async def test_a_pause_holds_until_it_expires_by_the_stores_clock() -> None:
    kept = store()
    await feed(kept, 200)
    await control.run(WORKERS, change(Override(Mode.PAUSED, "42"), timedelta(hours=2)), kept)
    override = (await kept.load("plan-1")).state.override
    assert override == Override(Mode.PAUSED, "42", NOW + timedelta(hours=2))
    decided = await preview.run(WORKERS, kept, reader(200), 1)
    assert decided.decision.limited_by == ("paused",)


async def test_the_log_tells_who_and_why_and_what_was_taken_back() -> None:
    kept = store()
    await control.run(WORKERS, change(Override(reason="sale", floor=3)), kept)
    await control.run(WORKERS, Change(None, "ben", "c-2"), kept)
    told = {line.reason for line in await kept.log("plan-1")}
    assert told == {"at least 3 by anna: sale", "back to the rules by ben"}
    assert {line.kind for line in await kept.log("plan-1")} == {EntryKind.OVERRIDE}
    assert (await kept.load("plan-1")).state.override is None


async def test_who_loses_the_race_reads_again_and_the_last_word_stands() -> None:
    class Racing(MemoryStateStore):
        raced = False

        async def put_override(
            self, snapshot: Snapshot, override: Override | None, entry: LogEntry
        ) -> None:
            if not self.raced:
                self.raced = True
                self.override("plan-1", Override(Mode.DRY_RUN, "somebody else"))
            await super().put_override(snapshot, override, entry)

    kept = Racing(lambda: NOW)
    await control.run(WORKERS, change(Override(reason="sale", floor=3)), kept)
    assert (await kept.load("plan-1")).state.override == Override(reason="sale", floor=3)


def test_an_override_in_words() -> None:
    words = Override(Mode.DRY_RUN, "r", NOW, freeze_scale_in=True, floor=2)
    assert described(words) == "dry run, at least 2, no scale-in until 2026-03-01T12:00:00Z"
    assert described(None) == "back to the rules"


# --- preview, status --------------------------------------------------------------------------


def reader(value: float | None) -> MemoryReader:
    capacities = MemoryCapacityControl(lambda: NOW, {"plan-1": 2})
    return MemoryReader(lambda: NOW, {} if value is None else {SOURCE: value}, capacities)


async def feed(kept: MemoryStateStore, value: float, clock: Clock | None = None) -> None:
    for seconds in range(90, 0, -15):
        time = NOW - timedelta(seconds=seconds)
        if clock is not None:
            clock.now = time
        for name, reading in ((CAPACITY_METRIC, 2.0), ("backlog", value)):
            sent = Metric("plan-1", name, MetricValue(time, reading))
            await scaling_logic.run(sent, {"plan-1": paused}, kept)


paused = resource(mode=Mode.DRY_RUN)


async def test_a_preview_decides_from_fresh_readings_and_writes_nothing() -> None:
    kept = store()
    await feed(kept, 200)
    before, lines = (await kept.load("plan-1")).state, await kept.log("plan-1")
    shown = (await preview.run(WORKERS, kept, reader(200), 1)).shown()
    assert (shown["current"], shown["desired"], shown["applies"]) == (2, 3, True)
    assert {r["name"]: r["value"] for r in shown["readings"]} == {"capacity": 2, "backlog": 200}
    assert (await kept.load("plan-1")).state == before
    assert await kept.log("plan-1") == lines


async def test_a_preview_names_the_source_that_does_not_answer() -> None:
    shown = (await preview.run(WORKERS, store(), reader(None), 1)).shown()
    assert [failure["name"] for failure in shown["failures"]] == ["backlog"]
    assert shown["desired"] == shown["current"] == 2


async def test_status_tells_a_missing_metric_from_a_zero_and_an_old_one() -> None:
    kept = store()
    two = resource(metrics={"backlog": SOURCE, "other": StorageQueue("other")})
    await feed(kept, 0)
    shown = await status.one(two, kept)
    assert [(m["name"], m["value"], m["stale"]) for m in shown["metrics"]] == [
        ("backlog", 0, False),
        ("other", None, True),
    ]
    assert shown["capacity"] == 2
    assert shown["newest"]["kind"] == "decision"


# --- connected --------------------------------------------------------------------------------


class Identity:
    def __init__(self, *missing: str) -> None:
        self.missing = missing

    async def lacking(self, target: CapacityTarget) -> tuple[str, ...]:
        assert target == WORKERS.target
        return self.missing

    async def close(self) -> None: ...


async def test_every_source_and_permission_is_tried_and_one_failure_hides_no_other() -> None:
    checks = await connected.run([WORKERS], reader(None), Identity("a/write"), store(), 1)
    assert {check["what"]: check["ok"] for check in checks} == {
        "state": True,
        "metric capacity": True,
        "metric backlog": False,
        "plan plan-1": False,
    }
    assert any("lacks a/write" in check["told"] for check in checks)


def test_permissions_are_read_as_azure_reads_them() -> None:
    assert lacking([Grant(("*",))]) == []
    assert lacking([Grant(("microsoft.web/serverfarms/*",))]) == []
    assert lacking([Grant(("*/read",))]) == ["Microsoft.Web/serverfarms/write"]
    assert lacking([Grant(("*",), ("Microsoft.Web/serverfarms/write",))]) == [NEEDED[1]]
    taken_out_by_one = [Grant(("*",), ("*/write",)), Grant(("Microsoft.Web/*",))]
    assert lacking(taken_out_by_one) == []
    assert lacking(grants([{"actions": ["Microsoft.Web/sites/*"], "notActions": []}])) == [*NEEDED]
