"""The types of what operators see of a resource, as plain values for JSON.

Times are ISO 8601 text in UTC, and durations are seconds. An unknown value is None, never zero.
"""

from __future__ import annotations

from typing import Any, TypedDict

from shared.autoscaling.deciding.decide import EntryKind
from shared.autoscaling.declaring import Mode
from shared.autoscaling.policy import RateSource
from shared.autoscaling.state import ActionStatus
from shared.notifications.conditions import ConditionShown
from shared.values.text import TimeText

EvidenceShown = dict[str, Any]


class PlanShown(TypedDict):
    """An App Service Plan."""

    subscription_id: str
    resource_group: str
    name: str


class LimitsShown(TypedDict):
    """The range of the capacity, in instances, as far as the plan can have it."""

    minimum: int
    maximum: int


class DesiredShown(TypedDict):
    """The capacity that the app last asked for. ``reached`` is the part of it that the plan had at
    ``progressed_at``. If the action ended there, that is the ``target``, and ``given_up`` the
    capacity that was asked for."""

    target: int
    epoch: int
    status: ActionStatus
    reason: str
    requested_at: TimeText
    attempts: int
    last_error: str | None
    reached: int | None
    progressed_at: TimeText | None
    given_up: int | None


class OverrideShown(TypedDict):
    """The override in force."""

    said: str
    reason: str
    mode: Mode | None
    exact: int | None
    floor: int | None
    freeze_scale_in: bool
    expires_at: TimeText | None


class RulesShown(TypedDict):
    """The version of the rules that decides."""

    version: str
    activated_at: TimeText


class EstimateShown(TypedDict):
    """The rate per instance, in items a minute."""

    said: str
    certainty: str
    source: RateSource
    likely: float
    low: float
    relative_error: float
    sure: bool


class MetricShown(TypedDict):
    """A metric with its newest sample."""

    name: str
    source: str
    pushed: bool
    value: float | None
    time: TimeText | None
    age_seconds: float | None
    lag_seconds: float | None
    stale: bool


class CandidateShown(TypedDict):
    """What one policy recommends."""

    rule: str
    capacity: int
    reason: str
    evidence: EvidenceShown


class SampleShown(TypedDict):
    """One value of a metric, with the time of its source."""

    name: str
    value: float
    time: TimeText


class DecisionShown(TypedDict):
    """A decision, and everything that led to it."""

    time: TimeText
    current: int | None
    desired: int | None
    applies: bool
    reason: str
    limited_by: list[str]
    candidates: list[CandidateShown]
    evidence: EvidenceShown
    counterfactual: str


class DecisionEntry(DecisionShown):
    """An entry of the decision log. ``metric`` and ``value`` are of the newest of the ``samples``
    that led to the decision. Entries of older versions have no ``samples``. ``repeated`` counts the
    decisions before it that said the same in a row, numbers aside, since ``repeated_since``."""

    id: str
    kind: EntryKind
    epoch: int | None
    metric: str | None
    value: float | None
    samples: list[SampleShown]
    repeated: int
    repeated_since: TimeText | None


class SpentShown(TypedDict):
    """Instance-hours of the day and of the month in UTC, what the month would have had at the
    maximum, and the price of one. ``said`` has the money if there is a price."""

    today: float | None
    month: float
    month_at_maximum: float
    price: float | None
    said: str


class ChangeRow(DecisionEntry):
    """An entry in a list for people: a change with its outcome in words, the ``guard`` that limited
    it last, and the ``later`` entries about it, oldest first."""

    outcome: str
    guard: str
    later: list[DecisionEntry]


class ResourceStatus(TypedDict):
    """The state of a resource. An unknown value is null. ``changes_last_hour`` counts the changes
    of the capacity by the app."""

    name: str
    target: PlanShown
    limits: LimitsShown
    as_of: TimeText
    capacity: int | None
    capacity_at: TimeText | None
    capacity_stale: bool
    desired: DesiredShown | None
    changes_last_hour: int
    mode: Mode
    mode_reason: str
    override: OverrideShown | None
    rules: RulesShown | None
    estimate: EstimateShown | None
    metrics: list[MetricShown]
    newest: DecisionEntry | None
    spent: SpentShown | None
    unreadable: list[str]
    conditions: list[ConditionShown]


class ResourceUnreadable(TypedDict):
    """A resource whose state cannot be read, with the reason."""

    name: str
    error: str
    conditions: list[ConditionShown]


class HistoryPoint(TypedDict):
    """Capacity and metrics of one step. ``metrics`` are the highest values, beside the ``lowest``
    and the ``last`` ones. ``age_minutes`` is the age of the oldest item if all instances work.
    ``age_at_most_minutes`` is its age if they do not, where it is much higher.
    """

    time: TimeText
    capacity: int
    desired: int | None
    metrics: dict[str, float | None]
    lowest: dict[str, float | None]
    last: dict[str, float | None]
    age_minutes: float | None
    age_at_most_minutes: float | None


class History(TypedDict):
    """The points of the chart, and the entries of the log except decisions without a change."""

    as_of: TimeText
    points: list[HistoryPoint]
    events: list[DecisionEntry]
