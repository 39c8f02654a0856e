"""Nightly jobs on Spark: true trends of events from sampled telemetry."""
