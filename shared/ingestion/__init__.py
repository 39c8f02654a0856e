"""Event Hub ingestion: the outcome of each event is recorded exactly once. It is the effect of its
handler, a dead letter, or a gap. A handler may be called again if its outcome was not recorded.
"""
