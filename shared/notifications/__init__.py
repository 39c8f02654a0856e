"""Notifies operators of events and lasting conditions, and limits repetitions."""
