"""Overrides: validation, log entries and decisions; previews, status and connection checks."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from local.twins.autoscaling import MemoryCapacityControl, MemoryReader, MemoryStateStore
from shared.autoscaling import Mode, StorageQueue
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.declaring import AppServicePlan
from shared.autoscaling.errors import OverrideRefused
from shared.autoscaling.flows import check_connections as connected
from shared.autoscaling.flows import override as control
from shared.autoscaling.flows import preview, scaling_logic, status
from shared.autoscaling.operating.overrides import Change, described, duration
from shared.autoscaling.plans.permissions import NEEDED, Permission, not_granted
from shared.autoscaling.ports import Snapshot
from shared.autoscaling.state import Override
from shared.values.measurements import CAPACITY_METRIC
from tests.builders import NOW, SOURCE, as_message, metric, resource

WORKERS = resource()
FLOOR = Override(reason="why", floor=2)


def change(override: Override | None, lasts: timedelta | None = None, by: str = "anna") -> Change:
    return Change(override, by, "c-1", lasts)


def store() -> MemoryStateStore:
    return MemoryStateStore(lambda: NOW)


@pytest.mark.parametrize(
    ("text", "minutes"), [("90m", 90), ("2h", 120), ("1d12h", 36 * 60), ("45s", 0.75)]
)
def test_a_duration_of_days_hours_minutes_or_seconds_is_read(text: str, minutes: float) -> None:
    assert duration(text) == timedelta(minutes=minutes)


@pytest.mark.parametrize(
    "text", ["", "2", "h", "-2h", "0m", "2h30", "1.5h", "367d", "9" * 400 + "d"]
)
def test_an_invalid_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(OverrideRefused, match="90m, 2h or 1d12h"):
        duration(text)


@pytest.mark.parametrize(
    ("requested", "error"),
    [
        (change(Override(reason="why")), "the override changes nothing"),
        (change(replace(FLOOR, reason="")), "reason"),
        (change(FLOOR, by=" "), "by"),
        (change(replace(FLOOR, floor=6)), "floor = 6: must be 1 to 5, the limits"),
        (change(Override(reason="why", exact=0)), "exact = 0: must be 1 to 5"),
        (change(replace(FLOOR, exact=2)), "floor and exact exclude each other: give one of them"),
        (change(replace(FLOOR, reason="x" * 501)), "reason: must be 1 to 500"),
        (change(replace(FLOOR, reason="a\n[gap] forged")), "in one line"),
        (change(replace(FLOOR, reason="\x1b[2J")), "in one line"),
        (change(replace(FLOOR, reason="a\u202eb")), r"reason: .*character 2 is U\+202E"),
        (change(FLOOR, by="an\ud83d"), r"by: .*U\+D83D \(lone surrogate"),
    ],
)
async def test_an_invalid_override_is_refused_and_not_written(
    requested: Change, error: str
) -> None:
    kept = store()
    with pytest.raises(OverrideRefused, match=error):
        await control.set_override(WORKERS, requested, kept)
    assert (await kept.load("plan-1")).state.override is None
    assert await kept.log("plan-1") == []


async def test_ordinary_text_in_any_language_is_a_reason_and_a_name() -> None:
    kept = store()
    reason, by = "vente\u00a0: soldes \U0001fae8", "\u0645\u06cc\u200c\u062e"
    await control.set_override(WORKERS, change(Override(reason=reason, floor=2), by=by), kept)
    assert [line.reason for line in await kept.log("plan-1")] == [f"at least 2 by {by}: {reason}"]


async def test_a_pause_holds_until_it_expires_by_the_stores_clock() -> None:
    kept = store()
    await feed(kept, 200)
    paused = change(Override(Mode.PAUSED, "42"), timedelta(hours=2))
    await control.set_override(WORKERS, paused, kept)
    override = (await kept.load("plan-1")).state.override
    assert override == Override(Mode.PAUSED, "42", NOW + timedelta(hours=2))
    decided = await preview.make_preview(WORKERS, kept, reader(200), 1)
    assert decided["limited_by"] == ["paused"]


async def test_the_log_records_author_and_reason_and_the_removal_of_an_override() -> None:
    kept = store()
    await control.set_override(WORKERS, change(Override(reason="sale", floor=3)), kept)
    await control.set_override(WORKERS, Change(None, "ben", "c-2"), kept)
    reasons = {line.reason for line in await kept.log("plan-1")}
    assert reasons == {"at least 3 by anna: sale", "override removed by ben"}
    nothing = await control.set_override(WORKERS, Change(None, "ben", "c-3"), kept)
    assert nothing.reason == "no override was set; removal asked by ben"
    assert {line.kind for line in await kept.log("plan-1")} == {EntryKind.OVERRIDE}
    assert (await kept.load("plan-1")).state.override is None


async def test_after_a_conflict_the_override_is_written_over_the_other_one() -> None:
    class Racing(MemoryStateStore):
        raced = False

        async def put_override(
            self, snapshot: Snapshot, override: Override | None, entry: LogEntry
        ) -> None:
            if not self.raced:
                self.raced = True
                self.override("plan-1", Override(Mode.DRY_RUN, "another operator"))
            await super().put_override(snapshot, override, entry)

    kept = Racing(lambda: NOW)
    await control.set_override(WORKERS, change(Override(reason="sale", floor=3)), kept)
    assert (await kept.load("plan-1")).state.override == Override(reason="sale", floor=3)


def test_an_override_is_described_in_words() -> None:
    words = Override(Mode.DRY_RUN, "r", NOW, freeze_scale_in=True, floor=2)
    assert described(words) == "dry run, at least 2, no scale-in until 2026-03-01T12:00:00Z"
    assert described(None) == "override removed"


# --- preview, status --------------------------------------------------------------------------


def reader(value: float | None) -> MemoryReader:
    capacities = MemoryCapacityControl(lambda: NOW, {"plan-1": 2})
    return MemoryReader(lambda: NOW, {} if value is None else {SOURCE: value}, capacities)


async def feed(kept: MemoryStateStore, value: float) -> None:
    declared = {"plan-1": resource(mode=Mode.DRY_RUN)}
    for seconds in range(90, 0, -15):
        capacity = metric(2, seconds, CAPACITY_METRIC)
        await scaling_logic.process_samples(
            as_message(capacity, metric(value, seconds)), declared, kept
        )


async def test_a_preview_decides_from_fresh_readings_and_writes_nothing() -> None:
    kept = store()
    await feed(kept, 200)
    before, lines = (await kept.load("plan-1")).state, await kept.log("plan-1")
    result = await preview.make_preview(WORKERS, kept, reader(200), 1)
    assert (result["current"], result["desired"], result["applies"]) == (2, 3, True)
    assert {r["name"]: r["value"] for r in result["readings"]} == {"capacity": 2, "backlog": 200}
    assert (await kept.load("plan-1")).state == before
    assert await kept.log("plan-1") == lines


async def test_a_preview_names_a_source_that_fails() -> None:
    result = await preview.make_preview(WORKERS, store(), reader(None), 1)
    assert [failure["name"] for failure in result["failures"]] == ["backlog"]
    assert result["desired"] == result["current"] == 2


async def test_the_status_distinguishes_a_metric_without_samples_from_a_zero() -> None:
    kept = store()
    two = resource(metrics={"backlog": SOURCE, "other": StorageQueue("other")})
    await feed(kept, 0)
    result = await status.read_one(two, kept, 30)
    assert [(m["name"], m["value"], m["stale"]) for m in result["metrics"]] == [
        ("backlog", 0, False),
        ("other", None, True),
    ]
    assert result["capacity"] == 2
    newest = result["newest"]
    assert newest
    assert newest["kind"] == "decision"


# --- connection checks ------------------------------------------------------------------------


class Identity:
    def __init__(self, *missing: str) -> None:
        self.missing = missing

    async def may_list(self, _target: object) -> bool:
        return True

    async def lacking_to_join(self, _environment: str) -> tuple[str, ...]:
        return ()

    async def lacking(self, target: AppServicePlan) -> tuple[str, ...]:
        assert target == WORKERS.target
        return self.missing

    async def close(self) -> None: ...


async def test_all_sources_and_permissions_are_checked_even_if_one_check_fails() -> None:
    checks = await connected.check_all([WORKERS], reader(None), Identity("a/write"), store(), 1)
    assert {check["what"]: check["ok"] for check in checks} == {
        "state": True,
        "metric capacity": True,
        "metric backlog": False,
        "plan plan-1": False,
    }
    assert any("lacks a/write" in check["told"] for check in checks)


@pytest.mark.parametrize(
    ("granted", "lacking"),
    [
        ([{"actions": ["*"]}], []),
        ([{"actions": ["microsoft.web/serverfarms/*"]}], []),
        ([{"actions": ["*/read"]}], [NEEDED[1]]),
        ([{"actions": ["*"], "notActions": [NEEDED[1]]}], [NEEDED[1]]),
        ([{"actions": ["*"], "notActions": ["*/write"]}, {"actions": ["Microsoft.Web/*"]}], []),
        ([{"actions": ["Microsoft.Web/sites/*"], "notActions": []}], [*NEEDED]),
    ],
)
def test_permissions_are_evaluated_as_azure_does(
    granted: list[Permission], lacking: list[str]
) -> None:
    assert not_granted(granted) == lacking
