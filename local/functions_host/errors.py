"""What can go wrong before an app runs."""


class HostStartFailed(Exception):
    """The app cannot be started. The message says what to change, and where."""
