"""Compares a rate that is set by hand, which is a claim, with what is seen. Pure.

The doubt about it grows by ``DIFFERED`` with each counted interval whose rate clearly differs, and
otherwise falls by ``AGREED``. Without counts, each minute of the regression of backlog_rate.py adds
the logarithm of how much more likely its growth is at ``LOWER`` times the setting: the cumulative
sum test (Page, Continuous Inspection Schemes, 1954). Only a lower rate is looked for, because only
a setting that is too high makes work late.

Without doubt, the regression holds nothing but the setting. A doubt lowers the rate to plan with
long before it refutes the setting: a rate that is too high costs more than one that is too low.
From ``REFUTED`` on, what is seen replaces the setting until it is changed or the doubt is 0 again.
Less than half of it is used only once ten minutes have shown that more instances help.
"""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime, timedelta

from shared.autoscaling.learning.backlog_rate import LOWER
from shared.autoscaling.policy import RateEstimate
from shared.autoscaling.state import BacklogTrend, RateClaim

REFUTED, DOUBT_MAX = 25.0, 50.0
DIFFERED, AGREED = 5.0, 0.5
DEVIATIONS, DIFFERENCE = 3.0, 0.1
"""A counted rate differs if it is off by more than so many standard errors and this share."""
START_UP_MINUTES_MIN = 1.0
"""If instances start sooner, the load that led to them rises in the same minute of the regression,
and a right setting looks too high. So the regression is not asked then."""
TOLD_INFORMATION = 2.0
"""The information in the setting, relative to its square: as if its error were 70 %."""
COUNTS_KEPT = timedelta(hours=1)
"""After so long without a count, the backlog alone is compared with a setting in force."""
LOWEST_SHARE = 0.5
SHOWN_AFTER = timedelta(minutes=10)
SHOWN_DEVIATIONS = 3.0
"""More instances help if the rate of the regression is this many standard deviations above 0."""


def planned_rate(claim: RateClaim) -> float:
    """The rate to plan with while the claim is not replaced."""
    return claim.told * math.pow(LOWER, min(claim.doubt / REFUTED, 1.0))


def with_counted_rate(claim: RateClaim, counted: RateEstimate, now: datetime) -> RateClaim:
    """The claim after one more counted interval."""
    off = abs(math.log(counted.likely / claim.told))
    differs = off > DEVIATIONS * counted.chance + DIFFERENCE
    return _with_doubt(claim, DIFFERED if differs else -AGREED, not counted.limited, now)


def with_growth(
    claim: RateClaim, before: BacklogTrend, after: BacklogTrend, now: datetime
) -> RateClaim:
    """The claim after the minutes by which the trend was updated."""
    if after.against == before.against:
        return claim
    helps = after.weighted_rate > SHOWN_DEVIATIONS * math.sqrt(after.information)
    return _with_doubt(claim, after.against - before.against, helps, now)


def _with_doubt(claim: RateClaim, step: float, helps: bool, now: datetime) -> RateClaim:
    doubt = min(max(claim.doubt + step, 0.0), DOUBT_MAX)
    if doubt <= 0:
        return RateClaim(claim.told)
    refuted_at = claim.refuted_at or (now if doubt >= REFUTED else None)
    if refuted_at and not claim.refuted_at:
        doubt = DOUBT_MAX
    shown = helps and refuted_at is not None and now >= refuted_at + SHOWN_AFTER
    return RateClaim(claim.told, doubt, claim.since or now, refuted_at, claim.shown or shown)


def undoubted(trend: BacklogTrend, told: float) -> BacklogTrend:
    """The trend whose regression holds nothing but the setting."""
    information = TOLD_INFORMATION / (told * told)
    return replace(
        trend, information=information, weighted_rate=information * told, drained=0.0, against=0.0
    )
