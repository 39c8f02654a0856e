"""Nightly jobs on Spark: trends of events, corrected for sampling, from sampled telemetry."""
