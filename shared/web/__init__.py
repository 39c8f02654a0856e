"""A page for people and JSON for programs: what is scaled, what was decided, and why."""
