"""Rules made wrong by hand, one at a time: some simulation must notice each within a few seeds."""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any, cast

import pytest

# A simulation that fails leaves its coroutines as they are, for the collector to find.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

SEEDS_MAX = 60


@dataclass(frozen=True)
class Mutant:
    """In a function of a package, one text is replaced by another."""

    simulation: str
    function: str
    old: str
    new: str
    package: str = "shared.ingestion"
    first_seed: int = 0
    """Where it is known to take many, they are tried from here on."""

    def __str__(self) -> str:
        return f"{self.function}: {self.old} -> {self.new}"


SKEWED = "seen.read_at + __import__('datetime').timedelta(minutes=10)"
"""The clock of a processor that is wrong."""
WON_ANYWAY = "mine[claim.partition_id] = next(iter(mine.values()), None) or claim"
"""A claim that failed counts as won."""


MUTANTS = [
    # --- batches and their account
    Mutant(
        "ingestion", "events.survey.new_events", "event.sequence > check", "event.sequence >= check"
    ),
    Mutant(
        "ingestion", "events.survey.new_events", "raise StreamRecreated(", "str(", first_seed=180
    ),
    Mutant("ingestion", "events.survey.check_made_before", "created_at >", "created_at <"),
    Mutant("ingestion", "events.accounting._after", "sequence=last", "sequence=last + 1"),
    Mutant(
        "ingestion", "events.accounting._after", "max([start.enqueued_at, *times])", "min(times)"
    ),
    Mutant(
        "ingestion",
        "events.accounting.plan_commits",
        "start, events[-1].sequence",
        "start, events[-1].sequence + 1",
    ),
    Mutant(
        "ingestion", "events.accounting._all_fit_into_one", "not isinstance(outcome, Effect) or", ""
    ),
    Mutant("ingestion", "events.survey.follows", "checkpoint.sequence + 1", "events[0].sequence"),
    Mutant(
        "ingestion",
        "events.accounting.commit_status",
        "return CommitStatus.APPLIED",
        "return CommitStatus.NOT_APPLIED",
    ),
    Mutant(
        "ingestion",
        "events.accounting.commit_status",
        "return CommitStatus.NOT_APPLIED",
        "return CommitStatus.APPLIED",
    ),
    Mutant(
        "ingestion",
        "events.accounting.commit_status",
        "return CommitStatus.OVERTAKEN",
        "return CommitStatus.APPLIED",
    ),
    Mutant(
        "ingestion",
        "failure_cause._known",
        "return FailureCause.DEPENDENCY",
        "return FailureCause.EVENT",
    ),
    Mutant("ingestion", "events.process_batch._Batch._next_pass", "(*fresh, *restored)", "fresh"),
    Mutant(
        "ingestion_trigger",
        "events.process_batch._begun",
        "saved.checkpoint is None and events",
        "False",
    ),
    Mutant(
        "ingestion",
        "events.outbox.OutboxLeases.ready",
        "is_held(self.lease - each.waited, self.lease)",
        "False",
    ),
    Mutant(
        "ingestion_trigger", "events.tail._is_at_work", "is_held(IDLE - idle_for, IDLE)", "False"
    ),
    Mutant(
        "ingestion_slow_failures",
        "events.ingest.HandlerCalls.beat",
        "await self._report_progress()",
        "pass",
    ),
    Mutant(
        "ingestion_slow_failures",
        "events.ingest.HandlerCalls.beat",
        "admission.is_held and",
        "False and",
    ),
    Mutant("ingestion", "events.outbox._send_some", "await sender.send(", "ready and str("),
    # --- leases
    Mutant("ingestion_balancing", "ownership.load_balancing._taking", "row.epoch + 1", "row.epoch"),
    Mutant(
        "ingestion_balancing",
        "ownership.load_balancing._largest_owner",
        "most = max(",
        "most = min(",
    ),
    Mutant(
        "ingestion_balancing",
        "ownership.load_balancing._is_held",
        "is_held(row.modified_at + expires - now, expires)",
        "True",
    ),
    Mutant(
        "ingestion_balancing",
        "ownership.processor.Balancer.cycle",
        "self.me, seen.read_at",
        f"self.me, {SKEWED}",
    ),
    Mutant(
        "ingestion_balancing", "ownership.processor.Balancer.cycle", "in planned.renewals", "in ()"
    ),
    Mutant(
        "ingestion_balancing",
        "ownership.load_balancing._is_held",
        "is_held(row.modified_at + expires - now, expires)",
        "now - row.modified_at < expires",
    ),
    Mutant("ingestion_balancing", "ownership.load_balancing.release", "row.epoch", "0"),
    Mutant(
        "ingestion_balancing",
        "ownership.processor.Balancer._renew",
        "del mine[renewal.partition_id]",
        "pass",
    ),
    Mutant(
        "ingestion_balancing",
        "ownership.processor.Balancer._claim",
        "max(claim.epoch, committed + 1)",
        "claim.epoch",
    ),
    Mutant("ingestion_fleet", "ownership.processor.Balancer._claim", "return", WON_ANYWAY),
    Mutant(
        "ingestion_fleet",
        "ownership.processor.Processor.cycle",
        "if not _still_owned(held.lease, share, p)",
        "if False",
    ),
    Mutant(
        "ingestion_fleet",
        "ownership.processor._still_owned",
        "current.epoch == lease.epoch",
        "True",
    ),
    Mutant(
        "ingestion_fleet",
        "ownership.processor.Processor.cycle",
        "asked_at >= held.until",
        "False",
    ),
    Mutant(
        "ingestion_fleet",
        "ownership.processor.Processor._give_up_ended",
        "if error is not None",
        "if type(error).__name__ == 'Fenced'",
    ),
    # --- order of a partition key, and what fits into a transaction
    Mutant(
        "ingestion_fleet",
        "events.handling.BatchHandling.lanes",
        "lanes[event.partition_key].append",
        "lanes[event.offset].append",
    ),
    Mutant(
        "ingestion_fleet",
        "events.handling.BatchHandling.lanes",
        "lanes[self.begun.partition_key] = same_key",
        "pass",
    ),
    Mutant(
        "ingestion_fleet", "events.accounting._fits", "entry.rows >= limits", "entry.rows > limits"
    ),
    # --- the breaker
    Mutant(
        "ingestion_breaker",
        "breaker.state.trip",
        "breaker.mode is not BreakerMode.CLOSED",
        "False",
        first_seed=120,
    ),
    Mutant(
        "ingestion_breaker",
        "breaker.state.trip",
        "breaker.epoch + 1",
        "breaker.epoch",
    ),
    Mutant("ingestion_breaker", "breaker.state.close", "or breaker.epoch != epoch", ""),
    Mutant(
        "ingestion_breaker",
        "breaker.state._probe_is_due",
        "or not _lasts(breaker.probe.until, times.probe_seconds, now)",
        "",
    ),
    Mutant(
        "ingestion_breaker",
        "breaker.state.take_announcement",
        "_lasts(breaker.announce_at, times.announce_seconds, now)",
        "False",
    ),
    Mutant("ingestion_breaker", "breaker.state.report_probe", "if failure is not None", "if False"),
    Mutant(
        "ingestion_breaker",
        "events.breaker_client.BreakerClient.after_batch",
        "result.trip_reason is not None",
        "False",
    ),
    # --- what is kept
    Mutant(
        "ingestion_trigger", "events.retention.plan_cleanup", "if now - mark.at >= keep", "if True"
    ),
    Mutant(
        "ingestion_trigger",
        "events.retention.plan_cleanup",
        "Mark(now, sequence)",
        "Mark(now, sequence + 9)",
    ),
    # --- dead letters
    Mutant("ingestion_redrive", "dead_letters.redrive._apply", "return lost", "raise"),
    Mutant(
        "ingestion_redrive", "dead_letters.redrive._apply", "await store.remove(stored)", "pass"
    ),
]


