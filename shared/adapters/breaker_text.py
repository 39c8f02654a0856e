"""A breaker's row as JSON, for every store the same."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from typing import Any

from shared.ingestion.breaker.breaker import Breaker, BreakerMode, Probe
from shared.ingestion.errors import RowUnreadable

REASON_LENGTH_MAX = 300
TIMES = ("changed_at", "retry_at", "announce_at")


def encode(breaker: Breaker) -> str:
    return json.dumps(asdict(breaker), default=datetime.isoformat)


def decode(text: Any) -> Breaker:
    """The breaker. Raises RowUnreadable: what the breaker is to do then is for a person to say."""
    try:
        return _breaker(text)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"[:REASON_LENGTH_MAX]
        advice = "deploy the version that wrote it, or delete it: that closes the breaker"
        raise RowUnreadable(f"the breaker's row cannot be read ({reason}); {advice}") from error


def _breaker(text: Any) -> Breaker:
    fields: dict[str, Any] = json.loads(text)
    probe = fields["probe"]
    if probe is not None:
        probe = Probe(**{**probe, "until": datetime.fromisoformat(probe["until"])})
    times = {name: _time(fields[name]) for name in TIMES}
    return Breaker(**{**fields, **times, "mode": BreakerMode(fields["mode"]), "probe": probe})


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
