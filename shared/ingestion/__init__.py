"""Event Hub ingestion: each event has exactly one recorded outcome: effect, dead letter or gap."""
