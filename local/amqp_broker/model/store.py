"""Messages that can be received, with peek-lock, settlement, dead-lettering and lifetimes.

Sources, all below learn.microsoft.com/azure/service-bus-messaging:
- message-transfers-locks-settlement: locks, and the effect of each settlement.
- service-bus-dead-letter-queues: reasons `MaxDeliveryCountExceeded`, `TTLExpiredException`.
- message-expiration: a message does not expire while it is locked.
- message-sessions: closing a session does not count as a failed delivery; losing its lock does.
"""

import heapq
from collections.abc import Callable, Iterator
from datetime import datetime
from uuid import UUID

from local.amqp_broker.model.errors import LockLost, NotAllowed, SessionLockLost
from local.amqp_broker.model.message import DeadLetter, Lock, Message
from local.amqp_broker.model.properties import QueueProperties
from local.amqp_broker.model.ready import ReadyIndex, lowest
from local.amqp_broker.model.sessions import SessionLock, Sessions

MAX_DELIVERY_COUNT_EXCEEDED = "MaxDeliveryCountExceeded"
TTL_EXPIRED = "TTLExpiredException"

NewToken = Callable[[], UUID]


class Store:
    """The messages of a queue, a subscription or a dead-letter queue.

    `dead_letters` is the store for this store's dead letters; a dead-letter queue has none.
    """

    def __init__(
        self,
        path: str,
        rules: QueueProperties,
        new_token: NewToken,
        dead_letters: "Store | None" = None,
    ) -> None:
        self.path = path
        self.rules = rules
        self.sessions = Sessions(rules.lock_duration)
        self.dead_letters = dead_letters
        self._new_token = new_token
        self._messages: dict[int, Message] = {}
        self._ready = ReadyIndex()
        self._locked: dict[UUID, Message] = {}
        self._lock_ends: list[tuple[datetime, UUID]] = []
        self._expiries: list[tuple[datetime, int]] = []

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, message: Message) -> None:
        """Add a message. Its sequence number must be new to this store."""
        message.lock = None
        self._messages[message.sequence_number] = message
        self._make_ready(message)
        if message.expires_at is not None:
            heapq.heappush(self._expiries, (message.expires_at, message.sequence_number))

    def advance(self, now: datetime) -> None:
        """Apply the expiry of locks and messages."""
        while self._lock_ends and self._lock_ends[0][0] <= now:
            _, token = heapq.heappop(self._lock_ends)
            message = self._locked.get(token)
            if message is not None and message.lock is not None and message.lock.until <= now:
                self._fail(message, now)
        for session in self.sessions.take_expired(now):
            for message in self._held_by(session):
                self._fail(message, now)
        while self._expiries and self._expiries[0][0] <= now:
            _, number = heapq.heappop(self._expiries)
            message = self._messages.get(number)
            if message is not None and message.lock is None:
                self._expire(message)

    # Receiving

    def receive(self, now: datetime, session: SessionLock | None = None) -> Message | None:
        """Lock and return the next message; None if there is none."""
        message = self._take(now, session)
        if message is not None:
            self._lock(message, now, session)
        return message

    def receive_and_delete(self, now: datetime) -> Message | None:
        """For callers in this process only: clients cannot receive this way."""
        message = self._take(now, None)
        if message is not None:
            del self._messages[message.sequence_number]
        return message

    # Settling

    def complete(self, token: UUID, now: datetime) -> None:
        message = self._settled(token, now)
        del self._messages[message.sequence_number]

    def abandon(self, token: UUID, now: datetime) -> None:
        self.locked(token, now)
        self._fail(self._locked[token], now)

    def release(self, token: UUID, now: datetime) -> None:
        """Give a message back without counting a failed delivery."""
        self._return(self._settled(token, now), now)

    def dead_letter(
        self, token: UUID, now: datetime, reason: str | None, description: str | None
    ) -> None:
        if self.dead_letters is None:
            raise NotAllowed("A message in a dead-letter queue cannot be dead-lettered.")
        self._move_to_dead_letters(self._settled(token, now), reason, description)

    def renew(self, token: UUID, now: datetime) -> datetime:
        """Extend the lock and return its end. With sessions, only the session can be renewed."""
        message = self.locked(token, now)
        if self.rules.requires_session:
            raise NotAllowed("Renew the lock of the session instead.")
        until = now + self.rules.lock_duration
        message.lock = Lock(token, until)
        heapq.heappush(self._lock_ends, (until, token))
        return until

    def locked(self, token: UUID, now: datetime) -> Message:
        """The message with this lock. Raises LockLost if the lock has expired."""
        self.advance(now)
        message = self._locked.get(token)
        if message is None:
            raise SessionLockLost if self.rules.requires_session else LockLost
        return message

    # Sessions

    def accept_session(self, now: datetime, session_id: str | None = None) -> SessionLock | None:
        """Lock the named session, or the free session whose first message is oldest.

        Returns None if no name is given and no free session has a message.
        """
        self.advance(now)
        if not self.rules.requires_session:
            raise NotAllowed(f"'{self.path}' has no sessions.")
        chosen = session_id if session_id is not None else self._next_session()
        return None if chosen is None else self.sessions.accept(chosen, now)

    def check_receivable(self, session: SessionLock | None) -> None:
        """Raise unless the receiver may receive here, given its session lock, if any."""
        if session is not None:
            self.sessions.check(session)
        elif self.rules.requires_session:
            raise NotAllowed(f"'{self.path}' requires a session receiver.")

    def renew_session(self, lock: SessionLock, now: datetime) -> datetime:
        self.advance(now)
        return self.sessions.renew(lock, now)

    def release_session(self, lock: SessionLock, now: datetime) -> None:
        """Release a session. Its locked messages are given back without a failed delivery."""
        self.advance(now)
        if self.sessions.release(lock):
            for message in self._held_by(lock):
                self._unlock(message)
                self._return(message, now)

    # Figures

    @property
    def messages(self) -> Iterator[Message]:
        return iter(self._messages.values())

    @property
    def ready_count(self) -> int:
        return len(self._ready)

    @property
    def locked_count(self) -> int:
        return len(self._locked)

    # Private steps

    def _take(self, now: datetime, session: SessionLock | None) -> Message | None:
        self.advance(now)
        self.check_receivable(session)
        number = self._ready.take(None if session is None else session.session_id)
        return None if number is None else self._messages[number]

    def _lock(self, message: Message, now: datetime, session: SessionLock | None) -> None:
        lock = Lock(self._new_token(), now + self.rules.lock_duration, session)
        message.lock = lock
        self._locked[lock.token] = message
        if session is None:
            heapq.heappush(self._lock_ends, (lock.until, lock.token))

    def _unlock(self, message: Message) -> None:
        if message.lock is not None:
            del self._locked[message.lock.token]
            message.lock = None

    def _settled(self, token: UUID, now: datetime) -> Message:
        message = self.locked(token, now)
        self._unlock(message)
        return message

    def _make_ready(self, message: Message) -> None:
        group = message.content.session_id if self.rules.requires_session else None
        self._ready.add(group, message.sequence_number)

    def _return(self, message: Message, now: datetime) -> None:
        """Make an unlocked message ready again, unless it has expired."""
        if message.expires_at is not None and message.expires_at <= now:
            self._expire(message)
        else:
            self._make_ready(message)

    def _fail(self, message: Message, now: datetime) -> None:
        """Count a failed delivery: the message was abandoned, or its lock expired."""
        self._unlock(message)
        message.delivery_count += 1
        limit = self.rules.max_delivery_count
        if limit is not None and message.delivery_count >= limit:
            description = f"Message could not be consumed after {limit} delivery attempts."
            self._move_to_dead_letters(message, MAX_DELIVERY_COUNT_EXCEEDED, description)
        else:
            self._return(message, now)

    def _expire(self, message: Message) -> None:
        if self.rules.dead_letters_expired:
            self._move_to_dead_letters(
                message, TTL_EXPIRED, "The message expired and was dead lettered."
            )
        else:
            self._remove(message)

    def _move_to_dead_letters(
        self, message: Message, reason: str | None, description: str | None
    ) -> None:
        """Dead letters keep their number, time and delivery count, and never expire."""
        self._remove(message)
        if self.dead_letters is not None:
            message.expires_at = None
            message.dead_letter = DeadLetter(reason, description, self.path)
            self.dead_letters.put(message)

    def _remove(self, message: Message) -> None:
        del self._messages[message.sequence_number]
        self._ready.discard(message.sequence_number)

    def _held_by(self, session: SessionLock) -> list[Message]:
        return [
            message
            for message in self._locked.values()
            if message.lock is not None and message.lock.session is session
        ]

    def _next_session(self) -> str | None:
        return lowest(
            (first, name)
            for first, name in self._ready.groups()
            if not self.sessions.is_locked(name)
        )