def nightly(function: str, old: str, new: str, first_seed: int = 0) -> Mutant:
    return Mutant("nightly", function, old, new, "shared.trends.nightly", first_seed)


def scaling(function: str, old: str, new: str, first_seed: int) -> Mutant:
    return Mutant("autoscaling", function, old, new, "shared.autoscaling", first_seed)


LOCAL = "store.local_now()"
"""The clock of the instance, which is wrong by minutes."""

MUTANTS += [
    # --- whose clock counts, and what is left of the time before it was set back
    scaling("flows.scaling_logic._attempt", "now = snapshot.read_at", f"now = {LOCAL}", 4),
    scaling(
        "flows.reconciler.Reconciler.reconcile_one",
        "now, self.timing",
        f"self.{LOCAL}, self.timing",
        4,
    ),
    scaling(
        "flows.scaler.Scaler._settle",
        "snapshot.state.desired, snapshot.read_at",
        f"snapshot.state.desired, self.{LOCAL}",
        4,
    ),
    scaling("transition.advance", "as_of(state, now)", "state", 28),
    scaling("acting.actions.as_of", "history.samples[-1].time > latest", "False", 4),
    scaling("acting.actions.as_of", "desired is not None and", "False and", 214),
    # --- a plan that is slower than its time-out, messages that are late
    scaling("acting.actions._superseded", "(*earlier, known.target)", "()", 89),
    scaling("acting.actions.confirm", "changed_at=now", "changed_at=desired.requested_at", 1),
    scaling("acting.actions._overdue", "now < _resend_at(desired, timing)", "False", 1),
    scaling(
        "deciding.samples.merge",
        "return Merged(state, MergeOutcome.STALE)",
        "raise BadMessage(name)",
        3,
    ),
    # --- data sets whose processing outlasts its lock
    Mutant(
        "datasets",
        "claims.judge",
        "is_held(remaining, lease)",
        "is_held(remaining - 2 * lease / 3, lease)",
        "shared.trends.datasets",
    ),
    Mutant(
        "datasets",
        "claims.judge",
        "if claim.holder == holder",
        "if False",
        "shared.trends.datasets",
    ),
]

