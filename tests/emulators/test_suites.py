"""`make emulators` runs the suites, and they take to an emulator where one is named."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import ResourceNotFoundError

from shared.settings.connections import EventHubConnection
from tests.emulators import rig
from tests.emulators.imitation import imitated

ROOT = Path(__file__).parents[2]
SUITES = (rig.FOLDER / "suites.txt").read_text().split()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
FOLDERS = [each.name for each in (ROOT / "shared").iterdir() if each.is_dir()]
SECONDS_MAX = 240
OUTSIDE = {
    "ingestion/hub/test_amqp_over_websockets.py": "its gateway stands before the stand-in",
    "azure/test_refusals.py": "its services refuse every request",
    "cli/test_scaling.py": "its hub has no events, and its other services are stand-ins",
    "messaging/test_stateful_sending.py": "it moves the clock and arms faults in every example",
}
"""Suites with a broker that never run against an emulator, and why."""


def test_every_suite_with_a_broker_runs_against_the_emulators_or_says_why_not() -> None:
    uses_broker = re.compile(r"tests\.emulators\.rig|AmqpStandIn|[^.]service_bus\(")
    found = {
        str(file.relative_to(ROOT / "tests"))
        for folder in FOLDERS
        for file in (ROOT / "tests" / folder).rglob("test_*.py")
        if uses_broker.search(file.read_text())
    }
    named = {each.removeprefix("tests/") for each in SUITES}
    assert found == {each for each in named if each.split("/")[0] in FOLDERS} | set(OUTSIDE)
    for each in SUITES:
        assert (ROOT / each).is_file(), each


def test_every_limit_that_skips_a_test_is_in_the_table_of_limits() -> None:
    table = [line for line in CONTRIBUTING.splitlines() if line.startswith("|")]
    for limit in rig.Limit:
        assert any(line.startswith(f"| {limit.value} |") for line in table), limit.value


def test_pytest_starts_as_the_scripts_start_it() -> None:
    """With -p no:xdist, so that two tests never use the same entities at the same time."""
    (options,) = re.findall(r"pytest (.*) \$\(cat", (rig.FOLDER / "run.sh").read_text())
    command = [sys.executable, "-m", "pytest", *options.split(), "--collect-only", SUITES[0]]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert done.returncode == 0, done.stdout


TOOL = """#!/bin/sh
echo "${0##*/} $*" >>"$CALLS"
case "${0##*/} $*" in
*"$INTERRUPTED"*) kill -INT $PPID; sleep 0.1 ;;
*"$FAILING"*) exit 1 ;;
esac
"""


def ran(folder: Path, failing: str = "none", interrupted: str = "none") -> tuple[int, list[str]]:
    """The exit code of run.sh with stand-ins for what it calls, and the calls."""
    for name in ("docker", "curl", "python"):
        tool = folder / name
        tool.write_text(TOOL)
        tool.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHON": str(folder / "python"),
        "CALLS": str(folder / "calls"),
        "FAILING": failing,
        "INTERRUPTED": interrupted,
    }
    script = ["sh", str(rig.FOLDER / "run.sh"), "-k", "some"]
    done = subprocess.run(script, env=environment, check=False, timeout=60, capture_output=True)
    return done.returncode, (folder / "calls").read_text().splitlines()


def test_the_script_waits_for_both_emulators_runs_the_suites_and_stops_the_emulators(
    tmp_path: Path,
) -> None:
    code, (up, *health, suites, down) = ran(tmp_path)
    assert (code, up, down) == (
        0,
        "docker compose up --detach",
        "docker compose down --volumes",
    )
    assert [call.rpartition(":")[2] for call in health] == ["5300/health", "5301/health"]
    assert suites == f"python -m pytest -rs -p no:xdist {' '.join(SUITES)} -k some"


@pytest.mark.parametrize("failing", ["compose up", "5301/health", "pytest"])
def test_the_script_shows_logs_and_stops_the_emulators_after_a_failure(
    failing: str, tmp_path: Path
) -> None:
    code, calls = ran(tmp_path, failing=failing)
    assert code == 1
    assert calls[-2:] == ["docker compose logs --tail 100", "docker compose down --volumes"]


def test_a_run_that_is_interrupted_fails_and_stops_the_emulators_once(tmp_path: Path) -> None:
    code, calls = ran(tmp_path, interrupted="pytest")
    assert code == 130
    assert calls.count("docker compose down --volumes") == 1


async def test_tests_get_what_they_ask_for_from_the_emulator_that_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With stand-ins in the place of the emulators."""
    async with imitated() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        async with rig.running_bus() as bus, rig.a_partition() as hub:
            assert bus.connection.connection_string == environment[rig.SERVICE_BUS]
            assert hub.connection.connection_string == environment[rig.EVENT_HUBS]
            async with rig.administration_client(bus.administration) as administration:
                queue = await bus.queue(requires_session=True)
                assert (await administration.get_queue(queue)).requires_session
                topic = await bus.topic("all")
                found = await administration.get_subscription_runtime_properties(topic, "all")
                assert found.active_message_count == 0
            for inside in (bus.inside, hub.inside):
                with pytest.raises(pytest.skip.Exception, match="no clock to move"):
                    inside()


@pytest.mark.parametrize(
    "properties",
    [
        {"duplicate_window": timedelta(hours=1)},
        {"lock_duration": timedelta(seconds=1)},
        {"time_to_live": timedelta(days=1)},
        {"max_delivery_count": 11},
        {"max_message_bytes": 3 * 2**20},
    ],
    ids=lambda properties: next(iter(properties)),
)
async def test_a_test_that_needs_more_than_the_emulator_offers_is_skipped_there(
    properties: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig.running_bus() as bus:
        assert await bus.queue(**properties)
    async with imitated() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        async with rig.running_bus() as bus:
            for create in (bus.queue, partial(bus.topic, "all")):
                with pytest.raises(pytest.skip.Exception, match="short windows"):
                    await create(**properties)


async def test_a_run_creates_more_queues_than_the_emulator_has_places_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with imitated() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        for _ in range(4):
            async with rig.running_bus() as bus:
                queues = [await bus.queue() for _ in range(rig.ENTITIES_MAX // 2)]
                await bus.topic("all")
        async with rig.administration_client(bus.administration) as administration:
            with pytest.raises(ResourceNotFoundError):
                await administration.get_queue(queues[0])


async def test_an_empty_hub_is_used_once_and_then_none_is_left() -> None:
    """Without the variable there is always another one."""
    async with imitated() as environment:
        string = environment[rig.EVENT_HUBS]
        connection = EventHubConnection("Hub", "pair-1", "imitation", string)
        assert await rig.next_empty(string, 2) == "pair-1"
        await rig.Hub(connection, None).send("an event")
        assert await rig.next_empty(string, 2) is None
