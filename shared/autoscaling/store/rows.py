"""Converts the state of a resource to rows of the table ``Scaling`` and back. No I/O.

The PartitionKey is the resource. RowKeys in their order: ``decision|<inverted ticks>|…`` (the
decision log, newest first), ``desired``, ``learned``, ``metric|<name>``, ``override``, ``plan``,
``profile``, ``rules`` (the version in force), ``wishes`` (recent recommendations). The keys of the
log sort before ``desired``, so the state is the range of keys from ``desired`` on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from shared.autoscaling.declaring import Mode
from shared.autoscaling.plan_facts import of_fields
from shared.autoscaling.state import (
    DESIRED_ROW,
    LEARNED_ROW,
    METRIC_PREFIX,
    OVERRIDE_ROW,
    PLAN_ROW,
    PROFILE_ROW,
    RECOMMENDATIONS_ROW,
    RULES_ROW,
    Desired,
    Learned,
    Override,
    RateClaim,
    RowValue,
    RulesInForce,
    ScalingState,
)
from shared.storage.table_requests import Row
from shared.values.calls import error_text
from shared.values.measurements import (
    CAPACITY_SANE_MAX,
    DISABLED,
    HOURS_OF_A_WEEK,
    MEASURE_MAX,
    NO_SAMPLES,
    MetricValue,
    Samples,
    WeekProfile,
    Window,
)
from shared.values.row_values import (
    MICROSECOND,
    UNIX_START,
    checked,
    json_text,
    microseconds,
    pieces,
    properties,
    utc,
    value_of,
    whole_text,
)
from shared.values.text import one_line, quoted

STATE_START = DESIRED_ROW
T = TypeVar("T")


class ScalingRowUnreadable(Exception):
    """This version cannot read a row. The message names the row, the reason, and what to do."""


def state_of(rows: Iterable[Mapping[str, Any]]) -> tuple[ScalingState, tuple[str, ...]]:
    """The state of a resource, and a message for each unreadable row that was left out. Raises
    ScalingRowUnreadable for one that decisions depend on."""
    by_key = {row["RowKey"]: row for row in rows}
    skipped: list[str] = []

    def required(key: str, read: Callable[[Mapping[str, Any]], T], absent: Any = None) -> T:
        if key not in by_key:
            return absent  # type: ignore[no-any-return]
        try:
            return read(by_key[key])
        except Exception as error:  # another version or an operator may have written anything
            advice = "deploy the version that wrote it, or correct or delete the row"
            text = f"{unreadable(by_key[key], error)}; {advice}"
            raise ScalingRowUnreadable(text) from error

    def optional(key: str, read: Callable[[Mapping[str, Any]], T]) -> T | None:
        try:
            return read(by_key[key]) if key in by_key else None
        except Exception as error:  # as above
            skipped.append(unreadable(by_key[key], error))
            return None

    profile = optional(PROFILE_ROW, profile_of)
    if profile is None and skipped:  # a seasonal floor has no effect, and reports the reason
        profile = WeekProfile((), absent=skipped[-1])
    state = ScalingState(
        {
            key.removeprefix(METRIC_PREFIX): required(key, _history)
            for key in by_key
            if key.startswith(METRIC_PREFIX)
        },
        required(DESIRED_ROW, _desired),
        override_of(by_key[OVERRIDE_ROW]) if OVERRIDE_ROW in by_key else None,
        required(RECOMMENDATIONS_ROW, _history, NO_SAMPLES),
        optional(LEARNED_ROW, _learned) or Learned(),
        profile,
        optional(RULES_ROW, _rules),  # the next decision writes it again
        optional(PLAN_ROW, of_fields),  # so does the next reading
    )
    return state, tuple(skipped)


def unreadable(row: Mapping[str, Any], error: Exception, place: str = "") -> str:
    reason = one_line(f"{place}{error_text(error)}")
    return f"row {row['RowKey']!r} of table Scaling cannot be read ({reason})"


def state_row(resource_name: str, key: str, value: RowValue) -> Row:
    keys = {"PartitionKey": resource_name, "RowKey": key}
    if isinstance(value, Window):
        return keys | pieces("samples", json_text(sample_pairs(value.samples)))
    if isinstance(value, Learned):
        claims = json_text([value.claim] if value.claim else [])
        return keys | properties(value, ("claim",)) | {"claim": claims}
    return keys | properties(value)


# --- samples ----------------------------------------------------------------------------------


def _history(row: Mapping[str, Any]) -> Window:
    return Window(samples_of(json.loads(whole_text("samples", row))))


def sample_pairs(samples: Samples) -> list[list[Any]]:
    """Each sample as its time in microseconds and its value, and its status if it has one."""
    return [
        [microseconds(each.time), each.value, *((each.status,) if each.status else ())]
        for each in samples
    ]


def samples_of(pairs: Any) -> Samples:
    """The samples of ``sample_pairs``, without values that are no measurement. Raises an exception
    if the pairs cannot be read."""
    samples = [_sample(*pair) for pair in pairs]
    if not {type(sample.value) for sample in samples} <= {float, int}:
        raise TypeError("a sample is not a number")
    return tuple([sample for sample in samples if 0 <= sample.value <= MEASURE_MAX])


def _sample(ticks: int, value: float, status: str = "", *_: object) -> MetricValue:
    return MetricValue(
        UNIX_START + ticks * MICROSECOND, value, status if status in DISABLED else ""
    )


# --- desired, what was learned, and the version of the rules ------------------------------------


def _desired(row: Mapping[str, Any]) -> Desired:
    return value_of(Desired, row, ("status", "attempts", "last_error"))


def _learned(row: Mapping[str, Any]) -> Learned:
    claims = checked(tuple[RateClaim, ...], json.loads(row.get("claim") or "[]"), "claim")
    learned = value_of(Learned, row, claim=next(iter(claims), None))
    if any(not 2 <= len(interval) <= 4 for interval in learned.work.recent):
        raise ValueError("an interval of work has neither two, three nor four numbers")
    return learned


def _rules(row: Mapping[str, Any]) -> RulesInForce:
    return value_of(RulesInForce, row, ("replaced", "other"))


# --- override, profile: written by operators and by the nightly job, so all values are checked ---


def override_of(row: Mapping[str, Any]) -> Override:
    """The override of a row. One that cannot be read pauses scaling, which is safest."""
    reason, expires_at = str(row.get("reason", "")), row.get("expires_at")
    try:
        mode = str(row.get("mode") or "")
        override = Override(
            mode=Mode(mode) if mode else None,
            reason=reason,
            expires_at=utc(expires_at) if expires_at else None,
            freeze_scale_in=_flag(row.get("freeze_scale_in")),
            floor=_whole_or_none(row.get("floor")),
            exact=_whole_or_none(row.get("exact")),
        )
        if override == Override(None, reason, override.expires_at):
            raise ValueError("none of mode, exact, floor and freeze_scale_in is set")
        return override
    except Exception as error:  # an operator may have typed anything
        return Override(Mode.PAUSED, f"the override row is not understood: {error}")


def override_row(resource_name: str, override: Override) -> Row:
    """The row of an override as the commands and the page write it."""
    row = properties(override, () if override.freeze_scale_in else ("freeze_scale_in",))
    return {"PartitionKey": resource_name, "RowKey": OVERRIDE_ROW, **row}


def _flag(value: object) -> bool:
    text = str(value or "").lower()
    if text not in ("", "true", "false"):
        raise ValueError(f"freeze_scale_in is {value!r}: it must be true or false")
    return text == "true"


def _whole_or_none(value: object) -> int | None:
    if value is None or value == "":
        return None
    number = int(str(value))
    if not 0 <= number <= CAPACITY_SANE_MAX:
        raise ValueError(f"{quoted(number)} instances: must be 0 to {CAPACITY_SANE_MAX}")
    return number


def profile_of(row: Mapping[str, Any]) -> WeekProfile:
    """The profile that the nightly job wrote, or the reason why there is none. Raises an exception
    if the row cannot be read."""
    loads = [] if row.get("absent") else json.loads(whole_text("items_per_minute", row))
    profile = value_of(WeekProfile, row, items_per_minute=tuple(map(_load_or_none, loads)))
    ZoneInfo(profile.time_zone)
    hours, weeks = len(loads), len(profile.weeks)
    if not profile.absent and (hours != HOURS_OF_A_WEEK or weeks not in (0, HOURS_OF_A_WEEK)):
        raise ValueError(
            f"items_per_minute has {hours} values and weeks has {weeks}: each must have "
            f"{HOURS_OF_A_WEEK}, except that weeks may be empty"
        )
    return profile


def _load_or_none(item: object) -> float | None:
    if item is None:
        return None
    load = float(str(item))
    if not 0 <= load <= MEASURE_MAX:
        raise ValueError(f"{load} items per minute: must be 0 to {MEASURE_MAX:g}")
    return load
