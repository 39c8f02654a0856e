"""An approval link closes one incident, for a while, and cannot be made up."""

from __future__ import annotations

import base64
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.ingestion.breaker.approval import Approval, TokenRefused, issue, verify
from tests.builders import NOW

KEY, OTHER = b"k" * 32, b"o" * 32
DAY = timedelta(days=1)


def token(key: bytes = KEY) -> str:
    return issue(key, "metrics", 4, NOW, DAY)


def test_a_token_says_what_it_allows() -> None:
    approval = verify([KEY], token(), "metrics", NOW)
    assert approval == Approval("metrics", 4, int((NOW + DAY).timestamp()))


def test_keys_can_be_rotated() -> None:
    assert verify([OTHER, KEY], token(), "metrics", NOW).epoch == 4
    with pytest.raises(TokenRefused, match="not signed"):
        verify([OTHER], token(), "metrics", NOW)
    with pytest.raises(TokenRefused, match="not signed"):
        verify([], token(), "metrics", NOW)


def test_it_expires_to_the_second() -> None:
    assert verify([KEY], token(), "metrics", NOW + DAY - timedelta(seconds=1))
    with pytest.raises(TokenRefused, match="expired at 2026-03-02 12:00:00 UTC"):
        verify([KEY], token(), "metrics", NOW + DAY)


def test_it_is_of_one_breaker() -> None:
    with pytest.raises(TokenRefused, match="another breaker"):
        verify([KEY], token(), "orders", NOW)


@pytest.mark.parametrize("text", ["", ".", "a", "a.b.c", "é.é", "a" * 3000 + ".b", "====.===="])
def test_what_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(TokenRefused):
        verify([KEY], text, "metrics", NOW)


def test_a_payload_of_ones_own_is_refused() -> None:
    _, signature = token().split(".")
    forged = base64.urlsafe_b64encode(b'{"breaker":"metrics","epoch":5,"expires_at":9999999999}')
    with pytest.raises(TokenRefused):
        verify([KEY], f"{forged.rstrip(b'=').decode()}.{signature}", "metrics", NOW)


@given(st.integers(0, 200), st.characters(codec="ascii"))
def test_no_character_of_a_token_can_be_changed(place: int, character: str) -> None:
    good = token()
    place %= len(good)
    changed = good[:place] + character + good[place + 1 :]
    if changed != good:
        with pytest.raises(TokenRefused):
            verify([KEY], changed, "metrics", NOW)


@given(st.text(max_size=80))
def test_any_text_is_refused_and_nothing_else_happens(text: str) -> None:
    with pytest.raises(TokenRefused):
        verify([KEY], text, "metrics", NOW)


def test_a_short_key_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        issue(b"short", "metrics", 1, NOW, DAY)
    with pytest.raises(ValueError, match="32 bytes"):
        verify([b"short"], token(), "metrics", NOW)
