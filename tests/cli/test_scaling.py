"""The commands for operators, against Azurite and the stand-ins of Azure's services."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from local.amqp_broker import AmqpStandIn
from local.amqp_broker.administration import service_bus
from local.amqp_broker.model.properties import HubProperties
from local.azure_apis.arm import ArmStandIn
from local.azure_apis.plans import P1V3, Plan, PlanId
from local.azurite import Azurite
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.flows import scaling_logic
from shared.autoscaling.services.clients import AzureReader
from shared.autoscaling.state import ScalingState
from shared.cli.command import DONE, FAILED, WRONG
from shared.cli.main import main
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue
from shared.wiring.app import App
from tests.builders import as_message
from tests.settings.test_settings import SINGLE

Run = Callable[..., Coroutine[Any, Any, int]]
NEW_RULES = f"""from shared.autoscaling import *
def answer(seen): return Recommendation(3, 'three')
def resources(settings):
    plan = AppServicePlan({SINGLE["SubscriptionId"]!r}, {SINGLE["ResourceGroup"]!r}, "plan-1")
    return [Resource("plan-1", plan, {{"jobs": StorageQueue("jobs")}}, answer, limits=Limits(1, 9))]
"""


@pytest.fixture
async def arm() -> AsyncIterator[ArmStandIn]:
    plan = PlanId(SINGLE["SubscriptionId"], SINGLE["ResourceGroup"], SINGLE["ResourceToScale"])
    async with ArmStandIn([Plan(plan, capacity=2, sku=P1V3)]) as stand_in:
        yield stand_in


@pytest.fixture
async def run(arm: ArmStandIn, azurite: Azurite, tmp_path: Path) -> AsyncIterator[Run]:
    """Runs a command with a settings file. The environment is restored afterwards."""
    kept = dict(os.environ)
    async with service_bus() as bus:
        bus.amqp.namespace.declare_topic(SINGLE["Topic"])
        bus.amqp.namespace.declare_subscription(SINGLE["Topic"], SINGLE["Subscription"])
        values = {
            **SINGLE,
            "AzureWebJobsStorage": azurite.connection_string,
            "ServiceBusConnection": bus.administration.connection_string,
            "ArmEndpoint": arm.base_url,
        }
        file = tmp_path / "local.settings.json"
        file.write_text(json.dumps({"Values": values}), encoding="utf-8")

        async def _run(*arguments: str) -> int:
            return await asyncio.to_thread(main, ["--settings", str(file), *arguments])

        yield _run
    os.environ.clear()
    os.environ.update(kept)


async def test_an_override_is_set_shown_and_removed(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--floor", "3", "--freeze-in", "--reason", "[sale]", "--for", "2h", "--by", "anna")
    assert await run("override", "set", *options) == DONE
    assert "at least 3, no scale-in until" in capsys.readouterr().out
    assert await run("status", "--json") == DONE
    (status,) = json.loads(capsys.readouterr().out)
    assert (status["override"]["floor"], status["override"]["reason"]) == (3, "[sale]")
    assert await run("resume", "plan-1", "--by", "ben") == DONE
    capsys.readouterr()
    assert await run("decisions") == DONE
    log = " ".join(capsys.readouterr().out.split())
    assert "by anna: [sale]" in log
    assert "override removed by ben" in log


async def test_no_name_in_the_status_is_broken_in_a_terminal_of_80_columns(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert await run("status") == DONE
    assert f"{SINGLE['Topic']}-{SINGLE['Subscription']}-backlog: no" in capsys.readouterr().out


async def test_dry_run_and_decisions_show_a_recommendation_with_its_reasons(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run("dry-run", "--json") == DONE
    (preview,) = json.loads(capsys.readouterr().out)
    assert (preview["current"], preview["desired"]) == (2, 2)
    assert {reading["name"] for reading in preview["readings"]} > {CAPACITY_METRIC}
    async with App() as app:
        samples = [
            Metric("plan-1", each["name"], MetricValue(datetime.fromisoformat(each["time"]), value))
            for each in preview["readings"]
            if (value := each["value"]) is not None
        ]
        message = as_message(*samples)
        await scaling_logic.process_samples(message, app.resources, app.scaling.store)
    assert await run("decisions", "plan-1", "--why") == DONE
    told = capsys.readouterr().out
    assert "recommends 2:" in told
    assert all(f"{each.name} = {each.value.value:g}" in told for each in samples)
    assert await run("dry-run", "plan-1") == DONE
    assert capsys.readouterr().out.count("capacity = 2") == 1


async def test_a_past_time_is_explained_by_its_decision_and_the_change_before(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run("status") == DONE
    capsys.readouterr()
    async with App() as app:
        store = app.scaling.store
        now = (await store.load("plan-1")).read_at
        for minutes in (50, 40, 30, 5):
            line = LogEntry(
                "plan-1",
                now - timedelta(minutes=minutes),
                EntryKind.DECISION,
                entry_id=f"d-{minutes}",
                reason="mean backlog 200 > 100",
                applies=minutes == 50,
            )
            await store.commit(await store.load("plan-1"), ScalingState(), [line])
        at, end = (f"{now - timedelta(minutes=m):%Y-%m-%dT%H:%M:%S}" for m in (29, 4))

    async def told(*options: str) -> list[str]:
        assert await run("decisions", *options, "--json") == DONE
        return [each["id"] for each in json.loads(capsys.readouterr().out)]

    assert await told("--at", at) == ["d-30", "d-50"]
    assert await told("--until", at, "--limit", "2") == ["d-30", "d-40"]
    assert await told("--since", at, "--until", end) == ["d-5"]
    assert await told("--changes", "--until", end) == ["d-50"]
    assert await run("decisions", "--at", at, "--changes") == WRONG
    assert await run("decisions", "--since", end, "--until", at) == WRONG
    assert "must be later than --since" in capsys.readouterr().err
    for options in ((), ("--why",)):
        assert await run("decisions", "--until", "2001-01-01", *options) == DONE
        assert "has no entries of this time" in capsys.readouterr().out


async def test_rules_can_be_tried_from_another_file(
    run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scaling_rules", sys.modules.get("scaling_rules"))
    new = tmp_path / "new.py"
    new.write_text(NEW_RULES)
    assert await run("dry-run", "--rules", str(new)) == DONE
    assert "plan-1: 2 → 3  three" in capsys.readouterr().out
    new.write_text(NEW_RULES.replace("Recommendation(3, 'three')", "(3, 'three')"))
    assert await run("validate", "--rules", str(new)) == WRONG
    assert "returned (3, 'three') instead of a Recommendation" in capsys.readouterr().err
    new.write_text(NEW_RULES.replace("answer,", "answer(),"))
    assert await run("validate", "--rules", str(new)) == WRONG
    assert "new.py, line 5: TypeError: answer() missing" in capsys.readouterr().err


async def test_validate_checks_every_source_and_permission(
    run: Run, arm: ArmStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run("validate", "--connect") == DONE
    assert "may be read and changed" in capsys.readouterr().out
    arm.permissions = [{"actions": ["*/read"], "notActions": []}]
    assert await run("validate", "--connect", "--json") == FAILED
    failed = [c for c in json.loads(capsys.readouterr().out)["checks"] if not c["ok"]]
    assert [c["what"] for c in failed] == ["plan plan-1"]
    assert "Microsoft.Web/serverfarms/write" in failed[0]["told"]


async def test_validate_with_connect_advises_the_rights_that_would_save_requests(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AzureReader, "advice", lambda _: ["Bus: 150 entities are read one by one"])
    for options, warnings in ((["--connect"], ["Bus: 150 entities are read one by one"]), ([], [])):
        assert await run("validate", *options, "--json") == DONE
        assert json.loads(capsys.readouterr().out)["warnings"] == warnings


async def test_validate_says_what_happens_until_the_throughput_is_known(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await run("validate") == DONE
    text = " ".join(capsys.readouterr().out.split())
    assert "plan-1: The rate per instance is not set. Until the app has seen work," in text
    assert "ServiceBusNamespaceIds has no namespace of ServiceBusConnection." in text
    monkeypatch.setenv("InstanceRatePerMinute", "30")
    assert await run("validate", "--json") == DONE
    (each,) = json.loads(capsys.readouterr().out)["first_hour"]
    assert each["told"].startswith("The rate per instance is set. The app compares it with")


async def test_validate_checks_the_event_hub_and_both_consumer_groups(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AmqpStandIn() as hubs:
        hubs.broker.declare_hub("metrics", HubProperties(partition_count=2))
        monkeypatch.setenv("EventHubConnection", hubs.connection_string)
        monkeypatch.setenv("EventHubReadBackConsumerGroup", "mistyped")
        found = await hub_checks(run, capsys)
        ok, told = found.pop("consumer group mistyped")
        assert not ok
        assert "event hub metrics has no consumer group 'mistyped': create it, or correct" in told
        assert found == {
            "partitions": (True, "has 2 partition(s)"),
            "consumer group $Default": (True, "exists and may be read"),
        }
        monkeypatch.setenv("EventHubName", "absent")
        ((what, (ok, told)),) = (await hub_checks(run, capsys)).items()
        assert (what, ok) == ("partitions", False)
        assert "'absent' could not be found" in told


async def hub_checks(run: Run, capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[bool, str]]:
    code = await run("validate", "--connect", "--json")
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert code == (DONE if all(check["ok"] for check in checks) else FAILED)
    of_hub = [check for check in checks if check["resource"].startswith("event hub ")]
    return {check["what"]: (check["ok"], check["told"]) for check in of_hub}


async def test_validate_warns_of_an_unknown_setting(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AgeLimitMinute", "3")
    assert await run("validate", "--json") == DONE
    (warning,) = json.loads(capsys.readouterr().out)["warnings"]
    assert warning == "Unknown setting AgeLimitMinute. Did you mean AgeLimitMinutes?"
    assert await run("validate") == DONE
    assert "Did you mean AgeLimitMinutes?" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["pause", "plan-9", "--reason", "x"], WRONG, "error: resource 'plan-9' is not declared"),
        (["validate", "plan-9"], WRONG, "declared: plan-1"),
        (["pause", "--reason", "x", "--by", " "], WRONG, "by: must be 1 to"),
        (["pause", "--reason", "x", "--for", "soon"], WRONG, "90m, 2h or 1d12h"),
        (["override", "set", "--exact", "99", "--reason", "x"], WRONG, "must be 1 to"),
        (["--settings", "nowhere.json", "status"], WRONG, "nowhere.json"),
    ],
)
async def test_an_invalid_command_fails_with_one_line(
    run: Run, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    assert await run(*arguments) == code
    assert message in capsys.readouterr().err


async def test_the_author_of_an_override_without_an_end_is_told_that_it_lasts(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run("override", "set", "--floor", "3", "--reason", "sale") == DONE
    assert "note: this lasts until you clear it; --for sets a time" in capsys.readouterr().err
    assert await run("override", "set", "--floor", "3", "--reason", "sale", "--for", "2h") == DONE
    assert "note" not in capsys.readouterr().err
