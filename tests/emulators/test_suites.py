"""`make emulators` runs the suites, and they take to an emulator where one is named."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

from shared.settings.connections import EventHubConnection
from tests.emulators import rig
from tests.emulators.imitation import imitated

ROOT = Path(__file__).parents[2]
SUITES = (rig.FOLDER / "suites.txt").read_text().split()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
CONTRACT = ROOT / "tests" / "contract"
SECONDS_MAX = 240
OUTSIDE = {
    "test_autoscaling_cli.py": "its hub has no events, and its other services are stand-ins",
    "test_secrets.py": "its services refuse every request",
    "test_stateful_sending.py": "it moves the clock and arms faults in every example",
}
"""Suites with a broker that never run against an emulator, and why."""

SAMPLE = [
    "tests/contract/test_messaging_cli.py::test_the_lines_of_a_file_are_sent_in_order",
    "tests/contract/test_messaging_processing.py::"
    "test_ten_observations_in_a_day_make_one_message_that_arrives_after_the_day",
    "tests/contract/test_ingestion_receiver.py::test_an_error_of_the_handler_ends_the_receiver",
]


def test_every_suite_with_a_broker_runs_against_the_emulators_or_says_why_not() -> None:
    uses_broker = re.compile(r"tests\.emulators\.rig|AmqpStandIn|service_bus\(")
    found = {
        file.name for file in CONTRACT.glob("test_*.py") if uses_broker.search(file.read_text())
    }
    assert found == {Path(each).name for each in SUITES if "/contract/" in each} | set(OUTSIDE)
    for each in SUITES:
        assert (ROOT / each).is_file(), each


def test_every_limit_that_skips_a_test_is_in_the_table_of_limits() -> None:
    table = [line for line in CONTRIBUTING.splitlines() if line.startswith("|")]
    for limit in rig.Limit:
        assert any(line.startswith(f"| {limit.value} |") for line in table), limit.value


async def test_tests_take_to_the_emulator_that_the_variables_name() -> None:
    """With stand-ins in the place of the emulators. One of the tests needs a clock to move."""
    async with imitated() as environment:
        command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:xdist", *SAMPLE]
        done = await asyncio.to_thread(
            subprocess.run,
            command,
            cwd=ROOT,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    assert done.returncode == 0, done.stdout
    assert re.search(rf"\b{len(SAMPLE) - 1} passed, 1 skipped", done.stdout), done.stdout
    assert f"{rig.Limit.INSIDE.value}" in done.stdout


async def test_an_empty_hub_is_used_once_and_then_none_is_left() -> None:
    """Without the variable there is always another one."""
    async with imitated() as environment:
        string = environment[rig.EVENT_HUBS]
        connection = EventHubConnection("Hub", "pair-1", "imitation", string)
        assert await rig.next_empty(string, 2) == "pair-1"
        await rig.Hub(connection, None).send("an event")
        assert await rig.next_empty(string, 2) is None
