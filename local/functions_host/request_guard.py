"""Which requests the local host answers, and the key that one carries.

It answers requests of this machine's own pages and command lines. It listens on the loopback
address only, yet every page in a browser of this machine can reach that. Such a page names its
own site as the origin; one that bound its name to 127.0.0.1 (DNS rebinding) names that name as
the host.
"""

from collections.abc import Mapping

_NAMES = ("127.0.0.1", "localhost", "[::1]")
_DEFAULT_PORT = 80  # browsers leave it out


def refusal(headers: Mapping[str, str], port: int) -> str:
    """Why a request is not answered; empty where it is."""
    host = headers.get("Host", "").lower()
    if host not in _own_addresses(port):
        return f"Host must be one of {', '.join(_own_addresses(port))}"
    origin = headers.get("Origin")
    if origin is None or origin.lower() == f"http://{host}":
        return ""
    # A page with the policy no-referrer, as the breaker's is, hides its origin from itself too;
    # only the browser can set this header.
    if origin == "null" and headers.get("Sec-Fetch-Site") == "same-origin":
        return ""
    return f"Origin must be http://{host}, or absent"


def given_key(headers: Mapping[str, str], query: Mapping[str, str]) -> str:
    """The key that a request carries; the header goes before the query, as in the real host."""
    return headers.get("x-functions-key", query.get("code", ""))


def _own_addresses(port: int) -> tuple[str, ...]:
    return tuple(f"{name}:{port}" for name in _NAMES) + (_NAMES if port == _DEFAULT_PORT else ())
