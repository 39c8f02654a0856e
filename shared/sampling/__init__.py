"""Estimates event counts and sums from sampled telemetry, and detects lost events."""
