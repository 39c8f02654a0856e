"""The complete system on one machine, for demos and tests. It is never deployed."""
