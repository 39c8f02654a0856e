"""What a sender does next: a state, and what each answer of the link makes of it. No I/O.

One batch is under way at a time and the next one waits for its outcome: that keeps the order
however often a batch must be repeated. A batch whose outcome is unknown is sent again with the same
message ids, so that duplicate detection drops what had arrived.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shared.messaging.model import (
    Batch,
    BatchLimits,
    Chunk,
    Message,
    Order,
    Progress,
    Result,
    SendRequest,
)
from shared.messaging.packing import pack, too_large

SHRINK = 0.95
"""What remains of the limit after a refusal that no message's header explains."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The batch is there."""


@dataclass(frozen=True, slots=True)
class SizeExceeded:
    """The batch is not there: it is too large."""

    header_bytes: int = 0
    """What each message was seen to take beyond what was foretold, where that was seen."""


@dataclass(frozen=True, slots=True)
class ServerBusy:
    """The batch is not there: the service asks for a pause, and may say how long."""

    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Disconnected:
    """Nobody knows whether the batch is there, and the link must be opened again.

    So it is where no answer came in time: a connection that a network swallows without a word looks
    like a slow service, and stays as it is until another one is opened.
    """

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Unreachable:
    """The batch is not there: there is no link, and it must be opened again."""

    reason: str = ""


Outcome = Accepted | SizeExceeded | ServerBusy | Disconnected | Unreachable


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """How long a sender goes on. ``failures_max`` counts failures of one batch in a row."""

    failures_max: int = 10
    pause_seconds: float = 0.5
    pause_seconds_max: float = 10
    busy_seconds: float = 10
    """For a busy service that does not say how long: its own documentation's advice."""
    busy_seconds_max: float = 60
    """However long a busy service asks for: nobody is told meanwhile."""

    def pause(self, failures: int) -> float:
        """Twice as long after each failure."""
        return min(self.pause_seconds_max, self.pause_seconds * 2.0 ** (failures - 1))


@dataclass(frozen=True, slots=True)
class SendState:
    """Where a call stands. The batch to send next is the first of ``chunks``."""

    request: SendRequest
    order: Order
    limits: BatchLimits
    chunks: tuple[Chunk, ...]
    sent: int = 0
    batches: int = 0
    bytes: int = 0
    retries: int = 0
    resent_unknown: int = 0
    refused: tuple[int, ...] = ()
    failures: int = 0
    pause_seconds: float = 0.0
    must_open: bool = False
    last_failure: str = ""

    @property
    def batch(self) -> Batch:
        chunk = self.chunks[0]
        encoded = self.request.encoded
        return Batch([encoded[position] for position in chunk.positions], chunk.wire_bytes)

    @property
    def progress(self) -> Progress:
        return Progress(self.sent, len(self.request.encoded), self.batches)

    @property
    def result(self) -> Result:
        refused = tuple(self.request.names(self.refused))
        return Result(
            self.sent, self.batches, self.bytes, self.retries, self.resent_unknown, refused
        )

    @property
    def unsent(self) -> list[Message]:
        """The messages that are not known to be there, in the order of sending."""
        return [self.request.encoded[position].message for position in self.waiting]

    @property
    def waiting(self) -> list[int]:
        return [position for chunk in self.chunks for position in chunk.positions]


def begin(request: SendRequest, limits: BatchLimits, order: Order) -> SendState:
    """The plan for everything. No message may be too large (see ``packing.too_large``)."""
    chunks = pack(range(len(request.encoded)), request, limits, order)
    return SendState(request, order, limits, tuple(chunks))


def opened(state: SendState, link_bytes: int) -> SendState:
    """The link is open again; it may have been given another limit."""
    state = replace(state, must_open=False, pause_seconds=0.0)
    if link_bytes == state.limits.link_bytes:
        return state
    return _planned_again(state, replace(state.limits, link_bytes=link_bytes))


def advance(state: SendState, outcome: Outcome, budget: RetryBudget) -> SendState:
    """What the outcome of the first chunk changes."""
    match outcome:
        case Accepted():
            return _accepted(state)
        case SizeExceeded():
            return _split(state, outcome)
        case ServerBusy():
            asked = outcome.retry_after_seconds
            pause_seconds = budget.busy_seconds if asked is None else asked
            pause_seconds = min(pause_seconds, budget.busy_seconds_max)
            return _failed(state, pause_seconds, "the service is busy")
        case Disconnected():
            unknown = _unknown(state, budget, outcome.reason or "disconnected")
            return replace(unknown, must_open=True)
        case Unreachable():
            pause_seconds = budget.pause(state.failures + 1)
            failed = _failed(state, pause_seconds, outcome.reason or "no connection")
            return replace(failed, must_open=True)


def exhausted(state: SendState, budget: RetryBudget) -> bool:
    return state.failures >= budget.failures_max


def _accepted(state: SendState) -> SendState:
    chunk = state.chunks[0]
    return replace(
        state,
        chunks=state.chunks[1:],
        sent=state.sent + len(chunk.positions),
        batches=state.batches + 1,
        bytes=state.bytes + chunk.wire_bytes,
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


def _unknown(state: SendState, budget: RetryBudget, reason: str) -> SendState:
    failed = _failed(state, budget.pause(state.failures + 1), reason)
    count = len(state.chunks[0].positions)
    return replace(failed, resent_unknown=state.resent_unknown + count)


def _split(state: SendState, outcome: SizeExceeded) -> SendState:
    """Remember what the refusal teaches, and divide anew what is not sent.

    1. Messages with larger headers than foretold: remember those headers.
    2. Otherwise the limit is smaller than this batch: remember 95 % of the smaller of the two.
    3. A message alone that is refused is refused for good; the others may still be sent. It may
       be the reason of the refusals before: forget the limit that they taught.
    """
    limits, chunk = state.limits, state.chunks[0]
    state = replace(state, retries=state.retries + 1, failures=0, pause_seconds=0.0)
    if outcome.header_bytes > limits.extra_bytes:
        return _planned_again(state, replace(limits, extra_bytes=outcome.header_bytes))
    if len(chunk.positions) == 1:
        refused = (*state.refused, *chunk.positions)
        state = replace(state, chunks=state.chunks[1:], refused=refused)
        return _planned_again(state, replace(limits, learned_bytes=None))
    counted = chunk.wire_bytes + limits.extra_bytes * len(chunk.positions)
    learned_bytes = int(min(limits.batch_bytes, counted) * SHRINK)
    return _planned_again(state, replace(limits, learned_bytes=learned_bytes))


def _planned_again(state: SendState, limits: BatchLimits) -> SendState:
    waiting = state.waiting
    if refused := set(too_large(waiting, state.request, limits)):
        waiting = [position for position in waiting if position not in refused]
    chunks = pack(waiting, state.request, limits, state.order)
    return replace(
        state,
        limits=limits,
        chunks=tuple(chunks),
        refused=(*state.refused, *sorted(refused)),
    )
