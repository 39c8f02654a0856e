"""Decides which requests the local host answers, and reads the key from a request.

The host answers pages and command lines of this machine. It listens on the loopback address only,
but any web page in a browser on this machine can reach that address. Such a page sends its own site
as the origin. A page that binds its domain to 127.0.0.1 (DNS rebinding) sends that domain as the
host.
"""

from collections.abc import Mapping

_NAMES = ("127.0.0.1", "localhost", "[::1]")
_DEFAULT_PORT = 80  # browsers leave it out


def refusal(headers: Mapping[str, str], port: int) -> str:
    """The reason for refusing a request; empty if it is accepted."""
    host = headers.get("Host", "").lower()
    if host not in _own_addresses(port):
        return f"Host must be one of {', '.join(_own_addresses(port))}"
    origin = headers.get("Origin")
    if origin is None or origin.lower() == f"http://{host}":
        return ""
        # A page with the policy no-referrer, such as the circuit breaker's, sends the origin null
        # even to its own host. Only the browser can set Sec-Fetch-Site.
    if origin == "null" and headers.get("Sec-Fetch-Site") == "same-origin":
        return ""
    return f"Origin must be http://{host}, or absent"


def given_key(headers: Mapping[str, str], query: Mapping[str, str]) -> str:
    """The key in a request. As in the real host, the header takes precedence over the query."""
    return headers.get("x-functions-key", query.get("code", ""))


def _own_addresses(port: int) -> tuple[str, ...]:
    return tuple(f"{name}:{port}" for name in _NAMES) + (_NAMES if port == _DEFAULT_PORT else ())
