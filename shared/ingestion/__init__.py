"""Event Hub ingestion: each event is processed exactly once, dead-lettered, or recorded as gone."""
