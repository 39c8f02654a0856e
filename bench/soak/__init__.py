"""A soak test: real processes read an event hub and are killed at random."""
