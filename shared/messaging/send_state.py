"""Decides what a sender does next: a state, and how each reply of the link changes it. The next
batch waits for the outcome of the previous one, so the order is kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from shared.messaging.model import Batch, BatchLimits, EncodedMessage, Progress
from shared.messaging.packing import Encoded, halves, pack
from shared.values.messages import Order, Refusal, Result

SHRINK = 0.95
"""The factor of the limit after a refusal."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The batch has arrived."""


@dataclass(frozen=True, slots=True)
class SizeExceeded:
    """The batch was refused because it is too large."""


@dataclass(frozen=True, slots=True)
class BatchRefused:
    """A message in the batch is wrong. The client has closed the link."""

    reason: str


@dataclass(frozen=True, slots=True)
class ServerBusy:
    """The batch was refused because the service asks for a pause."""

    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The link must be opened again. Nobody knows whether the batch has arrived, unless it was not
    sent."""

    reason: str
    was_sent: bool = True


Outcome = Accepted | SizeExceeded | BatchRefused | ServerBusy | Disconnected


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """How long a sender keeps trying. ``failures_max`` counts those of one batch in a row."""

    failures_max: int = 10
    refusals_max: int = 50
    """After so many refused messages in a row, the whole call is probably wrong."""

    pause_seconds: float = 0.5
    pause_seconds_max: float = 10
    busy_seconds: float = 10
    """The pause for a busy service that states none, as Service Bus's documentation advises."""
    busy_seconds_max: float = 60
    """The longest pause for a busy service."""

    def pause(self, failures: int) -> float:
        """The pause after ``failures`` failures in a row. It doubles with each failure."""
        return min(self.pause_seconds_max, self.pause_seconds * 2.0 ** (failures - 1))


@dataclass(frozen=True, slots=True)
class SendState:
    """The state of one call. The next batch to send is the first of ``planned``."""

    encoded: Encoded
    order: Order
    limits: BatchLimits
    planned: tuple[Batch, ...]
    sent: int = 0
    batches: int = 0
    bytes: int = 0
    retries: int = 0
    resent_unknown: int = 0
    unknown: frozenset[int] = frozenset()
    """The places of the messages that may have arrived."""
    unknown_since: float = 0.0
    """When the first attempt whose outcome is unknown began."""
    refused: tuple[Refusal, ...] = ()
    refused_in_a_row: int = 0
    failures: int = 0
    pause_seconds: float = 0.0
    must_open: bool = False
    last_failure: str = ""

    @property
    def batch(self) -> Batch:
        return self.planned[0]

    @property
    def progress(self) -> Progress:
        return Progress(self.sent, len(self.encoded), self.batches)

    @property
    def result(self) -> Result:
        counts = (self.sent, self.batches, self.bytes, self.retries, self.resent_unknown)
        return Result(*counts, tuple(sorted(self.refused, key=lambda each: each.position)))

    @property
    def unknown_names(self) -> list[str]:
        named = [(place, self.encoded[place].message.message_id) for place in sorted(self.unknown)]
        return [f"#{place} ({name})" for place, name in named]

    @property
    def waiting(self) -> list[EncodedMessage]:
        """The messages that are not known to have arrived, in the order of sending."""
        return [each for batch in self.planned for each in batch.encoded]


def begin(encoded: Encoded, limits: BatchLimits | None, order: Order) -> SendState:
    """The plan for all messages that are not too large for the link; those are refused. A link that
    was never opened has no limits, so it must be opened first."""
    state = SendState(encoded, order, limits or BatchLimits(0), (Batch(encoded, 0),))
    return _planned_again(state, limits) if limits else replace(state, must_open=True)


def opened(state: SendState, link: BatchLimits) -> SendState:
    """The state after the link was opened again, perhaps with other limits."""
    state = replace(state, must_open=False, pause_seconds=0.0)
    limits = replace(link, learned_bytes=state.limits.learned_bytes)
    return state if limits == state.limits else _planned_again(state, limits)


