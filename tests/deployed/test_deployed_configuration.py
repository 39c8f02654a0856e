"""The app runs with the settings that the template gives it, by its managed identity alone."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from local.tokens import EVENT_HUBS, SERVICE_BUS, STORAGE
from shared.autoscaling.messages import decode_samples
from tests.deployed.environment import PLAN, Deployed, deployed, template_settings

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 120
HOUR = timedelta(hours=1)

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux answers on 127.x.y.z without configuration"
)


async def run(running: Deployed) -> dict[str, Any]:
    """Run each function once in a process of its own."""
    code, out, errors = await run_module(running, "tests.deployed.app_once")
    assert code == 0, errors
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    return result


async def run_module(running: Deployed, *command: str) -> tuple[int | None, str, str]:
    """Run `python -m` in the environment of the app. The exit code and what it printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        *command,
        env=running.environment | {"PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(SECONDS_MAX):
        out, errors = await process.communicate()
    return process.returncode, out.decode(), errors.decode()


def test_no_setting_is_a_connection_string() -> None:
    addresses = dict.fromkeys(("blob", "queue", "table"), "https://account.example/")
    settings = template_settings(addresses, "https://arm.example/", "bus.example", "hub.example")
    assert not [
        name
        for name, value in settings.items()
        if "AccountKey=" in value or "SharedAccessKey" in value or "UseDevelopment" in value
    ]


ARM = "the address of Resource Manager"


@pytest.mark.parametrize(
    ("services", "lifetime", "done"),
    [
        ({ARM}, None, {"collected": 1, "partitions": True, "sent": 1}),
        ({SERVICE_BUS, EVENT_HUBS}, None, {"collected": 1, "partitions": False, "sent": 0}),
        ({STORAGE}, -HOUR, {"collected": 0, "partitions": True, "sent": 1}),
    ],
    ids=["arm-audience", "amqp-audience", "storage-expired"],
)
async def test_a_token_of_another_audience_or_that_has_expired_is_refused(
    services: set[str], lifetime: timedelta | None, done: dict[str, int], tmp_path: Path
) -> None:
    """Each service checks tokens. The other services are used nevertheless."""
    async with deployed(tmp_path) as running:
        wrong = {running.arm.audience if service == ARM else service for service in services}
        running.identity.wrong_for = wrong
        running.identity.wrong_lifetime = lifetime
        result = await run(running)
    collected = [m for text in result["collected"] for m in decode_samples(text).metrics]
    assert len(collected) == done["collected"]
    assert bool(result["partitions"]) is done["partitions"]
    assert result["sent"] == done["sent"]
    assert result["problems"]
    for problem in result["problems"]:
        assert re.search(r"\b40[13]\b", problem), "the service refused the token"
        assert "\n" not in problem
    assert running.arm.plan(PLAN).capacity == 1, "one of two samples is missing"


async def test_a_command_prints_one_line_if_the_identity_gets_no_token(tmp_path: Path) -> None:
    async with deployed(tmp_path) as running:
        running.identity.client_id = "another identity is assigned to the app"
        code, out, errors = await run_module(running, "shared", "status")
    assert (code, out) == (1, "")
    (line,) = errors.splitlines()
    assert line.startswith("error: AccessRefused: table Scaling of storage account ")
    assert "no token was obtained" in line
