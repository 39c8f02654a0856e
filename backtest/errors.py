"""Errors in the user's input. The message is all that the user sees."""

from __future__ import annotations


class BacktestError(Exception):
    """The backtest cannot run on the given input. The message says what to do."""


class BadRules(BacktestError):
    """The rules file cannot be loaded, or declares invalid resources."""


class BadArena(BacktestError):
    """The options do not describe an arena in which the trace can be replayed."""


class NoHistory(BacktestError):
    """The app's records do not contain what a replay needs."""