MUTANTS += [
    nightly("runs.started", "now + policy.lease", "now + policy.lease / 3", first_seed=72),
    nightly("runs.submitted_again", "now + policy.lease", "now + policy.lease / 5"),
    nightly(
        "flows.run_manager.RunManager._advance",
        "now = ledger.now",
        "now = self.store.local_now()",
    ),
    nightly("runs._lasts", "is_held(end - now, end - run.changed_at)", "False"),
    nightly("runs.unanswered", "lease_until=now + delay", "state=RunState.FAILED"),
    nightly("runs._stopped", "state=RunState.STOPPING", "state=RunState.FAILED"),
    nightly("runs._lost", "max(lost.retry_at or now, ends)", "lost.retry_at"),
    nightly("runs.observed", "else _lost(run, now, policy)", "else run"),
    nightly("runs.next_step", "attempt > policy.attempts", "False"),
    nightly("runs.next_step", "latest.data_until >= demand.data_until", "True"),
    nightly("runs.started", "latest.number + 1", "latest.number"),
    nightly("runs.told", "untold=False", "untold=True"),
    nightly("runs.was_left_untold", "not is_held(until - now, NOTIFYING_MAX)", "False"),
]


def target(mutant: Mutant) -> FunctionType:
    """The function, of a module or of a class in it."""
    path = mutant.function.split(".")
    last = 2 if path[-2][:1].isupper() or path[-2].startswith("_") else 1
    found: Any = importlib.import_module(".".join([mutant.package, *path[:-last]]))
    for name in path[-last:]:
        found = inspect.getattr_static(found, name)
    return cast("FunctionType", found.fget if isinstance(found, property) else found)


def mutated(mutant: Mutant, original: FunctionType) -> FunctionType:
    """The function with the text replaced, in the same module."""
    source = textwrap.dedent(inspect.getsource(original))
    old = mutant.old
    assert source.count(old) == 1, f"{mutant}: found {source.count(old)} times"
    source = source.replace("@property\n", "").replace(old, mutant.new)
    code = compile(f"from __future__ import annotations\n{source}", "<mutant>", "exec")
    scope = dict(original.__globals__)
    exec(code, scope)
    made: FunctionType = scope[original.__name__]
    return made


@contextmanager
def in_place_of(original: FunctionType, mutant: FunctionType) -> Iterator[None]:
    """Whoever holds the function runs the other code."""
    code, original.__code__ = original.__code__, mutant.__code__
    try:
        yield
    finally:
        original.__code__ = code


def notices(check: Callable[[int], None], first_seed: int) -> bool:
    """Whether a simulation fails under one of so many seeds."""
    for seed in range(first_seed, first_seed + SEEDS_MAX):
        try:
            check(seed)
        except Exception:
            return True
    return False


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_wrong_rule_is_noticed(mutant: Mutant) -> None:
    original = target(mutant)
    simulation = importlib.import_module(f"tests.simulation.test_{mutant.simulation}")
    with in_place_of(original, mutated(mutant, original)):
        assert notices(simulation.check_seed, mutant.first_seed), str(mutant)
