"""Which requests the local host accepts, by their origin and their key."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import aiohttp
import pytest

from local.functions_host.errors import HostStartFailed
from local.functions_host.functions import Level
from local.functions_host.host import FunctionsHost
from local.functions_host.keys import Keys, new_keys, read_keys
from local.functions_host.request_guard import refusal

SAMPLE_APP = Path(__file__).parent / "sample_app"
SETTINGS = {
    "AzureWebJobsStorage": "UseDevelopmentStorage=true",
    "WorkQueue": "work",
    "OutputQueue": "work-out",
    "TickSchedule": "0 0 0 1 1 *",
}
KEYS = Keys("m" * 32)
JSON_TYPE = {"content-type": "application/json"}


@pytest.fixture
async def host() -> AsyncIterator[FunctionsHost]:
    """A host without listeners other than HTTP, so that it needs no storage."""
    async with FunctionsHost(SAMPLE_APP, settings=SETTINGS, listeners={}) as running:
        yield running


@pytest.fixture
async def http(host: FunctionsHost) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(host.url) as client:
        yield client


# --- keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/api/items/7", "/api/items/special", "/api/broken"])
async def test_a_function_with_an_auth_level_refuses_requests_without_a_valid_key(
    http: aiohttp.ClientSession, host: FunctionsHost, path: str
) -> None:
    for headers in ({}, {"x-functions-key": "x" * 32}, {"x-functions-key": ""}):
        async with http.get(path, params={"code": ""}, headers=headers) as answer:
            assert (answer.status, await answer.read()) == (401, b"")
    assert host.counts == {}


async def test_admin_refuses_requests_without_the_master_key(
    http: aiohttp.ClientSession, host: FunctionsHost
) -> None:
    for key in ("", host.keys.host, host.keys.function("work"), "x"):
        headers = {"x-functions-key": key, **JSON_TYPE}
        async with http.post("/admin/functions/work", headers=headers, data="{}") as answer:
            assert (answer.status, await answer.read()) == (401, b"")
    assert host.counts == {}


@pytest.mark.parametrize("given", ["ü", "\udcff\udcfe", "\ud800", "\0"])
@pytest.mark.parametrize("level", [Level.FUNCTION, Level.ADMIN])
def test_unusual_characters_in_a_key_are_refused_without_an_error(level: Level, given: str) -> None:
    assert not KEYS.opens(level, "item", given)


async def test_an_anonymous_function_needs_no_key(http: aiohttp.ClientSession) -> None:
    async with http.get("/api/open") as answer:
        assert (answer.status, await answer.text()) == (200, "open")


async def test_a_key_is_accepted_in_the_header_or_in_the_query(
    http: aiohttp.ClientSession, host: FunctionsHost
) -> None:
    for key in (host.keys.function("item"), host.keys.host, host.keys.master):
        async with http.get("/api/items/7", headers={"x-functions-key": key}) as answer:
            assert answer.status == 201
        async with http.get("/api/items/7", params={"code": key}) as answer:
            assert answer.status == 201
    wrong, right = {"x-functions-key": "x"}, {"code": host.keys.host}
    async with http.get("/api/items/7", headers=wrong, params=right) as answer:
        assert answer.status == 401, "the header takes precedence over the query"


@pytest.mark.parametrize(
    ("level", "open_to"),
    [
        (Level.ANONYMOUS, {"none", "another", "own", "host", "master"}),
        (Level.FUNCTION, {"own", "host", "master"}),
        (Level.ADMIN, {"master"}),
    ],
)
def test_each_auth_level_accepts_the_keys_that_the_real_host_accepts(
    level: Level, open_to: set[str]
) -> None:
    given = {
        "none": "",
        "another": KEYS.function("another"),
        "own": KEYS.function("mine"),
        "host": KEYS.host,
        "master": KEYS.master,
    }
    assert {kind for kind, key in given.items() if KEYS.opens(level, "mine", key)} == open_to


def test_all_keys_differ_and_none_appears_in_a_repr() -> None:
    keys = [KEYS.master, KEYS.host, KEYS.function("a"), KEYS.function("host"), KEYS.function("")]
    assert len(set(keys)) == len(keys)
    assert not any(key in repr(KEYS) for key in keys)


def test_keys_are_kept_in_a_file_that_only_its_owner_can_read(tmp_path: Path) -> None:
    path = tmp_path / "state" / "master_key"
    first = read_keys(path)
    assert read_keys(path) == first
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]
    assert new_keys() != new_keys()


def test_the_error_for_a_damaged_key_file_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "master_key"
    path.write_text("short")
    with pytest.raises(HostStartFailed, match=r"master_key does not hold a key .* Delete the file"):
        read_keys(path)


# --- where a request comes from -------------------------------------------------------------------

OWN = ("127.0.0.1:7071", "localhost:7071", "LOCALHOST:7071", "[::1]:7071")
FOREIGN_HOSTS = ("", "evil.example", "evil.example:7071", "127.0.0.1", "127.0.0.1:80", "localhost.")
FOREIGN_ORIGINS = (
    "https://evil.example",
    "http://evil.example:7071",
    "http://127.0.0.1:3000",
    "http://127.0.0.1",
    "https://127.0.0.1:7071",
    "http://localhost:7071",  # a different site than 127.0.0.1 to a browser
    "null",
    "",
)


@pytest.mark.parametrize("host", OWN)
def test_a_request_to_the_hosts_own_address_is_accepted(host: str) -> None:
    assert refusal({"Host": host}, 7071) == ""
    assert refusal({"Host": host, "Origin": f"http://{host}"}, 7071) == ""


def test_port_80_may_be_missing_from_an_address() -> None:
    assert refusal({"Host": "localhost", "Origin": "http://localhost"}, 80) == ""


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_a_request_with_a_foreign_host_name_is_refused(host: str) -> None:
    assert "Host" in refusal({"Host": host}, 7071)


@pytest.mark.parametrize("origin", FOREIGN_ORIGINS)
def test_a_request_from_another_site_is_refused(origin: str) -> None:
    assert "Origin" in refusal({"Host": "127.0.0.1:7071", "Origin": origin}, 7071)


def test_a_hidden_origin_is_accepted_only_if_the_browser_reports_the_same_origin() -> None:
    hidden = {"Host": "127.0.0.1:7071", "Origin": "null"}
    refusals = {site: refusal({**hidden, "Sec-Fetch-Site": site}, 7071) for site in FETCH_SITES}
    assert [site for site, reason in refusals.items() if not reason] == ["same-origin"]


FETCH_SITES = ("same-origin", "same-site", "cross-site", "none", "")


@pytest.mark.parametrize(
    "foreign", [{"Origin": "https://evil.example"}, {"Host": "evil.example:7071"}]
)
async def test_no_endpoint_of_the_host_answers_another_site(
    http: aiohttp.ClientSession, host: FunctionsHost, foreign: Mapping[str, str]
) -> None:
    headers = {"x-functions-key": host.keys.master, **JSON_TYPE, **foreign}
    for method, path in (
        ("POST", "/admin/functions/item"),
        ("POST", "/api/items/7"),
        ("GET", "/api/open"),
        ("GET", "/api/nothing"),
    ):
        async with http.request(method, path, headers=headers, data="{}") as answer:
            assert answer.status == 403, path
            assert "Access-Control-Allow-Origin" not in answer.headers
    assert host.counts == {}


async def test_admin_accepts_only_json(http: aiohttp.ClientSession, host: FunctionsHost) -> None:
    key = {"x-functions-key": host.keys.master}
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        headers = {**key, "content-type": kind}
        async with http.post("/admin/functions/work", data="{}", headers=headers) as answer:
            assert answer.status == 415
