"""True event counts and sums from sampled telemetry, and whether a dip is sampling or loss."""
