"""The values in host.json that the app needs to work as documented."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path

import pytest

from shared.adapters.azure import invocation
from shared.adapters.azure.invocation import INVOCATION_SECONDS_MAX, InvocationGuard
from shared.autoscaling.flows.metric_collector import PLATFORM_TIMES_LONGER
from shared.notifications.flow import SENDING_SECONDS_MAX
from shared.settings import SETTINGS
from shared.settings.schedules import parse_time_span
from shared.wiring.ingestion import BATCH_SECONDS_MAX
from shared.wiring.scaling import SEND_SECONDS_MAX

HOST_JSON = json.loads((Path(__file__).parents[2] / "host.json").read_text(encoding="utf-8"))
LOCK_LASTS = timedelta(seconds=15)
"""How long a timer's lock remains after its host crashed: `singleton.listenerLockPeriod`."""
POLLING_MIN = timedelta(seconds=15)
"""The lowest value that the host accepts. With a lower one it does not start."""
PAUSE_MAX = timedelta(seconds=30)
"""How long timers may pause after a crash: less than the minute without metrics that is allowed."""


def test_timers_run_again_within_half_a_minute_after_a_crash_or_restart() -> None:
    """A host that cannot get a timer's lock tries again after an interval, by default a minute."""
    # In version 2.0 it is at the top level. Below `extensions`, the host silently ignores it.
    assert HOST_JSON["version"] == "2.0"
    interval = parse_time_span(HOST_JSON["singleton"]["listenerLockRecoveryPollingInterval"])
    assert interval >= POLLING_MIN
    assert LOCK_LASTS + interval <= PAUSE_MAX


def test_a_hang_costs_minutes_and_every_function_ends_before_its_worker_is_replaced() -> None:
    """The other invocations of a replaced worker fail only after their own functionTimeout."""
    allowed = parse_time_span(HOST_JSON["functionTimeout"])
    assert timedelta(minutes=3) <= allowed <= timedelta(minutes=5)
    assert allowed.total_seconds() - 30 >= INVOCATION_SECONDS_MAX
    scale, read = (
        bounds.high
        for name in ("ArmTimeoutSeconds", "SourceTimeoutSeconds")
        if (bounds := SETTINGS[name].bounds)
    )
    collect = PLATFORM_TIMES_LONGER * read + SEND_SECONDS_MAX
    for seconds in (BATCH_SECONDS_MAX, scale, collect, SENDING_SECONDS_MAX):
        assert seconds <= INVOCATION_SECONDS_MAX - 30


async def test_a_function_that_hangs_stops_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invocation, "INVOCATION_SECONDS_MAX", 0.05)

    @InvocationGuard()
    async def hanging() -> None:
        await asyncio.Event().wait()

    @InvocationGuard()
    async def failing() -> None:
        raise TimeoutError("no answer")

    with pytest.raises(TimeoutError, match=r"hanging was still running after 0\.05 s"):
        await hanging()
    with pytest.raises(TimeoutError, match="no answer"):
        await failing()
