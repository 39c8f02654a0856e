"""One module for each group. Its ``measure()`` yields the group's measurements."""
