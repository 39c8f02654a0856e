"""Azure's services over TLS on 127.0.0.2, which accept a request only with the right token.

The app uses plain HTTP and no real credential for 127.0.0.1. On 127.0.0.2 it does what it does in
Azure: it asks the endpoint of its managed identity for a token for each service, and sends it over
TLS. Each service checks the audience and the expiry of the token, but not its signature. Azurite
does the same with `--oauth basic`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
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

from local.azure_apis.arm import ArmStandIn
from local.azure_apis.loopback_server import Reply, Request
from local.azure_apis.service_bus_admin import ServiceBusAdminStandIn
from local.azurite import SCRIPT, SERVICES
from local.node import find_node

HOST = "127.0.0.2"
IDENTITY_HEADER = "secret-of-the-identity-endpoint"
ANOTHER_AUDIENCE = "https://vault.azure.net"
SERVICE_BUS_AUDIENCE = "https://servicebus.azure.net"
KEY = "not-checked-by-anybody-so-any-key-will-do"
START_SECONDS_MAX = 60.0
_LISTENING = re.compile(r"Azurite (\w+) service is successfully listening at (https://\S+)")


class IdentityEndpoint:
    """The endpoint of a managed identity in Azure Functions, at `url`.

    https://learn.microsoft.com/azure/app-service/overview-managed-identity#rest-endpoint-reference
    Tokens for `wrong_for` are for another audience, or have already expired with `wrong_lifetime`,
    although the endpoint says otherwise.
    """

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.wrong_for = ""
        self.wrong_lifetime: timedelta | None = None
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
        self.audiences_asked.add(resource)
        now = int(time.time())
        audience, lifetime = resource, timedelta(hours=1)
        if resource.rstrip("/") == self.wrong_for and self.wrong_lifetime is not None:
            lifetime = self.wrong_lifetime
        elif resource.rstrip("/") == self.wrong_for:
            audience = ANOTHER_AUDIENCE
        claims = {
            "aud": audience,
            "iss": "https://sts.windows.net/00000000-0000-0000-0000-000000000000/",
            "iat": now - 7200,
            "nbf": now - 7200,
            "exp": now + int(lifetime.total_seconds()),
        }
        token = jwt.encode(claims, KEY, algorithm="HS256")
        return web.json_response(
            {
                "access_token": token,
                "expires_on": str(now + 3600),
                "resource": resource,
                "token_type": "Bearer",
            }
        )


def refusal(request: Request, audience: str) -> str:
    """Why the request's token is not accepted; empty if it is."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind != "Bearer":
        return f"{kind or 'no token'} instead of a bearer token"
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except jwt.InvalidTokenError as error:
        return f"not a token: {error}"
    if str(claims["aud"]).rstrip("/") != audience:
        return f"the token is for {claims['aud']}, not for {audience}"
    if claims["exp"] < datetime.now(UTC).timestamp():
        return "the token has expired"
    return ""


class CheckingArm(ArmStandIn):
    """Resource Manager. Its audience is its address, as in Azure."""

    audience = ""

    def handle(self, request: Request) -> Reply:
        why = refusal(request, self.audience)
        return (
            Reply(401, f'{{"error": {{"message": "{why}"}}}}') if why else super().handle(request)
        )


class CheckingServiceBus(ServiceBusAdminStandIn):
    """Administration of Service Bus, by which the app counts messages."""

    def handle(self, request: Request) -> Reply:
        why = refusal(request, SERVICE_BUS_AUDIENCE)
        if why:
            return Reply(401, f"<Error><Detail>{why}</Detail></Error>", "application/xml")
        return super().handle(request)


class Certificate:
    """A certificate for 127.0.0.2 that signs itself, in files."""

    def __init__(self, folder: Path) -> None:
        self.file, self.key_file = folder / "certificate.pem", folder / "key.pem"
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
        now = datetime.now(UTC)
        alternative = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))])
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
async def behind_tls(port: int, certificate: Certificate) -> AsyncIterator[int]:
    """Pass what arrives over TLS on a port of 127.0.0.2 on to a port of 127.0.0.1."""

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65_536):
                target.write(data)
                await target.drain()
        target.close()

    async def connected(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(source, writer), copy(reader, target))

    server = await asyncio.start_server(connected, HOST, 0, ssl=certificate.context())
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@asynccontextmanager
async def storage(folder: Path, certificate: Certificate) -> AsyncIterator[dict[str, str]]:
    """Azurite, which accepts tokens over TLS. The address of each service."""
    log = folder / "azurite.log"
    command = [find_node(), str(SCRIPT), "--inMemoryPersistence", "--silent", "--disableTelemetry"]
    command += ["--skipApiVersionCheck", "--oauth", "basic"]
    command += ["--cert", str(certificate.file), "--key", str(certificate.key_file)]
    command += [f"--{each}Host={HOST}" for each in SERVICES]
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
