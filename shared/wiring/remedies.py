"""Remedies for errors of client libraries, which say what failed but not what to do about it."""

from __future__ import annotations

import re

REFUSED_HERE = re.compile(
    r"(?:Cannot connect to host |Connect call failed \(')(?:127\.0\.0\.1|localhost|::1)\D{1,4}(\d+)"
)
AZURITE_PORTS = ("10000", "10001", "10002")
UNRESOLVED = ("Name or service not known", "nodename nor servname", "failure in name resolution")
PORT_CLOSED = re.compile(
    r"(?::|, )5671\b|(?:consumer group|event hub) \S+: no answer within"
    r"|neither a batch nor an error|waiting for the AMQP link to open"
)
PROXY_REFUSED = re.compile(r"\b40[37], message='[^']*', url='http")
FORBIDDEN = ("not authorized to perform this operation", "AuthorizationFailed")


def remedy(text: str) -> str:
    """A sentence that says what to do about the error with this text; empty if none is known."""
    if refused := REFUSED_HERE.search(text):
        what = "Azurite" if refused[1] in AZURITE_PORTS else "the service"
        return (
            f"Nothing listens there: start {what}, or name the settings of a running demo "
            "(`make run` starts one)"
        )
    if any(each in text for each in UNRESOLVED):
        return "Check the spelling of the host in the settings, and the network"
    if PROXY_REFUSED.search(text):
        return "The proxy refuses: check the user and password in HTTPS_PROXY, and what it allows"
    if PORT_CLOSED.search(text):
        return (
            "If the network blocks port 5671, set AmqpTransport=amqpWebSockets, which needs port "
            "443 only (docs/security.md)"
        )
    if any(each in text for each in FORBIDDEN):
        return (
            "The login works but lacks a role: `az account show` names the account, and "
            "docs/security.md the roles"
        )
    return ""


def with_remedy(text: str, place: str = "") -> str:
    """The text on one line, with its remedy if one is known. ``place`` is where it happened, if the
    text does not say that."""
    line = " ".join(text.split())
    advice = remedy(f"{place}: {line}")
    return f"{line.rstrip('.')}. {advice}" if advice else line
