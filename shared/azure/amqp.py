"""The arguments with which the clients of azure-eventhub and azure-servicebus connect."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

from shared.settings.amqp_transport import AmqpTransport


def amqp_options(transport: AmqpTransport, kinds: Any) -> dict[str, Any]:
    """The arguments of a client. ``kinds`` is the enumeration TransportType of its package."""
    if not transport.websockets:
        return {}
    options: dict[str, Any] = {"transport_type": kinds.AmqpOverWebsocket}
    if transport.ca_file:
        options["connection_verify"] = transport.ca_file
    if transport.proxy:
        url = urlsplit(transport.proxy)
        host = url.netloc.rpartition("@")[2].rpartition(":")[0]
        options["http_proxy"] = {
            "proxy_hostname": f"{url.scheme}://{host}",
            "proxy_port": url.port,
            "username": unquote(url.username or ""),
            "password": unquote(url.password or ""),
        }
    return options
