"""What is remembered of a resource and committed as one, and which rows a commit changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from shared.autoscaling.declaring import Mode
from shared.autoscaling.measurements import NO_SAMPLES, NOTHING, WeekProfile, Window

EPOCH_MAX = 10**9 - 1
"""Of an order: one a second for 31 years. The keys of the decision log have digits for no more."""


@dataclass(frozen=True, slots=True)
class ScaleAction:
    """Set the resource to ``target`` instances. Absolute, so doing it twice changes nothing.

    ``epoch`` grows with every decision; an action of an older epoch than the state's is void.
    """

    resource_name: str
    target: int
    epoch: int
    reason: str
    requested_at: datetime


class ActionStatus(StrEnum):
    PENDING = "pending"
    CONFIRMED = "confirmed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Desired:
    """The capacity that was decided last and how far it got."""

    target: int
    epoch: int
    reason: str
    requested_at: datetime
    previous: int
    superseded: tuple[int, ...] = ()
    """What orders since the last confirmation were about to set when others replaced them."""
    status: ActionStatus = ActionStatus.PENDING
    sent_at: datetime | None = None
    changed_at: datetime | None = None
    """When the capacity last became what had been asked for; kept while a new action is pending."""
    changed_out: bool | None = None
    """Whether it became more then."""
    changed_by_hand: bool = False
    """Whether a person made that change."""
    retry_at: datetime | None = None
    attempts: int = 0
    last_error: str = ""

    @property
    def pending(self) -> bool:
        return self.status is ActionStatus.PENDING


@dataclass(frozen=True, slots=True)
class Override:
    """What a person set in place of the policy's answer, until it expires. None: as declared."""

    mode: Mode | None = None
    reason: str = ""
    expires_at: datetime | None = None
    freeze_scale_in: bool = False
    floor: int | None = None
    exact: int | None = None


@dataclass(frozen=True, slots=True)
class RegressionSums:
    """Changes of one direction: ``dn`` instances bent the backlog's slope by ``ds``.

    Sums over all but the last few, which stand beside them as pairs ``(ds, dn)``: learning.py.
    """

    changes: float = 0
    """Their number; older ones weigh less."""
    dn_dn: float = 0
    ds_dn: float = 0
    ds_ds: float = 0
    recent: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class BusyIntervals:
    """Intervals in which all instances were busy. See learning.py.

    ``done`` are items, ``busy`` instance-minutes; older intervals weigh less. Sums over all but
    the last few, which stand beside them as pairs ``(done, busy)``.
    """

    until: datetime | None = None
    """The end of the last interval that was looked at."""
    intervals: float = 0
    done: float = 0
    busy: float = 0
    done_done: float = 0
    done_busy: float = 0
    busy_busy: float = 0
    recent: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Learned:
    """What was learned about a resource's instances. See learning.py."""

    epoch: int = 0
    """Of the last change that was looked at."""
    out: RegressionSums = RegressionSums()
    into: RegressionSums = RegressionSums()
    """Of scale-ins."""
    dead_times: int = 0
    dead_time_minutes: float = 0
    work: BusyIntervals = BusyIntervals()


@dataclass(frozen=True, slots=True)
class ScalingState:
    """What is remembered of one resource."""

    histories: Mapping[str, Window] = field(default_factory=lambda: NOTHING)
    desired: Desired | None = None
    override: Override | None = None
    wishes: Window = NO_SAMPLES
    """What the policy wanted of late, where a stabilisation window needs it."""
    learned: Learned = Learned()
    profile: WeekProfile | None = None

    def with_history(self, name: str, history: Window) -> ScalingState:
        return ScalingState(
            {**self.histories, name: history},
            self.desired,
            self.override,
            self.wishes,
            self.learned,
            self.profile,
        )

    def with_desired(self, desired: Desired) -> ScalingState:
        return ScalingState(
            self.histories,
            desired,
            self.override,
            self.wishes,
            self.learned,
            self.profile,
        )


DESIRED_ROW = "desired"
LEARNED_ROW = "learned"
METRIC_PREFIX = "metric|"
OVERRIDE_ROW = "override"
PROFILE_ROW = "profile"
WISHES_ROW = "wishes"

RowValue = Window | Desired | Learned


def changed_rows(old: ScalingState, new: ScalingState) -> Iterator[tuple[str, RowValue]]:
    """Row key and value of each row that differs.

    Overrides belong to people and profiles to the nightly job, never to a flow.
    """
    for name, history in new.histories.items():
        if old.histories.get(name) != history:
            yield METRIC_PREFIX + name, history
    if new.desired is not None and old.desired != new.desired:
        yield DESIRED_ROW, new.desired
    if old.wishes != new.wishes:
        yield WISHES_ROW, new.wishes
    if old.learned != new.learned:
        yield LEARNED_ROW, new.learned


def with_rows(kept: ScalingState, new: ScalingState, keys: set[str]) -> ScalingState:
    """``kept`` with those rows of ``new`` in it."""
    changed = {n: h for n, h in new.histories.items() if METRIC_PREFIX + n in keys}
    return replace(
        kept,
        histories={**kept.histories, **changed},
        desired=new.desired if DESIRED_ROW in keys else kept.desired,
        wishes=new.wishes if WISHES_ROW in keys else kept.wishes,
        learned=new.learned if LEARNED_ROW in keys else kept.learned,
    )
