"""Nightly trends: which dates to recompute, and the runs of the job, at most one at a time for each
date.
"""
