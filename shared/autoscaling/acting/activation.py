"""Which version of the rules decides while copies of the app with different rules run. Pure.

The version that was activated last decides. Copies with another version only store samples. The
version in force is a part of the state, and each change of the desired state writes it again. A
decision that was made while another version was activated is therefore a conflict, and is not
committed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from shared.autoscaling.deciding.decide import effective_mode
from shared.autoscaling.declaring import Mode
from shared.autoscaling.policy import Resource
from shared.autoscaling.state import RulesInForce, ScalingState

LOCAL = "local-"
"""The prefix of a version that does not run in Azure, for example on a developer's computer."""
SILENCE = timedelta(minutes=2)
"""How long a version in force must leave samples undecided before one that it replaced may decide.
"""
DEPLOYMENT = timedelta(minutes=10)
"""Operators are not notified of old copies that run within this time after an activation."""
REPLACED_MAX = 20


@dataclass(frozen=True, slots=True)
class Standing:
    """Whether a copy of the app decides, and the version in force to commit, if it changes."""

    decides: bool
    rules: RulesInForce | None = None


def is_same(version: str, other: str) -> bool:
    """Whether the rules are the same, wherever they run."""
    return version.removeprefix(LOCAL) == other.removeprefix(LOCAL)


def standing(
    resource: Resource, state: ScalingState, version: str | None, now: datetime
) -> Standing:
    """The standing of a copy with this version. Without a version, as in a replay, it decides.

    1. The version in force decides. 2. A local version never replaces one of a deployment. 3. A new
    version is activated at once, and so is a deployment that finds a local version in force. 4. A
    version that was replaced is activated again only after SILENCE. 5. A dry run is never
    activated. It decides if no version is in force, or after SILENCE.
    """
    rules = state.rules
    if version is None:
        return Standing(True)
    if rules is not None and version == rules.version:
        return Standing(True, replace(rules, waiting_since=None))
    dry_run = effective_mode(resource, state, now)[0] is Mode.DRY_RUN
    if rules is not None and not _may_replace(rules, version, now, dry_run=dry_run):
        return Standing(False, _waiting(rules, version, now))
    return Standing(True, None if dry_run else _activated(rules, version, now))


def _may_replace(rules: RulesInForce, version: str, now: datetime, *, dry_run: bool) -> bool:
    if _outranked(version, rules.version):
        return False
    known = version in rules.replaced and not _outranked(rules.version, version)
    if not known and not dry_run:
        return True
    return rules.waiting_since is not None and now - rules.waiting_since >= SILENCE


def _outranked(version: str, by: str) -> bool:
    return version.startswith(LOCAL) and not by.startswith(LOCAL)


def _waiting(rules: RulesInForce, version: str, now: datetime) -> RulesInForce:
    since = rules.waiting_since
    if not _outranked(version, rules.version) and (since is None or since > now):
        since = now
    return replace(rules, waiting_since=since, other=version, other_at=now)


def _activated(rules: RulesInForce | None, version: str, now: datetime) -> RulesInForce:
    if rules is None:
        return RulesInForce(version, now)
    earlier = [each for each in rules.replaced if each != version]
    return RulesInForce(version, now, (*earlier, rules.version)[-REPLACED_MAX:])


def told(rules: RulesInForce | None, now: datetime) -> str:
    """A sentence about other versions that run beside the one in force; empty if none does."""
    if rules is None or rules.other_at is None or now - rules.other_at > SILENCE:
        return ""
    return (
        f"version {rules.version} of the rules, activated at {rules.activated_at:%Y-%m-%d %H:%M} "
        f"UTC, decides, but a copy of the app with version {rules.other} runs too; that copy only "
        "stores samples"
    )
