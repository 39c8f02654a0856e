"""A breaker's row as JSON, for every store the same."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from typing import Any

from shared.ingestion.breaker import Breaker, Mode, Probe

TIMES = ("changed_at", "retry_at", "announce_at")


def encode(breaker: Breaker) -> str:
    return json.dumps(asdict(breaker), default=datetime.isoformat)


def decode(text: str) -> Breaker:
    """The breaker; raises where the text was not written by ``encode``."""
    fields: dict[str, Any] = json.loads(text)
    probe = fields["probe"]
    if probe is not None:
        probe = Probe(**{**probe, "until": datetime.fromisoformat(probe["until"])})
    times = {name: _time(fields[name]) for name in TIMES}
    return Breaker(**{**fields, **times, "mode": Mode(fields["mode"]), "probe": probe})


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
