"""The errors that a host raises if it cannot start or cannot load its app."""


class HostStartFailed(Exception):
    """The app cannot be started. The message states what is wrong, where, and what to change."""


class AppNotLoaded(HostStartFailed):
    """function_app.py cannot be imported. The host runs without functions, as the real one does."""
