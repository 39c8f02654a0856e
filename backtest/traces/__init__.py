"""Reads traces of traffic, for the backtest and the demo."""
