"""Reading an event hub for real, with processes that are killed at random."""
