"""What a proof does, by minute: its load, its faults, and the settings of the app. Pure.

A proof that is ``speed`` times as fast has all minutes and all waits of the app shortened by that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

RATE, START_UP, AGE_LIMIT = 60, 3, 5
"""Messages that an instance completes in a minute, minutes until it works, and the age limit."""
MINIMUM, MAXIMUM = 1, 4
BY_HAND = 2
COMPLETED = "completed"
"""The metric that the workers send to the event hub."""


class Fault(StrEnum):
    POISON = "a poison message and a poison event"
    RESTART = "the app restarted"
    BY_HAND = "a change of the plan by hand"
    STOPPED = "the workers stopped"
    NO_ROLE = "the app's role on the plan removed"
    THROTTLED = "Resource Manager throttles"


@dataclass(frozen=True, slots=True)
class Step:
    """A fault, and the minutes in which it begins and ends."""

    fault: Fault
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Script:
    """``load`` has the messages a minute from each minute on. ``quiet_from`` is the minute after
    which nothing arrives until the end."""

    minutes: int
    load: tuple[tuple[float, float], ...]
    faults: tuple[Step, ...]

    @property
    def quiet_from(self) -> float:
        return self.load[-1][0]

    def messages(self, minute: float) -> float:
        """The messages that have arrived by this minute."""
        ends = [start for start, _ in self.load[1:]] + [math.inf]
        parts = zip(self.load, ends, strict=True)
        return sum(a_minute * max(min(minute, end) - start, 0) for (start, a_minute), end in parts)


WHOLE = Script(
    120,
    load=((0, 30), (8, 150), (20, 45), (47, 240), (58, 45), (60, 0)),
    faults=(
        Step(Fault.POISON, 24, 24),
        Step(Fault.RESTART, 27, 27),
        Step(Fault.BY_HAND, 32, 32),
        Step(Fault.STOPPED, 39, 42),
        Step(Fault.NO_ROLE, 45, 58),
        Step(Fault.THROTTLED, 62, 72),
    ),
)
"""A burst, all faults, and a quiet hour. The load rises while the role is missing, so that the app
needs it."""
PART = Script(
    26,
    load=((0, 30), (2, 180), (10, 30), (13, 0)),
    faults=(
        Step(Fault.POISON, 1, 1),
        Step(Fault.NO_ROLE, 2, 8),
        Step(Fault.THROTTLED, 16, 20),
    ),
)
"""A few minutes of the same."""


def app_settings(speed: float) -> Mapping[str, str]:
    """The settings of the app. At speed 1, they are the defaults, but for limits and the rate."""

    def shortened(seconds: float, least: float = 1.0) -> str:
        return f"{max(seconds / speed, least):g}"

    def every(seconds: float) -> str:
        """A schedule: each so many seconds, at least one."""
        step = max(round(seconds / speed), 1)
        return f"*/{step} * * * * *" if step < 60 else "0 * * * * *"

    return {
        "DryRun": "false",
        "MinimumCapacity": str(MINIMUM),
        "MaximumCapacity": str(MAXIMUM),
        "InstanceRatePerMinute": f"{RATE * speed:g}",
        "DeadTimeMinutes": f"{START_UP / speed:g}",
        "AgeLimitMinutes": f"{AGE_LIMIT / speed:g}",
        "CompletedMetric": COMPLETED,
        "PlanningStepSeconds": shortened(60),
        "MetricCollectorSchedule": every(15),
        "ReconcilerSchedule": every(60),
        "IngestTailSchedule": every(60),
        "WindowSeconds": shortened(600, 10),
        "ScaleOutCooldownSeconds": shortened(600),
        "ScaleInCooldownSeconds": shortened(600),
        "ScaleChangesPerHour": f"{min(20 * speed, 10_000):.0f}",
        "ActionResendSeconds": shortened(60, 3),
        "ActionRetrySeconds": shortened(15, 0.5),
        "ActionDeadlineSeconds": shortened(600, 30),
        "FailureHoldSeconds": shortened(60),
    }
