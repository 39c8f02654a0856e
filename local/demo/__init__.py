"""The demo of `make run`: a replayed workload, the running system, and the live view."""
