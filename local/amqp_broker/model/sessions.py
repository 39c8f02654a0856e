"""Locks on sessions.

Source: learn.microsoft.com/azure/service-bus-messaging/message-sessions.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from local.amqp_broker.model.errors import SessionCannotBeLocked, SessionLockLost


@dataclass(slots=True, eq=False)
class SessionLock:
    """A receiver's lock on a session. Locks compare by identity."""

    session_id: str
    until: datetime


class Sessions:
    """The sessions of one queue or subscription."""

    def __init__(self, lock_duration: timedelta) -> None:
        self.lock_duration = lock_duration
        self._locks: dict[str, SessionLock] = {}

    def is_locked(self, session_id: str) -> bool:
        return session_id in self._locks

    def accept(self, session_id: str, now: datetime) -> SessionLock:
        if session_id in self._locks:
            raise SessionCannotBeLocked(f"The requested session '{session_id}' is locked.")
        lock = SessionLock(session_id, now + self.lock_duration)
        self._locks[session_id] = lock
        return lock

    def check(self, lock: SessionLock) -> None:
        if self._locks.get(lock.session_id) is not lock:
            raise SessionLockLost

    def held(self, session_id: str) -> SessionLock:
        """The current lock on a session, whichever receiver holds it."""
        if session_id not in self._locks:
            raise SessionLockLost
        return self._locks[session_id]

    def renew(self, lock: SessionLock, now: datetime) -> datetime:
        self.check(lock)
        lock.until = now + self.lock_duration
        return lock.until

    def release(self, lock: SessionLock) -> bool:
        """Release a lock. Return whether it was still held."""
        if self._locks.get(lock.session_id) is not lock:
            return False
        del self._locks[lock.session_id]
        return True

    def take_expired(self, now: datetime) -> Iterable[SessionLock]:
        """Remove and return the expired locks."""
        expired = [lock for lock in self._locks.values() if lock.until <= now]
        for lock in expired:
            del self._locks[lock.session_id]
        return expired
