"""Signed tokens for approval links: ``payload.signature``, both in unpadded base64url, with
HMAC-SHA256 (RFC 2104) over PURPOSE and the payload. A token works once, because no later incident
has the same epoch."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta

from shared.ingestion.errors import IngestionError
from shared.values.row_values import checked

KEY_BYTES_MIN = 32
TOKEN_CHARACTERS_MAX = 2048
PURPOSE = b"breaker approval 1\n"
"""Signed too, so that no other text signed with the key is an approval."""


class TokenRefused(IngestionError):
    """A token was refused, for a reason that may be shown to the holder of the link."""


@dataclass(frozen=True, slots=True)
class Approval:
    """What a token permits. ``expires_at`` is in whole seconds since 1970, UTC."""

    breaker: str
    epoch: int
    expires_at: int
    deployment: str = ""


def deployment_of(*names: str) -> str:
    """A short text that identifies a deployment by its names, whose case does not matter."""
    return hashlib.sha256("|".join(names).lower().encode()).hexdigest()[:16]


def issue(
    key: bytes, deployment: str, breaker: str, epoch: int, now: datetime, valid_for: timedelta
) -> str:
    """A token that closes the incident until it expires. Raises ValueError for a short key."""
    _check(key)
    expires_at = int((now + valid_for).timestamp())
    approval = Approval(breaker, epoch, expires_at, deployment)
    payload = json.dumps(asdict(approval), separators=(",", ":"), sort_keys=True).encode()
    return f"{_text(payload)}.{_text(_signature(key, payload))}"


def verify(
    keys: Sequence[bytes], token: str, deployment: str, breaker: str, now: datetime
) -> Approval:
    """The approval in a token that was signed with any of ``keys``. Nothing in it is parsed before
    its signature is verified. ``breaker.close`` checks the incident. Raises TokenRefused."""
    payload, signature = _parts(token)
    for key in keys:
        _check(key)
    good = [hmac.compare_digest(_signature(key, payload), signature) for key in keys]
    if not any(good):
        raise TokenRefused("the link was not signed by this app")
    approval: Approval = checked(Approval, json.loads(payload), "the approval")
    if approval.breaker != breaker:
        raise TokenRefused("the link is for another breaker")
    if approval.deployment != deployment:
        raise TokenRefused("the link is for another deployment")
    if now.timestamp() >= approval.expires_at:
        expired = datetime.fromtimestamp(approval.expires_at, UTC)
        raise TokenRefused(f"the link expired at {expired:%F %T} UTC")
    return approval


def _parts(token: str) -> tuple[bytes, bytes]:
    head, dot, tail = token.partition(".")
    if not dot or len(token) > TOKEN_CHARACTERS_MAX:
        raise TokenRefused("the link is damaged")
    return _bytes(head), _bytes(tail)


def _signature(key: bytes, payload: bytes) -> bytes:
    return hmac.new(key, PURPOSE + payload, hashlib.sha256).digest()


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise TokenRefused("the link is damaged") from None
    if _text(data) != text:
        raise TokenRefused("the link is damaged")
    return data


def _check(key: bytes) -> None:
    if len(key) < KEY_BYTES_MIN:
        raise ValueError(
            f"the approval key has {len(key)} bytes; generate one of at least {KEY_BYTES_MIN} bytes"
        )