def advance(
    state: SendState, outcome: Outcome, budget: RetryBudget, began: float = 0.0
) -> SendState:
    """The state after the first batch's outcome. ``began`` is of a steady clock, in seconds."""
    if not isinstance(outcome, Disconnected) or outcome.was_sent:
        again = state.unknown.intersection(state.batch.places)
        state = replace(state, resent_unknown=state.resent_unknown + len(again))
    match outcome:
        case Accepted():
            return _accepted(state)
        case SizeExceeded():
            return _split(state)
        case BatchRefused():
            return _refused(state, outcome, budget)
        case ServerBusy():
            asked = outcome.retry_after_seconds
            pause_seconds = budget.busy_seconds if asked is None else asked
            pause_seconds = min(pause_seconds, budget.busy_seconds_max)
            return _failed(state, pause_seconds, "the service is busy")
        case Disconnected():
            failed = _failed(state, budget.pause(state.failures + 1), outcome.reason)
            failed = replace(failed, must_open=True)
            return _unknown(failed, began) if outcome.was_sent else failed


def exhausted(state: SendState, budget: RetryBudget) -> bool:
    refused_too_many = state.refused_in_a_row >= budget.refusals_max
    return refused_too_many or state.failures >= budget.failures_max


ATTEMPT_SECONDS_MAX = 20.0
"""The time that an attempt may take to reach the service."""


def window_passed(state: SendState, window: timedelta | None, now: float) -> bool:
    """Whether the next batch may have arrived but the queue has forgotten it by now."""
    if window is None or state.unknown.isdisjoint(state.batch.places):
        return False
    seconds = window.total_seconds()
    return now - state.unknown_since >= seconds - min(ATTEMPT_SECONDS_MAX, seconds / 2)


def _accepted(state: SendState) -> SendState:
    batch = state.batch
    return replace(
        state,
        planned=state.planned[1:],
        sent=state.sent + len(batch.encoded),
        batches=state.batches + 1,
        bytes=state.bytes + batch.wire_bytes,
        unknown=state.unknown.difference(batch.places),
        refused_in_a_row=0,
        failures=0,
        pause_seconds=0.0,
    )


def _failed(state: SendState, pause_seconds: float, reason: str) -> SendState:
    return replace(
        state,
        retries=state.retries + 1,
        failures=state.failures + 1,
        pause_seconds=pause_seconds,
        last_failure=reason,
    )


def _unknown(state: SendState, began: float) -> SendState:
    return replace(
        state,
        unknown=state.unknown.union(state.batch.places),
        unknown_since=state.unknown_since if state.unknown else began,
    )


def _refused(state: SendState, outcome: BatchRefused, budget: RetryBudget) -> SendState:
    """Divide the batch until the wrong message is alone, and leave that message out."""
    batch, *others = state.planned
    state = replace(state, failures=0, pause_seconds=0.0, must_open=True)
    if len(batch.encoded) > 1:
        return replace(state, planned=(*halves(batch), *others), retries=state.retries + 1)
    return replace(
        state,
        planned=tuple(others),
        refused=(*state.refused, _refusal(batch.encoded[0], outcome.reason)),
        unknown=state.unknown.difference(batch.places),
        refused_in_a_row=state.refused_in_a_row + 1,
        last_failure=f"{budget.refusals_max} messages in a row were refused: {outcome.reason}",
    )


def _split(state: SendState) -> SendState:
    """Learn from the refusal, and divide the unsent messages again, in batches of 95 % of this one.
    A message that is refused alone may have caused earlier refusals, so the learned limit is
    forgotten."""
    limits, batch = state.limits, state.batch
    state = replace(state, retries=state.retries + 1, failures=0, pause_seconds=0.0)
    if len(batch.encoded) == 1:
        reason = f"{batch.wire_bytes} bytes are more than the service accepts"
        refused = (*state.refused, _refusal(batch.encoded[0], reason))
        state = replace(state, planned=state.planned[1:], refused=refused)
        return _planned_again(state, replace(limits, learned_bytes=None))
    learned_bytes = int(min(limits.batch_bytes, batch.wire_bytes) * SHRINK)
    return _planned_again(state, replace(limits, learned_bytes=learned_bytes))


def _planned_again(state: SendState, limits: BatchLimits) -> SendState:
    waiting, most = state.waiting, limits.single_bytes
    refused = [
        _refusal(
            each, f"{each.size_bytes} bytes; the link accepts messages of at most {most} bytes"
        )
        for each in waiting
        if each.size_bytes > most
    ]
    planned = pack([each for each in waiting if each.size_bytes <= most], limits, state.order)
    every = (*state.refused, *refused)
    return replace(state, limits=limits, planned=tuple(planned), refused=every)


def _refusal(each: EncodedMessage, reason: str) -> Refusal:
    return Refusal(each.place, each.message.message_id, reason)
