"""Nightly trends: which dates to recompute, and one run of the job for each at a time."""
