"""Secrets in texts and errors are hidden, and all other text stays readable."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy
from sqlalchemy import create_engine, text
from yarl import URL

from shared.values.redaction import TEXT_LENGTH_MAX, redact, redacted, redacting

SECRET = "hunter2/Hunter2+hunter2=="
STORAGE_KEY = "A" * 40 + "b/+9" * 11 + "xy=="
BUS_KEY = "B" * 20 + "c/+8" * 5 + "xyz="
TOKEN = "eyJ0eXAiOiJKV1QiLCJhbGc.eyJhdWQiOiJodHRwczovL.c2lnbmF0dXJl-_"

SECRETS = {
    "a storage connection string": (
        f"DefaultEndpointsProtocol=https;AccountName=shop;AccountKey={STORAGE_KEY};"
        "EndpointSuffix=core.windows.net"
    ),
    "a connection string by signature": (
        f"TableEndpoint=https://shop.table.core.windows.net;SharedAccessSignature=sv=2024&se=2027&"
        f"sig={SECRET}"
    ),
    "a Service Bus connection string": (
        f"Endpoint=sb://bus.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey={BUS_KEY}"
    ),
    "an address with a signature": f"https://shop.blob.core.windows.net/c/b?sv=2024&sig={SECRET}",
    "a signature in the middle": f"GET /c/b?sig={SECRET}&se=2027-01-01T00%3A00%3A00Z failed",
    "a signature in a quoted address": f"https%3A%2F%2Fx%3Fsv%3D2024%26sig%3D{SECRET}",
    "a signature that comes first": f"https%3a%2f%2fx%3fsig%3d{SECRET}%26sv%3d2024",
    "a key of a function in a quoted address": f"https%3A%2F%2Fx%2Fapi%2Fa%3Fcode%3D{SECRET}",
    "a key of a function after other parts": f"https%3a%2f%2fx%2fapi%3fa%3d1%26code%3d{SECRET}",
    "a quoted account key": f"https%3A%2F%2Fx%3Fa%3D1%26AccountKey%3D{SECRET}",
    "a quoted password": f"https%3A%2F%2Fx%3Fpassword%3D{SECRET}",
    "a token of a namespace": (
        f"SharedAccessSignature sr=sb%3A%2F%2Fbus&sig={SECRET}&se=1790000000&skn=n"
    ),
    "a user and a password": f"postgresql+psycopg://app:{SECRET}@db.example/ingestion",
    "a password with an @": "https://app:p@ss-hunter2@livy.example/batches",
    "a password without a user": f"redis://:{SECRET}@cache.example",
    "a token as a user": "https://ghp_hunter2hunter2@git.example/x",
    "a password in ODBC": "Driver={ODBC 18};Server=tcp:db;Uid=app;Pwd={hunter2;hunter2};",
    "a bearer token": f"401 for Bearer {TOKEN}",
    "an opaque bearer token": "the token 'Bearer dapi1234hunter2abcdef' was refused",
    "a header": f"Authorization: Basic {SECRET}",
    "a header of a proxy": f"Proxy-Authorization: Basic {SECRET}",
    "headers as a dictionary": f"{{'Host': 'x', 'Authorization': 'Basic {SECRET}', 'Accept': '*'}}",
    "headers as JSON": json.dumps({"Authorization": f"Custom abc {SECRET}"}),
    "headers as JSON in JSON": json.dumps(json.dumps({"authorization": f"Custom a {SECRET}"})),
    "a header that was cut off": "{'Authorization': 'Bearer hunter2hunt",
    "a cookie": f"Set-Cookie: AppServiceAuthSession={SECRET}; path=/",
    "a key of a function": f"https://app.azurewebsites.net/api/trends?code={SECRET}",
    "a key of a function in HTML": f'<a href="/api/trends?x=1&amp;code={SECRET}">',
    "a key of a function in a header": f"{{'x-functions-key': '{SECRET}'}}",
    "a link that closes a breaker": f"https://app/api/breakers/b?token={SECRET}",
    "a field of JSON": json.dumps({"client_secret": SECRET, "grant": "x"}),
    "a field of a form": f"grant_type=x&client_secret={SECRET}&scope=y",
    "an option": f"--input in --storage-account-key {SECRET} 'open",
    "a line of a log": f"api_key: {SECRET}",
    "what the storage service computed": (
        f"The MAC signature found in the HTTP request '{SECRET}' is not the same as any computed "
        "signature."
    ),
    "the key of an account alone": f"cannot decode {STORAGE_KEY}",
    "a token of Entra alone": f"cannot decode {TOKEN}",
}
REVEALING = ("hunter2", STORAGE_KEY, BUS_KEY, TOKEN)

HARMLESS = [
    "StoreUnavailable: table Ingestion: Cannot connect to host 127.0.0.1:10002 ssl:default",
    "The specified resource does not exist.\nRequestId:4f3a\nErrorCode:ResourceNotFound",
    "HTTP status code=404, error_code = TableNotFound",
    "PartitionKey = plan-1, RowKey = decision|0001, key = value",
    "The client '0f8f' with object id '1' does not have authorization to perform action "
    "'Microsoft.Web/serverfarms/write' over scope '/subscriptions/0/resourceGroups/a'",
    "InvalidSignature: The token has an invalid signature.",
    "the Basic tier cannot scale; Basic authentication is off",
    "Bearer authentication is needed",
    "abfss://insights@account.dfs.core.windows.net/day=1",
    "https://host.example:8443/path: no answer in time",
    "Endpoint=sb://bus.servicebus.windows.net/;SharedAccessKeyName=RootManageSharedAccessKey",
    "TrendsPassword = '': must be set",
    "password: must be set",
    "the link is no token: sign in again",
    "queue jobs: mail to anna@example.com at 12:30",
]


@pytest.mark.parametrize("text_without_secret", HARMLESS)
def test_text_without_a_secret_is_not_changed(text_without_secret: str) -> None:
    assert redacted(text_without_secret) == text_without_secret


@pytest.mark.parametrize("kind", SECRETS)
def test_a_secret_is_hidden_in_any_surrounding_text(kind: str) -> None:
    for around in ("{}", "x {} y", '{{"error": "{}"}}', "[{}]", "({})", "a\n{}\nb", "GET {}: 403"):
        clean = redacted(around.replace("{}", SECRETS[kind]))
        assert not [secret for secret in REVEALING if secret.lower() in clean.lower()], clean


@given(st.text(alphabet="sig=&?:/@ '\"\\codeBearerAuthorization-_.0{}\n", max_size=200))
def test_redacting_twice_changes_nothing_more(dirty: str) -> None:
    assert redacted(redacted(dirty)) == redacted(dirty)


LONG_PARTS = ["a", "://a:", "sig", "sig=", "a-", "Bearer ", "https://", '"', "token:", "a@", "{"]
TRICKY_PARTS = ["-", "--a-", "eyJ-", 'secret://"', "pwd:x", "sig={ "]


@pytest.mark.parametrize("part", [*LONG_PARTS, *TRICKY_PARTS])
def test_a_long_text_is_redacted_quickly(part: str) -> None:
    started = time.process_time()
    clean = redacted(part * 1_000_000)
    assert len(clean) <= TEXT_LENGTH_MAX * 2
    assert time.process_time() - started < 2


# --- errors ---------------------------------------------------------------------------------------


class Response:
    """The response of a service that repeats what it was sent."""

    status_code = 403
    reason = "Forbidden"
    headers: dict[str, str] = {"Retry-After": "7"}  # noqa: RUF012  like the class of the client

    def text(self) -> str:
        return f"<html>you sent sig={SECRET}</html>"


def http_error() -> ResourceNotFoundError:
    response: Any = Response()  # only the attributes that are read
    return ResourceNotFoundError(response=response)


def client_error() -> Exception:
    url = URL(f"https://livy.example/batches?sig={SECRET}")
    headers = CIMultiDictProxy(CIMultiDict({"Authorization": f"Basic {SECRET}"}))
    asked = aiohttp.RequestInfo(url, "GET", headers, url)
    return aiohttp.ClientResponseError(asked, (), status=403, message=f"sig={SECRET}")


def database_error() -> Exception:
    try:
        with create_engine("sqlite://").connect() as connection:
            connection.execute(text("select :x from nothing"), {"x": f"sig={SECRET}"})
    except Exception as error:
        return error
    raise AssertionError("the query must fail")


def grouped() -> Exception:
    return ExceptionGroup("two", [ValueError(f"sig={SECRET}"), http_error()])


def noted() -> Exception:
    error = ValueError("x")
    error.add_note(f"sig={SECRET}")
    return error


ERRORS: dict[str, Callable[[], Exception]] = {
    "ValueError": lambda: ValueError(f"sig={SECRET}"),
    "KeyError": lambda: KeyError(f"sig={SECRET}"),
    "FileNotFoundError": lambda: FileNotFoundError(2, f"sig={SECRET}", f"/x?sig={SECRET}"),
    "UnicodeDecodeError": lambda: UnicodeDecodeError("utf-8", f"sig={SECRET}".encode(), 0, 1, "x"),
    "ResourceNotFoundError": http_error,
    "ClientResponseError": client_error,
    "InvalidURL": lambda: aiohttp.InvalidURL(f"http://x/?sig={SECRET}"),
    "OperationalError": database_error,
    "ExceptionGroup": grouped,
    "a note": noted,
}


def printed(error: BaseException) -> str:
    """Everything that a log could print of an error."""
    return f"{error} {error!r} {error.args}" + "".join(traceback.format_exception(error))


def raised(error: Exception, **links: Exception) -> Exception:
    try:
        try:
            raise links.get("context", error)
        except Exception as first:
            if "cause" in links:
                raise error from links["cause"]
            if first is not error:
                raise error  # noqa: B904  the context is what is tested
            raise
    except Exception as caught:
        return caught


@pytest.mark.parametrize("kind", ERRORS)
def test_a_redacted_error_reveals_no_secret_in_any_form(kind: str) -> None:
    error = ERRORS[kind]()
    assert "hunter2" in printed(error)
    redact(error)
    assert "hunter2" not in printed(error)


@pytest.mark.parametrize("kind", ERRORS)
def test_the_cause_and_context_of_a_redacted_error_reveal_no_secret(kind: str) -> None:
    for link in ("cause", "context"):
        error = raised(ValueError("outer"), **{link: ERRORS[kind]()})
        redact(error)
        assert "hunter2" not in printed(error)
        assert "direct cause" in printed(error) or "During handling" in printed(error)


def test_redacting_keeps_the_class_and_the_attributes_of_an_error() -> None:
    error = http_error()
    redact(error)
    assert isinstance(error, ResourceNotFoundError)
    assert isinstance(error, HttpResponseError)
    assert type(error).__name__ == "ResourceNotFoundError"
    assert error.status_code == 403
    response: Any = error.response
    assert response.headers["Retry-After"] == "7"
    with pytest.raises(HttpResponseError, match="sig=\\*\\*\\*"):
        raise error


def test_an_error_without_a_secret_keeps_its_class_and_its_arguments() -> None:
    error = OSError(111, "refused")
    redact(error)
    assert (type(error), error.args, error.errno) == (ConnectionRefusedError, (111, "refused"), 111)


def test_an_error_that_cannot_be_printed_does_not_prevent_redacting_its_cause() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    error, cause = Unprintable(), ValueError(f"sig={SECRET}")
    error.__cause__ = cause
    redact(error)
    assert str(cause) == "sig=***"


def test_cyclic_and_long_chains_of_causes_are_redacted() -> None:
    first, second = ValueError("1"), ValueError(f"sig={SECRET}")
    first.__cause__, second.__cause__ = second, first
    redact(first)
    assert "hunter2" not in str(second)
    last: BaseException = ValueError(f"sig={SECRET}")
    for _ in range(300):
        following = ValueError(f"sig={SECRET}")
        following.__cause__, last = last, following
    redact(last)
    assert "hunter2" not in printed(last)


# --- around a class -------------------------------------------------------------------------------


@redacting
class Adapter:
    def __init__(self, wrong: str = "") -> None:
        if wrong:
            raise ValueError(wrong)

    async def read(self) -> None:
        raise ValueError(f"sig={SECRET}")

    def sync(self) -> Any:
        raise ValueError(f"sig={SECRET}")


async def test_errors_of_a_decorated_adapter_contain_no_secrets() -> None:
    with pytest.raises(ValueError, match=r"^sig=\*\*\*$"):
        await Adapter().read()
    with pytest.raises(ValueError, match=r"^sig=\*\*\*$"):
        Adapter().sync()
    with pytest.raises(ValueError, match=r"^sig=\*\*\*$"):
        Adapter(f"sig={SECRET}")
