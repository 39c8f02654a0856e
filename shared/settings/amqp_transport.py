"""How the app's AMQP clients reach Event Hubs and Service Bus: over TCP, or over WebSockets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]

from shared.settings.fields import Setting

TCP, WEBSOCKETS = "amqpTcp", "amqpWebSockets"
"""The names that host.json has for the transports of the triggers."""

# fmt: off
AMQP_TRANSPORT = Setting("AmqpTransport", f"{TCP} or {WEBSOCKETS}", TCP,
    "how the app and its commands reach Event Hubs and Service Bus: over port 5671, or over "
    "WebSockets, which need only port 443 and obey `HTTPS_PROXY`; the triggers have settings of "
    "their own, see [ports and proxies](security.md#ports-and-proxies)",
    "`metric_ingest`, `ingest_tail`, `dead_letter_redrive`, `telemetry_arrived`, "
    "`python -m shared`")
# fmt: on
STAND_INS = ("127.0.0.1", "localhost")
"""The hosts of stand-ins and emulators, which know no WebSockets."""
PROXY, NO_PROXY, CA_FILE = "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE"


@dataclass(frozen=True, slots=True)
class AmqpTransport:
    """``proxy`` and ``ca_file`` are empty without WebSockets."""

    websockets: bool = False
    proxy: str = field(default="", repr=False)
    """A URL, which may contain a password."""
    ca_file: str = ""
    """Trusted certificates; empty for those that come with the clients."""

    def options(self, kinds: Any) -> dict[str, Any]:
        """The arguments with which the clients of azure-eventhub and azure-servicebus connect.
        ``kinds`` is the enumeration TransportType of the package."""
        if not self.websockets:
            return {}
        options = {"transport_type": kinds.AmqpOverWebsocket}
        if self.ca_file:
            options["connection_verify"] = self.ca_file
        if self.proxy:
            url = urlsplit(self.proxy)
            host = url.netloc.rpartition("@")[2].rpartition(":")[0]
            options["http_proxy"] = {
                "proxy_hostname": f"{url.scheme}://{host}",
                "proxy_port": url.port,
                "username": unquote(url.username or ""),
                "password": unquote(url.password or ""),
            }
        return options


OVER_TCP = AmqpTransport()


def amqp_transport(environ: Mapping[str, str], host: str) -> AmqpTransport:
    """How to reach the host. Raises ValueError for the problem with the settings."""
    host = host.partition(":")[0].lower()
    name = AMQP_TRANSPORT.name
    given = environ.get(name, "").strip() or TCP
    if given.lower() not in (TCP.lower(), WEBSOCKETS.lower()):
        raise ValueError(f"{name} = {given!r}: must be one of {TCP}, {WEBSOCKETS}")
    if given.lower() == TCP.lower() or host in STAND_INS:
        return OVER_TCP
    proxy = _variable(environ, PROXY)
    if proxy_bypass_environment(host, {"no": _variable(environ, NO_PROXY)}):
        proxy = ""
    if proxy and not _is_proxy(proxy):  # it is not shown, because it may contain a password
        raise ValueError(
            f"{PROXY}: must be a URL with a port, such as http://proxy.example:8080. "
            "Special characters of a user or password are written as %XX"
        )
    return AmqpTransport(True, proxy, _variable(environ, CA_FILE))


def _variable(environ: Mapping[str, str], name: str) -> str:
    """A variable that many programs read. As in these, its name in lower case comes first."""
    return (environ.get(name.lower()) or environ.get(name, "")).strip()


def _is_proxy(text: str) -> bool:
    try:
        url = urlsplit(text)
        has_port = bool(url.hostname and url.port)
    except ValueError:
        return False
    rest = url.path.strip("/") or url.query or url.fragment
    return url.scheme in ("http", "https") and has_port and not rest and text.isprintable()
