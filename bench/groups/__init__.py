"""One module a group. Each has ``measure()``, which yields the group's measurements."""
