"""Deliberate mistakes in safety rules, one at a time: ``--faults`` must detect each of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backtest.faults import FaultRates, replay_with_faults
from backtest.progress import Progress
from backtest.rules_file import Rules, load_rules
from shared.autoscaling import Cooldown, Guards, Observation, RateLimit, Recommendation
from shared.autoscaling.sources import StorageQueue
from tests.backtest.arenas import SHIPPED_RULES, arena, bursty, workload
from tests.simulation.test_mutants import Mutant, in_place_of, mutated, target

MINUTES = 1500
SEEDS_MAX = 25
OFTEN = FaultRates(
    sample_dropped=0.2,
    action_slow=0.15,
    action_doubled=0.3,
    action_refused=0.1,
    blackout=0.003,
    outage=0.001,
    changed_by_hand=0.005,
    paused_by_hand=0.01,
)
"""Higher rates than usual, so that a few seeds are enough."""


def impatient(seen: Observation) -> Recommendation:
    """A policy that follows every sample at once, as far as the guards allow."""
    newest = [sample.value for sample in seen.history("jobs").samples[-1:]]
    return Recommendation(1 + int(sum(newest) // 400), "one for 400")


SHIPPED = load_rules(SHIPPED_RULES)
GUARDED = Rules(
    replace(
        SHIPPED.resource,
        metrics={"jobs": StorageQueue("jobs")},
        policy=impatient,
        cooldown=Cooldown(120, 300),
        guards=Guards(
            rate_limits=(RateLimit("out", 600, instances=2), RateLimit("in", 600, instances=2)),
            flap_projection=False,
        ),
    ),
    SHIPPED.timing,
)
BROKEN = Rules(
    replace(
        GUARDED.resource,
        metrics={**GUARDED.resource.metrics, "breaker": StorageQueue("breaker")},
        guards=replace(GUARDED.resource.guards, breaker_metric="breaker"),
    ),
    SHIPPED.timing,
)
"""The breaker is open while jobs wait, so that the app never scales out."""
ALL_RULES = (SHIPPED, GUARDED, BROKEN)
"""They use every guard that a safety rule checks."""

QUIET = "return None\n"


def rule(function: str, old: str, new: str) -> Mutant:
    return Mutant("", function, old, new, "shared.autoscaling")


MUTANTS = [
    # --- decisions within the guards
    rule("deciding.guards.missing_data", "sorted(silent,", "sorted((),"),
    rule("deciding.guards.bounds", "if capacity > limits.maximum:", "if False:"),
    rule("deciding.guards.cooldown", "if seen.now > until:", "if True:"),
    rule("deciding.guards.cooldown", "if out else wait.scale_in_seconds", "if True else 0"),
    rule("deciding.guards.rate_limits", "allowed < capacity", "False"),
    rule("deciding.guards.consumer_broken", "samples[-1].value <= 0", "True"),
    rule("deciding.guards.failed_action", "seen.now >= desired.retry_at", "True"),
    rule("deciding.guards.already_requested", "not desired.pending", "True"),
    rule("deciding.decide.effective_mode", "if override and override.mode:", "if False:"),
    # --- one writer, one epoch for each decision
    rule("acting.actions._requested", "(known.epoch if known else 0) + 1", "1"),
    rule("acting.actions._requested", "changed_at=known.changed_at if known else None,", ""),
    rule("acting.actions.reason_to_ignore", "action.epoch < desired.epoch", "False"),
    rule("acting.actions.reason_to_ignore", "not desired.pending", "False"),
    rule("acting.actions.reason_to_ignore", "mode is Mode.ACTIVE", "True"),
    # --- the states of an action
    rule("acting.actions.settle", "not desired.pending", "False"),
    rule("acting.actions.confirm", "changed_at=now,", ""),
    rule("acting.actions.confirm_if_observed", "observed.value != desired.target", "False"),
    rule("acting.actions.confirm_if_observed", "observed.time <= desired.requested_at", "False"),
    rule("acting.actions.defer", "now + timedelta(seconds=wait_seconds)", "now"),
    rule("acting.actions.fail", "now + timedelta(seconds=timing.failure_hold_seconds)", "now"),
    rule("acting.actions.reopen", "not changed_by_hand(desired, capacity)", "True"),
    rule("acting.actions.reopen", "if desired.status is not ActionStatus.CONFIRMED:", "if False:"),
    rule(
        "flows.scaler.Scaler._settle",
        "if settlement.change_requested:",
        "if False:",
    ),
    rule("flows.scaler.Scaler._carry_out", "after != desired.target", "False"),
    # --- the reconciler repairs everything
    rule("acting.actions.reconcile", "if actual == desired.target:", "if False:"),
    rule("acting.actions._overdue", "timedelta(seconds=timing.deadline_seconds)", "timedelta.max"),
    rule("acting.actions._overdue", "not active or now < _resend_at(desired, timing)", "True"),
    rule("acting.actions._resend_at", "return desired.retry_at", "pass"),
    # --- manual changes
    rule("acting.actions.changed_by_hand", "actual != desired.target", "False"),
    rule("acting.actions._superseded", "return (*earlier, known.target)", "return ()"),
    rule("flows.scaler.Scaler._carry_out", "adopts and changed_by_hand(desired, before)", "False"),
    rule("acting.actions.adopt", "target=actual", "target=_believed(desired)"),
]


def violations(rules: Rules, seed: int) -> list[str]:
    load = workload(bursty(seed, MINUTES, mean=400))
    _, faults = replay_with_faults(arena(instance_rate=100), load, rules, seed, Progress(), OFTEN)
    found: list[str] = faults["first_violations"]
    return found


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_faults_reveal_a_broken_safety_rule(mutant: Mutant) -> None:
    original = target(mutant)
    with in_place_of(original, mutated(mutant, original)):
        for seed in range(SEEDS_MAX):
            if any(violations(rules, seed) for rules in ALL_RULES):
                return
    raise AssertionError(f"{mutant} was not detected with {SEEDS_MAX} seeds")


@pytest.mark.parametrize("seed", range(4))
def test_the_same_faults_report_no_violation_of_the_correct_code(seed: int) -> None:
    assert [violations(rules, seed) for rules in ALL_RULES] == [[], [], []]
