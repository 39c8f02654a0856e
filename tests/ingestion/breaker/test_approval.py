"""An approval link closes one incident, expires, and cannot be forged."""

from __future__ import annotations

import base64
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.ingestion.breaker import approval
from shared.ingestion.breaker.approval import Approval, TokenRefused, deployment_of, issue, verify
from tests.builders import NOW

KEY, OTHER = b"k" * 32, b"o" * 32
DAY = timedelta(days=1)


def token(key: bytes = KEY) -> str:
    return issue(key, "prod", "metrics", 4, NOW, DAY)


def test_a_token_names_what_it_permits() -> None:
    permitted = verify([KEY], token(), "prod", "metrics", NOW)
    assert permitted == Approval("metrics", 4, int((NOW + DAY).timestamp()), "prod")


@pytest.mark.parametrize(
    ("keys", "deployment", "breaker", "seconds", "refusal"),
    [
        pytest.param([OTHER, KEY], "prod", "metrics", 0, "", id="keys can be rotated"),
        pytest.param([OTHER], "prod", "metrics", 0, "not signed", id="another key"),
        pytest.param([], "prod", "metrics", 0, "not signed", id="no key"),
        pytest.param([KEY], "prod", "metrics", 86_399, "", id="its last second"),
        pytest.param(
            [KEY], "prod", "metrics", 86_400, "expired at 2026-03-02 12:00:00 UTC", id="expired"
        ),
        pytest.param([KEY], "prod", "orders", 0, "another breaker", id="another breaker"),
        pytest.param([KEY], "staging", "metrics", 0, "another deployment", id="another deployment"),
        pytest.param([b"short"], "prod", "metrics", 0, "32 bytes", id="a short key"),
    ],
)
def test_a_link_is_valid_for_one_breaker_of_one_deployment_until_its_exact_second(
    keys: list[bytes], deployment: str, breaker: str, seconds: float, refusal: str
) -> None:
    at = NOW + timedelta(seconds=seconds)
    if not refusal:
        assert verify(keys, token(), deployment, breaker, at).epoch == 4
        return
    with pytest.raises(ValueError if keys == [b"short"] else TokenRefused, match=refusal):
        verify(keys, token(), deployment, breaker, at)


def test_a_deployment_is_told_apart_by_each_of_its_names_but_not_by_their_case() -> None:
    names = ("ns", "hub", "$Default", "account")
    others = [(*names[:n], "other", *names[n + 1 :]) for n in range(4)]
    assert len({deployment_of(*each) for each in (names, *others)}) == 5
    assert deployment_of(*names) == deployment_of("NS", "Hub", "$default", "Account")
    assert "ns" not in deployment_of(*names)


def test_a_token_of_a_later_version_is_valid_after_a_rollback() -> None:
    later = (
        b'{"breaker":"metrics","by":"anna","deployment":"prod","epoch":4,"expires_at":9999999999}'
    )
    signed = f"{approval._text(later)}.{approval._text(approval._signature(KEY, later))}"
    assert verify([KEY], signed, "prod", "metrics", NOW) == Approval(
        "metrics", 4, 9_999_999_999, "prod"
    )


@pytest.mark.parametrize("text", ["", ".", "a", "a.b.c", "é.é", "a" * 3000 + ".b", "====.===="])
def test_a_malformed_token_is_refused(text: str) -> None:
    with pytest.raises(TokenRefused):
        verify([KEY], text, "prod", "metrics", NOW)


def test_a_forged_payload_is_refused() -> None:
    _, signature = token().split(".")
    forged = base64.urlsafe_b64encode(b'{"breaker":"metrics","epoch":5,"expires_at":9999999999}')
    with pytest.raises(TokenRefused):
        verify([KEY], f"{forged.rstrip(b'=').decode()}.{signature}", "prod", "metrics", NOW)


@given(st.integers(0, 200), st.characters(codec="ascii"))
def test_a_token_with_one_changed_character_is_refused(place: int, character: str) -> None:
    good = token()
    place %= len(good)
    changed = good[:place] + character + good[place + 1 :]
    if changed != good:
        with pytest.raises(TokenRefused):
            verify([KEY], changed, "prod", "metrics", NOW)


@given(st.text(max_size=80))
def test_arbitrary_text_is_refused_as_a_token(text: str) -> None:
    with pytest.raises(TokenRefused):
        verify([KEY], text, "prod", "metrics", NOW)


def test_no_link_is_issued_with_a_short_key() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        issue(b"short", "prod", "metrics", 1, NOW, DAY)
