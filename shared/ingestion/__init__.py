"""Event Hub batches to commits: every event exactly once, or accounted for."""
