"""Builders of commits and their parts for the contract tests of ingestion."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from shared.ingestion.events.accounting import dead_letter
from shared.ingestion.model import (
    Checkpoint,
    Commit,
    DeadLetter,
    Effect,
    Event,
    FailureKind,
    Gap,
    OutboxMessage,
    Stream,
    message_id,
)
from tests.builders import NOW


def new_stream(partition_id: str = "0", hub: str = "hub") -> Stream:
    return Stream("ns", f"{hub}-{uuid.uuid4().hex[:8]}", "$Default", partition_id)


def event(sequence: int, body: bytes = b"{}") -> Event:
    enqueued_at = NOW + timedelta(seconds=min(sequence, 10**6), microseconds=123457)
    return Event(sequence, f"@{sequence}", enqueued_at, body, "device-1")


def letter(sequence: int, body: bytes = b"{}") -> DeadLetter:
    return dead_letter(event(sequence, body), FailureKind.POISON, "ValueError: no", NOW)


def gap(first: int, last: int) -> Gap:
    return Gap(first, last, NOW + timedelta(microseconds=1), "skipped")


def effect(stream: Stream, sequence: int, messages: int = 1, value: str | None = None) -> Effect:
    sent = [
        OutboxMessage(message_id(stream, sequence, index), f"m{sequence}.{index}")
        for index in range(messages)
    ]
    return Effect(sequence, value, tuple(sent))


def checkpoint(sequence: int, start: int = 0, epoch: int = 1, txid: str = "") -> Checkpoint:
    last = event(sequence)
    name = txid or f"tx-{uuid.uuid4().hex}"
    return Checkpoint(start, sequence, last.offset, last.enqueued_at, epoch, f"owner{epoch}", name)


def commit(
    previous: Checkpoint | None,
    sequence: int,
    effects: Sequence[Effect] = (),
    dead_letters: Sequence[DeadLetter] = (),
    gaps: Sequence[Gap] = (),
    epoch: int = 1,
) -> Commit:
    """A commit up to and including a sequence number. Its outcomes need not be complete."""
    after = checkpoint(sequence, epoch=epoch)
    if previous is not None:
        after = replace(after, start=previous.start)
    return Commit(previous, after, tuple(effects), tuple(dead_letters), tuple(gaps))
