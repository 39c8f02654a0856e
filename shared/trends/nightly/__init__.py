"""Nightly trends: which dates to recompute, and one run of the job at a time for each date."""
