"""Azure's services over TLS on an address of this machine, which accept only the right tokens.

The app uses plain HTTP and no real credential for 127.0.0.1. For any other address it does what it
does in Azure: it asks the endpoint of its managed identity for a token for each service, and sends
it over TLS. Each service checks the audience and the expiry of the token, but not its signature.
Azurite does the same with `--oauth basic`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import random
import re
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jwt
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from local.azurite import SCRIPT, SERVICES
from local.node import find_node

IDENTITY_HEADER = "secret-of-the-identity-endpoint"
KEY = "not-checked-by-anybody-so-any-key-will-do"
START_SECONDS_MAX = 60.0
AMQP_PORT = 5671
"""The clients use this port with TLS, whatever port the address names."""
_LISTENING = re.compile(r"Azurite (\w+) service is successfully listening at (https://\S+)")


def new_host() -> str:
    """An address of this machine that no other test uses, because the port of AMQP is fixed."""
    return f"127.{random.randrange(2, 255)}.{random.randrange(256)}.{random.randrange(1, 255)}"


def new_token(audience: str, lifetime: timedelta) -> str:
    now = int(time.time())
    claims = {
        "aud": audience,
        "iss": "https://sts.windows.net/00000000-0000-0000-0000-000000000000/",
        "iat": now - 7200,
        "nbf": now - 7200,
        "exp": now + int(lifetime.total_seconds()),
    }
    return jwt.encode(claims, KEY, algorithm="HS256")


class IdentityEndpoint:
    """The endpoint of a managed identity in Azure Functions, at `url`.

    https://learn.microsoft.com/azure/app-service/overview-managed-identity#rest-endpoint-reference
    """

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.audiences_asked: set[str] = set()
        self.url = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[IdentityEndpoint]:
        app = web.Application()
        app.router.add_get("/msi/token", self._token)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{port}/msi/token"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _token(self, request: web.Request) -> web.Response:
        if request.headers.get("X-IDENTITY-HEADER") != IDENTITY_HEADER:
            return web.Response(status=401)
        if request.query.get("client_id") != self.client_id:
            return web.json_response({"message": "no such identity"}, status=400)
        resource = request.query["resource"]
        self.audiences_asked.add(resource.rstrip("/"))
        return web.json_response(
            {
                "access_token": new_token(resource, timedelta(hours=1)),
                "expires_on": str(int(time.time()) + 3600),
                "resource": resource,
                "token_type": "Bearer",
            }
        )


class Certificate:
    """A certificate for one address that signs itself, in files."""

    def __init__(self, folder: Path, host: str) -> None:
        self.host = host
        self.file, self.key_file = folder / "certificate.pem", folder / "key.pem"
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        now = datetime.now(UTC)
        alternative = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
        certificate = (
            x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(alternative, critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        self.key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.file, self.key_file)
        return context


@asynccontextmanager
async def behind_tls(port: int, certificate: Certificate, own_port: int = 0) -> AsyncIterator[int]:
    """Pass what arrives over TLS at the certificate's address on to a port of 127.0.0.1.

    Port 0 takes a free port.
    """

    connections: set[asyncio.Task[None]] = set()

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            target.write(data)
            await target.drain()
        target.close()

    async def connected(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await asyncio.gather(copy(source, writer), copy(reader, target))
        for each in (target, writer):
            each.transport.abort()
        connections.discard(task)

    server = await asyncio.start_server(
        connected, certificate.host, own_port, ssl=certificate.context()
    )
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


@asynccontextmanager
async def storage(folder: Path, certificate: Certificate) -> AsyncIterator[dict[str, str]]:
    """Azurite, which accepts tokens over TLS. The address of each service."""
    log = folder / "azurite.log"
    command = [find_node(), str(SCRIPT), "--inMemoryPersistence", "--silent", "--disableTelemetry"]
    command += ["--skipApiVersionCheck", "--oauth", "basic"]
    command += ["--cert", str(certificate.file), "--key", str(certificate.key_file)]
    command += [f"--{each}Host={certificate.host}" for each in SERVICES]
    command += [f"--{each}Port=0" for each in SERVICES]
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=output, stderr=asyncio.subprocess.STDOUT
        )
    try:
        async with asyncio.timeout(START_SECONDS_MAX):
            while len(found := _LISTENING.findall(log.read_text())) < len(SERVICES):
                assert process.returncode is None, log.read_text()
                await asyncio.sleep(0.05)
        yield {name.lower(): f"{url}/devstoreaccount1/" for name, url in found}
    finally:
        process.terminate()
        await process.wait()
