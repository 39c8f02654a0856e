"""What host.json must say for the app to work as the pages promise."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

from local.functions_host.schedule import parse_time_span
from shared.wiring.ingestion import BATCH_SECONDS_MAX

HOST_JSON = json.loads((Path(__file__).parents[2] / "host.json").read_text(encoding="utf-8"))
LOCK_LASTS = timedelta(seconds=15)
"""So long a timer's lock outlives the host that held it: `singleton.listenerLockPeriod`."""
SHORTEST = timedelta(seconds=15)
"""The least that the host accepts; with less it does not start."""
STILL_MAX = timedelta(seconds=30)
"""So long timers may stand still after a crash: less than the minute of silence that is allowed."""


def test_timers_run_again_within_half_a_minute_after_a_crash_or_restart() -> None:
    """A host that finds a timer's lock taken looks again after this time, by default a minute."""
    # At the top level in version 2.0; below `extensions` the host ignores it without a word.
    assert HOST_JSON["version"] == "2.0"
    waited = parse_time_span(HOST_JSON["singleton"]["listenerLockRecoveryPollingInterval"])
    assert waited >= SHORTEST
    assert LOCK_LASTS + waited <= STILL_MAX


def test_a_batch_ends_by_itself_before_the_host_ends_it() -> None:
    """What the host ends is not committed, and is delivered again for ever."""
    allowed_seconds = parse_time_span(HOST_JSON["functionTimeout"]).total_seconds()
    assert allowed_seconds - 60 >= BATCH_SECONDS_MAX
