"""What can be wrong with what the user gave. The message is all that the user sees."""

from __future__ import annotations


class BacktestError(Exception):
    """The backtest cannot run on what it was given; the message says what to do."""


class BadRules(BacktestError):
    """The rules file cannot be loaded, or declares problems."""


class BadArena(BacktestError):
    """The options do not make an arena in which the trace can be replayed."""


class NoHistory(BacktestError):
    """The record of the app does not hold what a replay needs."""
