"""The transport of the clients that set a limit: as little work a request as there can be."""

from __future__ import annotations

from azure.core.pipeline.transport import AioHttpTransport


def lean_transport() -> AioHttpTransport:
    """One that asks no environment for a proxy: by default each request does, in a thread."""
    return AioHttpTransport(use_env_settings=False)
