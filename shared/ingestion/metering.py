"""Measures commits of events and the circuit breaker, for telemetry."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from shared.ingestion.breaker.state import BreakerMode
from shared.ingestion.model import Commit, Stream, set_aside_among
from shared.values.metering import Measurement

LEVELS = {
    BreakerMode.CLOSED: 0,
    BreakerMode.HALF_OPEN: 1,
    BreakerMode.OPEN: 2,
    BreakerMode.ISOLATED: 3,
}


def of_commit(stream: Stream, commit: Commit, committed_at: datetime) -> Iterator[Measurement]:
    partition = {"hub": stream.hub, "partition": stream.partition_id}
    lag = (committed_at - commit.checkpoint.enqueued_at).total_seconds()
    yield "ingestion.lag", max(lag, 0), partition
    aside = set_aside_among(commit.effects)
    counts = {
        "effect": len(commit.effects) - aside,
        "set_aside": aside,
        "gap": sum([gap.count for gap in commit.gaps]),
        "dead_letter": len(commit.dead_letters),
    }
    for outcome, count in counts.items():
        if count:
            yield "ingestion.outcomes", count, {**partition, "outcome": outcome}


def of_breaker(name: str, mode: BreakerMode) -> Iterator[Measurement]:
    yield "ingestion.breaker", LEVELS[mode], {"breaker": name}
